// Distances from a query to stored vectors, and the ladder: prefixes in inverted lists, scanned sixteen rows at a time, then the vectors of the
// best. Types of this file are in the namespace of the instruction set, so that no template of the standard library is shared between copies.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int kRows = 16;  // rows of a block, whatever the lanes

typedef Lanes<8>::D Wide8;
typedef Lanes<8>::F Float8;
typedef int16_t Short8 __attribute__((vector_size(16)));

SLOSH_INLINE Wide8 eight(const float *from, float) { return __builtin_convertvector(load<Float8>(from), Wide8); }
SLOSH_INLINE Wide8 eight(const int16_t *from, float scale) {
#if SLOSH_LANES >= 16
  const Float8 x = Float8(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))))) * scale;
#else
  const Float8 x = __builtin_convertvector(load<Short8>(from), Float8) * scale;
#endif
  return __builtin_convertvector(x, Wide8);
}
SLOSH_INLINE float one(const float *from, float) { return *from; }
SLOSH_INLINE float one(const int16_t *from, float scale) { return float(*from) * scale; }

SLOSH_INLINE double sum(const Wide8 &x) {
  double lane[8];
  store(lane, x);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// |q - x|^2 in double, where 16-bit numbers of x stand for the float scale * x. The order of the sum depends on the dimension only, so equal
// vectors are at equal distances.
template <class T> inline double square(const float *q, const T *x, float scale, int64_t dim) {
  Wide8 parts[4] = {};
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32)
    for (int part = 0; part < 4; ++part) {
      const Wide8 d = eight(q + i + 8 * part, 1) - eight(x + i + 8 * part, scale);
      parts[part] += d * d;
    }
  for (; i + 8 <= dim; i += 8) {
    const Wide8 d = eight(q + i, 1) - eight(x + i, scale);
    parts[0] += d * d;
  }
  double total = sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
  for (; i < dim; ++i) {
    const double d = double(q[i]) - double(one(x + i, scale));
    total += d * d;
  }
  return total;
}

SLOSH_INLINE double square(const Vectors &v, const float *q, int64_t position) {
  return v.shorts ? square(q, v.shorts + position * v.dim, v.scale[position], v.dim) : square(q, v.floats + position * v.dim, 1, v.dim);
}

SLOSH_INLINE void fetch(const Vectors &v, int64_t position) {
  const char *at = v.shorts ? reinterpret_cast<const char *>(v.shorts + position * v.dim) : reinterpret_cast<const char *>(v.floats + position * v.dim);
  const int64_t bytes = std::min<int64_t>(v.dim * (v.shorts ? 2 : 4), 512);  // the machine goes on by itself
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b);
}

inline void squares(const Pairs &job, int64_t query) {
  const float *q = job.queries + query * job.vectors.dim;
  const int64_t end = job.offsets[query + 1];
  for (int64_t i = job.offsets[query]; i < end; ++i) {
    if (i + 2 < end) fetch(job.vectors, job.positions[i + 2]);
    job.out[i] = square(job.vectors, q, job.positions[i]);
  }
}

typedef Lanes<SLOSH_LANES / 2>::D Doubles;  // as many as a register holds
constexpr int kDoubles = SLOSH_LANES / 2;

// The products of V vectors with K directions. Each is summed in the same order for any V and K.
template <int V, int K> SLOSH_INLINE void along(const double *vectors, const double *directions, int64_t padded, double *out, int64_t stride) {
  Doubles total[V][K] = {};
  for (int64_t i = 0; i < padded; i += kDoubles) {
    Doubles d[K];
    for (int k = 0; k < K; ++k) d[k] = load<Doubles>(directions + k * padded + i);
    for (int v = 0; v < V; ++v) {
      const Doubles x = load<Doubles>(vectors + v * padded + i);
      for (int k = 0; k < K; ++k) total[v][k] += x * d[k];
    }
  }
  for (int v = 0; v < V; ++v)
    for (int k = 0; k < K; ++k) {
      double lane[kDoubles], sum = 0;
      store(lane, total[v][k]);
      for (int l = 0; l < kDoubles; ++l) sum += lane[l];
      out[v * stride + k] = sum;
    }
}

