// Exact one-dimensional transport between two sorted slices, for any sizes and weights: the integral of (Q_a - Q_b)^2.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// Equal weights: both quantile functions step at the same places in every slice, so the lanes are the slices. A place is counted in
// units of 1 / (n * m). Returns the sum over `count` <= W slices.
template <int W> double transport_lanes(const float *a, int64_t n, const float *b, int64_t m, int64_t step, int64_t count) {
  typedef typename Lanes<W>::F F;
  double total = 0;
  int64_t i = 0, j = 0, at = 0;
  const double unit = 1.0 / (double(n) * double(m));
  while (i < n) {
    F sum{};
    for (int block = 0; block < 32 && i < n; ++block) {
      const int64_t end_a = (i + 1) * m, end_b = (j + 1) * n;
      const int64_t end = end_a < end_b ? end_a : end_b;
      F x{}, y{};
      if (count == W) {
        x = load<F>(a + i * step), y = load<F>(b + j * step);
      } else {
        std::memcpy(&x, a + i * step, size_t(count) * 4), std::memcpy(&y, b + j * step, size_t(count) * 4);
      }
      const F d = x - y;
      sum += d * d * float(double(end - at) * unit);
      at = end;
      i += end == end_a, j += end == end_b;
    }
    float lane[W];
    store(lane, sum);
    for (int l = 0; l < W; ++l) total += double(lane[l]);
  }
  return total;
}

// One slice with weights on either side; a missing weight array means equal weights.
inline double transport_weighted(const float *a, const float *wa, int64_t n, const float *b, const float *wb, int64_t m, int64_t step) {
  double total_a = 0, total_b = 0;
  for (int64_t i = 0; i < n; ++i) total_a += wa ? double(wa[i * step]) : 1.0;
  for (int64_t j = 0; j < m; ++j) total_b += wb ? double(wb[j * step]) : 1.0;
  int64_t i = 0, j = 0;
  double left_a = (wa ? double(wa[0]) : 1.0) / total_a, left_b = (wb ? double(wb[0]) : 1.0) / total_b, sum = 0;
  while (true) {
    const double move = left_a < left_b ? left_a : left_b;
    const double d = double(a[i * step]) - double(b[j * step]);
    sum += move * d * d;
    left_a -= move, left_b -= move;
    if (left_a <= 0) {
      if (++i == n) break;
      left_a = (wa ? double(wa[i * step]) : 1.0) / total_a;
    }
    if (left_b <= 0) {
      if (++j == m) break;
      left_b = (wb ? double(wb[j * step]) : 1.0) / total_b;
    }
  }
  return sum;
}

inline void transport(const Transport &job, int64_t pair) {
  const int64_t L = job.n_slices, s = job.pairs[2 * pair], t = job.pairs[2 * pair + 1];
  const int64_t n = job.a_offsets[s + 1] - job.a_offsets[s], m = job.b_offsets[t + 1] - job.b_offsets[t];
  const int64_t from_a = job.a_offsets[s] * L, from_b = job.b_offsets[t] * L;
  double sum = 0;
  if (job.a_weights || job.b_weights) {
    for (int64_t l = 0; l < L; ++l)
      sum += transport_weighted(job.a + from_a + l, job.a_weights ? job.a_weights + from_a + l : nullptr, n, job.b + from_b + l,
                                job.b_weights ? job.b_weights + from_b + l : nullptr, m, L);
  } else {
    for (int64_t l = 0; l < L; l += SLOSH_LANES)
      sum += transport_lanes<SLOSH_LANES>(job.a + from_a + l, n, job.b + from_b + l, m, L, L - l < SLOSH_LANES ? L - l : SLOSH_LANES);
  }
  job.out[pair] = sum / double(L);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
