// One set in, one group of slices out: project, sort, take quantiles, subtract the reference, scale. Everything one set needs
// stays in the caches. Compiled once for each instruction set (CMakeLists.txt). Functions are in the namespace of theirs, and templates of
// the standard library are over its types: the linker keeps one copy of those with the same name, and it could be one that this machine
// cannot run. tests/native/test_symbols.py looks for them.
#include "dense.h"
#include "element_network.h"
#include "field.h"
#include "job.h"
#include "local.h"
#include "network.h"
#include "parts.h"
#include "quantiles.h"
#include "search.h"
#include "selection.h"
#include "tiles.h"
#include "transport.h"
#include "transport_gradient.h"

namespace slosh {
namespace SLOSH_ARCH {

size_t scratch_bytes(const Embedding &job) {
  const int64_t lanes = job.groups[0].lanes, wide = job.weights ? 2 : 1, n = job.largest;
  const int64_t network = padded(n < kRadix ? n : kRadix) * lanes * wide;  // keys, with weights beside them
  // Keys of all lanes, and items of one lane or two.
  const auto counting = [&](int64_t size, int64_t w) { return lane_height(size) * w + 4 * padded(size); };
  int64_t rows = network;
  if (n > kSelect) {
    const int64_t narrow = counting(n, 4), full = counting(n < kHuge ? n : kHuge, lanes);
    rows = n > kHuge && narrow > full ? narrow : full;
    rows = rows > network ? rows : network;
    rows += 2 * int64_t(sizeof(Tables) / sizeof(float));
  }
  return size_t(rows + few_floats(job) + padded(job.n_quantiles * lanes)) * sizeof(float) + 64;
}

// Writes the sorted values of one lane, and their weights, as columns of the (P, n_slices) output. Only k of the n elements have a
// weight; the rest follow as weightless copies of the last.
SLOSH_INLINE void put_sorted(const Embedding &job, const Group &group, int64_t offset, int64_t n, int64_t k, int64_t lane,
                             const float *rows, const float *weights, int64_t step) {
  const int64_t L = job.n_slices, at = offset * L + group.first + lane;
  for (int64_t i = 0; i < n; ++i) job.out[at + i * L] = rows[(i < k ? i : k - 1) * step];
  if (job.out_weights)
    for (int64_t i = 0; i < n; ++i) job.out_weights[at + i * L] = i >= k ? 0.0f : weights ? weights[i * step] : 1.0f;
}

template <int W, int V, bool Residual>
void embed_network(const Embedding &job, const Group &group, int64_t offset, int64_t n, const Weights &weights, float *rows, float *few,
                   float *means, double *residual) {
  typedef typename Lanes<W>::F F;
  const int64_t M = job.n_quantiles, size = padded(n) * W * (weights.each ? 2 : 1);  // of the rows of a vector
  if (!weights.each) {
    int64_t height = 0;
    for_tiles<W, V>(job, group, offset, n, few, [&](int v, int64_t, F *x, int64_t skip) SLOSH_FLAT {
      Key<W> key[kTile];
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) key[r] = {x[r]};
      if (skip || n < kTile)
        for (int64_t r = 0; r < kTile; ++r)
          if (r < skip || r >= n) key[r] = Key<W>::last();
      sort16(key);
#pragma GCC unroll 16
      for (int r = 0; r < kTile; ++r) key[r].put(rows + v * size + (height + r) * W);
      height += v + 1 == V ? kTile : 0;
    });
    for (int v = 0; v < V; ++v, rows += size, means += M * W, residual += W) {
      merge_blocks<Key<W>>(rows, height);
      if (job.rule == Rule::average)
        average<F, Residual>(rows, W, n, M, means, W, residual);
      else if (job.rule == Rule::linear)
        linear<F>(rows, W, n, M, means, W);
      else
        for (int64_t l = 0; l < W && v * W + l < group.count; ++l)
          put_sorted(job, group, offset, n, n, v * W + l, rows + l, nullptr, W);
    }
    return;
  }
  int64_t height = 0;
  for_tiles<W, V>(job, group, offset, n, few, [&](int v, int64_t i, F *x, int64_t skip) SLOSH_FLAT {
    float *tile = rows + v * size + height * 2 * W;
    for (int64_t r = 0; r < kTile; ++r) {
      WeightedKey<W> key = WeightedKey<W>::last();
      if (r >= skip && i + r < n && weights.each[i + r] > 0) key = {x[r], all<F>(weights.each[i + r])};
      key.put(tile + r * 2 * W);
    }
    sort_block<WeightedKey<W>>(tile);
    height += v + 1 == V ? kTile : 0;
  });
  for (int v = 0; v < V; ++v, rows += size, means += M * W, residual += W) {
    merge_blocks<WeightedKey<W>>(rows, height);
    for (int64_t l = 0; l < W && v * W + l < group.count; ++l) {
      const float *x = rows + l, *w = rows + W + l;
      if (job.rule == Rule::average)
        weighted_average<Residual>(x, w, 2 * W, weights.positive, weights.total, M, means + l, W, residual + l);
      else if (job.rule == Rule::linear)
        weighted_linear(x, w, 2 * W, weights.positive, weights.total, M, means + l, W);
      else
        put_sorted(job, group, offset, n, weights.positive, v * W + l, x, w, 2 * W);
    }
  }
}

// The average rule for lanes of n values, `height` apart, by selection; the means of lane l go to column l % W of the
// l / W-th block of means. In `done`: the lanes for which this was the way. `spare` has 4 * padded(n) places.
template <int W, bool Residual>
void select_lanes(const float *values, int64_t height, int64_t n, int64_t lanes, const float *low, const float *high,
                  int64_t M, uint32_t *spare, Tables *tables, float *means, double *residual, bool *done) {
  Selection selection[2];
  for (int k = 0; k < 2; ++k) {
    selection[k].items = spare + k * padded(n), selection[k].kept = spare + 2 * padded(n);
    selection[k].tables = tables + k;
  }
  spare += 3 * padded(n);
  const auto to = [&](int64_t l) { return means + l / W * M * W + l % W; };
  Selection *now = selection, *before = selection + 1;
  int64_t counted = -1;  // the lane of `before`, which is still to be sifted
  for (int64_t l = 0; l < lanes; ++l) {
    if (!(high[l] > low[l])) {
      for (int64_t m = 0; m < M; ++m) to(l)[m * W] = low[l];
      done[l] = true;
      continue;
    }
    done[l] = begin(*now, values + l * height, n, low[l], high[l], M);
    if (!done[l]) continue;
    if (counted < 0) {
      count_and_sift<true, false>(*now, *before);
    } else {
      count_and_sift<true, true>(*now, *before);
      finish<Residual>(*before, M, spare, to(counted), W, residual + counted);
      counted = -1;
    }
    done[l] = can_finish(*now, M);
    if (!done[l]) continue;
    counted = l;
    Selection *t = now;
    now = before, before = t;
  }
  if (counted < 0) return;
  count_and_sift<false, true>(*now, *before);
  finish<Residual>(*before, M, spare, to(counted), W, residual + counted);
}

template <int W, int V, bool Residual>
void embed_large(const Embedding &job, const Group &group, int64_t offset, int64_t n, const Weights &weights, float *values, float *few,
                 float *means, double *residual) {
  typedef typename Lanes<W>::F F;
  const int64_t M = job.n_quantiles, height = lane_height(n);
  F least[V], most[V];
  for (int v = 0; v < V; ++v) least[v] = Key<W>::last().key, most[v] = -least[v];
  for_tiles<W, V>(job, group, offset, n, few, [&](int v, int64_t i, F *x, int64_t) SLOSH_FLAT {
    F low = x[0], high = x[0];
#pragma GCC unroll 16
    for (int r = 1; r < kTile; ++r) low = lower(low, x[r]), high = upper(high, x[r]);
    least[v] = lower(least[v], low), most[v] = upper(most[v], high);
    transpose_tile<W>(x, values + v * W * height + i, height);
  });
  float low[V * W], high[V * W];
  std::memcpy(low, least, sizeof(low)), std::memcpy(high, most, sizeof(high));
  uint32_t *items = reinterpret_cast<uint32_t *>(values + V * W * height);
  Tables *tables = reinterpret_cast<Tables *>(items + 4 * padded(n));
  bool done[V * W] = {};
  if (job.rule == Rule::average && !weights.each)
    select_lanes<W, Residual>(values, height, n, group.count, low, high, M, items, tables, means, residual, done);
  for (int64_t l = 0; l < group.count; ++l) {
    if (done[l]) continue;
    float *v = values + l * height, *to = means + l / W * M * W + l % W;
    if (!weights.each) {
      for (int64_t i = 0; i < n; ++i) items[i] = to_ordered(v[i]);
      radix_sort(items, items + n, n);
      for (int64_t i = 0; i < n; ++i) v[i] = from_ordered(items[i]);
      if (job.rule == Rule::average)
        average<float, Residual>(v, 1, n, M, to, W, residual + l);
      else if (job.rule == Rule::linear)
        linear<float>(v, 1, n, M, to, W);
      else
        put_sorted(job, group, offset, n, n, l, v, nullptr, 1);
      continue;
    }
    uint64_t *pairs = reinterpret_cast<uint64_t *>(items);
    const int64_t k = weights.positive;
    int64_t at = 0;
    for (int64_t i = 0; i < n; ++i) {
      uint32_t w;
      std::memcpy(&w, weights.each + i, 4);
      pairs[at] = uint64_t(to_ordered(v[i])) << 32 | w;
      at += weights.each[i] > 0;
    }
    radix_sort(pairs, pairs + n, k);
    float *w = reinterpret_cast<float *>(pairs + n);  // the spare places are free now
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t bits = uint32_t(pairs[i]);
      v[i] = from_ordered(uint32_t(pairs[i] >> 32));
      std::memcpy(w + i, &bits, 4);
    }
    if (job.rule == Rule::average)
      weighted_average<Residual>(v, w, 1, k, weights.total, M, to, W, residual + l);
    else if (job.rule == Rule::linear)
      weighted_linear(v, w, 1, k, weights.total, M, to, W);
    else
      put_sorted(job, group, offset, n, k, l, v, w, 1);
  }
}

