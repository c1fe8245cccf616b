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

// What `select_average` counts in: 168 KiB, more than the whole stack of a thread on some systems (musl: 128 KiB).
struct Tables {
  static constexpr int64_t most = 4096;
  uint64_t both[2][most], before[most];
  double of_bucket[most];
  uint32_t start[most + 1], place[most];
  uint8_t is_cut[most];
};

// The average rule for n values of equal weight, from `low` to `high`, without a full sort. False, with nothing written, where this is
// not the way: the values crowd into few buckets, so that ordering the cut ones would be as long as a sort, or there are more than 2^21. The
// caller then sorts. `items` and `spare` have n places each.
template <bool Residual>
inline bool select_average(const float *x, int64_t n, float low, float high, int64_t M, uint32_t *items, uint32_t *spare, Tables &tables,
                           float *means, int64_t means_step, double *residual) {
  constexpr int32_t top = (1 << 30) - 1;
  const double range = double(high) - double(low);
  if (!(range > 0)) {
    for (int64_t m = 0; m < M; ++m) means[m * means_step] = low;
    return true;
  }
  // 30 bits of fixed point from low to high: finer than the rounding of the largest difference in float32.
  const float scale = float(double(top) / range);
  if (!(scale < 3e38f) || n > (1 << 21) || M > n) return false;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t u = int32_t((x[i] - low) * scale);
    items[i] = uint32_t(u > top ? top : u);
  }

  // The count and the sum of every bucket, in one addition. Values of one bucket share their upper bits, so only the lower ones are
  // summed: below 2^20 each, which leaves room for 2^20 of them under the count, in each of two tables (with one, equal neighbours
  // would wait for each other's store).
  const int bits = n < 8192 ? 10 : n < 65536 ? 11 : 12, shift = 30 - bits;  // few elements a bucket, tables that stay in the cache
  const int64_t buckets = int64_t(1) << bits;
  constexpr int at_count = 40;
  constexpr uint64_t one = uint64_t(1) << at_count;
  const uint32_t inside = (uint32_t(1) << shift) - 1;
  auto &both = tables.both;
  for (int t = 0; t < 2; ++t) std::memset(both[t], 0, size_t(buckets) * sizeof(uint64_t));
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    both[0][items[i] >> shift] += one | (items[i] & inside);
    both[1][items[i + 1] >> shift] += one | (items[i + 1] & inside);
  }
  if (i < n) both[0][items[i] >> shift] += one | (items[i] & inside);
  uint32_t *start = tables.start;    // elements before the bucket
  uint64_t *before = tables.before;  // and their sum
  {
    uint64_t elements = 0, sum = 0;
    for (int64_t b = 0; b < buckets; ++b) {
      const uint64_t p = both[0][b], q = both[1][b], here = (p >> at_count) + (q >> at_count);
      start[b] = uint32_t(elements), before[b] = sum;
      elements += here;
      sum += (p & (one - 1)) + (q & (one - 1)) + here * (uint64_t(b) << shift);
    }
    start[buckets] = uint32_t(elements);
  }

  // Bin m begins `part / M` into element `at`. The buckets that such an edge cuts get a place in `cut_items`, plus one.
  const int64_t whole = n / M, rest = n % M;
  uint32_t *place = tables.place, cut = 0;
  uint8_t *is_cut = tables.is_cut;
  std::memset(place, 0, size_t(buckets) * sizeof(uint32_t));
  std::memset(is_cut, 0, size_t(buckets));
  const auto bucket_of = [&](int64_t at) SLOSH_FLAT {
    int64_t b = 0;
    for (int64_t half = buckets / 2; half > 0; half /= 2) b += int64_t(start[b + half]) <= at ? half : 0;
    return b;  // the last that begins at or before `at`: the one that holds it
  };
  int64_t from = bucket_of(0);
  for (int64_t m = 1, at = 0, part = 0; m < M; ++m) {
    at += whole, part += rest;
    if (part >= M) part -= M, ++at;
    const int64_t b = bucket_of(at);
    if (bucket_of(part ? at : at - 1) == from) return false;  // a whole bin in one bucket: its spread may be far below a bucket's width
    from = b;
    if (!is_cut[b] && (int64_t(start[b]) < at || part)) is_cut[b] = 1, place[b] = cut + 1, cut += start[b + 1] - start[b];
  }
  if (2 * int64_t(cut) >= n || (M > 1 && bucket_of(n - 1) == from)) return false;
  uint32_t kept = 0;  // the elements of cut buckets, first one after the other, without a branch
  for (i = 0; i < n; ++i) {
    spare[kept] = items[i];
    kept += is_cut[items[i] >> shift];
  }
  uint32_t *cut_items = spare + kept;  // then each in its bucket, and in order there
  for (uint32_t k = 0; k < kept; ++k) cut_items[place[spare[k] >> shift]++ - 1] = spare[k];

  const double unit = 1.0 / double(scale);
  double *of_bucket = tables.of_bucket;  // the mean of the bin that a bucket lies in
  double upto = 0, squares = 0;            // the integral up to the bin's beginning; all these sums are exact in a double
  int64_t from_b = 0, from_at = 0, from_part = 0;
  for (int64_t m = 0; m < M; ++m) {
    int64_t at = from_at + whole, part = from_part + rest;
    if (part >= M) part -= M, ++at;
    const int64_t b = at < n ? bucket_of(at) : buckets - 1;
    const uint32_t *inner = cut_items;
    double end;
    if (at >= n) {
      end = double(before[b]) + double((both[0][b] & (one - 1)) + (both[1][b] & (one - 1))) +
            double(start[buckets] - start[b]) * double(uint64_t(b) << shift);
    } else {
      end = double(before[b]);
      if (is_cut[b]) {
        const uint32_t size = start[b + 1] - start[b];
        if (is_cut[b] == 1) {
          place[b] -= size;  // it had moved on to the bucket's end
          radix_sort(cut_items + place[b] - 1, spare, size);
          is_cut[b] = 2;
        }
        inner = cut_items + place[b] - 1;
        for (int64_t k = 0; k < at - int64_t(start[b]); ++k) end += double(inner[k]);
        if (part) end += double(inner[at - start[b]]) * (double(part) / double(M));
      }
    }
    const double mean = (end - upto) * (double(M) / double(n));
    means[m * means_step] = float(double(low) + mean * unit);
    if (Residual) {
      for (int64_t c = from_b; c <= b; ++c) of_bucket[c] = mean;  // of cut buckets it is not used
      const auto add = [&](int64_t c, int64_t begin, int64_t finish) SLOSH_FLAT {
        const uint32_t *p = cut_items + place[c] - 1;
        for (int64_t k = begin - start[c]; k < finish - start[c]; ++k) squares += (double(p[k]) - mean) * (double(p[k]) - mean);
      };
      if (is_cut[from_b]) {
        const int64_t finish = start[from_b + 1];
        add(from_b, from_at, finish < at ? finish : at);
        if (from_part) {
          const double v = double((cut_items + place[from_b] - 1)[from_at - start[from_b]]) - mean;
          squares -= v * v * (double(from_part) / double(M));
        }
      }
      if (at < n && is_cut[b]) {
        if (b != from_b) add(b, start[b], at);
        if (part) {
          const double v = double(inner[at - start[b]]) - mean;
          squares += v * v * (double(part) / double(M));
        }
      }
    }
    upto = end, from_b = b, from_at = at, from_part = part;
  }
  if (Residual) {
    for (i = 0; i < n; ++i)
      if (!is_cut[items[i] >> shift]) {
        const double v = double(items[i]) - of_bucket[items[i] >> shift];
        squares += v * v;
      }
    *residual += squares * unit * unit;
  }
  return true;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
