// Bounds of one-sided distances from stored distance fields of eight bits.
//
// A code c of a field says that the nearest element of the set is c to c + 1 steps from the anchor, 255 that it is farther than that. An element at a
// distance of at most r steps from the anchor, r rounded up, is then c - r to c + 1 + r steps from the set: with saturating bytes two instructions an
// anchor, for as many sets as a vector has bytes. The fields of so many sets are transposed for it, and then serve all queries.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int64_t kBlockSets = 4 * SLOSH_LANES;
typedef uint8_t Bytes __attribute__((vector_size(kBlockSets)));

#if defined(__x86_64__) && SLOSH_LANES == 16
SLOSH_INLINE Bytes add_bytes(Bytes a, Bytes b) { return Bytes(_mm512_adds_epu8(__m512i(a), __m512i(b))); }
SLOSH_INLINE Bytes subtract_bytes(Bytes a, Bytes b) { return Bytes(_mm512_subs_epu8(__m512i(a), __m512i(b))); }
SLOSH_INLINE Bytes lower_bytes(Bytes a, Bytes b) { return Bytes(_mm512_min_epu8(__m512i(a), __m512i(b))); }
SLOSH_INLINE Bytes upper_bytes(Bytes a, Bytes b) { return Bytes(_mm512_max_epu8(__m512i(a), __m512i(b))); }
SLOSH_INLINE Bytes interleave_low(Bytes a, Bytes b) { return Bytes(_mm512_unpacklo_epi8(__m512i(a), __m512i(b))); }
SLOSH_INLINE Bytes interleave_high(Bytes a, Bytes b) { return Bytes(_mm512_unpackhi_epi8(__m512i(a), __m512i(b))); }
#elif defined(__x86_64__) && SLOSH_LANES == 8
SLOSH_INLINE Bytes add_bytes(Bytes a, Bytes b) { return Bytes(_mm256_adds_epu8(__m256i(a), __m256i(b))); }
SLOSH_INLINE Bytes subtract_bytes(Bytes a, Bytes b) { return Bytes(_mm256_subs_epu8(__m256i(a), __m256i(b))); }
SLOSH_INLINE Bytes lower_bytes(Bytes a, Bytes b) { return Bytes(_mm256_min_epu8(__m256i(a), __m256i(b))); }
SLOSH_INLINE Bytes upper_bytes(Bytes a, Bytes b) { return Bytes(_mm256_max_epu8(__m256i(a), __m256i(b))); }
SLOSH_INLINE Bytes interleave_low(Bytes a, Bytes b) { return Bytes(_mm256_unpacklo_epi8(__m256i(a), __m256i(b))); }
SLOSH_INLINE Bytes interleave_high(Bytes a, Bytes b) { return Bytes(_mm256_unpackhi_epi8(__m256i(a), __m256i(b))); }
#else
SLOSH_INLINE Bytes lower_bytes(Bytes a, Bytes b) { return a < b ? a : b; }
SLOSH_INLINE Bytes upper_bytes(Bytes a, Bytes b) { return a < b ? b : a; }
SLOSH_INLINE Bytes add_bytes(Bytes a, Bytes b) { return a + lower_bytes(~a, b); }
SLOSH_INLINE Bytes subtract_bytes(Bytes a, Bytes b) { return a - lower_bytes(a, b); }
SLOSH_INLINE Bytes interleave_low(Bytes a, Bytes b) { return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
SLOSH_INLINE Bytes interleave_high(Bytes a, Bytes b) { return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
#endif

// Sixteen vectors: of each sixteen bytes of them, a table of sixteen by sixteen, the transpose. Four times the first half is interleaved with the second.
SLOSH_INLINE void transpose_bytes(Bytes *rows) {
  Bytes other[16];
#pragma GCC unroll 2
  for (int twice = 0; twice < 2; ++twice) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) other[2 * i] = interleave_low(rows[i], rows[i + 8]), other[2 * i + 1] = interleave_high(rows[i], rows[i + 8]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) rows[2 * i] = interleave_low(other[i], other[i + 8]), rows[2 * i + 1] = interleave_high(other[i], other[i + 8]);
  }
}