// The numbers of a group, lane beside lane, to the output.
template <int W> SLOSH_INLINE void put_means(const Embedding &job, const Group &group, int64_t set, float *means) {
  typedef typename Lanes<W>::F F;
  const int64_t M = job.n_quantiles;
  for (int64_t m = 0; m < M; ++m) {
    F v = load<F>(means + m * W);
    if (group.reference) v -= load<F>(group.reference + m * group.step);
    store(means + m * W, v * job.scale);
  }
  float *to = job.out + set * job.out_step + group.first * M;
  int64_t l = 0;
  const int64_t M4 = M / 4 * 4;
  for (; l + 4 <= group.count; l += 4) {
    for (int64_t m = 0; m < M4; m += 4) transpose4(means + m * W + l, W, to + l * M + m, M);
    for (int64_t m = M4; m < M; ++m)
      for (int64_t k = l; k < l + 4; ++k) to[k * M + m] = means[m * W + k];
  }
  for (; l < group.count; ++l)
    for (int64_t m = 0; m < M; ++m) to[l * M + m] = means[m * W + l];
}

// V vectors of W slices.
template <int W, int V> void embed_group(const Embedding &job, const Group &group, int64_t set, void *scratch) {
  const int64_t offset = job.offsets[set], n = job.offsets[set + 1] - offset, M = job.n_quantiles;
  const Weights weights = look_at(job.weights ? job.weights + offset : nullptr, n);
  float *means = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  float *few = means + padded(M * V * W), *rows = few + few_floats(job);
  double residual[V * W] = {};
  const bool wanted = job.residual != nullptr;
  const bool large = n > (job.rule == Rule::average && !weights.each ? kSelect : kRadix);
  (large ? wanted ? embed_large<W, V, true> : embed_large<W, V, false> : wanted ? embed_network<W, V, true> : embed_network<W, V, false>)(
      job, group, offset, n, weights, rows, few, means, residual);
  if (wanted) {
    // Four slices a sum, whatever the lanes: the total must not depend on how slices are grouped.
    double *parts = job.residual + set * ((job.n_slices + 3) / 4) + group.first / 4;
    for (int64_t l = 0; l < group.count; l += 4) {
      double sum = 0;
      for (int64_t k = l; k < group.count && k < l + 4; ++k) sum += residual[k];
      parts[l / 4] = sum / weights.total;
    }
  }
  if (job.rule == Rule::sort) return;
  for (int v = 0; v < V; ++v) put_means<W>(job, part_of(group, v * W, W), set, means + v * M * W);
}

