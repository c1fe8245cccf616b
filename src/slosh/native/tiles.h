// The elements of one set, sixteen at a time, and their values along a group of slices: a matrix product that never leaves the registers. What the
// kernels that sort sets share: sizes, tiles, groups and weights.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// From this many elements on the network loses to counting (docs/kernel.md has the measurements): to the selection of bins, and to a whole sort.
constexpr int64_t kSelect = 3072;
constexpr int64_t kRadix = 8192;
constexpr int64_t kTile = 16;
// Larger sets take four slices at a time: the projected values of a group have to fit in a bounded scratch.
constexpr int64_t kHuge = int64_t(1) << 17;

SLOSH_INLINE int64_t padded(int64_t n) { return (n + kTile - 1) / kTile * kTile; }

// Places for one lane of a large set: an odd number of cache lines, or all lanes would fall into the same few sets of the cache.
SLOSH_INLINE int64_t lane_height(int64_t n) { return padded(n) / kTile % 2 ? padded(n) : padded(n) + kTile; }

SLOSH_INLINE int64_t few_floats(const Embedding &job) { return padded(kTile * (job.dim + kTile)); }

#if SLOSH_LANES >= 16 || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Vectors of slices that are projected together: an element is read once for all of them. Where there are sixteen
// registers, two vectors by six elements need the fewest loads for a multiply-add; see docs/kernel.md.
#if defined(__x86_64__) && SLOSH_LANES == 8
constexpr int kVectors = 2;
#else
constexpr int kVectors = 1;
#endif

// A tile of a matrix product that never leaves the registers, of R elements by V vectors of slices: each number is one
// chain of multiply-adds over the features, so it is the same wherever the element stands in its tile. d: floats from one
// element to the next. The values of vector v go to x[v * 16] and after.
template <int W, int V, int R>
SLOSH_INLINE void multiply(const Group &group, int64_t dim, const float *points, int64_t d, typename Lanes<W>::F *x) {
  typedef typename Lanes<W>::F F;
  const float *theta = group.directions, *p[(R + 3) / 4];
  const int64_t d2 = 2 * d, d3 = 3 * d;  // a pointer for four elements, and three steps: sixteen pointers would not fit in the registers
  F sum[V][R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[v][r] = F{};
#pragma GCC unroll 4
  for (int q = 0; q < (R + 3) / 4; ++q) p[q] = points + 4 * q * d;
  for (int64_t k = 0; k < dim; ++k, theta += group.step) {
    F t[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) t[v] = load<F>(theta + v * W);
    __builtin_prefetch(points + kTile * d + k * R);  // the next tile: long vectors would wait for memory
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float *q = p[r / 4] + k;
      const float each = r % 4 == 0 ? q[0] : r % 4 == 1 ? q[d] : r % 4 == 2 ? q[d2] : q[d3];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[v][r] += t[v] * each;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[v * kTile + r] = sum[v][r];
}

// The values of 16 elements in V vectors of W slices: x[v * 16 + r].
template <int W, int V>
SLOSH_INLINE void multiply_tile(const Group &group, int64_t dim, const float *points, int64_t d,
                                typename Lanes<W>::F *x) {
  if (V == 2) {  // twelve sums and two directions leave a register for the element and one to spare
    multiply<W, V, 6>(group, dim, points, d, x);
    multiply<W, V, 6>(group, dim, points + 6 * d, d, x + 6);
    multiply<W, V, 4>(group, dim, points + 12 * d, d, x + 12);
  } else {  // sixteen registers hold no more than eight sums beside a direction and the elements
    constexpr int sums = kRegisters >= 32 ? 16 : 8;
    for (int64_t r = 0; r < kTile; r += sums) multiply<W, V, sums>(group, dim, points + r * d, d, x + r);
  }
}

// The same in a function of its own. Where it is inlined, GCC keeps what comes after it in registers, and some of the
// sums in memory.
template <int W, int V>
__attribute__((noinline)) void multiply_apart(const Group &group, int64_t dim, const float *points, int64_t d,
                                              typename Lanes<W>::F *x) {
  multiply_tile<W, V>(group, dim, points, d, x);
}

template <int W, int V>
SLOSH_INLINE void project(const Embedding &job, const Group &group, const float *points, int64_t d, typename Lanes<W>::F *x) {
  typedef typename Lanes<W>::F F;
  if (V > 1) {
    multiply_apart<W, V>(group, job.dim, points, d, x);
  } else if (group.directions) {
    multiply_tile<W, 1>(group, job.dim, points, d, x);
  } else if (group.count == W) {
    for (int r = 0; r < kTile; ++r) x[r] = load<F>(points + r * d + group.first);
  } else {
    for (int r = 0; r < kTile; ++r) {
      F v{};
      std::memcpy(&v, points + r * d + group.first, size_t(group.count) * sizeof(float));
      x[r] = v;
    }
  }
}

// Calls use(v, i, x, skip) for the tiles of a set and each vector v of slices: x holds the values of elements i to i + 15,
// of which the first `skip` were in an earlier tile: the last tile ends with the set. Fewer than 16 elements are copied to
// `few`, and then the rest of x means nothing. So are elements at a distance of a power of two, which would all fall into
// the same set of the first cache.
template <int W, int V, class Use>
SLOSH_INLINE void for_tiles(const Embedding &job, const Group &group, int64_t offset, int64_t n, float *few, Use use) {
  typename Lanes<W>::F x[V * kTile];
  const int64_t d = job.dim;
  const float *points = job.points + offset * d;
  const bool aliased = d % 512 == 0 && group.directions, copy = aliased || n < kTile;
  const int64_t step = aliased ? d + kTile : d;
  if (n < kTile) std::memset(few, 0, size_t(kTile * step) * sizeof(float));
  const auto take = [&](int64_t at, int64_t skip) SLOSH_FLAT {
    const float *tile = points + at * d;
    if (copy) {
      const int64_t rows = n < kTile ? n : kTile;
      if (!aliased) std::memcpy(few, tile, size_t(rows * d) * sizeof(float));
      for (int64_t r = 0; aliased && r < rows; ++r)
        std::memcpy(few + r * step, tile + r * d, size_t(d) * sizeof(float));
      tile = few;
    }
    project<W, V>(job, group, tile, step, x);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) use(v, at, x + v * kTile, skip);
  };
  int64_t i = 0;
  for (; i + kTile <= n; i += kTile) take(i, 0);
  if (i < n) take(n < kTile ? 0 : n - kTile, n < kTile ? 0 : i - (n - kTile));
}

// What the weights of one set amount to. Elements of weight zero are left out of everything.
struct Weights {
  const float *each = nullptr;  // null if all are equal
  int64_t positive = 0;
  double total = 0;
};

inline Weights look_at(const float *w, int64_t n) {
  Weights result;
  result.positive = n;
  result.total = double(n);
  if (!w) return result;
  bool equal = true;
  int64_t positive = 0;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    equal &= w[i] == w[0];
    positive += w[i] > 0;
    total += double(w[i]);
  }
  if (equal) return result;
  return {w, positive, total};
}

// Some of the lanes of a group, as a group.
SLOSH_INLINE Group part_of(const Group &group, int64_t lane, int64_t lanes) {
  Group part = group;
  part.first += lane, part.lanes = lanes, part.count = group.count - lane < lanes ? group.count - lane : lanes;
  if (part.directions) part.directions += lane;
  if (part.reference) part.reference += lane;
  return part;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