// Sixteen columns, from `column` on, of as many rows as a vector has bytes, to vectors: row[s] is where row s begins.
SLOSH_INLINE void transpose_columns(const uint8_t *const *row, int64_t column, uint8_t *to) {
  Bytes rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    uint8_t joined[kBlockSets];
    for (int64_t part = 0; part < kBlockSets; part += 16) std::memcpy(joined + part, row[part + i] + column, 16);
    rows[i] = load<Bytes>(joined);
  }
  transpose_bytes(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) store(to + i * kBlockSets, rows[i]);
}

SLOSH_INLINE Bytes all_bytes(uint8_t x) { return Bytes{} + x; }

// As many bytes as a vector has floats, as floats. GCC 12 makes scalar code of __builtin_convertvector here.
SLOSH_INLINE typename Lanes<SLOSH_LANES>::F bytes_to_floats(const uint8_t *p) {
#if defined(__x86_64__) && SLOSH_LANES == 16
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#elif defined(__x86_64__) && SLOSH_LANES == 8
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
#elif defined(__x86_64__)
  int32_t four;
  std::memcpy(&four, p, 4);
  const __m128i zero = _mm_setzero_si128();
  return _mm_cvtepi32_ps(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero));
#else
  typename Lanes<SLOSH_LANES>::F x;
  for (int l = 0; l < SLOSH_LANES; ++l) x[l] = float(p[l]);
  return x;
#endif
}

// What is added up of the bytes of each set of a block: times a weight each, squared or not, for up to kSumElements elements.
template <bool Squared> struct FloatSums {
  typename Lanes<SLOSH_LANES>::F sums[4] = {};
  SLOSH_INLINE void add(const Bytes &x, float weight) {
    uint8_t bytes[kBlockSets];
    store(bytes, x);
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      const typename Lanes<SLOSH_LANES>::F value = bytes_to_floats(bytes + p * SLOSH_LANES);
      sums[p] += weight * (Squared ? value * value : value);
    }
  }
  SLOSH_INLINE void take(double *to) const {
    float each[kBlockSets];
    std::memcpy(each, sums, sizeof(each));
    for (int64_t s = 0; s < kBlockSets; ++s) to[s] += double(each[s]);
  }
};

// The same for elements that all have the weight 1: sums of bytes in sixteen bits, which take fewer instructions.
struct WholeSums {
  typedef uint16_t Whole __attribute__((vector_size(kBlockSets)));
  Whole low{}, high{};
  SLOSH_INLINE void add(const Bytes &x, float) {
    low += Whole(interleave_low(x, Bytes{}));
    high += Whole(interleave_high(x, Bytes{}));
  }
  SLOSH_INLINE void take(double *to) const {
    uint16_t each[2][kBlockSets / 2];
    store(each[0], low), store(each[1], high);
    for (int64_t s = 0; s < kBlockSets; ++s) to[s] += double(each[s % 16 / 8][s / 16 * 8 + s % 8]);
  }
};

constexpr int64_t kSumElements = 256;  // so many squares of bytes are added by float, and so many bytes by sixteen bits, without rounding

size_t bounds_bytes(const FieldBounds &job) {
  const int64_t columns = (job.n_anchors + 15) / 16 * 16;
  return size_t((columns + 2 * (job.most_elements + 16)) * kBlockSets + 256 * 8 + 128);
}

