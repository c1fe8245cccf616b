// The average rule for sets too large for the network to win: one lane at a time, its n values contiguous.
//
// It needs no order inside a bin. The values are counted and summed in buckets of equal width, and only the few buckets that a bin's edge
// cuts are looked into. Sums are of integers, so that the result does not depend on the order of the elements.
#pragma once

#include "large.h"

namespace slosh {
namespace SLOSH_ARCH {

// Items of a selection are whole numbers of so many bits: finer than the rounding of the largest difference in float32.
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

// Of such items, the sum of the `count` < n smallest; and in `next` the one after them. May read up to index Most - 1.
template <int Most> SLOSH_INLINE uint64_t sum_smallest(const uint32_t *items, int64_t n, int shift, int64_t count, uint32_t &next) {
  typedef int32_t I __attribute__((vector_size(4 * SLOSH_LANES)));
  constexpr int vectors = Most / SLOSH_LANES;
  const uint32_t inside = (uint32_t(1) << shift) - 1, base = items[0] & ~inside;
  int32_t key[Most], places[SLOSH_LANES];
  for (int l = 0; l < SLOSH_LANES; ++l) places[l] = l;
  I some[vectors], smaller[vectors];
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    const I place = load<I>(places) + v * SLOSH_LANES, there = place < int32_t(n);
    const I item = load<I>(items + v * SLOSH_LANES) & int32_t(inside);
    some[v] = (there & (item << kFewBits | place)) | (~there & INT32_MAX);  // no two of them are equal
    store(key + v * SLOSH_LANES, some[v]);
    smaller[v] = I{};
  }
  for (int64_t j = 0; j < n; j += 8)
#pragma GCC unroll 8
    for (int64_t k = j; k < j + 8; ++k) {
      const I each = I{} + key[k];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) smaller[v] -= each < some[v];
    }
  const I wanted = I{} + int32_t(count);
  I sum{}, after{};
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    sum += (smaller[v] < wanted) & (some[v] >> kFewBits);  // 2^6 numbers below 2^25 have a sum that fits
    after |= (smaller[v] == wanted) & (some[v] >> kFewBits);
  }
  int32_t sums[SLOSH_LANES], afters[SLOSH_LANES];
  store(sums, sum), store(afters, after);
  uint64_t total = uint64_t(base) * uint64_t(count);
  next = base;
  for (int l = 0; l < SLOSH_LANES; ++l) total += uint32_t(sums[l]), next |= uint32_t(afters[l]);
  return total;
}

// Parts of the range that `sift` looks up in registers.
#if SLOSH_LANES >= 16
constexpr int kSiftBits = 10;
#else
constexpr int kSiftBits = 9;
#endif
constexpr int kSiftParts = 1 << kSiftBits, kSiftShift = kItemBits - kSiftBits;

// An element is counted and summed in one addition: of 64 bits the lower 47 hold the sum of 2^16 elements, and the others
// their number. There are two tables because in one, equal neighbours would wait for each other's store.
constexpr int kAtCount = 47;
constexpr uint64_t kOne = uint64_t(1) << kAtCount;

// Buckets in runs: an edge is looked for among runs first, and then in one of them.
constexpr int64_t kRun = 16;

// A bucket in which a bin begins.
struct CutBucket {
  int64_t b, start, size;  // elements before it, and in it
  uint64_t before;         // sum of those before
};

// What a selection counts in: more than the whole stack of a thread on some systems (musl: 128 KiB).
struct Tables {
  static constexpr int64_t most = 4096;  // buckets
  uint64_t both[2][most];                // number and sum of the elements of a bucket, see `count_items`
  uint64_t far_sums[most];               // the same apart, for sets of more than 2^16 elements
  uint32_t far_counts[most];
  bool far;                              // whether the set is one of these
  uint64_t sum;                          // of all elements
  CutBucket edge[most];                  // the bucket in which bin m begins
  uint32_t place[most];                  // where the next element of a cut bucket goes; 0 for the other buckets
  uint8_t is_cut[most];                  // 1, and 2 once it is in order
  uint32_t parts[kSiftParts / 32];       // a bit, from the highest on, for each part of the range that has a cut bucket
  struct Bin {
    double mean, counts;                 // 0 for a cut bucket, which lies in several bins
  } bin[most];                           // the bin that a bucket lies in

  SLOSH_INLINE uint64_t packed(int64_t b) const { return both[0][b] + both[1][b]; }
  SLOSH_INLINE int64_t count(int64_t b) const { return far ? int64_t(far_counts[b]) : int64_t(packed(b) >> kAtCount); }
};

