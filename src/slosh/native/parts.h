// What parts.cpp holds of a kernel: the distances of parts, compiled apart from the embeddings and the searches.
#pragma once

#include "job.h"

namespace slosh {
namespace SLOSH_ARCH {

int64_t element_lanes(int64_t dim);
size_t element_bytes(int64_t dim);
void nearest_elements(const ElementPairs &job, const ElementTask &task, void *scratch);

}  // namespace SLOSH_ARCH
}  // namespace slosh