// The bounds of a query and the sets of a block, from the bounds of each element, as bytes.
template <class Sums> void sum_bounds(const FieldBounds &job, const uint8_t *tile, int64_t query, int64_t first, int64_t count) {
  const int64_t A = job.n_near, last = job.offsets[query + 1];
  double lower[kBlockSets] = {}, upper[kBlockSets] = {};
  Bytes farthest{};
  for (int64_t from = job.offsets[query]; from < last; from += kSumElements) {
    const int64_t to = from + kSumElements < last ? from + kSumElements : last;
    Sums low_sum, high_sum;
    for (int64_t e = from; e < to; ++e) {
      const float weight = job.weights[e];
      if (!(weight > 0)) continue;
      Bytes low{}, high = all_bytes(255);
      for (int64_t j = e * A; j < (e + 1) * A; ++j) {
        const Bytes code = load<Bytes>(tile + int64_t(job.near[j]) * kBlockSets), away = all_bytes(job.away[j]);
        low = upper_bytes(low, subtract_bytes(code, away));
        high = lower_bytes(high, add_bytes(code, away));
      }
      high = add_bytes(high, all_bytes(1));
      farthest = upper_bytes(farthest, high);
      low_sum.add(low, weight);
      high_sum.add(high, weight);
    }
    low_sum.take(lower);
    high_sum.take(upper);
  }
  uint8_t unknown[kBlockSets];
  store(unknown, farthest);
  for (int64_t s = 0; s < count; ++s) {
    job.lower[query * job.n_sets + first + s] = lower[s] * job.low_scale[query];
    job.upper[query * job.n_sets + first + s] = unknown[s] == 255 ? __builtin_inf() : upper[s] * job.high_scale[query];
  }
}

// The mean over the best share of the mass, of bytes (n,) with weights: counted by their values.
template <bool Squared, bool Upper> SLOSH_INLINE double best_share(const uint8_t *values, const float *weights, int64_t n, double limit, double *mass) {
  for (int v = 0; v < 256; ++v) mass[v] = 0;
  for (int64_t i = 0; i < n; ++i) mass[values[i]] += double(weights[i]);
  double left = limit, sum = 0;
  for (int v = 0; v < 256 && left > 0; ++v) {
    if (mass[v] == 0) continue;
    if (Upper && v == 255) return __builtin_inf();  // which says nothing
    const double part = mass[v] < left ? mass[v] : left;
    sum += part * (Squared ? double(v * v) : double(v));
    left -= part;
  }
  return sum;
}

// The same as sum_bounds over a share of the mass: the bytes of all elements are kept, and sorted set by set.
template <bool Squared> void trimmed_bounds(const FieldBounds &job, const uint8_t *tile, uint8_t *scratch, int64_t query, int64_t first, int64_t count) {
  const int64_t A = job.n_near, from = job.offsets[query], n = job.offsets[query + 1] - from, padded = (n + 15) / 16 * 16;
  uint8_t *low_of = scratch, *high_of = scratch + (job.most_elements + 16) * kBlockSets;
  double *mass = reinterpret_cast<double *>((reinterpret_cast<uintptr_t>(high_of + (job.most_elements + 16) * kBlockSets) + 63) & ~uintptr_t(63));
  Bytes lows[16], highs[16];
  for (int64_t e = 0; e < padded; ++e) {
    Bytes low{}, high = all_bytes(255);
    if (e < n)
      for (int64_t j = (from + e) * A; j < (from + e + 1) * A; ++j) {
        const Bytes code = load<Bytes>(tile + int64_t(job.near[j]) * kBlockSets), away = all_bytes(job.away[j]);
        low = upper_bytes(low, subtract_bytes(code, away));
        high = lower_bytes(high, add_bytes(code, away));
      }
    lows[e % 16] = low, highs[e % 16] = add_bytes(high, all_bytes(1));
    if (e % 16 < 15) continue;
    // Sixteen elements of sixteen sets are transposed, so that the bytes of a set stand side by side.
    transpose_bytes(lows), transpose_bytes(highs);
    for (int i = 0; i < 16; ++i) {
      uint8_t bytes[2][kBlockSets];
      store(bytes[0], lows[i]), store(bytes[1], highs[i]);
      for (int64_t part = 0; part < kBlockSets; part += 16) {
        std::memcpy(low_of + (part + i) * padded + e - 15, bytes[0] + part, 16);
        std::memcpy(high_of + (part + i) * padded + e - 15, bytes[1] + part, 16);
      }
    }
  }
  for (int64_t s = 0; s < count; ++s) {
    const double low = best_share<Squared, false>(low_of + s * padded, job.weights + from, n, job.limits[query], mass);
    const double high = best_share<Squared, true>(high_of + s * padded, job.weights + from, n, job.limits[query], mass);
    job.lower[query * job.n_sets + first + s] = low * job.low_scale[query];
    job.upper[query * job.n_sets + first + s] = high * job.high_scale[query];
  }
}

