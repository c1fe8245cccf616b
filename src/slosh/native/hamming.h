// Hamming distances of one query's code to many stored ones. Eight codes lie side by side, word by word, so that the lanes of a vector are
// codes: a lane's bits are counted where they stand, and nothing is ever summed across a vector. A group of codes is given up as soon as all of
// it is too far away, often after half of the words.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// How an instruction set counts bits. `count` gives the bits of each word, as one number or as a number in each byte; `total` makes one number of
// at most 31 such, added up. `within` has bit l set where lane l is at most the limit.
#if defined(__x86_64__) && SLOSH_LANES >= 16
// Vectors that count by themselves came after AVX-512: the module asks whether the machine has them.
#define SLOSH_COUNTS __attribute__((target("avx512vpopcntdq")))
struct Bits {
  typedef __m512i V;
  static constexpr int kLanes = 8;
  static SLOSH_INLINE V all(uint64_t x) { return _mm512_set1_epi64(int64_t(x)); }
  static SLOSH_INLINE V differ(V a, V b) { return _mm512_xor_si512(a, b); }
  static SLOSH_INLINE V add(V a, V b) { return _mm512_add_epi64(a, b); }
  SLOSH_COUNTS static SLOSH_INLINE V count(V x) { return _mm512_popcnt_epi64(x); }
  static SLOSH_INLINE V total(V x) { return x; }
  static SLOSH_INLINE unsigned within(V x, V limit) { return _mm512_cmple_epi64_mask(x, limit); }
};
#elif defined(__x86_64__) && SLOSH_LANES >= 8
#define SLOSH_COUNTS
struct Bits {
  typedef __m256i V;
  static constexpr int kLanes = 4;
  static SLOSH_INLINE V all(uint64_t x) { return _mm256_set1_epi64x(int64_t(x)); }
  static SLOSH_INLINE V differ(V a, V b) { return _mm256_xor_si256(a, b); }
  static SLOSH_INLINE V add(V a, V b) { return _mm256_add_epi64(a, b); }  // no byte is ever full
  static SLOSH_INLINE V count(V x) {
    const V four = _mm256_set1_epi8(15), table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const V low = _mm256_and_si256(x, four), high = _mm256_and_si256(_mm256_srli_epi16(x, 4), four);
    return _mm256_add_epi8(_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high));
  }
  static SLOSH_INLINE V total(V x) { return _mm256_sad_epu8(x, _mm256_setzero_si256()); }
  static SLOSH_INLINE unsigned within(V x, V limit) { return 15u ^ unsigned(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(x, limit)))); }
};
#else
#define SLOSH_COUNTS
struct Bits {
  typedef uint64_t V __attribute__((vector_size(16)));
  static constexpr int kLanes = 2;
  static SLOSH_INLINE V all(uint64_t x) { return V{x, x}; }
  static SLOSH_INLINE V differ(V a, V b) { return a ^ b; }
  static SLOSH_INLINE V add(V a, V b) { return a + b; }
  static SLOSH_INLINE V count(V x) {
#if defined(__ARM_NEON)
    return V(vcntq_u8(uint8x16_t(x)));
#else
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
#endif
  }
  static SLOSH_INLINE V total(V x) {
    x = (x & 0x00ff00ff00ff00ffu) + (x >> 8 & 0x00ff00ff00ff00ffu);
    x += x >> 16;
    return (x + (x >> 32)) & 0xffffu;
  }
  static SLOSH_INLINE unsigned within(V x, V limit) { return unsigned(x[0] <= limit[0]) | unsigned(x[1] <= limit[1]) << 1; }
};
#endif

constexpr int kVectors = 4;                    // worked on at a time
constexpr int kParts = kCodes / Bits::kLanes;  // vectors of a block
constexpr int kBlocks = kVectors / kParts;     // blocks at a time
constexpr int kWords = 4;                      // words at a time
constexpr int kAhead = 4 * kFour;              // the first words of so many blocks on are fetched: the processor does so only up to the end of a page
static_assert(kBlocks * kParts == kVectors && kFour % kBlocks == 0 && kPlaces % kFour == 0, "whole blocks at a time");

// sum[v] += the bits in which the words w to w + N - 1 of the query and of the codes at[v] differ
template <int Vectors, int N> SLOSH_COUNTS SLOSH_INLINE void add_words(const uint64_t *query, const uint64_t *const *at, int64_t w, Bits::V *sum) {
  Bits::V part[Vectors];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const Bits::V q = Bits::all(query[w + i]);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const Bits::V count = Bits::count(Bits::differ(q, load<Bits::V>(at[v] + (w + i) * kRow)));
      part[v] = i ? Bits::add(part[v], count) : count;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) sum[v] = Bits::add(sum[v], Bits::total(part[v]));
}

