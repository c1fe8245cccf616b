// The nearest elements of pairs of sets, by the products of elements.h or of coded_elements.h.
#pragma once

#include "coded_elements.h"
#include "elements.h"
#include "job.h"

namespace slosh {
namespace SLOSH_ARCH {

#if defined(SLOSH_VNNI)
typedef CodedSpace Space;
#else
typedef ElementSpace Space;
#endif

size_t element_bytes(int64_t dim) { return Space::bytes(dim); }

template <int V, bool Coded>
SLOSH_INLINE void compare_panel(const Space &space, int64_t dim, int64_t first, int64_t n, const float *x, const float *y, double sure, double *best, int64_t *which) {
#if defined(SLOSH_VNNI)
  if (Coded)
    multiply_codes<V>(space, dim, first, n);
  else
#endif
    multiply_rows<V>(space, dim, first, n);
  compare_near<V>(space, dim, first, n, x, y, sure, best, which);
}

template <bool Coded> void nearest_of(const ElementPairs &job, const ElementTask &task, void *scratch) {
  const int64_t dim = job.dim, n = task.to - task.from, set = job.pairs[2 * task.first];
  const Space space(scratch, dim);
  const Rounding rounding(dim);
  const float *x = job.x + (job.x_offsets[set] + task.from) * dim;
#if defined(SLOSH_VNNI)
  if (Coded)
    code_panels(space, x, n, dim);
  else
#endif
    pack_panels(space, x, n, dim, rounding);
  for (int64_t pair = task.first; pair < task.last; ++pair) {
    const int64_t other = job.pairs[2 * pair + 1], begin = job.y_offsets[other], n_y = job.y_offsets[other + 1] - begin;
    const float *y = job.y + begin * dim, *weights = job.y_weights ? job.y_weights + begin : nullptr;
    double *best = job.squares + job.starts[pair] + task.from;
    int64_t *which = job.which + job.starts[pair] + task.from;
    for (int64_t i = 0; i < n; ++i) best[i] = __builtin_inf(), which[i] = 0;
    for (int64_t at = 0; at < n_y;) {
      // Of codes, what the products of earlier rows may be off is no measure for those of these.
      for (int64_t i = 0; (Coded || at == 0) && i < (n + kPanel - 1) / kPanel * kPanel; ++i) space.floor[i] = -__builtin_inff();
#if defined(SLOSH_VNNI)
      const int64_t count = Coded ? code_rows(space, y, weights, n_y, n, dim, rounding, at) : pack_rows(space, y, weights, n_y, dim, rounding, at);
#else
      const int64_t count = pack_rows(space, y, weights, n_y, dim, rounding, at);
#endif
      for (int64_t first = 0; first < n; first += kPanel) {
        if (n - first > SLOSH_LANES)
          compare_panel<2, Coded>(space, dim, first, count, x, y, rounding.sure, best, which);
        else
          compare_panel<1, Coded>(space, dim, first, count, x, y, rounding.sure, best, which);
      }
    }
  }
}

void nearest_elements(const ElementPairs &job, const ElementTask &task, void *scratch) {
  (is_coded(job.dim) ? nearest_of<true> : nearest_of<false>)(job, task, scratch);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
