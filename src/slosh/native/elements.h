// Of each element of one set, the nearest element of another: its squared distance in double, and which one it is.
//
// All pairs are compared in float, by products: |x - y|^2 = |x|^2 - 2 (xy - |y|^2 / 2), about the middle of some elements of x, so that it is the size
// of the sets that counts and not how far they are from zero. A product is rounded, and how far it may be off is known: the few elements that may be
// the nearest are compared again, in double, by differences. So the result has the digits, and the bits, that comparing all pairs in double would
// give, whatever the middle and whatever else is computed.
//
// How far a product is off: with u = 2^-24, X = |x|, Y = |y| about the middle (which moves each by a part u of its length), d fused steps from -Y^2 / 2
// on are off by at most u (d (XY + Y^2 / 2) + Y^2 / 2 + (X + Y)^2) <= u ((d / 2 + 2) X^2 + (d + 3) Y^2). The part of x is the same for all y, and the
// part of y is subtracted before and, twice, added after the products. Comparing the sums rounds a few times more.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int64_t kPanel = 2 * SLOSH_LANES;  // elements of x that are worked on together
#if SLOSH_LANES >= 16 || defined(__aarch64__)
constexpr int kRowTile = 12;  // with so many of y: as many sums as registers hold
#else
constexpr int kRowTile = 6;
#endif
constexpr int kFewRows = kRowTile / 3;
#if defined(__FMA__) || defined(__aarch64__)
constexpr int kRoundings = 1;  // of a step
#else
constexpr int kRoundings = 2;
#endif

SLOSH_INLINE int64_t between(int64_t least, int64_t x, int64_t most) { return x < least ? least : x > most ? most : x; }

// Elements of x and of y that are worked on at once: they stay in the second cache.
int64_t element_lanes(int64_t dim) { return between(1, (int64_t(1) << 17) / (dim * kPanel), 16) * kPanel; }
inline int64_t element_rows(int64_t dim) { return between(1, (int64_t(1) << 16) / (dim * kRowTile), 252 / kRowTile) * kRowTile; }

// An element of y that may be the nearest: its row, the lane of the element of x, and their squared distance in float.
struct Near {
  float square;
  int32_t row, lane;
};

// Where things are in the scratch of a thread.
struct ElementSpace {
  float *panels;     // (lanes / (V W), dim, V W): elements of x, two vectors side by side, about the middle
  float *slack;      // (lanes,) twice what the products of an element of x may be off for its sake
  float *floor;      // (lanes,) the largest product, less what it may be off for the sake of y
  float *middle;     // (dim,)
  float *rows;       // (rows, row_step): elements of y about the middle
  float *start;      // (rows,) what a sum begins with
  float *extra;      // (rows,) twice what the products of an element of y may be off for its sake
  float *table;      // (rows, kPanel)
  int64_t *position; // (rows,) which elements of y
  Near *near;        // (rows * kPanel,)

  static size_t bytes(int64_t dim) {
    const int64_t lanes = element_lanes(dim), rows = element_rows(dim);
    return size_t(lanes * (dim + 2) + dim + 16 + rows * (row_step(dim) + 2 + kPanel)) * sizeof(float) + size_t(rows) * (sizeof(int64_t) + size_t(kPanel) * sizeof(Near)) + 64;
  }

  ElementSpace(void *scratch, int64_t dim) {
    const int64_t lanes = element_lanes(dim), n = element_rows(dim);
    float *at = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
    panels = at, at += lanes * dim;
    slack = at, at += lanes;
    floor = at, at += lanes;
    table = at, at += n * kPanel;
    position = reinterpret_cast<int64_t *>(at), at += 2 * n;
    near = reinterpret_cast<Near *>(at), at += n * kPanel * int64_t(sizeof(Near) / sizeof(float));
    rows = at, at += n * row_step(dim);
    start = at, at += n;
    extra = at, at += n;
    middle = at;
  }
};

// The squared distance in double. It is one function, so that it has the same bits wherever the elements stand.
__attribute__((noinline)) inline double direct_square(const float *a, const float *b, int64_t dim) {
  constexpr int W = SLOSH_LANES > 8 ? 8 : 4;
  typedef typename Lanes<W>::F F;
  typedef typename Lanes<W>::D D;
  D sums[2] = {};
  int64_t k = 0;
  const auto add = [&](D &to, int64_t at) SLOSH_FLAT {
    const D away = widen(load<F>(a + at)) - widen(load<F>(b + at));
    to += away * away;
  };
  for (; k + 2 * W <= dim; k += 2 * W) add(sums[0], k), add(sums[1], k + W);
  if (k + W <= dim) add(sums[0], k), k += W;
  double lane[W], sum = 0;
  store(lane, sums[0] + sums[1]);
  if (k)
    for (int l = 0; l < W; ++l) sum += lane[l];
  for (; k < dim; ++k) {
    const double away = double(a[k]) - double(b[k]);
    sum += away * away;
  }
  return sum;
}

