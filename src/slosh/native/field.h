// The distance field: the distance from each of a number of anchors to the nearest element of a set.
//
// Anchors are lanes. The distances of a few elements to the anchors of a block are computed together, from differences: |a|^2 - 2ax + |x|^2 would take
// half the arithmetic, and lose the digits of a small distance between points far from zero. A distance is one chain of additions over the features, in
// one place of the code, so that it has the same bits wherever the element stands; and a minimum does not depend on the order.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int kFieldVectors = SLOSH_LANES >= 16 ? 4 : 2;  // vectors of anchors of a block: with kFieldPoints, as many sums as registers hold
constexpr int kFieldPoints = 4;                           // elements that are worked on together
constexpr int64_t kFieldAnchors = kFieldVectors * SLOSH_LANES;

// D features, or as many as the job says if D is 0.
template <int D> void field_of(const Field &job, int64_t set, int64_t block) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  const int64_t dim = D ? D : job.dim, n = job.offsets[set + 1] - job.offsets[set];
  const float *points = job.points + job.offsets[set] * dim, *anchors = job.anchors + block * dim * kFieldAnchors;
  const float *weights = job.weights ? job.weights + job.offsets[set] : nullptr;
  F least[kFieldVectors];
  for (int v = 0; v < kFieldVectors; ++v) least[v] = all<F>(__builtin_inff());
  const float *x[kFieldPoints];
  for (int64_t i = 0; i < n;) {
    if (!weights && i + kFieldPoints <= n) {
      for (int r = 0; r < kFieldPoints; ++r) x[r] = points + (i + r) * dim;
      i += kFieldPoints;
    } else {  // what counts of the rest; too few are repeated, which changes no minimum
      int filled = 0;
      for (; i < n && filled < kFieldPoints; ++i)
        if (!weights || weights[i] > 0) x[filled++] = points + i * dim;
      if (!filled) break;
      for (int r = filled; r < kFieldPoints; ++r) x[r] = x[0];
    }
    F square[kFieldPoints][kFieldVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kFieldVectors; ++v) {
      const F a = load<F>(anchors + v * SLOSH_LANES);
#pragma GCC unroll 4
      for (int r = 0; r < kFieldPoints; ++r) {
        const F away = a - x[r][0];
        square[r][v] = away * away;
      }
    }
    for (int64_t k = 1; k < dim; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kFieldVectors; ++v) {
        const F a = load<F>(anchors + k * kFieldAnchors + v * SLOSH_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < kFieldPoints; ++r) {
          const F away = a - x[r][k];
          square[r][v] += away * away;
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kFieldVectors; ++v)
#pragma GCC unroll 4
      for (int r = 0; r < kFieldPoints; ++r) least[v] = lower(least[v], square[r][v]);
  }
  float roots[kFieldAnchors];
  for (int v = 0; v < kFieldVectors; ++v) store(roots + v * SLOSH_LANES, least[v]);
  for (int64_t l = 0; l < kFieldAnchors; ++l) roots[l] = __builtin_sqrtf(roots[l]);
  const int64_t first = block * kFieldAnchors, count = job.n_anchors - first < kFieldAnchors ? job.n_anchors - first : kFieldAnchors;
  std::memcpy(job.out + set * job.out_step + first, roots, size_t(count) * sizeof(float));
}

inline void field(const Field &job, int64_t set, int64_t block) {
  switch (job.dim) {
    case 1: return field_of<1>(job, set, block);
    case 2: return field_of<2>(job, set, block);
    case 3: return field_of<3>(job, set, block);
    default: return field_of<0>(job, set, block);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
