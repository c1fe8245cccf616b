// Sets too large for the network to win: one lane at a time, its n values contiguous.
//
// `radix_sort` orders them whole, in three passes over 11 bits, whatever their distribution. `select_average` needs no order inside a
// bin: it counts and sums the values in buckets of equal width, and orders only the few buckets that a bin's edge cuts. It sums in
// integers, so that the result does not depend on the order of the elements.
#pragma once

#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// Order of the floats as an order of unsigned integers, and back.
SLOSH_INLINE uint32_t to_ordered(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u);
}
SLOSH_INLINE float from_ordered(uint32_t u) {
  u ^= uint32_t(int32_t(~u) >> 31) | 0x80000000u;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// An item is a key alone (uint32_t) or a key in the upper half with its weight's bits in the lower (uint64_t).
SLOSH_INLINE uint32_t key_of(uint32_t item) { return item; }
SLOSH_INLINE uint32_t key_of(uint64_t item) { return uint32_t(item >> 32); }

// One pass a digit of `Bits` bits, from the lowest; a digit in which all keys agree is left out. The result is in `items` again.
template <int Bits, class Item> inline void radix_passes(Item *items, Item *spare, int64_t n) {
  constexpr int passes = (32 + Bits - 1) / Bits;
  constexpr uint32_t mask = (uint32_t(1) << Bits) - 1;
  uint32_t count[passes][mask + 1];
  std::memset(count, 0, sizeof(count));
  for (int64_t i = 0; i < n; ++i)
    for (int pass = 0; pass < passes; ++pass) ++count[pass][(key_of(items[i]) >> (pass * Bits)) & mask];
  Item *from = items, *to = spare;
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * Bits;
    uint32_t *c = count[pass], at = 0;
    if (c[(key_of(from[0]) >> shift) & mask] == uint32_t(n)) continue;
    for (uint32_t b = 0; b <= mask; ++b) {
      const uint32_t here = c[b];
      c[b] = at;
      at += here;
    }
    for (int64_t i = 0; i < n; ++i) {
      const Item x = from[i];
      to[c[(key_of(x) >> shift) & mask]++] = x;
    }
    Item *t = from;
    from = to;
    to = t;
  }
  if (from != items) std::memcpy(items, from, size_t(n) * sizeof(Item));
}

// Sorts n items by key; `spare` has n places.
template <class Item> inline void radix_sort(Item *items, Item *spare, int64_t n) {
  if (n > 4096) return radix_passes<11>(items, spare, n);
  if (n > 64) return radix_passes<8>(items, spare, n);
  for (int64_t i = 1; i < n; ++i) {
    const Item x = items[i];
    int64_t j = i;
    for (; j > 0 && key_of(items[j - 1]) > key_of(x); --j) items[j] = items[j - 1];
    items[j] = x;
  }
}

// Items of `select_average` are whole numbers of so many bits: finer than the rounding of the largest difference in float32.
constexpr int kItemBits = 30;
constexpr int kFewBits = 6;

// Sorts n <= 64 items that agree in all but the `shift` <= 25 lowest bits, by counting how many are smaller than each: more comparisons than an
// insertion sort, but no branch to mispredict.
SLOSH_INLINE void rank_sort(uint32_t *items, int64_t n, int shift) {
  typedef int32_t I __attribute__((vector_size(4 * SLOSH_LANES)));
  const uint32_t inside = (uint32_t(1) << shift) - 1, base = items[0] & ~inside;
  int32_t key[(1 << kFewBits) + SLOSH_LANES], rank[SLOSH_LANES];
  for (int64_t i = 0; i < n; ++i) key[i] = int32_t((items[i] & inside) << kFewBits | uint32_t(i));  // no two are equal
  for (int64_t i = n; i < n + SLOSH_LANES; ++i) key[i] = INT32_MAX;
  for (int64_t i = 0; i < n; i += SLOSH_LANES) {
    const I some = load<I>(key + i);
    I smaller{};
    for (int64_t j = 0; j < n; ++j) smaller -= (I{} + key[j]) < some;
    store(rank, smaller);
    for (int64_t k = i; k < n && k < i + SLOSH_LANES; ++k) items[rank[k - i]] = base | uint32_t(key[k]) >> kFewBits;
  }
}

// Parts of the range that `sift` looks up in registers.
#if SLOSH_LANES >= 16
constexpr int kSiftBits = 10;
#else
constexpr int kSiftBits = 8;
#endif
constexpr int kSiftParts = 1 << kSiftBits, kSiftShift = kItemBits - kSiftBits;