void field_bounds(const FieldBounds &job, int64_t block, void *scratch) {
  uint8_t *tile = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  const int64_t first = block * kBlockSets, K = job.n_anchors, columns = (K + 15) / 16 * 16;
  const int64_t count = job.n_sets - first < kBlockSets ? job.n_sets - first : kBlockSets;
  const uint8_t *row[kBlockSets];
  for (int64_t s = 0; s < kBlockSets; ++s) {  // too few are repeated
    const int64_t place = first + (s < count ? s : 0);
    row[s] = job.fields + (job.rows ? job.rows[place] : place) * K;
  }
  int64_t column = 0;
  for (; column + 16 <= K; column += 16)
    if (job.used[column / 16]) transpose_columns(row, column, tile + column * kBlockSets);
  for (; column < K; ++column)
    for (int64_t s = 0; s < kBlockSets; ++s) tile[column * kBlockSets + s] = row[s][column];
  uint8_t *rest = tile + columns * kBlockSets;
  for (int64_t query = 0; query < job.n_queries; ++query) {
    if (job.limits)
      (job.squared ? trimmed_bounds<true> : trimmed_bounds<false>)(job, tile, rest, query, first, count);
    else
      (job.squared ? sum_bounds<FloatSums<true>> : job.uniform ? sum_bounds<WholeSums> : sum_bounds<FloatSums<false>>)(job, tile, query, first, count);
  }
}

// The products of a row of bytes with Q rows of floats, from query q on: in each lane one chain of sums.
template <int Q> SLOSH_INLINE void products_of(const Histograms &job, const uint8_t *row, int64_t set, int64_t q) {
  typedef typename Lanes<SLOSH_LANES>::F F;
  const int64_t K = job.n_anchors;
  const float *field = job.fields + q * K;
  F sums[Q][4] = {};
  int64_t k = 0;
  const auto step = [&](int part) SLOSH_FLAT {
    const F share = bytes_to_floats(row + k);
#pragma GCC unroll 4
    for (int t = 0; t < Q; ++t) sums[t][part] += share * load<F>(field + t * K + k);
  };
  for (; k + 4 * SLOSH_LANES <= K; k += SLOSH_LANES) {
    step(0), k += SLOSH_LANES, step(1), k += SLOSH_LANES, step(2), k += SLOSH_LANES, step(3);
  }
  for (; k + SLOSH_LANES <= K; k += SLOSH_LANES) step(0);
  for (int t = 0; t < Q; ++t) {
    float lane[4 * SLOSH_LANES];
    double sum = 0;
    std::memcpy(lane, sums[t], sizeof(lane));
    for (int l = 0; l < 4 * SLOSH_LANES; ++l) sum += double(lane[l]);
    for (int64_t rest = k; rest < K; ++rest) sum += double(row[rest]) * double(field[t * K + rest]);
    job.out[(q + t) * job.n_sets + set] = sum;
  }
}

void histogram_products(const Histograms &job, int64_t first, int64_t last) {
  for (int64_t s = first; s < last; ++s) {
    const uint8_t *row = job.shares + (job.rows ? job.rows[s] : s) * job.n_anchors;
    int64_t q = 0;
    for (; q + 2 <= job.n_queries; q += 2) products_of<2>(job, row, s, q);
    if (q < job.n_queries) products_of<1>(job, row, s, q);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