// A group by parts of so many lanes.
template <int W> SLOSH_INLINE void embed_parts(const Embedding &job, const Group &group, int64_t set, void *scratch) {
  for (int64_t l = 0; l < group.count; l += W) embed_group<W, 1>(job, part_of(group, l, W), set, scratch);
}

void embed(const Embedding &job, int64_t set, int64_t g, void *scratch) {
  const Group &group = job.groups[g];
  const int64_t n = job.offsets[set + 1] - job.offsets[set];
  if (group.lanes > 4 && n > kHuge) return embed_parts<4>(job, group, set, scratch);
#if SLOSH_LANES >= 16
  if (group.lanes == 16) return embed_group<16, 1>(job, group, set, scratch);
#endif
#if SLOSH_LANES >= 8
  if (kVectors > 1 && group.lanes > 8 && group.directions) return embed_group<8, kVectors>(job, group, set, scratch);
  if (group.lanes >= 8) return embed_parts<8>(job, group, set, scratch);
#endif
  embed_parts<4>(job, group, set, scratch);
}

// Sorts sixteen rows that never leave the registers: as many compare-exchanges a second as this machine has to give.
double exchange_rate(int64_t rounds) {
  Key<SLOSH_LANES> x[kTile];
  float seed[SLOSH_LANES];
  for (int r = 0; r < kTile; ++r) {
    for (int l = 0; l < SLOSH_LANES; ++l) seed[l] = float((r * 7 + l * 5) % 16);
    x[r] = Key<SLOSH_LANES>::get(seed);
  }
  for (int64_t i = 0; i < rounds; ++i) {
    sort16(x);
    for (int r = 0; r < kTile; ++r) __asm__ volatile("" : "+x"(x[r].key));
  }
  for (int r = 0; r < kTile; ++r) x[r].put(seed);
  return 60.0 * double(rounds) * SLOSH_LANES + 0.0 * double(seed[0]);
}

#define SLOSH_TEXT2(x) #x
#define SLOSH_TEXT(x) SLOSH_TEXT2(x)
const Kernel kernel = {SLOSH_TEXT(SLOSH_ARCH), kVectors * SLOSH_LANES, scratch_bytes, embed, transport, squares, prefixes, nearest_lists, ladder, flat, true_positions, near_codes, rotate, kFieldAnchors, field, largest_within, local::scratch_bytes, local_shape, layer_tile, network_bytes, element_network, element_lanes, element_bytes, nearest_elements, anchor_points, anchor_tile, anchor_bytes, nearest_anchors, 4 * SLOSH_LANES, bounds_bytes, field_bounds, histogram_products, dense, gradient_width, gradient_bytes, gradient, transport_gradient_bytes, transport_gradient, exchange_rate};

}  // namespace SLOSH_ARCH
}  // namespace slosh