// What `select_average` counts in: more than the whole stack of a thread on some systems (musl: 128 KiB).
struct Tables {
  static constexpr int64_t most = 4096;  // buckets
  uint64_t both[2][most];                // number and sum of the elements of a bucket, see `count_buckets`
  uint64_t before[most + 1];             // the sum of the elements before the bucket
  uint32_t start[most + 1];              // and how many these are
  uint32_t edge[most];                   // the bucket in which bin m begins
  uint32_t place[most];                  // where the next element of a cut bucket goes; 0 for the other buckets
  uint8_t is_cut[most];                  // 1, and 2 once it is in order
  uint32_t parts[kSiftParts / 32];           // a bit, from the highest on, for each part of the range that has a cut bucket
  struct Bin {
    double mean, counts;                 // 0 for a cut bucket, which lies in several bins
  } bin[most];                           // the bin that a bucket lies in

  // The last bucket that begins at or before element `at`: the one that holds it.
  SLOSH_INLINE int64_t bucket_of(int64_t at, int64_t buckets) const {
    int64_t b = 0;
    for (int64_t half = buckets / 2; half > 0; half /= 2) b += int64_t(start[b + half]) <= at ? half : 0;
    return b;
  }
};

// Fills `start` and `before`. An element is counted and summed in one addition: of 64 bits the lower 47 hold the sum of 2^16 elements, and the
// others their number. There are two tables because in one, equal neighbours would wait for each other's store.
SLOSH_INLINE void count_buckets(const uint32_t *items, int64_t n, int64_t buckets, int shift, Tables &tables) {
  constexpr int64_t block = int64_t(1) << 16;
  constexpr int at_count = 47;
  constexpr uint64_t one = uint64_t(1) << at_count;
  uint64_t *even = tables.both[0], *odd = tables.both[1], *before = tables.before;
  uint32_t *start = tables.start;
  std::memset(start, 0, size_t(buckets + 1) * sizeof(*start));
  std::memset(before, 0, size_t(buckets + 1) * sizeof(*before));
  for (int64_t from = 0; from < n; from += block) {
    std::memset(even, 0, size_t(buckets) * sizeof(*even));
    std::memset(odd, 0, size_t(buckets) * sizeof(*odd));
    const int64_t to = from + block < n ? from + block : n;
    int64_t i = from;
    for (; i + 4 <= to; i += 4) {
      const uint32_t a = items[i], b = items[i + 1], c = items[i + 2], d = items[i + 3];
      even[a >> shift] += one + a, odd[b >> shift] += one + b;
      even[c >> shift] += one + c, odd[d >> shift] += one + d;
    }
    for (; i < to; ++i) even[items[i] >> shift] += one + items[i];
    uint64_t upto = 0;
    for (int64_t b = 0; b < buckets; ++b) {
      start[b] += uint32_t(upto >> at_count), before[b] += upto & (one - 1);
      upto += even[b] + odd[b];
    }
    start[buckets] += uint32_t(upto >> at_count), before[buckets] += upto & (one - 1);
  }
}

// Where a bin begins: `part / M` into element `at`.
struct Edge {
  int64_t at = 0, part = 0;
  SLOSH_INLINE void advance(int64_t n, int64_t M) {
    at += n / M, part += n % M;
    if (part >= M) part -= M, ++at;
  }
};

// Finds the buckets in which bins begin, and of these the ones that an edge cuts: their elements get places, from 1 on. Returns how many these are;
// or -1 if a whole bin lies in one bucket: its spread may be far below a bucket's width.
SLOSH_INLINE int64_t find_cuts(int64_t n, int64_t M, int64_t buckets, int shift, Tables &tables) {
  if (M > buckets) return -1;
  const uint32_t *start = tables.start;
  std::memset(tables.place, 0, size_t(buckets) * sizeof(*tables.place));
  std::memset(tables.is_cut, 0, size_t(buckets));
  std::memset(tables.parts, 0, sizeof(tables.parts));
  uint32_t cut = 0;
  int64_t from = tables.bucket_of(0, buckets);
  Edge edge;
  for (int64_t m = 1; m < M; ++m) {
    edge.advance(n, M);
    if (int64_t(start[from + 1]) >= edge.at + (edge.part > 0)) return -1;
    const int64_t b = from = tables.bucket_of(edge.at, buckets);
    tables.edge[m] = uint32_t(b);
    if (tables.is_cut[b] || (int64_t(start[b]) == edge.at && !edge.part)) continue;
    tables.is_cut[b] = 1, tables.place[b] = cut + 1;
    cut += start[b + 1] - start[b];
    const int64_t last = (((b + 1) << shift) - 1) >> kSiftShift;
    for (int64_t part = b << shift >> kSiftShift; part <= last; ++part)
      tables.parts[part / 32] |= 0x80000000u >> (part % 32);
  }
  return M > 1 && int64_t(start[from + 1]) >= n ? -1 : int64_t(cut);
}