// Finds buckets by the elements in them, which are asked for in increasing order.
struct Finder {
  const Tables &tables;
  int64_t run = 0;
  uint64_t packed[Tables::most / kRun + 1], sums[Tables::most / kRun + 1];  // of the elements before a run, as `both` has them; or the sums alone
  int64_t starts[Tables::most / kRun + 1];

  SLOSH_INLINE Finder(const Tables &tables, int64_t buckets) : tables(tables) {
    typedef uint64_t U __attribute__((vector_size(4 * SLOSH_LANES)));
    packed[0] = sums[0] = 0, starts[0] = 0;
    for (int64_t r = 0; r < buckets / kRun; ++r) {
      if (tables.far) {
        sums[r + 1] = sums[r], starts[r + 1] = starts[r];
        for (int64_t b = r * kRun; b < (r + 1) * kRun; ++b) sums[r + 1] += tables.far_sums[b], starts[r + 1] += tables.far_counts[b];
        continue;
      }
      U total{};
#pragma GCC unroll 8
      for (int64_t k = 0; k < kRun; k += SLOSH_LANES / 2)
        total += load<U>(tables.both[0] + r * kRun + k) + load<U>(tables.both[1] + r * kRun + k);
      packed[r + 1] = packed[r];
#pragma GCC unroll 8
      for (int k = 0; k < SLOSH_LANES / 2; ++k) packed[r + 1] += total[k];
      sums[r + 1] = packed[r + 1] & (kOne - 1), starts[r + 1] = int64_t(packed[r + 1] >> kAtCount);
    }
  }

  // The last bucket that begins at or before element `at`: the one that holds it.
  SLOSH_INLINE CutBucket bucket_of(int64_t at) {
    while (starts[run + 1] <= at) ++run;
    int64_t b = run * kRun;
    if (tables.far) {
      int64_t start = starts[run];
      uint64_t before = sums[run];
      for (; start + int64_t(tables.far_counts[b]) <= at; ++b) start += tables.far_counts[b], before += tables.far_sums[b];
      return {b, start, int64_t(tables.far_counts[b]), before};
    }
    uint64_t upto = packed[run], before = upto, next = 0;
    const uint64_t *even = tables.both[0] + b, *odd = tables.both[1] + b;
#pragma GCC unroll 16
    for (int64_t k = 0; k < kRun; ++k) {  // every step, whatever was found: a branch would be mispredicted
      upto += even[k] + odd[k];
      const bool passed = int64_t(upto >> kAtCount) <= at;
      b += passed, before = passed ? upto : before;
    }
    next = tables.packed(b);
    return {b, int64_t(before >> kAtCount), int64_t(next >> kAtCount), before & (kOne - 1)};
  }
};

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
  std::memset(tables.place, 0, size_t(buckets) * sizeof(*tables.place));
  std::memset(tables.is_cut, 0, size_t(buckets));
  std::memset(tables.parts, 0, sizeof(tables.parts));
  Finder finder(tables, buckets);
  tables.sum = finder.sums[buckets / kRun];
  uint32_t cut = 0;
  CutBucket from = finder.bucket_of(0);
  Edge edge;
  for (int64_t m = 1; m < M; ++m) {
    edge.advance(n, M);
    if (from.start + from.size >= edge.at + (edge.part > 0)) return -1;
    tables.edge[m] = from = finder.bucket_of(edge.at);
    const int64_t b = from.b;
    if (tables.is_cut[b] || (from.start == edge.at && !edge.part)) continue;
    tables.is_cut[b] = 1, tables.place[b] = cut + 1;
    cut += uint32_t(from.size);
    const int64_t last = (((b + 1) << shift) - 1) >> kSiftShift;
    for (int64_t part = b << shift >> kSiftShift; part <= last; ++part)
      tables.parts[part / 32] |= 0x80000000u >> (part % 32);
  }
  return M > 1 && from.start + from.size >= n ? -1 : int64_t(cut);
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

// One lane on its way through the selection: its values as whole numbers, what was counted, and the elements that may be
// in cut buckets.
struct Selection {
  const float *values;
  int64_t n;
  float low, scale;
  int shift;            // an item without so many of its bits is its bucket
  uint32_t *items;      // (n,)
  Tables *tables;
  uint32_t *kept;       // (n,)
  int64_t n_kept;

  SLOSH_INLINE int64_t buckets() const { return int64_t(1) << (kItemBits - shift); }
};