// What the directions leave of a vector, which is changed: they are taken off one after the other.
inline double rest_of(const Prefixes &job, double *vector, const double *coordinates) {
  for (int64_t k = 0; k < job.n_directions; ++k) {
    const double *direction = job.directions + k * job.padded;
    for (int64_t i = 0; i < job.padded; i += kDoubles) store(vector + i, load<Doubles>(vector + i) - load<Doubles>(direction + i) * coordinates[k]);
  }
  double square;
  along<1, 1>(vector, vector, job.padded, &square, 1);
  return std::sqrt(square);
}

// V vectors at a time, and several directions, so that each number is read once for many products. A vector's numbers do not depend on the others.
template <int V> inline void prefixes_of(const Prefixes &job, int64_t first, double *centred) {
  constexpr int kDirections = SLOSH_LANES == 16 ? 4 : 2;  // as many sums as registers can hold
  constexpr double kCancelled = 1e-6;
  const int64_t dim = job.vectors.dim, padded = job.padded, p = job.n_directions;
  double *coordinates = centred + kTogether * padded;  // (V, p)
  for (int v = 0; v < V; ++v) {
    double *to = centred + v * padded;
    const int64_t from = (first + v) * dim;
    if (job.vectors.shorts) {
      const float scale = job.vectors.scale[first + v];
      for (int64_t i = 0; i < dim; ++i) to[i] = double(one(job.vectors.shorts + from + i, scale)) - job.middle[i];
    } else {
      for (int64_t i = 0; i < dim; ++i) to[i] = double(job.vectors.floats[from + i]) - job.middle[i];
    }
    for (int64_t i = dim; i < padded; ++i) to[i] = 0;
  }
  int64_t k = 0;
  for (; k + kDirections <= p; k += kDirections) along<V, kDirections>(centred, job.directions + k * padded, padded, coordinates + k, p);
  for (; k < p; ++k) along<V, 1>(centred, job.directions + k * padded, padded, coordinates + k, p);
  for (int v = 0; v < V; ++v) {
    double *vector = centred + v * padded, *mine = coordinates + v * p;
    float *out = job.out + (first + v) * (p + 1);
    double square;
    along<1, 1>(vector, vector, padded, &square, 1);
    double left = square;
    for (int64_t i = 0; i < p; ++i) {
      left -= mine[i] * mine[i];
      out[i] = float(mine[i]);
    }
    job.norms[first + v] = std::sqrt(square);
    // Of a small difference of large squares few digits are left.
    out[p] = float(left > kCancelled * square ? std::sqrt(left) : rest_of(job, vector, mine));
  }
}

inline void prefixes(const Prefixes &job, int64_t tile, void *scratch) {
  double *centred = reinterpret_cast<double *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  const int64_t first = tile * kTogether;
  if (first + kTogether <= job.n) return prefixes_of<kTogether>(job, first, centred);
  for (int64_t i = first; i < job.n; ++i) prefixes_of<1>(job, i, centred);
}

// Bit l: lane l is at most `limit`.
template <int W> SLOSH_INLINE unsigned at_most(const typename Lanes<W>::F &x, float limit) {
  float lane[W];
  store(lane, x);
  unsigned bits = 0;
  for (int l = 0; l < W; ++l) bits |= unsigned(lane[l] <= limit) << l;
  return bits;
}
#if defined(__x86_64__)
template <> SLOSH_INLINE unsigned at_most<4>(const Lanes<4>::F &x, float limit) {
  return unsigned(_mm_movemask_ps(_mm_cmple_ps(x, _mm_set1_ps(limit))));
}
#if SLOSH_LANES >= 8
template <> SLOSH_INLINE unsigned at_most<8>(const Lanes<8>::F &x, float limit) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LE_OQ)));
}
#endif
#if SLOSH_LANES >= 16
template <> SLOSH_INLINE unsigned at_most<16>(const Lanes<16>::F &x, float limit) {
  return unsigned(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LE_OQ));
}
#endif
#endif

// Squared distances from a query's prefix to the sixteen rows of a block, each (width, 16).
SLOSH_INLINE void block_squares(const float *q, const float *block, int64_t width, float *out) {
  typedef Lanes<SLOSH_LANES>::F F;
  constexpr int parts = kRows / SLOSH_LANES;
  F sum[parts] = {};
  for (int64_t k = 0; k < width; ++k)
    for (int part = 0; part < parts; ++part) {
      const F d = load<F>(block + k * kRows + part * SLOSH_LANES) - q[k];
      sum[part] += d * d;
    }
  for (int part = 0; part < parts; ++part) store(out + part * SLOSH_LANES, sum[part]);
}

