// Dense layers of a network: y = f(W x + b) for many rows x, f(z) = z where z > 0 and slope * z elsewhere.
//
// Outputs are lanes, in panels of 64 whose weights lie one input after the other (native/dense.py lays them out). A few rows are worked on together, with
// as many sums as the registers hold. An output is one chain of multiply-adds over the inputs, which begins with its bias, in one place of the code: it has
// the same bits wherever the row stands. Rows that are missing from the last few are repeated, and not written.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int kDenseVectors = SLOSH_LANES >= 16 ? 4 : 2;
constexpr int kDenseRows = 6;

// Rows `first` to `last` of the panel.
inline void dense(const Dense &job, int64_t panel, int64_t first, int64_t last) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  constexpr int kWidth = kDenseVectors * SLOSH_LANES;
  static_assert(kDensePanel % kWidth == 0, "a panel is a number of blocks");
  const float *weights = job.weights + panel * job.dim * kDensePanel, *bias = job.bias + panel * kDensePanel;
  const int64_t count = job.n_outputs - panel * kDensePanel < kDensePanel ? job.n_outputs - panel * kDensePanel : kDensePanel;
  for (int64_t i = first; i < last; i += kDenseRows) {
    const float *x[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) x[r] = job.rows + (i + r < last ? i + r : last - 1) * job.dim;
    for (int64_t lane = 0; lane < count; lane += kWidth) {
      F sum[kDenseRows][kDenseVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kDenseVectors; ++v)
#pragma GCC unroll 6
        for (int r = 0; r < kDenseRows; ++r) sum[r][v] = load<F>(bias + lane + v * SLOSH_LANES);
      const float *w = weights + lane;
      for (int64_t k = 0; k < job.dim; ++k, w += kDensePanel) {
        F t[kDenseVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kDenseVectors; ++v) t[v] = load<F>(w + v * SLOSH_LANES);
#pragma GCC unroll 6
        for (int r = 0; r < kDenseRows; ++r)
#pragma GCC unroll 4
          for (int v = 0; v < kDenseVectors; ++v) sum[r][v] += t[v] * x[r][k];
      }
      const int64_t left = count - lane < kWidth ? count - lane : kWidth;
#pragma GCC unroll 6
      for (int r = 0; r < kDenseRows; ++r) {
        if (i + r >= last) continue;
        float y[kWidth];
#pragma GCC unroll 4
        for (int v = 0; v < kDenseVectors; ++v) store(y + v * SLOSH_LANES, upper(sum[r][v], F{}) + job.slope * lower(sum[r][v], F{}));
        std::memcpy(job.out + (i + r) * job.n_outputs + panel * kDensePanel + lane, y, size_t(left) * sizeof(float));
      }
    }
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
