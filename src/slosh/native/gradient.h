// The gradient of an embedding: from that of the quantiles of a set to those of its points, its weights and the directions.
//
// One set and a few slices at a time. The values are sorted again, with the numbers of their elements beside them; the gradient of the quantiles is
// spread to the ranks, and from there to the elements, a matrix of (elements, lanes) that stays in the caches. Its two products, with the
// directions and with the points, are added up at once, so that no matrix of elements by slices is ever in memory.
#pragma once

#include "job.h"
#include "large.h"
#include "lanes.h"
#include "network.h"
#include "tiles.h"

namespace slosh {
namespace SLOSH_ARCH {

// Features of a vector in the two products: few features need no more lanes.
SLOSH_INLINE int64_t feature_lanes(int64_t dim) {
  int64_t lanes = 4;
  while (lanes < SLOSH_LANES && lanes < dim) lanes *= 2;
  return lanes;
}

inline int64_t gradient_width(int64_t dim) { return (dim + feature_lanes(dim) - 1) / feature_lanes(dim) * feature_lanes(dim); }

// Larger sets are sorted four slices at a time.
SLOSH_INLINE int64_t gradient_lanes(const Group &group, int64_t n) {
  const int64_t lanes = group.lanes < SLOSH_LANES ? group.lanes : SLOSH_LANES;
  return n > kHuge ? 4 : lanes;
}

struct GradientScratch {
  float *few;      // for the tiles of a small set
  float *grad;     // (n_quantiles, lanes)
  float *rows;     // (n, 2 lanes) sorted keys, and beside them the numbers of their elements
  uint64_t *items;  // (2 n) for sets that the network does not sort
  float *each;     // (n, lanes) gradients of the values, by element
  double *line;    // (3 n) for one slice with weights
  float *points;   // (n, width) with zeros behind the features
  float *of_points;
};

inline size_t lay_gradient_scratch(const Gradient &job, char *memory, GradientScratch &to) {
  const int64_t n = job.sets.largest, lanes = SLOSH_LANES, full = padded(n < kHuge ? n : kHuge), high = padded(n);
  const int64_t numbers = full * lanes > high * 4 ? full * lanes : high * 4;
  size_t at = 0;
  const auto take = [&](size_t bytes) SLOSH_FLAT {
    char *here = memory ? memory + at : nullptr;
    at += (bytes + 63) / 64 * 64;
    return here;
  };
  to.few = reinterpret_cast<float *>(take(size_t(few_floats(job.sets)) * 4));
  to.grad = reinterpret_cast<float *>(take(size_t(job.sets.n_quantiles * lanes) * 4));
  to.rows = reinterpret_cast<float *>(take(size_t(numbers) * 8));
  to.items = reinterpret_cast<uint64_t *>(take(n > kRadix ? size_t(n) * 16 : 0));
  to.each = reinterpret_cast<float *>(take(size_t(numbers) * 4));
  to.line = reinterpret_cast<double *>(take(job.weighted ? size_t(n) * 24 : 0));
  const size_t rows = job.width == job.sets.dim ? 0 : size_t(n * job.width) * 4;
  to.points = reinterpret_cast<float *>(take(rows));
  to.of_points = reinterpret_cast<float *>(take(rows));
  return at;
}

SLOSH_INLINE char *aligned(void *memory) { return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t(63)); }

inline size_t gradient_bytes(const Gradient &job) {
  GradientScratch nothing;
  return lay_gradient_scratch(job, nullptr, nothing) + 64;
}

SLOSH_INLINE float number_bits(int64_t i) {
  const int32_t number = int32_t(i);
  float bits;
  std::memcpy(&bits, &number, 4);
  return bits;
}

// The number of an element beside its key; smaller than padded(n), whatever the keys are (NaN moves no numbers).
SLOSH_INLINE int64_t number_at(const float *bits) {
  int32_t number;
  std::memcpy(&number, bits, 4);
  return number;
}

// Projects a set and sorts it, lane by lane, into rows of keys and numbers of elements. Elements of weight zero come last.
template <int W> void sort_numbered(const Embedding &job, const Group &group, int64_t offset, int64_t n, const float *weights, GradientScratch &scratch) {
  typedef typename Lanes<W>::F F;
  float *rows = scratch.rows;
  if (n > kRadix) {
    for_tiles<W, 1>(job, group, offset, n, scratch.few, [&](int, int64_t i, F *x, int64_t) SLOSH_FLAT {
      for (int64_t r = 0; r < kTile; ++r) store(rows + (i + r) * 2 * W, x[r]);
    });
    for (int64_t l = 0; l < W; ++l) {
      uint64_t *items = scratch.items;
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t key = weights && !(weights[i] > 0) ? 0xffffffffu : to_ordered(rows[i * 2 * W + l] + 0.0f);
        items[i] = uint64_t(key) << 32 | uint32_t(i);
      }
      radix_sort(items, items + n, n);
      for (int64_t k = 0; k < n; ++k) {
        rows[k * 2 * W + l] = from_ordered(uint32_t(items[k] >> 32));
        rows[k * 2 * W + W + l] = number_bits(int64_t(uint32_t(items[k])));
      }
    }
    return;
  }
  int64_t height = 0;
  for_tiles<W, 1>(job, group, offset, n, scratch.few, [&](int, int64_t i, F *x, int64_t skip) SLOSH_FLAT {
    float *tile = rows + height * 2 * W;
    const bool part = skip || n < kTile || weights;
#pragma GCC unroll 16
    for (int64_t r = 0; r < kTile; ++r) {
      F key = x[r];
      int64_t number = i + r;
      if (part) {
        if (r < skip) number = n + r;  // in an earlier tile already: one of what fills up the last one
        if (number >= n || (weights && !(weights[number] > 0))) key = WeightedKey<W>::last().key;
      }
      store(tile + r * 2 * W, key);
      store(tile + r * 2 * W + W, all<F>(number_bits(number)));
    }
    sort_block<WeightedKey<W>>(tile);
    height += kTile;
  });
  merge_blocks<WeightedKey<W>>(rows, height);
}