SLOSH_INLINE unsigned sixteen_at_most(const float *x, float limit) {
  typedef Lanes<SLOSH_LANES>::F F;
  unsigned bits = 0;
  for (int part = 0; part < kRows / SLOSH_LANES; ++part)
    bits |= at_most<SLOSH_LANES>(load<F>(x + part * SLOSH_LANES), limit) << (part * SLOSH_LANES);
  return bits;
}

struct Near {
  float square;
  uint32_t place;  // block * 16 + lane, or a list
};
SLOSH_INLINE bool operator<(const Near &a, const Near &b) { return a.square < b.square || (a.square == b.square && a.place < b.place); }

struct Hit {
  double square;
  int64_t row, position;
};
SLOSH_INLINE bool operator<(const Hit &a, const Hit &b) { return a.square < b.square || (a.square == b.square && a.row < b.row); }

struct List {
  float key;  // distance from the query to the centroid, less the margin of the list
  int32_t list;
};
SLOSH_INLINE bool operator<(const List &a, const List &b) { return a.key > b.key || (a.key == b.key && a.list > b.list); }  // for a heap

struct Climb {
  const Ladder &job;
  const int64_t query;
  const float *prefix, *vector;
  const double slack;
  const int64_t skip;
  std::vector<List> lists;
  std::vector<Near> near, away;  // `away`: distances to the centroids, not squared
  std::vector<Hit> hits;
  int64_t scanned = 0, candidates = 0;

  Climb(const Ladder &j, int64_t q)
      : job(j), query(q), prefix(j.prefixes + q * j.width), vector(j.queries + q * j.vectors.dim), slack(j.slack[q]), skip(j.skip ? j.skip[q] : -1) {
    away.resize(size_t(job.n_lists));
    float found[kRows];
    for (int64_t first = 0; first < job.n_lists; first += kRows) {
      block_squares(prefix, job.centroids + first * job.width, job.width, found);
      for (int64_t l = first; l < std::min(job.n_lists, first + kRows); ++l) away[size_t(l)] = {std::sqrt(found[l - first]), uint32_t(l)};
    }
  }

  // What a prefix may be away, squared, if the vector is within `radius`: the prefix is never farther, but for rounding.
  float limit_of(double radius) const {
    const double reach = radius * (1 + 1e-5) + slack;
    const double squared = reach * reach * (1 + 1e-6) + 1e-36;  // below that a square in float32 has few digits
    return squared < 3e38 ? float(squared) : std::numeric_limits<float>::infinity();
  }

  // No row of the list is within `radius`.
  bool beyond(const Near &l, double radius) const {
    const double far = double(l.square) * (1 - 1e-5) - double(job.radii[l.place]) - slack - 1e-18;
    return far > radius && far < std::numeric_limits<double>::infinity();  // infinite: float32 has overflowed
  }

  template <class Take> void scan(int32_t list, const float &limit, Take take) {
    float found[kRows];
    const int64_t end = job.list_start[list + 1];
    for (int64_t i = job.list_start[list]; i < end; ++i) {
      const int64_t block = job.list_blocks[i];
      if (i + 2 < end) {  // blocks of a list are not side by side, so the machine cannot guess the next one
        const float *next = job.blocks + job.list_blocks[i + 2] * job.width * kRows;
        for (int64_t k = 0; k < job.width; ++k) __builtin_prefetch(next + k * kRows);
      }
      const unsigned mask = job.masks[block];
      if (!mask) continue;
      scanned += __builtin_popcount(mask);
      block_squares(prefix, job.blocks + block * job.width * kRows, job.width, found);
      for (unsigned bits = sixteen_at_most(found, limit) & mask; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        take(Near{found[lane], uint32_t(block * kRows + lane)});
      }
    }
  }

