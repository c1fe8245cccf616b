// How the bindings hand slices to the kernel.
#pragma once

#include <algorithm>
#include <vector>

#include "job.h"

namespace slosh {

// Slices in groups of lanes, widest first, with their directions and reference numbers laid out lane by lane.
struct Groups {
  std::vector<Group> list;
  std::vector<float> store;

  Groups(int64_t widest, int64_t L, int64_t dim, int64_t M, const float *directions, const float *reference) {
    for (int64_t first = 0; first < L;) {
      int64_t lanes = widest;
      while (lanes > 4 && L - first <= lanes / 2) lanes /= 2;
      const int64_t count = std::min(lanes, L - first);
      list.push_back({first, count, lanes, lanes, nullptr, nullptr});
      first += count;
    }
    size_t size = 0;
    for (const Group &g : list) size += size_t(g.lanes) * size_t((directions ? dim : 0) + (reference ? M : 0));
    store.assign(size, 0.0f);
    float *at = store.data();
    const auto lay = [&](const Group &g, const float *rows, int64_t width) {
      float *from = at;
      for (int64_t l = 0; l < g.count; ++l)
        for (int64_t k = 0; k < width; ++k) from[k * g.lanes + l] = rows[(g.first + l) * width + k];
      at += width * g.lanes;
      return static_cast<const float *>(from);
    };
    for (Group &g : list) {
      if (directions) g.directions = lay(g, directions, dim);
      if (reference) g.reference = lay(g, reference, M);
    }
  }
};

}  // namespace slosh
