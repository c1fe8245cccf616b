// What search.cpp holds of a kernel: the searches are compiled apart from the embeddings.
#pragma once

#include "job.h"

namespace slosh {
namespace SLOSH_ARCH {

void squares(const Pairs &job, int64_t query);
void prefixes(const Prefixes &job, int64_t tile, void *scratch);
void nearest_lists(const Lists &lists, const float *rows, int64_t n, int64_t *list, float *square);
void ladder(const Ladder &job, int64_t first, int64_t last);
void flat(const Flat &job, int64_t first, int64_t last);
int64_t true_positions(const bool *mask, int64_t n, int64_t *out);
int64_t near_codes(const Codes &job, const uint64_t *query, int64_t first, int64_t last, int64_t limit, uint64_t *found);
void largest_within(const Differences &job, int64_t query, int64_t first, int64_t last, void *sink);
void rotate(const Rotation &job, int64_t vector, void *spare);

}  // namespace SLOSH_ARCH
}  // namespace slosh