#if SLOSH_LANES == 8
// For each mask of eight lanes, the lanes in it, a byte each.
struct Compressed {
  uint64_t lanes[256];
  constexpr Compressed() : lanes() {
    for (int mask = 0; mask < 256; ++mask)
      for (int lane = 0, at = 0; lane < 8; ++lane)
        if (mask >> lane & 1) lanes[mask] |= uint64_t(lane) << (8 * at++);
  }
};
constexpr Compressed kCompressed;
#endif

// Copies the elements that may be in cut buckets, in their order; returns how many these are. `to` has n places.
SLOSH_INLINE int64_t sift(const uint32_t *items, int64_t n, int shift, const Tables &tables, uint32_t *to) {
  int64_t kept = 0, i = 0;
#if SLOSH_LANES >= 16
  const __m512i low = _mm512_loadu_si512(tables.parts), high = _mm512_loadu_si512(tables.parts + 16);
  for (; i + 16 <= n; i += 16) {
    const __m512i x = _mm512_loadu_si512(items + i), word = _mm512_permutex2var_epi32(low, _mm512_srli_epi32(x, kSiftShift + 5), high);
    const __mmask16 mask = _mm512_movepi32_mask(_mm512_rolv_epi32(word, _mm512_srli_epi32(x, kSiftShift)));
    _mm512_storeu_si512(to + kept, _mm512_maskz_compress_epi32(mask, x));
    kept += __builtin_popcount(mask);
  }
#elif SLOSH_LANES >= 8
  const __m256i words = load<__m256i>(tables.parts), bit = _mm256_set1_epi32(31);
  for (; i + 8 <= n; i += 8) {
    const __m256i x = load<__m256i>(items + i), word = _mm256_permutevar8x32_epi32(words, _mm256_srli_epi32(x, kSiftShift + 5));
    const __m256i found = _mm256_sllv_epi32(word, _mm256_and_si256(_mm256_srli_epi32(x, kSiftShift), bit));
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(found));
    const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(kCompressed.lanes + mask)));
    store(to + kept, _mm256_permutevar8x32_epi32(x, order));
    kept += __builtin_popcount(unsigned(mask));
  }
#endif
  for (; i < n; ++i) {
    to[kept] = items[i];
    kept += tables.is_cut[items[i] >> shift];
  }
  return kept;
}

// Moves the elements of cut buckets to their places, bucket after bucket.
SLOSH_INLINE void move_cuts(const uint32_t *items, int64_t n, int shift, Tables &tables, uint32_t *cut_items) {
  constexpr int64_t chunk = 1024;
  uint32_t some[chunk];
  for (int64_t from = 0; from < n; from += chunk) {
    const int64_t kept = sift(items + from, n - from < chunk ? n - from : chunk, shift, tables, some);
    for (int64_t k = 0; k < kept; ++k) {
      const uint32_t b = some[k] >> shift;
      cut_items[tables.place[b]] = some[k];  // those of other buckets go to place 0, one over the other
      tables.place[b] += tables.is_cut[b];
    }
  }
}

// The elements of a cut bucket, in order from the first call on.
SLOSH_INLINE const uint32_t *in_order(int64_t b, int shift, Tables &tables, uint32_t *cut_items, uint32_t *spare) {
  const int64_t size = int64_t(tables.start[b + 1]) - int64_t(tables.start[b]);
  if (tables.is_cut[b] == 1) {
    tables.is_cut[b] = 2;
    tables.place[b] -= uint32_t(size);  // it had moved on to the bucket's end
    if (size <= 1 << kFewBits)
      rank_sort(cut_items + tables.place[b], size, shift);
    else
      radix_sort(cut_items + tables.place[b], spare, size);
  }
  return cut_items + tables.place[b];
}