constexpr int64_t kChunk = 16;
// So many items are converted before they are counted, or counting would wait for their stores.
constexpr int64_t kAhead = 8 * kChunk;

SLOSH_INLINE uint32_t to_item(float value, float low, float scale) { return uint32_t(int32_t((value - low) * scale)); }

// Turns sixteen values into items.
SLOSH_INLINE void convert(const float *values, float low, float scale, uint32_t *items) {
  typedef Lanes<SLOSH_LANES>::F F;
  typedef int32_t I __attribute__((vector_size(4 * SLOSH_LANES)));
#pragma GCC unroll 4
  for (int64_t k = 0; k < kChunk; k += SLOSH_LANES)
    store(items + k, __builtin_convertvector((load<F>(values + k) - low) * scale, I));
}

SLOSH_INLINE void count_items(const uint32_t *items, int shift, uint64_t *even, uint64_t *odd) {
#pragma GCC unroll 16
  for (int64_t k = 0; k < kChunk; k += 2) {
    const uint32_t a = items[k], b = items[k + 1];
    even[a >> shift] += kOne + a, odd[b >> shift] += kOne + b;
  }
}

// Which parts of the range have a cut bucket, in registers.
struct Sieve {
#if SLOSH_LANES >= 16
  __m512i low, high;
  SLOSH_INLINE explicit Sieve(const uint32_t *parts)
      : low(_mm512_loadu_si512(parts)), high(_mm512_loadu_si512(parts + 16)) {}
#elif SLOSH_LANES >= 8
  __m256i low, high;
  SLOSH_INLINE explicit Sieve(const uint32_t *parts) : low(load<__m256i>(parts)), high(load<__m256i>(parts + 8)) {}
#else
  SLOSH_INLINE explicit Sieve(const uint32_t *) {}
#endif
};

// Copies those of sixteen items that may be in cut buckets; returns how many these are. There are sixteen places.
SLOSH_INLINE int64_t sift(const uint32_t *items, const Sieve &sieve, const uint8_t *is_cut, int shift, uint32_t *to) {
#if SLOSH_LANES >= 16
  (void)is_cut, (void)shift;
  const __m512i x = _mm512_loadu_si512(items);
  const __m512i word = _mm512_permutex2var_epi32(sieve.low, _mm512_srli_epi32(x, kSiftShift + 5), sieve.high);
  const __mmask16 mask = _mm512_movepi32_mask(_mm512_rolv_epi32(word, _mm512_srli_epi32(x, kSiftShift)));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, x));
  return __builtin_popcount(mask);
#elif SLOSH_LANES >= 8
  (void)is_cut, (void)shift;
  const __m256i bit = _mm256_set1_epi32(31);
  int64_t kept = 0;
#pragma GCC unroll 2
  for (int64_t k = 0; k < kChunk; k += 8) {
    const __m256i x = load<__m256i>(items + k), at = _mm256_srli_epi32(x, kSiftShift + 5);
    const __m256 lower_half = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(sieve.low, at));
    const __m256 upper_half = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(sieve.high, at));
    const __m256 is_upper = _mm256_castsi256_ps(_mm256_slli_epi32(x, 32 - kItemBits));
    const __m256i word = _mm256_castps_si256(_mm256_blendv_ps(lower_half, upper_half, is_upper));
    const __m256i found = _mm256_sllv_epi32(word, _mm256_and_si256(_mm256_srli_epi32(x, kSiftShift), bit));
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(found));
    const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(kCompressed.lanes + mask)));
    store(to + kept, _mm256_permutevar8x32_epi32(x, order));
    kept += __builtin_popcount(unsigned(mask));
  }
  return kept;
#else
  (void)sieve;
  int64_t kept = 0;
  for (int64_t k = 0; k < kChunk; ++k) {
    to[kept] = items[k];
    kept += is_cut[items[k] >> shift];
  }
  return kept;
#endif
}

