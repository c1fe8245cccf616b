// A network over the elements of a set: each layer multiplies an element's numbers by a matrix, adds the largest of what another matrix makes of its
// neighbours' numbers, scales, shifts, and bends what is below zero.
//
// Works on 64 outputs of a layer at a time: the products of all elements with the neighbours' matrix go to the scratch of the thread, and then each
// element takes the largest over its list (element_neighbors.h) and adds its own product. A product is a tile of six elements by some vectors of
// outputs that never leaves the registers, and each number is one chain of multiply-adds over the inputs: it has the same bits wherever the element
// stands. A set is worked on by one thread.
#pragma once

#include <algorithm>

#include "element_neighbors.h"
#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// Six elements by four vectors take 24 registers for the sums, and ten loads for 24 multiply-adds; by two vectors twelve, where there are sixteen.
#if SLOSH_LANES >= 16 || defined(__aarch64__)
constexpr int kOutputVectors = 4;
#else
constexpr int kOutputVectors = 2;
#endif
constexpr int kElementRows = 6;
constexpr int64_t kOutputs = 64;  // worked on at a time, a multiple of the largest tile

inline int64_t layer_tile(int64_t left) {
  const int64_t vectors = (left + SLOSH_LANES - 1) / SLOSH_LANES;
  return std::min<int64_t>(vectors, kOutputVectors) * SLOSH_LANES;
}

inline size_t network_bytes(const ElementNetwork &job) {
  return local::neighbor_bytes(job) + size_t(job.largest + 4 * kElementRows) * size_t(kOutputs) * sizeof(float) + 4 * 64;
}

// Rows of inputs by V vectors of outputs, to rows `step` apart.
template <int V> __attribute__((noinline)) void multiply_outputs(const float *matrix, int64_t n_in, const float *const *rows, float *to, int64_t step) {
  constexpr int R = kElementRows;
  typedef typename Lanes<SLOSH_LANES>::F F;
  const float *x0 = rows[0], *x1 = rows[1], *x2 = rows[2], *x3 = rows[3], *x4 = rows[4], *x5 = rows[5];
  F sum[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = F{};
  for (int64_t k = 0; k < n_in; ++k, matrix += V * SLOSH_LANES) {
    F w[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) w[v] = load<F>(matrix + v * SLOSH_LANES);
    const float x[R] = {x0[k], x1[k], x2[k], x3[k], x4[k], x5[k]};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += w[v] * x[r];
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(to + r * step + v * SLOSH_LANES, sum[r][v]);
}

// The outputs [first, first + width) of six rows, `width` padded to whole vectors.
SLOSH_INLINE void multiply_rows_by(const float *matrix, int64_t n_in, int64_t first, int64_t width, const float *const *rows, float *to, int64_t step) {
  for (int64_t o = 0; o < width;) {
    const int64_t tile = layer_tile(width - o);
    const float *part = matrix + (first + o) * n_in;
    switch (tile / SLOSH_LANES) {
#if SLOSH_LANES >= 16 || defined(__aarch64__)
      case 4: multiply_outputs<4>(part, n_in, rows, to + o, step); break;
      case 3: multiply_outputs<3>(part, n_in, rows, to + o, step); break;
#endif
      case 2: multiply_outputs<2>(part, n_in, rows, to + o, step); break;
      default: multiply_outputs<1>(part, n_in, rows, to + o, step);
    }
    o += tile;
  }
}

// The largest of each of C vectors over some rows of `table`, or over the first rows if `places` is null.
template <int C> SLOSH_INLINE void largest_of(const float *table, int64_t step, const uint32_t *places, int64_t count, float *to) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  F most[C];
  const float *row = table + (places ? int64_t(places[0]) : 0) * step;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) most[c] = load<F>(row + c * SLOSH_LANES);
  for (int64_t j = 1; j < count; ++j) {
    row = table + (places ? int64_t(places[j]) : j) * step;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) most[c] = upper(most[c], load<F>(row + c * SLOSH_LANES));
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) store(to + c * SLOSH_LANES, most[c]);
}

inline void largest_rows(const float *table, int64_t width, const uint32_t *places, int64_t count, float *to) {
  constexpr int C = kOutputs / SLOSH_LANES < 8 ? kOutputs / SLOSH_LANES : 8;
  int64_t o = 0;
  for (; o + C * SLOSH_LANES <= width; o += C * SLOSH_LANES) largest_of<C>(table + o, width, places, count, to + o);
  for (; o < width; o += SLOSH_LANES) largest_of<1>(table + o, width, places, count, to + o);
}

// One set, and where it is worked on.
struct NetworkRun {
  const ElementNetwork &job;
  const int64_t offset;
  local::NeighborLists lists{};
  float *table;    // (n + kElementRows, width) what the neighbours' matrix makes of each place
  float *largest;  // (1 + kElementRows, kOutputs): of the place before, and of the places of a tile
  float *own;      // (kElementRows, kOutputs)
  float *overall;  // (kOutputs,)

