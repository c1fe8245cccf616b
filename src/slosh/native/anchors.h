// The nearest anchors of elements: all are compared by products in float (see elements.h), about the middle of the anchors, and the distances of those
// that are taken are computed again in double. Which ones are taken may differ from the true order where float cannot tell them apart; it does not
// depend on what else is computed.
#pragma once

#include "elements.h"
#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

int64_t anchor_points() { return kPanel; }
int64_t anchor_tile() { return kRowTile; }

constexpr int64_t kAnchorRows = 252;  // of the table, a multiple of the tiles

size_t anchor_bytes(const Anchors &job) {
  return size_t(kPanel * (job.dim + kAnchorRows + 2 + 2 * job.n_near)) * sizeof(float) + 64;
}

template <int V> void anchors_of(const Anchors &job, int64_t first, int64_t count, float *scratch) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  constexpr int64_t width = V * SLOSH_LANES;
  const int64_t dim = job.dim, step = row_step(dim), A = job.n_near;
  float *table = scratch, *worst = table + kPanel * kAnchorRows, *floor = worst + kPanel, *sums = floor + kPanel, *panel = sums + 2 * kPanel * A;
  int32_t *ids = reinterpret_cast<int32_t *>(sums + kPanel * A);
  for (int64_t l = 0; l < width; ++l) {
    put_element(job.points + (first + (l < count ? l : 0)) * dim, job.middle, dim, panel + l, width);
    worst[l] = floor[l] = -__builtin_inff();
  }
  for (int64_t i = 0; i < width * A; ++i) sums[i] = -__builtin_inff(), ids[i] = 0;
  for (int64_t from = 0; from < job.n_anchors; from += kAnchorRows) {
    const int64_t rows = job.n_anchors - from < kAnchorRows ? job.n_anchors - from : kAnchorRows;
    for (int64_t r = 0; r < rows; r += kRowTile)
      element_sums<V, kRowTile>(panel, job.rows + (from + r) * step, step, dim, job.start + from + r, table + r * kPanel, floor);
    for (int64_t r = 0; r < rows; ++r)
      for (int v = 0; v < V; ++v) {
        const float *sum = table + r * kPanel + v * SLOSH_LANES;
        unsigned near = at_most<SLOSH_LANES>(load<F>(worst + v * SLOSH_LANES) - load<F>(sum), 0.0f);
        for (; near; near &= near - 1) {
          const int64_t l = __builtin_ctz(near), lane = v * SLOSH_LANES + l;
          float *best = sums + lane * A;
          int32_t *which = ids + lane * A;
          if (!(sum[l] > best[A - 1])) continue;
          int64_t at = A - 1;
          for (; at > 0 && sum[l] > best[at - 1]; --at) best[at] = best[at - 1], which[at] = which[at - 1];
          best[at] = sum[l], which[at] = int32_t(from + r);
          worst[lane] = best[A - 1];
        }
      }
  }
  for (int64_t l = 0; l < count; ++l) {
    double *distance = job.distances + (first + l) * A;
    int32_t *out = job.ids + (first + l) * A;
    for (int64_t j = 0; j < A; ++j) {
      const int32_t id = ids[l * A + j];
      const double square = direct_square(job.points + (first + l) * dim, job.anchors + int64_t(id) * dim, dim);
      int64_t at = j;
      for (; at > 0 && (square < distance[at - 1] || (square == distance[at - 1] && id < out[at - 1])); --at) distance[at] = distance[at - 1], out[at] = out[at - 1];
      distance[at] = square, out[at] = id;
    }
    for (int64_t j = 0; j < A; ++j) distance[j] = __builtin_sqrt(distance[j]);
  }
}

void nearest_anchors(const Anchors &job, int64_t panel, void *scratch) {
  float *aligned = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  const int64_t first = panel * kPanel, count = job.n_points - first < kPanel ? job.n_points - first : kPanel;
  if (count > SLOSH_LANES)
    anchors_of<2>(job, first, count, aligned);
  else
    anchors_of<1>(job, first, count, aligned);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
