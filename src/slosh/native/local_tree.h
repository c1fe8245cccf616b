// The nearest elements within a set of points of two or three coordinates.
//
// The elements are put in the order of a k-d tree, in blocks of sixteen, with a box around each block, around sixteen blocks, and so on: sixteen
// boxes, or elements, are looked at in a few instructions. Queries are best asked in the same order: what was found for the one before tells how
// far to look. Distances are compared in float32.
#pragma once

#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {
namespace local {

constexpr int64_t kBlock = 16;     // elements of a block, boxes of a group
constexpr int64_t kTopBoxes = 64;  // boxes of the top level, at most
constexpr int kLevels = 8;
constexpr float kOutside = 1e10f;  // where places without an element are: elements lie within 1 of zero
constexpr float kEverything = 64.0f;  // no square of a distance between elements is larger

SLOSH_INLINE int64_t whole_blocks(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

struct Place {
  float x[3];
  uint32_t element;
};

struct AlongAxis {
  int axis;
  bool operator()(const Place &a, const Place &b) const { return a.x[axis] < b.x[axis]; }
};

// Boxes of one level, each row padded to whole groups with boxes that are far away.
struct Level {
  int64_t count;
  float *low[3], *high[3];
};

struct Scratch {
  char *at;
  template <class T> SLOSH_INLINE T *take(int64_t n) {
    T *const result = reinterpret_cast<T *>(at);
    at += (size_t(n) * sizeof(T) + 63) & ~size_t(63);
    return result;
  }
};

// The elements of one set that have a weight.
struct Tree {
  int64_t n;
  Place *place;          // in the order of the tree
  float *x[3], *weight;  // the same, padded to whole blocks
  int top;
  Level level[kLevels];
};

// What was found near a query. Sixteen places beyond the last may be read: far away among candidates, without weight among neighbours.
struct Candidates {
  float *square;
  uint32_t *index;
  int64_t count;
};
struct Neighbors {
  float *square, *x[3], *weight;
  int64_t count;
};

// Orders the places so that halves, quarters and so on, down to blocks, are compact. The first part has a power of two of blocks, so that every
// aligned run of sixteen blocks is a branch.
template <int D> void split(Place *place, int64_t n) {
  typedef Lanes<4>::F F;
  while (n > kBlock) {
    F low = load<F>(place), high = low;  // the fourth lane is no number, and is not looked at
    for (int64_t i = 1; i < n; ++i) {
      const F x = load<F>(place + i);
      low = lower(low, x), high = upper(high, x);
    }
    const F extent = high - low;
    int axis = 0;
    for (int k = 1; k < D; ++k)
      if (extent[k] > extent[axis]) axis = k;
    int64_t half = kBlock;
    while (2 * half < n) half *= 2;
    std::nth_element(place, place + half, place + n, AlongAxis{axis});
    split<D>(place, half);
    place += half, n -= half;
  }
}

template <int D> void build(Tree &tree, Scratch &scratch) {
  split<D>(tree.place, tree.n);
  const int64_t padded = whole_blocks(tree.n);
  for (int k = 0; k < D; ++k) {
    for (int64_t i = 0; i < tree.n; ++i) tree.x[k][i] = tree.place[i].x[k];
    for (int64_t i = tree.n; i < padded; ++i) tree.x[k][i] = kOutside;
  }
  const auto new_level = [&](int64_t count) {
    Level level{};
    level.count = count;
    for (int k = 0; k < D; ++k) {
      level.low[k] = scratch.take<float>(whole_blocks(count));
      level.high[k] = scratch.take<float>(whole_blocks(count));
      for (int64_t b = count; b < whole_blocks(count); ++b) level.low[k][b] = level.high[k][b] = kOutside;
    }
    return level;
  };
  // The smallest of `from` and the largest of `to`, sixteen at a time; what is padded counts for neither.
  const auto bound = [&](Level &level, float *const *from, float *const *to, int64_t n) {
    for (int k = 0; k < D; ++k)
      for (int64_t b = 0; b < level.count; ++b) {
        float low = from[k][b * kBlock], high = to[k][b * kBlock];
        for (int64_t i = b * kBlock; i < std::min(n, (b + 1) * kBlock); ++i) low = std::min<float>(low, from[k][i]), high = std::max<float>(high, to[k][i]);
        level.low[k][b] = low, level.high[k][b] = high;
      }
  };
  tree.level[0] = new_level(padded / kBlock);
  bound(tree.level[0], tree.x, tree.x, tree.n);
  for (tree.top = 0; tree.level[tree.top].count > kTopBoxes; ++tree.top) {
    const Level &below = tree.level[tree.top];
    tree.level[tree.top + 1] = new_level((below.count + kBlock - 1) / kBlock);
    bound(tree.level[tree.top + 1], below.low, below.high, below.count);
  }
}

// Bit b: the box first + b is within `limit`, a square.
template <int D> SLOSH_INLINE unsigned boxes_within(const Level &level, int64_t first, const float *q, float limit) {
  constexpr int W = SLOSH_LANES;
  typedef Lanes<W>::F F;
  unsigned bits = 0;
  for (int part = 0; part < kBlock / W; ++part) {
    F square{};
    for (int k = 0; k < D; ++k) {
      const F below = load<F>(level.low[k] + first + part * W) - q[k], above = q[k] - load<F>(level.high[k] + first + part * W);
      const F outside = below > above ? below : above;
      square += outside > 0 ? outside * outside : F{};
    }
    bits |= at_most<W>(square, limit) << (part * W);
  }
  return bits;
}

// Adds the elements of a block that are within `limit`.
template <int D> SLOSH_INLINE void search_block(const Tree &tree, int64_t block, const float *q, float limit, Candidates &found) {
  constexpr int W = SLOSH_LANES;
  typedef Lanes<W>::F F;
  for (int part = 0; part < kBlock / W; ++part) {
    const int64_t first = block * kBlock + part * W;
    F square{};
    for (int k = 0; k < D; ++k) {
      const F d = load<F>(tree.x[k] + first) - q[k];
      square += d * d;
    }
    const unsigned bits = at_most<W>(square, limit);
    if (!bits) continue;
#if SLOSH_LANES >= 16
    const __m512i index = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(int(first)));
    store(found.square + found.count, _mm512_maskz_compress_ps(__mmask16(bits), square));
    store(found.index + found.count, _mm512_maskz_compress_epi32(__mmask16(bits), index));
    found.count += __builtin_popcount(bits);
#else
    float lane[W];
    store(lane, square);
    for (int l = 0; l < W; ++l) {  // without a branch
      found.square[found.count] = lane[l];
      found.index[found.count] = uint32_t(first + l);
      found.count += bits >> l & 1;
    }
#endif
  }
}

template <int D> void search(const Tree &tree, int level, int64_t first, const float *q, float limit, Candidates &found) {
  for (unsigned bits = boxes_within<D>(tree.level[level], first, q, limit); bits; bits &= bits - 1) {
    const int64_t box = first + __builtin_ctz(bits);
    if (level)
      search<D>(tree, level - 1, box * kBlock, q, limit, found);
    else
      search_block<D>(tree, box, q, limit, found);
  }
}

// How many of the candidates are at most `limit`, with the largest of these and the smallest of the others.
struct Count {
  int64_t below;
  float largest, smallest;
};
SLOSH_INLINE Count count(const Candidates &found, float limit) {
  constexpr int W = SLOSH_LANES;
  typedef Lanes<W>::F F;
  F largest = all<F>(-1.0f), smallest = all<F>(kOutside);
  int64_t below = 0;
  for (int64_t i = 0; i < found.count; i += W) {
    const F square = load<F>(found.square + i);
    below += __builtin_popcount(at_most<W>(square, limit));
    largest = upper(largest, square <= limit ? square : all<F>(-1.0f));
    smallest = lower(smallest, square <= limit ? all<F>(kOutside) : square);
  }
  Count result{below, -1.0f, kOutside};
  for (int l = 0; l < W; ++l) result.largest = std::max<float>(result.largest, largest[l]), result.smallest = std::min<float>(result.smallest, smallest[l]);
  return result;
}

SLOSH_INLINE int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// The k-th smallest of the squares, k at most their number. `limit`: none of them is larger. It counts how many are below a guess: on a surface, where
// the number grows with the square, the second or third guess hits. What is spread otherwise takes halving, by the bits.
SLOSH_INLINE float kth_square(const Candidates &found, int64_t k, float limit) {
  float low = 0.0f, high = limit;  // the k-th is in [low, high]
  int64_t below_low = 0, below_high = found.count;
  for (int turn = 0;; ++turn) {
    float guess = low + (high - low) * (float(k - below_low) / float(below_high - below_low + 1));
    if (turn > 3) {
      const int32_t middle = bits_of(low) + (bits_of(high) - bits_of(low)) / 2;
      std::memcpy(&guess, &middle, 4);
    }
    const Count at = count(found, guess);
    if (at.below == k || (at.below > k && at.largest <= low)) return at.largest;
    if (at.below > k) {
      high = at.largest, below_high = at.below;
    } else {
      if (at.below == k - 1 || at.smallest >= high) return at.smallest;
      low = at.smallest, below_low = at.below;
    }
    if (low == high) return low;
  }
}

// The coordinates, about the query, of the candidates that are within `limit`.
template <int D> SLOSH_INLINE void take(const Tree &tree, const Candidates &found, const float *q, float limit, Neighbors &near) {
  int64_t n = 0;
#if SLOSH_LANES >= 16
  for (int64_t i = 0; i < found.count; i += 16) {
    const Lanes<16>::F square = load<Lanes<16>::F>(found.square + i);
    const unsigned bits = at_most<16>(square, limit);
    store(near.square + n, _mm512_maskz_compress_ps(__mmask16(bits), square));
    store(found.index + n, _mm512_maskz_compress_epi32(__mmask16(bits), load<__m512i>(found.index + i)));
    n += __builtin_popcount(bits);
  }
#else
  for (int64_t i = 0; i < found.count; ++i) {
    const float square = found.square[i];
    found.index[n] = found.index[i];
    near.square[n] = square;
    n += square <= limit;
  }
#endif
  for (int k = 0; k < D; ++k)
    for (int64_t i = 0; i < n; ++i) near.x[k][i] = tree.x[k][found.index[i]] - q[k];
  for (int64_t i = 0; i < n; ++i) near.weight[i] = tree.weight[found.index[i]];
  typedef Lanes<16>::F F;
  for (int k = 0; k < D; ++k) store(near.x[k] + n, F{});  // at the query itself
  store(near.weight + n, F{});
  store(near.square + n, all<F>(kOutside));
  near.count = n;
}

// How far the farthest of `most` elements may be from any query of an aligned run of blocks that holds at least as many.
template <int D> SLOSH_INLINE double run_reach(const Tree &tree, int64_t first, int64_t run) {
  if (first + run > tree.n) return 4;  // cut off: perhaps not so many
  const Level &level = tree.level[0];
  double square = 0;
  for (int k = 0; k < D; ++k) {
    float low = level.low[k][first / kBlock], high = level.high[k][first / kBlock];
    for (int64_t b = first / kBlock; b < (first + run) / kBlock; ++b) low = std::min<float>(low, level.low[k][b]), high = std::max<float>(high, level.high[k][b]);
    square += (double(high) - double(low)) * (double(high) - double(low));
  }
  return std::sqrt(square);
}

// How far the farthest of the neighbours of one query is from another, which is `step` away from it. There are at least as many that near.
template <int D> SLOSH_INLINE double neighbors_reach(const Neighbors &near, const float *step) {
  constexpr int W = SLOSH_LANES;
  typedef Lanes<W>::F F;
  F farthest{};
  for (int64_t i = 0; i < near.count; i += W) {
    F square{};
    for (int k = 0; k < D; ++k) {
      const F d = load<F>(near.x[k] + i) - step[k];
      square += d * d;
    }
    farthest = upper(farthest, square);
  }
  float square = 0;
  for (int l = 0; l < W; ++l) square = std::max<float>(square, farthest[l]);
  return std::sqrt(double(square));
}

SLOSH_INLINE float squared(double distance) { return float(distance * distance * (1 + 1e-6) + 1e-37); }

// Fills `near` with the `most` nearest elements of a query, and those as near as the last; returns how far that one is.
template <int D> SLOSH_INLINE double find_nearest(const Tree &tree, const float *q, int64_t most, double reach, double rounding, Candidates &found, Neighbors &near) {
  float limit = squared(reach * (1 + 1e-5) + rounding);
  for (;; limit = kEverything) {
    found.count = 0;
    for (int64_t b = 0; b < tree.level[tree.top].count; b += kBlock) search<D>(tree, tree.top, b, q, limit, found);
    if (found.count >= most || limit >= kEverything) break;
  }
  store(found.square + found.count, all<Lanes<16>::F>(kOutside));
  const double last = std::sqrt(double(kth_square(found, most, limit)));
  take<D>(tree, found, q, squared(last + rounding), near);
  return last;
}

}  // namespace local
}  // namespace SLOSH_ARCH
}  // namespace slosh