// Counts one lane, and meanwhile sifts another: sixteen elements of each in turn. Counting waits for loads and stores,
// sifting and converting for vectors, so together they take less than one after the other.
template <bool Count, bool Sift>
__attribute__((noinline)) void count_and_sift(const Selection &counted, Selection &sifted) {
  constexpr int64_t block = int64_t(1) << 16;
  const int64_t n = Count ? counted.n : sifted.n, size = Count ? counted.buckets() : 0;
  const float *values = Count ? counted.values : nullptr;
  const float low = Count ? counted.low : 0, scale = Count ? counted.scale : 0;
  const uint32_t *others = Sift ? sifted.items : nullptr;
  uint32_t *items = Count ? counted.items : nullptr, *kept = Sift ? sifted.kept : nullptr;
  const uint8_t *is_cut = Sift ? sifted.tables->is_cut : nullptr;
  uint64_t *even = Count ? counted.tables->both[0] : nullptr, *odd = Count ? counted.tables->both[1] : nullptr;
  const int shift = (Count ? counted : sifted).shift;
  const uint32_t none[kSiftParts / 32] = {};
  const Sieve sieve(Sift ? sifted.tables->parts : none);
  for (int64_t from = 0; from < n; from += block) {
    const int64_t to = from + block < n ? from + block : n;
    if (Count) {
      std::memset(even, 0, size_t(size) * sizeof(*even));
      std::memset(odd, 0, size_t(size) * sizeof(*odd));
    }
    int64_t i = from;
    for (int64_t k = from; Count && k < from + kAhead && k + kChunk <= to; k += kChunk)
      convert(values + k, low, scale, items + k);
    for (; i + kChunk <= to; i += kChunk) {
      if (Count && i + kAhead + kChunk <= to) convert(values + i + kAhead, low, scale, items + i + kAhead);
      if (Sift) kept += sift(others + i, sieve, is_cut, shift, kept);
      if (Count) count_items(items + i, shift, even, odd);
    }
    for (; i < to; ++i) {
      if (Count) {
        const uint32_t item = items[i] = to_item(values[i], low, scale);
        even[item >> shift] += kOne + item;
      }
      if (Sift) {
        *kept = others[i];
        kept += is_cut[others[i] >> shift];
      }
    }
    if (!Count) continue;
    Tables &tables = *counted.tables;
    tables.far = n > block;
    for (int64_t b = 0; tables.far && b < size; ++b) {
      const uint64_t both = tables.packed(b);
      tables.far_counts[b] = (from ? tables.far_counts[b] : 0) + uint32_t(both >> kAtCount);
      tables.far_sums[b] = (from ? tables.far_sums[b] : 0) + (both & (kOne - 1));
    }
  }
  if (Sift) sifted.n_kept = kept - sifted.kept;
}

// Moves the elements of cut buckets to their places, bucket after bucket.
SLOSH_INLINE void move_cuts(const Selection &lane, uint32_t *cut_items) {
  Tables &tables = *lane.tables;
  for (int64_t k = 0; k < lane.n_kept; ++k) {
    const uint32_t item = lane.kept[k], b = item >> lane.shift;
    cut_items[tables.place[b]] = item;  // those of other buckets go to place 0, one over the other
    tables.place[b] += tables.is_cut[b];
  }
}

// The elements of a cut bucket, in order from the first call on.
SLOSH_INLINE const uint32_t *in_order(const CutBucket &cut, int shift, Tables &tables, uint32_t *cut_items, uint32_t *spare) {
  uint32_t &place = tables.place[cut.b];
  if (tables.is_cut[cut.b] == 1) {
    tables.is_cut[cut.b] = 2;
    place -= uint32_t(cut.size);  // it had moved on to the bucket's end
    if (cut.size <= 1 << kFewBits)
      rank_sort(cut_items + place, cut.size, shift);
    else
      radix_sort(cut_items + place, spare, cut.size);
  }
  return cut_items + place;
}

// The squared differences of the elements [begin, end) of a cut bucket to the mean of their bin.
SLOSH_INLINE double cut_squares(const CutBucket &cut, int64_t begin, int64_t end, double mean, const Tables &tables, const uint32_t *cut_items) {
  const uint32_t *p = cut_items + tables.place[cut.b];
  double squares = 0;
  for (int64_t k = begin - cut.start; k < end - cut.start; ++k) squares += (double(p[k]) - mean) * (double(p[k]) - mean);
  return squares;
}