// The same in float, of all but the last few numbers: no more than the squared distance, but for the rounding of each step.
SLOSH_INLINE float most_of_square(const float *a, const float *b, int64_t dim) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  F sums[2] = {};
  const auto add = [&](F &to, int64_t at) SLOSH_FLAT {
    const F away = load<F>(a + at) - load<F>(b + at);
    to += away * away;
  };
  int64_t k = 0;
  for (; k + 2 * SLOSH_LANES <= dim; k += 2 * SLOSH_LANES) add(sums[0], k), add(sums[1], k + SLOSH_LANES);
  if (k + SLOSH_LANES <= dim) add(sums[0], k);
  float lane[SLOSH_LANES], sum = 0;
  store(lane, sums[0] + sums[1]);
  for (int l = 0; l < SLOSH_LANES; ++l) sum += lane[l];
  return sum;
}

// One element about the middle: its numbers, `step` apart, and its squared norm.
SLOSH_INLINE double put_element(const float *from, const float *middle, int64_t dim, float *to, int64_t step) {
  double sum = 0;
  for (int64_t k = 0; k < dim; ++k) {
    const float x = from[k] - middle[k];
    to[k * step] = x;
    sum += double(x) * double(x);
  }
  return sum;
}

// The parts of the squared norms by which a product may be off.
struct Rounding {
  double x, y, tiny, sure;
  explicit Rounding(int64_t dim) {
    const double d = double(dim) * kRoundings, u = 1.0 / (1 << 24), more = d * u < 0.25 ? 1 / (1 - d * u) : 2;
    x = (d / 2 + 8) * u * more;
    y = (d + 8) * u * more;
    tiny = (d + 8) * 0x1p-147;  // what is lost of numbers too small for float
    sure = 1 - 2 * y;           // of a square in float, so much is sure
  }
};

inline void find_middle(const ElementSpace &space, const float *points, int64_t n, int64_t dim) {
  const int64_t sample = n < 32 ? n : 32;
  for (int64_t k = 0; k < dim; ++k) space.middle[k] = 0;
  for (int64_t s = 0; s < sample; ++s) {
    const float *x = points + s * n / sample * dim;
    for (int64_t k = 0; k < dim; ++k) space.middle[k] += x[k];
  }
  for (int64_t k = 0; k < dim; ++k) space.middle[k] /= float(sample);
}

inline void pack_panels(const ElementSpace &space, const float *points, int64_t n, int64_t dim, const Rounding &rounding) {
  find_middle(space, points, n, dim);
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t width = n - first > SLOSH_LANES ? kPanel : SLOSH_LANES, count = n - first < width ? n - first : width;
    float *panel = space.panels + first * dim;
    for (int64_t l = 0; l < count; ++l) {
      const double square = put_element(points + (first + l) * dim, space.middle, dim, panel + l, width);
      space.slack[first + l] = float(2 * rounding.x * square + rounding.tiny);
    }
    for (int64_t l = count; l < width; ++l) {
      for (int64_t k = 0; k < dim; ++k) panel[k * width + l] = 0;
      space.slack[first + l] = -__builtin_inff();  // never the nearest
    }
  }
}

// The sums of R elements of y and V vectors of elements of x, to the table, and the largest of each lane. Each is one chain of multiply-adds.
template <int V, int R>
__attribute__((noinline)) void element_sums(const float *panel, const float *rows, int64_t step, int64_t dim, const float *start, float *table,
                                            float *floor) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  F sum[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[r][v] = all<F>(start[r]);
  const float *p[(R + 3) / 4];
  const int64_t step2 = 2 * step, step3 = 3 * step;  // a pointer for four elements, and three steps: twelve would not fit in the registers
#pragma GCC unroll 3
  for (int q = 0; q < (R + 3) / 4; ++q) p[q] = rows + 4 * q * step;
  for (int64_t k = 0; k < dim; ++k, panel += V * SLOSH_LANES) {
    F x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[v] = load<F>(panel + v * SLOSH_LANES);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float *q = p[r / 4] + k;
      const float y = r % 4 == 0 ? q[0] : r % 4 == 1 ? q[step] : r % 4 == 2 ? q[step2] : q[step3];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[r][v] += x[v] * y;
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    F most = load<F>(floor + v * SLOSH_LANES);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      most = upper(most, sum[r][v]);
      store(table + r * kPanel + v * SLOSH_LANES, sum[r][v]);
    }
    store(floor + v * SLOSH_LANES, most);
  }
}

