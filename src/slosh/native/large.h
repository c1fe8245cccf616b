// Sets too large for the network to win: one lane at a time, its n values contiguous.
//
// `radix_sort` orders them whole, in three passes over 11 bits, whatever their distribution. Where the order inside a bin does not matter, see
// selection.h.
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

}  // namespace SLOSH_ARCH
}  // namespace slosh
