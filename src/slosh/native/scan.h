// Distances from a query to stored vectors, and their prefixes. Types of this file are in the namespace of the instruction set, so that no template of the standard library is shared between copies.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

typedef Lanes<8>::D Wide8;
typedef Lanes<8>::F Float8;
typedef int16_t Short8 __attribute__((vector_size(16)));

// GCC 12 makes two conversions of four numbers each, and puts them together, of what is one instruction.
SLOSH_INLINE Wide8 widened(const Float8 &x) {
#if SLOSH_LANES >= 16
  return Wide8(_mm512_cvtps_pd(__m256(x)));
#else
  return __builtin_convertvector(x, Wide8);
#endif
}

SLOSH_INLINE Wide8 eight(const float *from, float) { return widened(load<Float8>(from)); }
SLOSH_INLINE Wide8 eight(const int16_t *from, float scale) {
#if SLOSH_LANES >= 16
  const Float8 x = Float8(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))))) * scale;
#else
  const Float8 x = __builtin_convertvector(load<Short8>(from), Float8) * scale;
#endif
  return widened(x);
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
  if (v.shorts) __builtin_prefetch(v.scale + position);
}

void squares(const Pairs &job, int64_t query) {
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
inline double rest_of(const Basis &job, double *vector, const double *coordinates) {
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
  const Basis &basis = job.basis;
  const int64_t dim = basis.dim, padded = basis.padded, p = basis.n_directions;
  double *coordinates = centred + kTogether * padded;  // (V, p)
  for (int v = 0; v < V; ++v) {
    double *to = centred + v * padded;
    const int64_t from = (first + v) * dim;
    if (job.vectors.shorts) {
      const float scale = job.vectors.scale[first + v];
      for (int64_t i = 0; i < dim; ++i) to[i] = double(one(job.vectors.shorts + from + i, scale)) - basis.middle[i];
    } else {
      for (int64_t i = 0; i < dim; ++i) to[i] = double(job.vectors.floats[from + i]) - basis.middle[i];
    }
    for (int64_t i = dim; i < padded; ++i) to[i] = 0;
  }
  if (!basis.directions) {
    for (int v = 0; v < V; ++v) {
      const double *vector = centred + v * padded;
      float *out = job.out + (first + v) * job.out_step;
      double square;
      along<1, 1>(vector, vector, padded, &square, 1);
      job.norms[first + v] = std::sqrt(square);
      for (int64_t i = 0; i < dim; ++i) out[i] = float(vector[i]);
    }
    return;
  }
  int64_t k = 0;
  for (; k + kDirections <= p; k += kDirections) along<V, kDirections>(centred, basis.directions + k * padded, padded, coordinates + k, p);
  for (; k < p; ++k) along<V, 1>(centred, basis.directions + k * padded, padded, coordinates + k, p);
  for (int v = 0; v < V; ++v) {
    double *vector = centred + v * padded, *mine = coordinates + v * p;
    float *out = job.out + (first + v) * job.out_step;
    double square;
    along<1, 1>(vector, vector, padded, &square, 1);
    double left = square;
    for (int64_t i = 0; i < p; ++i) {
      left -= mine[i] * mine[i];
      out[i] = float(mine[i]);
    }
    job.norms[first + v] = std::sqrt(square);
    // Of a small difference of large squares few digits are left.
    out[p] = float(left > kCancelled * square ? std::sqrt(left) : rest_of(basis, vector, mine));
  }
}

void prefixes(const Prefixes &job, int64_t tile, void *scratch) {
  double *centred = reinterpret_cast<double *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  const int64_t first = tile * kTogether;
  if (first + kTogether <= job.n) return prefixes_of<kTogether>(job, first, centred);
  for (int64_t i = first; i < job.n; ++i) prefixes_of<1>(job, i, centred);
}

struct Hit {
  double square;
  int64_t rank, position;
};
SLOSH_INLINE bool operator<(const Hit &a, const Hit &b) { return a.square < b.square || (a.square == b.square && a.rank < b.rank); }

// The k nearest so far, as a heap.
struct Nearest {
  const int64_t *ranks;
  int64_t k;
  std::vector<Hit> hits;

  SLOSH_INLINE bool full() const { return int64_t(hits.size()) == k; }
  SLOSH_INLINE double farthest() const { return full() ? hits.front().square : std::numeric_limits<double>::infinity(); }
  SLOSH_INLINE void take(double square, int64_t position) {
    if (square > farthest()) return;
    const Hit hit{square, ranks ? ranks[position] : position, position};
    if (!full()) {
      hits.push_back(hit);
      std::push_heap(hits.begin(), hits.end());
    } else if (hit < hits.front()) {
      std::pop_heap(hits.begin(), hits.end());
      hits.back() = hit;
      std::push_heap(hits.begin(), hits.end());
    }
  }
  inline void write(double *out, int64_t *positions) {
    std::sort_heap(hits.begin(), hits.end());
    for (int64_t i = 0; i < k; ++i) {
      const bool there = i < int64_t(hits.size());
      out[i] = there ? hits[size_t(i)].square : std::numeric_limits<double>::infinity();
      positions[i] = there ? hits[size_t(i)].position : -1;
    }
  }
};

typedef int64_t Bits8 __attribute__((vector_size(64)));
SLOSH_INLINE Wide8 absolute(const Wide8 &x) { return Wide8(Bits8(x) & INT64_MAX); }

// The largest difference of two vectors if it is at most `radius`, and otherwise a negative number, mostly long before the last one is looked at.
// Differences of floats are exact in double.
template <class T> inline double largest_difference(const float *q, const T *x, float scale, int64_t dim, double radius) {
  double largest = 0;
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
    Wide8 part = absolute(eight(q + i, 1) - eight(x + i, scale));
    for (int j = 8; j < 32; j += 8) part = upper(part, absolute(eight(q + i + j, 1) - eight(x + i + j, scale)));
    double lane[8];
    store(lane, part);
    for (int l = 0; l < 8; ++l) largest = lane[l] > largest ? lane[l] : largest;
    if (largest > radius) return -1;
  }
  for (; i < dim; ++i) {
    const double d = double(q[i]) - double(one(x + i, scale));
    largest = d > largest ? d : -d > largest ? -d : largest;
  }
  return largest > radius ? -1 : largest;
}

// Puts the vectors of the places `first` to `last` that lie within the radius of a query, by the largest difference.
void largest_within(const Differences &job, int64_t query, int64_t first, int64_t last, void *sink) {
  const Vectors &v = job.vectors;
  const float *q = job.queries + query * v.dim;
  for (int64_t place = first; place < last; ++place) {
    const int64_t position = job.positions ? job.positions[place] : place;
    const double found = v.shorts ? largest_difference(q, v.shorts + position * v.dim, v.scale[position], v.dim, job.radius[query])
                                  : largest_difference(q, v.floats + position * v.dim, 1, v.dim, job.radius[query]);
    if (found >= 0) job.put(sink, query, found, position);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