// Equal weights: the gradients of the sorted values, a row of lanes for each rank, in place of the keys.
template <int W> void spread_average(const float *grad, float *rows, int64_t n, int64_t M) {
  typedef typename Lanes<W>::F F;
  const float unit = float(1.0 / double(n)), whole = float(double(M) / double(n));
  int64_t m = 0, end = n;  // a place is counted in units of 1 / (n M): rank k covers [k M, (k + 1) M), bin m covers [m n, (m + 1) n)
  for (int64_t k = 0; k < n; ++k, rows += 2 * W) {
    int64_t at = k * M;
    const int64_t to = at + M;
    F sum{};
    if (to <= end) {
      sum = load<F>(grad + m * W) * whole;
      at = to;
    } else {
      while (at < to) {
        const int64_t stop = to < end ? to : end;
        sum += load<F>(grad + m * W) * (float(stop - at) * unit);
        at = stop;
        if (at == end) ++m, end += n;
      }
      store(rows, sum);
      continue;
    }
    if (at == end) ++m, end += n;
    store(rows, sum);
  }
}

template <int W> void spread_linear(const float *grad, float *rows, int64_t n, int64_t M) {
  typedef typename Lanes<W>::F F;
  for (int64_t k = 0; k < n; ++k) store(rows + k * 2 * W, F{});
  for (int64_t m = 0; m < M; ++m) {
    const F g = load<F>(grad + m * W);
    const int64_t at = (m + 1) * n - M, i = at > 0 ? at / M : 0, part = at > 0 ? at % M : 0;
    float *p = rows + i * 2 * W;
    const float up = float(part) / float(M);
    store(p, load<F>(p) + g * (1.0f - up));
    if (part) store(p + 2 * W, load<F>(p + 2 * W) + g * up);
  }
}