  // The prefixes nearest to the query, `depth` of them, from list after list, until the next one is too far off to hold such a prefix: its
  // centroid, less its margin, is farther than `stretch` times the last of them. So a query far from all rows looks at more lists
  // than one amid them, and the same part of its neighbours is found (docs/search.md).
  void approach(int64_t depth) {
    float limit = std::numeric_limits<float>::infinity(), farthest = limit;
    const size_t full = size_t(depth + std::max<int64_t>(16, depth / 2));
    near.reserve(full + kRows);
    lists.resize(away.size());
    for (size_t l = 0; l < away.size(); ++l) lists[l] = {away[l].square - job.margins[l], int32_t(l)};
    std::make_heap(lists.begin(), lists.end());
    const auto cut = [&] {
      std::nth_element(near.begin(), near.begin() + depth - 1, near.end());
      near.resize(size_t(depth));
      limit = near.back().square;
      farthest = job.stretch * std::sqrt(limit);
    };
    for (size_t left = lists.size(); left && lists.front().key <= farthest;) {
      std::pop_heap(lists.begin(), lists.begin() + int64_t(left));
      const int32_t list = lists[--left].list;
      scan(list, limit, [&](const Near &n) {
        if (!(n.square <= limit)) return;
        near.push_back(n);
        if (near.size() >= full) cut();
      });
      if (near.size() > size_t(depth + depth / 4) || (farthest == std::numeric_limits<float>::infinity() && near.size() > size_t(depth))) cut();
    }
    if (near.size() > size_t(depth)) cut();
    std::sort(near.begin(), near.end());
  }

  // All prefixes that a vector within `radius` may have.
  void surround(double radius) {
    const float limit = limit_of(radius);
    near.clear();
    for (const Near &l : away)
      if (!beyond(l, radius)) scan(int32_t(l.place), limit, [&](const Near &n) { near.push_back(n); });
    std::sort(near.begin(), near.end());
  }

  // The vectors of `near`, in order, until no later one can be among the k nearest.
  void rerank(int64_t k) {
    hits.clear();
    float limit = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < near.size() && near[i].square <= limit; ++i) {
      if (i + 2 < near.size()) fetch(job.vectors, job.slots[near[i + 2].place]);
      const int64_t position = job.slots[near[i].place];
      if (position == skip) continue;
      ++candidates;
      const Hit hit{square(job.vectors, vector, position), job.rows[position], position};
      if (int64_t(hits.size()) < k) {
        hits.push_back(hit);
        std::push_heap(hits.begin(), hits.end());
      } else if (hit < hits.front()) {
        std::pop_heap(hits.begin(), hits.end());
        hits.back() = hit;
        std::push_heap(hits.begin(), hits.end());
      } else {
        continue;
      }
      if (int64_t(hits.size()) == k) limit = limit_of(std::sqrt(hits.front().square));
    }
    std::sort_heap(hits.begin(), hits.end());
  }
};

// The list whose centroid is nearest to a query.
inline int64_t nearest_list(const Ladder &job, int64_t query) {
  float found[kRows], best = std::numeric_limits<float>::infinity();
  int64_t list = 0;
  for (int64_t first = 0; first < job.n_lists; first += kRows) {
    block_squares(job.prefixes + query * job.width, job.centroids + first * job.width, job.width, found);
    for (int64_t l = first; l < std::min(job.n_lists, first + kRows); ++l)
      if (found[l - first] < best) best = found[l - first], list = l;
  }
  return list;
}

inline void ladder(const Ladder &job, int64_t query) {
  Climb climb(job, query);
  if (job.radius) {
    const double radius = job.radius[query];
    climb.surround(radius);
    for (size_t i = 0; i < climb.near.size(); ++i) {
      if (i + 2 < climb.near.size()) fetch(job.vectors, job.slots[climb.near[i + 2].place]);
      const int64_t position = job.slots[climb.near[i].place];
      if (position == climb.skip) continue;
      ++climb.candidates;
      const double found = square(job.vectors, climb.vector, position);
      if (std::sqrt(found) <= radius) job.put(job.sink, query, found, position);
    }
  } else {
    const int64_t k = job.k;
    climb.approach(job.depth + (job.skip ? 1 : 0));
    climb.rerank(k);
    if (job.exact) {
      const bool enough = int64_t(climb.hits.size()) == k;
      const double radius = enough ? std::sqrt(climb.hits.back().square) : std::numeric_limits<double>::infinity();
      climb.surround(radius);
      climb.rerank(k);
    }
    for (int64_t i = 0; i < k; ++i) {
      const bool there = i < int64_t(climb.hits.size());
      job.out[query * k + i] = there ? climb.hits[size_t(i)].square : std::numeric_limits<double>::infinity();
      job.out_positions[query * k + i] = there ? climb.hits[size_t(i)].position : -1;
    }
  }
  job.scanned[query] = climb.scanned;
  job.candidates[query] = climb.candidates;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