// The squared differences of the elements [begin, end) of a cut bucket to the mean of their bin.
SLOSH_INLINE double cut_squares(int64_t b, int64_t begin, int64_t end, double mean, const Tables &tables, const uint32_t *cut_items) {
  const uint32_t *p = cut_items + tables.place[b];
  double squares = 0;
  for (int64_t k = begin - tables.start[b]; k < end - tables.start[b]; ++k) squares += (double(p[k]) - mean) * (double(p[k]) - mean);
  return squares;
}

// The same for the elements of all other buckets. Four sums, because in one each addition would wait for the one before.
SLOSH_INLINE double whole_squares(const uint32_t *items, int64_t n, int shift, const Tables &tables) {
  double sum[4] = {};
  const auto square = [&](uint32_t item) SLOSH_FLAT {
    const Tables::Bin &bin = tables.bin[item >> shift];
    const double v = double(int32_t(item)) - bin.mean;
    return v * v * bin.counts;
  };
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) sum[j] += square(items[i + j]);
  for (; i < n; ++i) sum[0] += square(items[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Few elements a bucket, and tables that stay in the cache.
SLOSH_INLINE int bucket_bits(int64_t n) { return n < 16384 ? 10 : n < 65536 ? 11 : 12; }

// The average rule for n values of equal weight, from `low` to `high`, without a full sort. False, with nothing written, where this is
// not the way: the values crowd into few buckets, so that ordering the cut ones would be as long as a sort, or there are more than 2^21. The
// caller then sorts. `items` and `spare` have n places each.
template <bool Residual>
inline bool select_average(const float *x, int64_t n, float low, float high, int64_t M, uint32_t *items, uint32_t *spare, Tables &tables,
                           float *means, int64_t means_step, double *residual) {
  constexpr int32_t top = (1 << kItemBits) - 1;
  const double range = double(high) - double(low);
  if (!(range > 0)) {
    for (int64_t m = 0; m < M; ++m) means[m * means_step] = low;
    return true;
  }
  const float scale = float(double(top) / range);
  if (!(scale < 3e38f) || n > (1 << 21) || M > n) return false;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t u = int32_t((x[i] - low) * scale);
    items[i] = uint32_t(u > top ? top : u);
  }
  const int bits = bucket_bits(n), shift = kItemBits - bits;
  const int64_t buckets = int64_t(1) << bits;
  count_buckets(items, n, buckets, shift, tables);
  const int64_t cut = find_cuts(n, M, buckets, shift, tables);
  if (cut < 0 || 2 * cut >= n) return false;
  uint32_t *cut_items = spare;
  spare += cut + 1;
  move_cuts(items, n, shift, tables, cut_items);

  const uint32_t *start = tables.start;
  const double unit = 1.0 / double(scale);
  double upto = 0, squares = 0;  // the integral up to the bin's beginning; all these sums are exact in a double
  int64_t from_b = 0;
  Edge from, to;
  for (int64_t m = 1; m <= M; ++m) {
    to.advance(n, M);
    const int64_t b = m < M ? int64_t(tables.edge[m]) : buckets;
    const bool is_cut = m < M && tables.is_cut[b];
    uint64_t whole = tables.before[b];
    double last = 0;  // the element that the edge cuts
    if (is_cut) {
      const uint32_t *inner = in_order(b, shift, tables, cut_items, spare);
      const int64_t size = to.at - int64_t(start[b]);
      for (int64_t k = 0; k < size; ++k) whole += inner[k];
      if (to.part) last = double(inner[size]);
    }
    const double part = double(to.part) / double(M), end = double(whole) + last * part, mean = (end - upto) * (double(M) / double(n));
    means[(m - 1) * means_step] = float(double(low) + mean * unit);
    if (Residual) {
      for (int64_t c = from_b; c <= b && c < buckets; ++c) tables.bin[c] = {mean, tables.is_cut[c] ? 0.0 : 1.0};
      if (tables.is_cut[from_b]) {
        const int64_t finish = start[from_b + 1];
        squares += cut_squares(from_b, from.at, finish < to.at ? finish : to.at, mean, tables, cut_items);
        if (from.part) {
          const double v = double((cut_items + tables.place[from_b])[from.at - start[from_b]]) - mean;
          squares -= v * v * (double(from.part) / double(M));
        }
      }
      if (is_cut) {
        if (b != from_b) squares += cut_squares(b, start[b], to.at, mean, tables, cut_items);
        if (to.part) squares += (last - mean) * (last - mean) * part;
      }
    }
    upto = end, from_b = b, from = to;
  }
  if (Residual) *residual += (squares + whole_squares(items, n, shift, tables)) * unit * unit;
  return true;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