// One slice with weights. `of_values` and `of_cuts` receive the gradients of the sorted values and of the cumulative weights (of sum 1).
inline void spread_weighted_average(const float *grad, int64_t grad_step, float *rows, int64_t step, int64_t half, const float *weights,
                                          int64_t n, double total, int64_t M, double *of_values, double *of_cuts) {
  const double width = total / double(M);
  int64_t m = 0;
  double need = width;
  for (int64_t k = 0; k < n; ++k) {
    double left = weights[number_at(rows + k * step + half)], sum = 0;
    while (left > need && m + 1 < M) {
      sum += need * double(grad[m * grad_step]);
      left -= need;
      ++m, need = width;
    }
    const double g = grad[m * grad_step];
    of_values[k] = (sum + left * g) / width;
    need -= left;
    of_cuts[k] = k + 1 < n ? g * double(M) * (double(rows[k * step]) - double(rows[(k + 1) * step])) : 0.0;
  }
}

inline void spread_weighted_linear(const float *grad, int64_t grad_step, float *rows, int64_t step, int64_t half, const float *weights, int64_t n,
                                         double total, int64_t M, double *of_values, double *of_cuts) {
  for (int64_t k = 0; k < n; ++k) of_values[k] = of_cuts[k] = 0;
  // Of equal values the lightest comes first.
  for (int64_t k = 1; k < n; ++k) {
    const float number = rows[k * step + half], w = weights[number_at(rows + k * step + half)];
    int64_t j = k;
    for (; j > 0 && rows[(j - 1) * step] == rows[k * step] && weights[number_at(rows + (j - 1) * step + half)] > w; --j)
      rows[j * step + half] = rows[(j - 1) * step + half];
    rows[j * step + half] = number;
  }
  int64_t j = 0;
  double left = 0, w = weights[number_at(rows + half)];
  for (int64_t m = 0; m < M; ++m) {
    const double t = total * double(m + 1) / double(M), g = grad[m * grad_step];
    while (j + 1 < n && (left + w < t || m + 1 == M)) left += w, w = weights[number_at(rows + ++j * step + half)];
    if (j == 0) {
      of_values[0] += g;
      continue;
    }
    double part = m + 1 == M ? 1.0 : (t - left) / w;
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    of_values[j] += g * part, of_values[j - 1] += g * (1 - part);
    const double rise = g * (double(rows[j * step]) - double(rows[(j - 1) * step])) * total / w;
    of_cuts[j] -= rise * part, of_cuts[j - 1] += rise * (part - 1);
  }
  of_cuts[n - 1] = 0;  // the last cumulative weight is 1, whatever the weights are
}

// of_points (n, width) += each (n, W) * theta (W, width), and of_directions (W, width) += each^T * points, for one vector of features.
template <int W, int V>
void multiply_back(const float *each, int64_t n, const float *points, const float *theta, int64_t width, float *of_points, double *of_directions) {
  typedef typename Lanes<V>::F F;
  if (of_directions) {
    for (int64_t from = 0; from < n; from += 256) {  // so few that float32 loses nothing that the sum would show
      const int64_t to = n < from + 256 ? n : from + 256;
      F sum[W];
#pragma GCC unroll 16
      for (int l = 0; l < W; ++l) sum[l] = F{};
      for (int64_t e = from; e < to; ++e) {
        const F x = load<F>(points + e * width);
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) sum[l] += x * each[e * W + l];
      }
#pragma GCC unroll 16
      for (int l = 0; l < W; ++l) add_lanes(of_directions + l * width, widen(sum[l]));
    }
  }
  if (!of_points) return;
  F t[W];
