// The gradient of the mean, over the slices, of the squared distance of two sets by one-dimensional transport: the integral of (Q_a - Q_b)^2.
//
// Both sets are sorted again, with the numbers of their elements, and walked through together: where element i of the one faces element j of the
// other for a share w of the mass, their values get 2 w (a_i - b_j) and its negative. See gradient.h for what becomes of it.
#pragma once

#include "gradient.h"

namespace slosh {
namespace SLOSH_ARCH {

// Equal weights on both sides: the gradients take the place of the keys. A place is counted in units of 1 / (n m).
template <int W> void spread_transport(float *a, int64_t n, float *b, int64_t m, float scale) {
  typedef typename Lanes<W>::F F;
  const double unit = 2.0 * double(scale) / (double(n) * double(m));
  int64_t i = 0, j = 0, at = 0;
  F x = load<F>(a), y = load<F>(b), of_x{}, of_y{};
  while (true) {
    const int64_t end_a = (i + 1) * m, end_b = (j + 1) * n, end = end_a < end_b ? end_a : end_b;
    const F d = (x - y) * float(double(end - at) * unit);
    of_x += d, of_y -= d;
    at = end;
    if (end == end_a) {
      store(a + i * 2 * W, of_x);
      if (++i < n) x = load<F>(a + i * 2 * W);
      of_x = F{};
    }
    if (end == end_b) {
      store(b + j * 2 * W, of_y);
      if (++j == m) break;
      y = load<F>(b + j * 2 * W);
      of_y = F{};
    }
  }
}

// One slice of a side with weights, or of one that faces such a side.
struct WeightedSlice {
  const float *rows;       // keys, `step` apart, and `half` behind each the number of its element
  int64_t step, half;
  const float *weights;    // null: all equal
  int64_t count;           // elements that have a weight
  double total;
  double *of_values, *of_cuts;

  SLOSH_INLINE double value(int64_t k) const { return double(rows[k * step]); }
  SLOSH_INLINE double share(int64_t k) const { return (weights ? double(weights[number_at(rows + k * step + half)]) : 1.0) / total; }
};

// What rounding may leave of a share. Where both sides have a cut, the gradient is that of what is left of it, whatever was rounded.
constexpr double kRounding = 1e-12;

inline void spread_weighted_transport(const WeightedSlice &a, const WeightedSlice &b, double scale) {
  int64_t i = 0, j = 0;
  double left_a = a.share(0), left_b = b.share(0);
  for (int64_t k = 0; k < a.count; ++k) a.of_values[k] = a.of_cuts[k] = 0;
  for (int64_t k = 0; k < b.count; ++k) b.of_values[k] = b.of_cuts[k] = 0;
  while (true) {
    // The last elements take what rounding leaves over.
    const bool last_a = i + 1 == a.count, last_b = j + 1 == b.count;
    const double move = last_a && !last_b ? left_b : last_b && !last_a ? left_a : left_a < left_b ? left_a : left_b;
    const double d = a.value(i) - b.value(j);
    a.of_values[i] += 2 * scale * move * d, b.of_values[j] -= 2 * scale * move * d;
    if (last_a && last_b) break;
    left_a -= move, left_b -= move;
    const bool next_a = !last_a && (last_b || left_a <= kRounding), next_b = !last_b && (last_a || left_b <= kRounding);
    if (next_a) {
      const double following = a.value(i + 1) - b.value(j);
      a.of_cuts[i] = scale * (d * d - following * following);
    }
    if (next_b) {
      const double following = a.value(i) - b.value(j + 1);
      b.of_cuts[j] = scale * (d * d - following * following);
    }
    if (next_a) left_a = a.share(++i);
    if (next_b) left_b = b.share(++j);
  }
}

template <int W>
void transport_part(const TransportGradient &job, const Group &group, float scale, const GradientSet &a, const GradientSet &b, double *of_directions,
                    GradientScratch &scratch_a, GradientScratch &scratch_b) {
  typedef typename Lanes<W>::F F;
  sort_numbered<W>(job.a.sets, group, a.offset, a.n, a.weights, scratch_a);
  sort_numbered<W>(job.b.sets, group, b.offset, b.n, b.weights, scratch_b);
  if (!a.weights && !b.weights) {
    spread_transport<W>(scratch_a.rows, a.n, scratch_b.rows, b.n, scale);
    scatter_rows<W>(scratch_a.rows, a.n, scratch_a.each);
    scatter_rows<W>(scratch_b.rows, b.n, scratch_b.each);
  } else {
    const auto slice = [](const GradientSet &side, const GradientScratch &scratch, int64_t l) SLOSH_FLAT {
      return WeightedSlice{scratch.rows + l, 2 * W, W, side.weights, side.positive, side.total, scratch.line, scratch.line + side.n};
    };
    for (int64_t i = 0; i < a.n; ++i) store(scratch_a.each + i * W, F{});
    for (int64_t i = 0; i < b.n; ++i) store(scratch_b.each + i * W, F{});
    for (int64_t l = 0; l < group.count; ++l) {
      const WeightedSlice x = slice(a, scratch_a, l), y = slice(b, scratch_b, l);
      spread_weighted_transport(x, y, double(scale));
      scatter_weighted(a, x.rows, x.step, x.half, x.of_values, x.of_cuts, scratch_a.each + l, W);
      scatter_weighted(b, y.rows, y.step, y.half, y.of_values, y.of_cuts, scratch_b.each + l, W);
    }
  }
  multiply_all_back<W>(job.a, scratch_a.each, a.n, a.points, group.first, a.of_points, of_directions);
  multiply_all_back<W>(job.b, scratch_b.each, b.n, b.points, group.first, b.of_points, of_directions);
}

inline size_t transport_gradient_bytes(const TransportGradient &job) { return gradient_bytes(job.a) + gradient_bytes(job.b); }

// All slices of the pairs of one block: set i of a and set i of b.
inline void transport_gradient(const TransportGradient &job, int64_t block, void *memory) {
  GradientScratch scratch_a, scratch_b;
  const size_t used = lay_gradient_scratch(job.a, aligned(memory), scratch_a);
  lay_gradient_scratch(job.b, aligned(memory) + used, scratch_b);
  double *of_directions = job.a.of_directions ? job.a.of_directions + block * job.a.block_step : nullptr;
  for (int64_t set = job.a.blocks[block]; set < job.a.blocks[block + 1]; ++set) {
    const GradientSet a = begin_set(job.a, set, scratch_a), b = begin_set(job.b, set, scratch_b);
    const float scale = float(job.grad[set] / double(job.a.sets.n_slices));
    for_parts(job.a.sets, a.n > b.n ? a.n : b.n, [&](int64_t lanes, const Group &part) {
#if SLOSH_LANES >= 16
      if (lanes == 16) return transport_part<16>(job, part, scale, a, b, of_directions, scratch_a, scratch_b);
#endif
#if SLOSH_LANES >= 8
      if (lanes == 8) return transport_part<8>(job, part, scale, a, b, of_directions, scratch_a, scratch_b);
#endif
      (void)lanes;
      transport_part<4>(job, part, scale, a, b, of_directions, scratch_a, scratch_b);
    });
    end_set(job.a, a);
    end_set(job.b, b);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