// Compares element i of x with the element of y of a row in double.
SLOSH_INLINE void compare_directly(const ElementSpace &space, int64_t dim, int64_t i, int64_t row, const float *x, const float *y, double *best, int64_t *which) {
  const int64_t position = space.position[row];
  const double square = direct_square(x + i * dim, y + position * dim, dim);
  if (square < best[i] || (square == best[i] && position < which[i])) best[i] = square, which[i] = position;
}

// Whatever of elements [first, first + V W) of x and of n rows may be the nearest is compared in double. x are their points, `best` and `which` what is
// found of them. Long vectors are first compared in float, and in double the nearest of them first: few others may then be nearer.
template <int V>
inline void compare_near(const ElementSpace &space, int64_t dim, int64_t first, int64_t n, const float *x, const float *y, double sure, double *best,
                         int64_t *which) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  const bool is_long = dim >= 2 * SLOSH_LANES;
  F need[V];
  int64_t n_near = 0;
  float least[V * SLOSH_LANES];
  int32_t nearest[V * SLOSH_LANES];
  for (int v = 0; v < V; ++v) {
    need[v] = load<F>(space.floor + first + v * SLOSH_LANES) - load<F>(space.slack + first + v * SLOSH_LANES);
    for (int l = 0; l < SLOSH_LANES; ++l) least[v * SLOSH_LANES + l] = __builtin_inff(), nearest[v * SLOSH_LANES + l] = -1;
  }
  for (int64_t r = 0; r < n; ++r)
    for (int v = 0; v < V; ++v) {
      const F missing = need[v] - (load<F>(space.table + r * kPanel + v * SLOSH_LANES) + space.extra[r]);
      unsigned near = at_most<SLOSH_LANES>(missing, 0.0f);
      for (; near; near &= near - 1) {
        const int32_t lane = v * SLOSH_LANES + __builtin_ctz(near);
        if (!is_long) {
          compare_directly(space, dim, first + lane, r, x, y, best, which);
          continue;
        }
        const float square = most_of_square(x + (first + lane) * dim, y + space.position[r] * dim, dim);
        if (double(square) * sure > best[first + lane]) continue;
        space.near[n_near++] = {square, int32_t(r), lane};
        if (square < least[lane]) least[lane] = square, nearest[lane] = int32_t(r);
      }
    }
  if (!n_near) return;
  for (int32_t lane = 0; lane < V * SLOSH_LANES; ++lane)
    if (nearest[lane] >= 0) compare_directly(space, dim, first + lane, nearest[lane], x, y, best, which);
  for (int64_t k = 0; k < n_near; ++k) {
    const Near &one = space.near[k];
    if (one.row != nearest[one.lane] && double(one.square) * sure <= best[first + one.lane])
      compare_directly(space, dim, first + one.lane, one.row, x, y, best, which);
  }
}

// The products of elements [first, first + V W) of x and of n rows, to the table.
template <int V> inline void multiply_rows(const ElementSpace &space, int64_t dim, int64_t first, int64_t n) {
  const int64_t step = row_step(dim);
  const float *panel = space.panels + first * dim;
  int64_t r = 0;
  for (; n - r > kFewRows; r += kRowTile)
    element_sums<V, kRowTile>(panel, space.rows + r * step, step, dim, space.start + r, space.table + r * kPanel, space.floor + first);
  for (; r < n; r += kFewRows) element_sums<V, kFewRows>(panel, space.rows + r * step, step, dim, space.start + r, space.table + r * kPanel, space.floor + first);
}

// Takes elements of y from `at` on that have a weight; returns how many, and moves `at` on.
inline int64_t pack_rows(const ElementSpace &space, const float *y, const float *weights, int64_t n, int64_t dim, const Rounding &rounding, int64_t &at) {
  const int64_t most = element_rows(dim), step = row_step(dim);
  int64_t count = 0;
  for (; at < n && count < most; ++at) {
    if (weights && !(weights[at] > 0)) continue;
    const double square = put_element(y + at * dim, space.middle, dim, space.rows + count * step, 1);
    space.start[count] = float(-square / 2 - rounding.y * square);
    space.extra[count] = float(2 * rounding.y * square);
    space.position[count++] = at;
  }
  for (int64_t r = count; r < count + kRowTile && r < most; ++r) {  // what fills up a tile is never the nearest
    std::memset(space.rows + r * step, 0, size_t(dim) * sizeof(float));
    space.start[r] = -__builtin_inff();
  }
  return count;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