template <int Vectors> SLOSH_COUNTS SLOSH_INLINE void add_all(const uint64_t *query, const uint64_t *const *at, int64_t from, int64_t to, Bits::V *sum) {
  int64_t w = from;
  for (; w + kWords <= to; w += kWords) add_words<Vectors, kWords>(query, at, w, sum);
#pragma GCC unroll 1
  for (; w < to; ++w) add_words<Vectors, 1>(query, at, w, sum);
}

// The first `part` words of the blocks at n places: the distances so far, and which codes of each block are at most `limit` away.
template <bool Listed>
SLOSH_COUNTS __attribute__((noinline)) void open_places(const Codes &job, const uint64_t *query, int64_t first, int64_t n, int64_t part, int64_t limit,
                                                  uint64_t *sums, uint8_t *near) {
  typedef Bits::V V;
  const V most = Bits::all(uint64_t(limit));
  for (int64_t place = 0; place < n; place += kBlocks) {
    const uint64_t *at[kVectors], *from = Listed ? nullptr : job.block(first + place);
    V sum[kVectors];
    const auto block = [&](int b) SLOSH_FLAT { return Listed ? job.active[first + (place + b < n ? place + b : place)] : first + place + b; };
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      at[v] = Listed ? job.block(block(v / kParts)) + v % kParts * Bits::kLanes : from + v * Bits::kLanes;
      sum[v] = Bits::all(0);
    }
    const int64_t ahead = first + place + kAhead;
    if (!Listed && ahead % kFour == 0 && ahead < job.n_places) {
      const uint64_t *next = job.block(ahead), *end = next + (job.n_words < kWords ? job.n_words : kWords) * kRow;
      for (; next < end; next += 64 / sizeof(uint64_t)) __builtin_prefetch(next);
    }
    add_all<kVectors>(query, at, 0, part, sum);
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      unsigned bits = 0;
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) {
        store(sums + (place + b) * kCodes + v * Bits::kLanes, sum[b * kParts + v]);
        bits |= Bits::within(sum[b * kParts + v], most) << v * Bits::kLanes;
      }
      near[place + b] = uint8_t(bits & job.allowed[block(b)]);
    }
  }
}

// Codes at the places [first, last) of the job, kPlaces at most, from a multiple of kFour on, that differ from the query in at most `limit` bits: distance and position of each,
// in the order of the positions. `found` has room for all of them.
SLOSH_COUNTS int64_t near_codes(const Codes &job, const uint64_t *query, int64_t first, int64_t last, int64_t limit, uint64_t *found) {
  typedef Bits::V V;
  const int64_t n_words = job.n_words, n = last - first;
  if (limit < 0) return 0;
  // First a part of the words, for all blocks. Codes that have nothing to do with each other differ in half of their bits: the part is so long
  // that six tenths of that are too many.
  const int64_t enough = limit / 77 + 1, part = enough < n_words / kWords ? enough * kWords : n_words;
  alignas(64) uint64_t sums[kPlaces * kCodes];
  alignas(64) uint8_t near[kPlaces];
  (job.active ? open_places<true> : open_places<false>)(job, query, first, n, part, limit, sums, near);
  std::memset(near + n, 0, size_t(kPlaces - n));
  // Then the rest of the words, for the blocks that are still open. Which ones these are cannot be foreseen: they are found without a branch for each.
  const V most = Bits::all(uint64_t(limit));
  uint64_t *to = found;
  for (int64_t eight = 0; eight < n; eight += 8) {
    for (uint64_t open = load<uint64_t>(near + eight); open;) {
      const int64_t place = eight + __builtin_ctzll(open) / 8;
      open &= ~(uint64_t(255) << 8 * (place - eight));
      const int64_t block = job.active ? job.active[first + place] : first + place;
      const uint64_t *at[kParts];
      V sum[kParts];
      unsigned bits = 0;
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) at[v] = job.block(block) + v * Bits::kLanes, sum[v] = load<V>(sums + place * kCodes + v * Bits::kLanes);
      add_all<kParts>(query, at, part, n_words, sum);
#pragma GCC unroll 4
      for (int v = 0; v < kParts; ++v) bits |= Bits::within(sum[v], most) << v * Bits::kLanes;
      if ((bits &= near[place]) == 0) continue;
      uint64_t distance[kCodes];
      for (int v = 0; v < kParts; ++v) store(distance + v * Bits::kLanes, sum[v]);
      for (; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        *to++ = distance[lane] << kPositionBits | uint64_t(block * kCodes + lane);
      }
    }
  }
  return to - found;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