#pragma GCC unroll 16
  for (int l = 0; l < W; ++l) t[l] = load<F>(theta + l * width);
  for (int64_t e = 0; e < n; ++e) {
    F a = load<F>(of_points + e * width), b{};
#pragma GCC unroll 8
    for (int l = 0; l < W; l += 2) a += t[l] * each[e * W + l], b += t[l + 1] * each[e * W + l + 1];
    store(of_points + e * width, a + b);
  }
}

template <int W>
void multiply_all_back(const Gradient &job, const float *each, int64_t n, const float *points, int64_t first, float *of_points, double *of_directions) {
  const int64_t width = job.width, lanes = feature_lanes(job.sets.dim);
  const float *theta = job.directions + first * width;
  double *sums = of_directions ? of_directions + first * width : nullptr;
  for (int64_t k = 0; k < width; k += lanes) {
    float *to = of_points ? of_points + k : nullptr;
    double *sum = sums ? sums + k : nullptr;
#if SLOSH_LANES >= 16
    if (lanes == 16) {
      multiply_back<W, 16>(each, n, points + k, theta + k, width, to, sum);
      continue;
    }
#endif
#if SLOSH_LANES >= 8
    if (lanes == 8) {
      multiply_back<W, 8>(each, n, points + k, theta + k, width, to, sum);
      continue;
    }
#endif
    multiply_back<W, 4>(each, n, points + k, theta + k, width, to, sum);
  }
}

// From rows of gradients by rank, in place of the keys, to gradients by element.
template <int W> SLOSH_INLINE void scatter_rows(const float *rows, int64_t n, float *each) {
  for (int64_t k = 0; k < n; ++k) {
    const float *row = rows + k * 2 * W;
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) each[number_at(row + W + l) * W + l] = row[l];
  }
}

// What is known of one set while its slices are worked on.
struct GradientSet {
  int64_t offset, n;
  const float *weights;    // null if they are all equal, and nobody asks for their gradient
  int64_t positive;        // elements that have a weight
  double total;
  const float *points;     // (n, width)
  float *of_points;        // (n, width) or null
  double *of_weights;      // (n,) or null
};

inline GradientSet begin_set(const Gradient &job, int64_t set, GradientScratch &scratch) {
  const Embedding &sets = job.sets;
  const int64_t offset = sets.offsets[set], n = sets.offsets[set + 1] - offset, dim = sets.dim, width = job.width;
  const Weights found = look_at(sets.weights ? sets.weights + offset : nullptr, n);
  GradientSet now{offset, n, found.each, found.positive, found.total, sets.points + offset * dim, nullptr, nullptr};
  if (job.of_weights) {
    now.of_weights = scratch.line + 2 * n;
    for (int64_t i = 0; i < n; ++i) now.of_weights[i] = 0;
    if (!now.weights) {  // all equal: look_at has not summed them
      now.weights = sets.weights + offset, now.total = 0;
      for (int64_t i = 0; i < n; ++i) now.total += double(now.weights[i]);
    }
  }
  if (job.of_points) now.of_points = width == dim ? job.of_points + offset * dim : scratch.of_points;
  if (now.of_points) std::memset(now.of_points, 0, size_t(n * width) * 4);
  if (width != dim) {
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(scratch.points + i * width, now.points + i * dim, size_t(dim) * 4);
      std::memset(scratch.points + i * width + dim, 0, size_t(width - dim) * 4);
    }
    now.points = scratch.points;
  }
  return now;
}

inline void end_set(const Gradient &job, const GradientSet &now) {
  const int64_t dim = job.sets.dim, width = job.width;
  if (now.of_points && width != dim)
    for (int64_t i = 0; i < now.n; ++i) std::memcpy(job.of_points + (now.offset + i) * dim, now.of_points + i * width, size_t(dim) * 4);
  if (now.of_weights)
    for (int64_t i = 0; i < now.n; ++i) job.of_weights[now.offset + i] = float(now.of_weights[i]);
}

