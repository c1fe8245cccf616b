// What parts.cpp holds of a kernel: the distances of parts, compiled apart from the embeddings and the searches.
#pragma once

#include "job.h"

namespace slosh {
namespace SLOSH_ARCH {

int64_t element_lanes(int64_t dim);
size_t element_bytes(int64_t dim);
void nearest_elements(const ElementPairs &job, const ElementTask &task, void *scratch);
int64_t anchor_points();
int64_t anchor_tile();
size_t anchor_bytes(const Anchors &job);
void nearest_anchors(const Anchors &job, int64_t panel, void *scratch);
size_t bounds_bytes(const FieldBounds &job);
void field_bounds(const FieldBounds &job, int64_t block, void *scratch);
void histogram_products(const Histograms &job, int64_t first, int64_t last);

}  // namespace SLOSH_ARCH
}  // namespace slosh
