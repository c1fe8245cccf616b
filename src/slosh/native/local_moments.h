// Moments of neighbourhoods, and what is told from them: how far the neighbours extend along their principal axes, where their mean is, and in which
// direction they extend least. All in double; several matrices at a time, one in each lane.
#pragma once

#include <cmath>

#include "lanes.h"
#include "local_tree.h"

namespace slosh {
namespace SLOSH_ARCH {
namespace local {

constexpr int kMoments = 10;  // weight, three means, six products
constexpr int kQueries = 8;   // queries whose eigenvalues are computed together

// The sums over the neighbours within `limit` of the weight, the coordinates and their products, each `step` doubles from the one before.
template <int D> SLOSH_INLINE void sum_moments(const Neighbors &near, float limit, double *out, int step) {
  constexpr int W = SLOSH_LANES / 2 < 4 ? 4 : SLOSH_LANES / 2;
  typedef typename Lanes<W>::F F;
  typedef typename Lanes<W>::D Wide;
  Wide sum[1 + D + D * (D + 1) / 2] = {};
  for (int64_t i = 0; i < near.count; i += W) {
    const F weight = load<F>(near.square + i) <= limit ? load<F>(near.weight + i) : F{};
    const Wide w = widen(weight);
    Wide x[D];
    for (int k = 0; k < D; ++k) x[k] = widen(load<F>(near.x[k] + i));
    sum[0] += w;
    int at = 1 + D;
    for (int k = 0; k < D; ++k) {
      const Wide wx = w * x[k];
      sum[1 + k] += wx;
      for (int j = k; j < D; ++j) sum[at++] += wx * x[j];
    }
  }
  for (int s = 0; s < 1 + D + D * (D + 1) / 2; ++s) {
    double lane[W], total = 0;
    store(lane, sum[s]);
    for (int l = 0; l < W; ++l) total += lane[l];
    out[s * step] = total;
  }
}

#if SLOSH_LANES >= 16
typedef Lanes<8>::D Some;
SLOSH_INLINE Some root(const Some &x) { return _mm512_maskz_sqrt_pd(0xFF, x); }  // the plain one has GCC 12 warn of itself
#elif SLOSH_LANES >= 8
typedef Lanes<4>::D Some;
SLOSH_INLINE Some root(const Some &x) { return _mm256_sqrt_pd(x); }
#else
typedef Lanes<2>::D Some;
SLOSH_INLINE Some root(const Some &x) { return Some{std::sqrt(x[0]), std::sqrt(x[1])}; }
#endif
constexpr int kSome = int(sizeof(Some) / sizeof(double));

SLOSH_INLINE Some absolute(const Some &x) { return x < 0 ? -x : x; }

template <int D> SLOSH_INLINE bool is_diagonal(const Some (&a)[D][D]) {
  Some rest{}, trace{};
  for (int p = 0; p < D; ++p) {
    trace += a[p][p];
    for (int q = p + 1; q < D; ++q) rest += a[p][q] * a[p][q];
  }
  const auto good = rest <= 1e-32 * trace * trace;
  for (int l = 0; l < kSome; ++l)
    if (!good[l]) return false;
  return true;
}

// Eigenvalues, on the diagonal, and eigenvectors, in columns of v, of symmetric matrices, one in each lane, by Jacobi's rotations. In two dimensions
// one is enough; in three, three or four sweeps leave nothing that a double shows.
template <int D> SLOSH_INLINE void diagonalize(Some (&a)[D][D], Some (&v)[D][D]) {
  const Some one = Some{} + 1.0, tiny = Some{} + 1e-300;
  for (int i = 0; i < D; ++i)
    for (int j = 0; j < D; ++j) v[i][j] = i == j ? one : Some{};
  for (int sweep = 0; sweep < (D == 2 ? 1 : 8) && !is_diagonal<D>(a); ++sweep)
    for (int p = 0; p < D - 1; ++p)
      for (int q = p + 1; q < D; ++q) {
        const Some gap = a[q][q] - a[p][p], twice = 2.0 * a[p][q];
        const Some size = absolute(gap) + root(gap * gap + twice * twice) + tiny;
        const Some t = (gap < 0 ? -twice : twice) / size;
        const Some c = 1.0 / root(one + t * t), s = t * c;
        a[p][p] -= t * a[p][q];
        a[q][q] += t * a[p][q];
        a[p][q] = a[q][p] = Some{};
        for (int k = 0; k < D; ++k) {
          if (k != p && k != q) {
            const Some x = a[p][k], y = a[q][k];
            a[p][k] = a[k][p] = c * x - s * y;
            a[q][k] = a[k][q] = s * x + c * y;
          }
          const Some x = v[k][p], y = v[k][q];
          v[k][p] = c * x - s * y;
          v[k][q] = s * x + c * y;
        }
      }
}

// From the sums of kQueries neighbourhoods, [kMoments][kQueries], the columns of each, [2 D + 1][kQueries]: roots of the eigenvalues of the covariance, largest
// first; the distance of the mean; the direction of the smallest without sign. Where several eigenvalues are the smallest, but for rounding, any
// direction of their space would do: each component is then the root of the mean square over all of them.
template <int D> void describe(const double *moments, double rounding, double *out) {
  for (int first = 0; first < kQueries; first += kSome) {
    const double *from = moments + first;
    const auto get = [&](int s) SLOSH_FLAT { return load<Some>(from + s * kQueries); };
    const auto put = [&](int s, const Some &x) SLOSH_FLAT { store(out + s * kQueries + first, x); };
    const Some share = 1.0 / get(0);
    Some mean[D], a[D][D], v[D][D], offset{};
    for (int k = 0; k < D; ++k) mean[k] = get(1 + k) * share, offset += mean[k] * mean[k];
    int at = 1 + D;
    for (int k = 0; k < D; ++k)
      for (int j = k; j < D; ++j) a[k][j] = a[j][k] = get(at++) * share - mean[k] * mean[j];
    diagonalize<D>(a, v);
    Some value[D];
    for (int k = 0; k < D; ++k) {
      value[k] = a[k][k] > 0 ? a[k][k] : Some{};
      for (int j = 0; j < D; ++j) v[k][j] *= v[k][j];
    }
    const auto order = [&](int i, int j) SLOSH_FLAT {  // the larger first
      const auto swap = value[i] < value[j];
      const Some x = value[i], y = value[j];
      value[i] = swap ? y : x, value[j] = swap ? x : y;
      for (int k = 0; k < D; ++k) {
        const Some p = v[k][i], r = v[k][j];
        v[k][i] = swap ? r : p, v[k][j] = swap ? p : r;
      }
    };
    order(0, 1);
    if (D == 3) order(1, D - 1), order(0, 1);
    const Some slack = rounding * (root(value[0]) + rounding);
    const auto same = value[D - 2] - value[D - 1] <= slack;   // two are the smallest
    const auto round = value[0] - value[D - 1] <= slack;      // all are
    for (int k = 0; k < D; ++k) {
      put(k, root(value[k]));
      Some part = v[k][D - 1];
      if (D == 3) part = same ? 0.5 * (1.0 - v[k][0]) : part;
      part = round ? Some{} + 1.0 / D : part;
      put(D + 1 + k, root(part > 0 ? part : Some{}));
    }
    put(D, root(offset));
  }
}

}  // namespace local
}  // namespace SLOSH_ARCH
}  // namespace slosh