// One slice with weights: from gradients by rank, of values and of cumulative weights, to gradients by element. The gradients of the cuts are
// changed.
inline void scatter_weighted(const GradientSet &now, const float *rows, int64_t step, int64_t half, const double *of_values, double *of_cuts, float *each,
                             int64_t each_step) {
  for (int64_t k = 0; k < now.positive; ++k) each[number_at(rows + k * step + half) * each_step] = float(of_values[k]);
  if (!now.of_weights) return;
  double sum = 0, mean = 0;
  for (int64_t k = now.positive - 1; k >= 0; --k) {  // each weight moves all cuts from its own on
    sum += of_cuts[k], of_cuts[k] = sum;
    mean += sum * double(now.weights[number_at(rows + k * step + half)]);
  }
  mean /= now.total;
  for (int64_t k = 0; k < now.positive; ++k) now.of_weights[number_at(rows + k * step + half)] += (of_cuts[k] - mean) / now.total;
}

// W slices of one set.
template <int W> void gradient_part(const Gradient &job, const Group &group, int64_t set, const GradientSet &now, double *of_directions, GradientScratch &scratch) {
  typedef typename Lanes<W>::F F;
  const Embedding &sets = job.sets;
  const int64_t n = now.n, M = sets.n_quantiles;
  const float *from = job.grad + set * job.grad_step + group.first * M;
  float *grad = scratch.grad, *rows = scratch.rows, *each = scratch.each;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t l = 0; l < W; ++l) grad[m * W + l] = l < group.count ? from[l * M + m] * sets.scale : 0.0f;
  sort_numbered<W>(sets, group, now.offset, n, now.weights, scratch);
  if (!now.weights) {
    if (sets.rule == Rule::average)
      spread_average<W>(grad, rows, n, M);
    else
      spread_linear<W>(grad, rows, n, M);
    scatter_rows<W>(rows, n, each);
  } else {
    for (int64_t i = 0; i < n; ++i) store(each + i * W, F{});
    double *of_values = scratch.line, *of_cuts = scratch.line + n;
    for (int64_t l = 0; l < group.count; ++l) {
      (sets.rule == Rule::average ? spread_weighted_average : spread_weighted_linear)(
          grad + l, W, rows + l, 2 * W, W, now.weights, now.positive, now.total, M, of_values, of_cuts);
      scatter_weighted(now, rows + l, 2 * W, W, of_values, of_cuts, each + l, W);
    }
  }
  multiply_all_back<W>(job, each, n, now.points, group.first, now.of_points, of_directions);
}

// Calls part(W, lanes of a group as a group) for all slices, as many at a time as a vector has lanes; fewer for a set of very many elements.
template <class Part> SLOSH_INLINE void for_parts(const Embedding &job, int64_t n, Part part) {
  for (int64_t g = 0; g < job.n_groups; ++g) {
    const Group &group = job.groups[g];
    const int64_t lanes = gradient_lanes(group, n);
    for (int64_t l = 0; l < group.count; l += lanes) part(lanes, part_of(group, l, lanes));
  }
}

// All slices of the sets of one block; what they add to the directions goes to the block's own sums.
inline void gradient(const Gradient &job, int64_t block, void *memory) {
  GradientScratch scratch;
  lay_gradient_scratch(job, aligned(memory), scratch);
  double *of_directions = job.of_directions ? job.of_directions + block * job.block_step : nullptr;
  for (int64_t set = job.blocks[block]; set < job.blocks[block + 1]; ++set) {
    const GradientSet now = begin_set(job, set, scratch);
    for_parts(job.sets, now.n, [&](int64_t lanes, const Group &part) {
#if SLOSH_LANES >= 16
      if (lanes == 16) return gradient_part<16>(job, part, set, now, of_directions, scratch);
#endif
#if SLOSH_LANES >= 8
      if (lanes == 8) return gradient_part<8>(job, part, set, now, of_directions, scratch);
#endif
      (void)lanes;
      gradient_part<4>(job, part, set, now, of_directions, scratch);
    });
    end_set(job, now);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