// The same for the elements of all other buckets. Four sums, because in one each addition would wait for the one before.
SLOSH_INLINE double whole_squares(const Selection &lane) {
  double sum[4] = {};
  const auto square = [&](uint32_t item) SLOSH_FLAT {
    const Tables::Bin &bin = lane.tables->bin[item >> lane.shift];
    const double v = double(int32_t(item)) - bin.mean;
    return v * v * bin.counts;
  };
  int64_t i = 0;
  for (; i + 4 <= lane.n; i += 4)
    for (int j = 0; j < 4; ++j) sum[j] += square(lane.items[i + j]);
  for (; i < lane.n; ++i) sum[0] += square(lane.items[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Few elements a bucket, and tables that stay in the cache.
SLOSH_INLINE int bucket_bits(int64_t n) { return n < 16384 ? 10 : n < 65536 ? 11 : 12; }

// The average rule for a lane of n values of equal weight, without a full sort, takes these steps: `begin`; count, by
// `count_and_sift`; `can_finish`; sift, while the next lane is counted; `finish`.

// Prepares the selection in n values from `low` to `high`. False if there are too many, or they are too close together.
SLOSH_INLINE bool begin(Selection &lane, const float *values, int64_t n, float low, float high, int64_t M) {
  // So far below 2^30 that rounding does not reach it.
  constexpr double top = double((1 << kItemBits) - (1 << (kItemBits - 20)));
  const float scale = float(top / (double(high) - double(low)));
  if (!(scale < 3e38f) || n > (1 << 21) || M > n) return false;
  lane.values = values, lane.n = n, lane.n_kept = 0;
  lane.low = low, lane.scale = scale, lane.shift = kItemBits - bucket_bits(n);
  return true;
}

// Finds the cut buckets of a lane that was counted. False if the values crowd into few buckets, so that ordering the cut
// ones would be as long as a sort.
SLOSH_INLINE bool can_finish(const Selection &lane, int64_t M) {
  const int64_t cut = find_cuts(lane.n, M, lane.buckets(), lane.shift, *lane.tables);
  return cut >= 0 && 2 * cut < lane.n;
}

// The means of a lane that was sifted. `spare` has n places.
template <bool Residual>
inline void finish(const Selection &lane, int64_t M, uint32_t *spare, float *means, int64_t means_step, double *residual) {
  Tables &tables = *lane.tables;
  const int64_t n = lane.n, buckets = lane.buckets();
  const int shift = lane.shift;
  const double low = lane.low;
  constexpr int few = 1 << (kFewBits - 1);
  uint32_t *cut_items = spare;
  spare += n / 2 + 1;
  move_cuts(lane, cut_items);

  const double unit = 1.0 / double(lane.scale);
  double upto = 0, squares = 0;  // the integral up to the bin's beginning; all these sums are exact in a double
  CutBucket from_cut{};
  Edge from, to;
  for (int64_t m = 1; m <= M; ++m) {
    to.advance(n, M);
    const CutBucket cut = m < M ? tables.edge[m] : CutBucket{buckets, n, 0, tables.sum};
    const bool is_cut = m < M && tables.is_cut[cut.b];
    uint64_t whole = cut.before;
    double last = 0;  // the element that the edge cuts
    if (is_cut) {
      const int64_t count = to.at - cut.start;
      uint32_t next = 0;
      const uint32_t *inner = cut_items + tables.place[cut.b] - cut.size;
      if (!Residual && cut.size <= few) {
        whole += sum_smallest<few>(inner, cut.size, shift, count, next);
      } else if (!Residual && cut.size <= 2 * few) {
        whole += sum_smallest<2 * few>(inner, cut.size, shift, count, next);
      } else {
        inner = in_order(cut, shift, tables, cut_items, spare);
        for (int64_t k = 0; k < count; ++k) whole += inner[k];
        next = inner[count];
      }
      if (to.part) last = double(next);
    }
    const double part = double(to.part) / double(M), end = double(whole) + last * part, mean = (end - upto) * (double(M) / double(n));
    means[(m - 1) * means_step] = float(low + mean * unit);
    if (Residual) {
      for (int64_t c = from_cut.b; c <= cut.b && c < buckets; ++c) tables.bin[c] = {mean, tables.is_cut[c] ? 0.0 : 1.0};
      if (tables.is_cut[from_cut.b]) {
        const int64_t finish = from_cut.start + from_cut.size;
        squares += cut_squares(from_cut, from.at, finish < to.at ? finish : to.at, mean, tables, cut_items);
        if (from.part) {
          const double v = double((cut_items + tables.place[from_cut.b])[from.at - from_cut.start]) - mean;
          squares -= v * v * (double(from.part) / double(M));
        }
      }
      if (is_cut) {
        if (cut.b != from_cut.b) squares += cut_squares(cut, cut.start, to.at, mean, tables, cut_items);
        if (to.part) squares += (last - mean) * (last - mean) * part;
      }
    }
    upto = end, from_cut = cut, from = to;
  }
  if (Residual) *residual += (squares + whole_squares(lane)) * unit * unit;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