  NetworkRun(const ElementNetwork &j, int64_t set, local::Scratch scratch) : job(j), offset(j.offsets[set]) {
    table = scratch.take<float>((job.largest + kElementRows) * kOutputs);
    largest = scratch.take<float>((1 + kElementRows) * kOutputs), own = scratch.take<float>(kElementRows * kOutputs);
    overall = scratch.take<float>(kOutputs);
    local::find_neighbors(job, set, lists, scratch);
  }

  // The inputs of the places of a tile; beyond the last place they are those of the last.
  SLOSH_INLINE void tile_rows(const float *inputs, int64_t step, int64_t place, const float **rows) const {
    for (int r = 0; r < kElementRows; ++r) rows[r] = inputs + (offset + int64_t(lists.element[std::min(place + r, lists.n - 1)])) * step;
  }

  SLOSH_INLINE void take_largest(int64_t place, int64_t count, int64_t width) {
    std::memcpy(largest, largest + kElementRows * kOutputs, size_t(width) * sizeof(float));
    for (int64_t r = 0; r < count; ++r) {
      float *const to = largest + (r + 1) * kOutputs;
      const int64_t start = lists.start[place + r];
      if (start == local::kAll || start == local::kSame) {
        std::memcpy(to, start == local::kAll ? overall : to - kOutputs, size_t(width) * sizeof(float));
      } else {
        const local::Members near = local::members_of(lists, place + r);
        largest_rows(table, width, near.places, near.count, to);
      }
    }
  }

  // What becomes of the products of a place, to the output.
  SLOSH_INLINE void finish(const ElementLayer &layer, int64_t first, int64_t width, const float *product, const float *most, float *to) const {
    typedef typename Lanes<SLOSH_LANES>::F F;
    for (int64_t o = 0; o < width; o += SLOSH_LANES) {
      F z = load<F>(product + o);
      if (most) z += load<F>(most + o);
      z = z * load<F>(layer.scale + first + o) + load<F>(layer.shift + first + o);
      z = z > 0 ? z : z * job.slope;
      const int64_t left = layer.n_out - first - o;
      if (left >= SLOSH_LANES)
        store(to + o, z);
      else
        std::memcpy(to + o, &z, size_t(left) * sizeof(float));
    }
  }

  // The outputs [first, first + kOutputs) of a layer, from inputs `step` apart to the column `column` of the output.
  void run_outputs(const ElementLayer &layer, int64_t first, const float *inputs, int64_t step, int64_t column) {
    const int64_t count = std::min(kOutputs, layer.n_out - first), width = (count + SLOSH_LANES - 1) / SLOSH_LANES * SLOSH_LANES;
    const float *rows[kElementRows];
    if (layer.neighbors) {
      for (int64_t i = 0; i < lists.n; i += kElementRows) {
        tile_rows(inputs, step, i, rows);
        multiply_rows_by(layer.neighbors, layer.n_in, first, width, rows, table + i * width, width);
      }
      largest_rows(table, width, nullptr, lists.n, overall);
    }
    for (int64_t i = 0; i < lists.n && !local::is_stopped(lists); i += kElementRows) {
      const int64_t tile = std::min<int64_t>(kElementRows, lists.n - i);
      if (layer.neighbors) take_largest(i, tile, width);
      tile_rows(inputs, step, i, rows);
      multiply_rows_by(layer.own, layer.n_in, first, width, rows, own, kOutputs);
      for (int64_t r = 0; r < tile; ++r)
        finish(layer, first, width, own + r * kOutputs, layer.neighbors ? largest + (r + 1) * kOutputs : nullptr,
               job.out + (offset + int64_t(lists.element[i + r])) * job.out_step + column + first);
    }
  }
};

inline void element_network(const ElementNetwork &job, int64_t set, void *memory) {
  const local::Scratch scratch{reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t(63))};
  NetworkRun run(job, set, scratch);
  const int64_t n = job.offsets[set + 1] - run.offset;
  for (int64_t i = 0; run.lists.n < n && i < n; ++i)  // elements without weight have nothing else
    if (!(job.weights[run.offset + i] > 0)) std::memset(job.out + (run.offset + i) * job.out_step, 0, size_t(job.columns) * sizeof(float));
  if (!run.lists.n) return;
  const float *inputs = job.inputs;
  int64_t step = job.layers[0].n_in, column = 0;
  for (int64_t l = 0; l < job.n_layers; ++l) {
    const ElementLayer &layer = job.layers[l];
    for (int64_t first = 0; first < layer.n_out && !local::is_stopped(run.lists); first += kOutputs)
      run.run_outputs(layer, first, inputs, step, column);
    inputs = job.out + column, step = job.out_step;
    column += layer.n_out;
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
