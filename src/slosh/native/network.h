// Sorts the rows of an (n, W) array, every lane on its own: a sorting network whose wires are rows, so one compare-exchange
// of two rows is one minimum and one maximum for W slices, without a branch.
//
// Batcher's odd-even merge sort, cut off at n rows (a missing row is +infinity, and a compare-exchange with it does nothing).
// A store costs more than a minimum, so rows stay in registers through several layers: sixteen rows are sorted there
// whole, and each merge runs its layers three (or two) at a time over eight rows at a time.
#pragma once

#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// What a wire carries: a key alone, or a key with the weight of its element.
template <int W> struct Key {
  static constexpr int lanes = W;
  static constexpr int floats = W;
  typename Lanes<W>::F key;
  static SLOSH_INLINE Key get(const float *p) { return {load<typename Lanes<W>::F>(p)}; }
  static SLOSH_INLINE Key last() { return {all<typename Lanes<W>::F>(__builtin_inff())}; }
  SLOSH_INLINE void put(float *p) const { store(p, key); }
};

template <int W> struct WeightedKey {
  static constexpr int lanes = W;
  static constexpr int floats = 2 * W;
  typename Lanes<W>::F key, weight;
  static SLOSH_INLINE WeightedKey get(const float *p) {
    return {load<typename Lanes<W>::F>(p), load<typename Lanes<W>::F>(p + W)};
  }
  static SLOSH_INLINE WeightedKey last() {
    return {all<typename Lanes<W>::F>(__builtin_inff()), typename Lanes<W>::F{}};
  }
  SLOSH_INLINE void put(float *p) const {
    store(p, key);
    store(p + W, weight);
  }
};

template <int W> SLOSH_INLINE void order(Key<W> &a, Key<W> &b) {
  const auto low = lower(a.key, b.key);
  b.key = upper(a.key, b.key);
  a.key = low;
}

template <int W> SLOSH_INLINE void order(WeightedKey<W> &a, WeightedKey<W> &b) {
  const auto swap = b.key < a.key;
  const auto wa = a.weight, wb = b.weight;
  const auto low = lower(a.key, b.key);
  b.key = upper(a.key, b.key);
  a.key = low;
  a.weight = swap ? wb : wa;
  b.weight = swap ? wa : wb;
}

// Sorts 16 wires with 60 compare-exchanges (Green's network; Knuth, TAOCP 3, section 5.3.4).
template <class T> SLOSH_INLINE void sort16(T *x) {
#define SLOSH_ORDER(i, j) order(x[i], x[j])
  SLOSH_ORDER(0, 1), SLOSH_ORDER(2, 3), SLOSH_ORDER(4, 5), SLOSH_ORDER(6, 7);
  SLOSH_ORDER(8, 9), SLOSH_ORDER(10, 11), SLOSH_ORDER(12, 13), SLOSH_ORDER(14, 15);
  SLOSH_ORDER(0, 2), SLOSH_ORDER(1, 3), SLOSH_ORDER(4, 6), SLOSH_ORDER(5, 7);
  SLOSH_ORDER(8, 10), SLOSH_ORDER(9, 11), SLOSH_ORDER(12, 14), SLOSH_ORDER(13, 15);
  SLOSH_ORDER(0, 4), SLOSH_ORDER(1, 5), SLOSH_ORDER(2, 6), SLOSH_ORDER(3, 7);
  SLOSH_ORDER(8, 12), SLOSH_ORDER(9, 13), SLOSH_ORDER(10, 14), SLOSH_ORDER(11, 15);
  SLOSH_ORDER(0, 8), SLOSH_ORDER(1, 9), SLOSH_ORDER(2, 10), SLOSH_ORDER(3, 11);
  SLOSH_ORDER(4, 12), SLOSH_ORDER(5, 13), SLOSH_ORDER(6, 14), SLOSH_ORDER(7, 15);
  SLOSH_ORDER(5, 10), SLOSH_ORDER(6, 9), SLOSH_ORDER(3, 12), SLOSH_ORDER(13, 14);
  SLOSH_ORDER(4, 8), SLOSH_ORDER(7, 11), SLOSH_ORDER(1, 2);
  SLOSH_ORDER(1, 4), SLOSH_ORDER(7, 13), SLOSH_ORDER(2, 8), SLOSH_ORDER(11, 14);
  SLOSH_ORDER(2, 4), SLOSH_ORDER(5, 6), SLOSH_ORDER(9, 10), SLOSH_ORDER(11, 13), SLOSH_ORDER(3, 8), SLOSH_ORDER(7, 12);
  SLOSH_ORDER(6, 8), SLOSH_ORDER(10, 12), SLOSH_ORDER(3, 5), SLOSH_ORDER(7, 9);
  SLOSH_ORDER(3, 4), SLOSH_ORDER(5, 6), SLOSH_ORDER(7, 8), SLOSH_ORDER(9, 10), SLOSH_ORDER(11, 12);
  SLOSH_ORDER(6, 7), SLOSH_ORDER(8, 9);
#undef SLOSH_ORDER
}

// The first three layers of the merge of two sorted runs of four units each (strides 4, 2, 1 units): Q of eight wires exist.
template <class T, int Q> SLOSH_INLINE void merge_head(float *rows, int64_t unit, int64_t from, int64_t to) {
  const int64_t step = unit * T::floats;
  for (int64_t r = from; r < to; ++r) {
    float *p = rows + r * T::floats;
    T x[8];
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q)
      if (q < Q) x[q] = T::get(p + q * step);
    if (Q > 4) order(x[0], x[4]);
    if (Q > 5) order(x[1], x[5]);
    if (Q > 6) order(x[2], x[6]);
    if (Q > 7) order(x[3], x[7]);
    order(x[2], x[4]);
    if (Q > 5) order(x[3], x[5]);
    order(x[1], x[2]);
    order(x[3], x[4]);
    if (Q > 6) order(x[5], x[6]);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q)
      if (q < Q) x[q].put(p + q * step);
  }
}

// Three layers in the middle or at the end of a merge, strides 4, 2, 1 in units of `step`, over n wires: a wire i of the upper half of
// each block of 2s is compared with i + s. Streams upwards, eight wires in and eight out.
template <class T> SLOSH_INLINE void merge_tail3(float *p, int64_t step, int64_t n) {
  T a0 = T::get(p), a1 = T::last(), a2 = T::last(), a3 = T::last();
  if (n > 1) a1 = T::get(p + step);
  if (n > 2) a2 = T::get(p + 2 * step);
  if (n > 3) a3 = T::get(p + 3 * step);
  T b0, b1, b2, b3, c0, c1, c2, c3;
#define SLOSH_LAYERS                                                           \
  order(b0, c0), order(b1, c1), order(b2, c2), order(b3, c3);                  \
  order(a2, b0), order(a3, b1), order(b2, c0), order(b3, c1);                  \
  order(a1, a2), order(a3, b0), order(b1, b2), order(b3, c0);
  int64_t i = 0;
  for (; i + 12 <= n; i += 8, p += 8 * step) {
    b0 = T::get(p + 4 * step), b1 = T::get(p + 5 * step), b2 = T::get(p + 6 * step), b3 = T::get(p + 7 * step);
    c0 = T::get(p + 8 * step), c1 = T::get(p + 9 * step), c2 = T::get(p + 10 * step), c3 = T::get(p + 11 * step);
    SLOSH_LAYERS
    a0.put(p), a1.put(p + step), a2.put(p + 2 * step), a3.put(p + 3 * step);
    b0.put(p + 4 * step), b1.put(p + 5 * step), b2.put(p + 6 * step), b3.put(p + 7 * step);
    a0 = c0, a1 = c1, a2 = c2, a3 = c3;
  }
  for (; i < n; i += 8, p += 8 * step) {
    const int64_t left = n - i;
    const auto get = [&](int64_t k) SLOSH_FLAT { return k < left ? T::get(p + k * step) : T::last(); };
    b0 = get(4), b1 = get(5), b2 = get(6), b3 = get(7);
    c0 = get(8), c1 = get(9), c2 = get(10), c3 = get(11);
    SLOSH_LAYERS
    const auto put = [&](int64_t k, const T &x) SLOSH_FLAT {
      if (k < left) x.put(p + k * step);
    };
    put(0, a0), put(1, a1), put(2, a2), put(3, a3), put(4, b0), put(5, b1), put(6, b2), put(7, b3);
    a0 = c0, a1 = c1, a2 = c2, a3 = c3;
  }
#undef SLOSH_LAYERS
}

// The same for two layers, strides 2 and 1.
template <class T> SLOSH_INLINE void merge_tail2(float *p, int64_t step, int64_t n) {
  T a0 = T::get(p), a1 = n > 1 ? T::get(p + step) : T::last(), b0, b1, c0, c1;
#define SLOSH_LAYERS order(b0, c0), order(b1, c1), order(a1, b0), order(b1, c0);
  int64_t i = 0;
  for (; i + 6 <= n; i += 4, p += 4 * step) {
    b0 = T::get(p + 2 * step), b1 = T::get(p + 3 * step), c0 = T::get(p + 4 * step), c1 = T::get(p + 5 * step);
    SLOSH_LAYERS
    a0.put(p), a1.put(p + step), b0.put(p + 2 * step), b1.put(p + 3 * step);
    a0 = c0, a1 = c1;
  }
  for (; i < n; i += 4, p += 4 * step) {
    const int64_t left = n - i;
    const auto get = [&](int64_t k) SLOSH_FLAT { return k < left ? T::get(p + k * step) : T::last(); };
    b0 = get(2), b1 = get(3), c0 = get(4), c1 = get(5);
    SLOSH_LAYERS
    const auto put = [&](int64_t k, const T &x) SLOSH_FLAT {
      if (k < left) x.put(p + k * step);
    };
    put(0, a0), put(1, a1), put(2, b0), put(3, b1);
    a0 = c0, a1 = c1;
  }
#undef SLOSH_LAYERS
}

// Merges the sorted runs rows[0, run) and rows[run, n), run a power of two of at least 16 and run < n <= 2 run.
template <class T> void merge(float *rows, int64_t run, int64_t n) {
  const int64_t unit = run / 4, whole = n / unit, rest = n % unit;
  switch (whole) {  // wires r < rest have whole + 1 rows, the others whole
    case 4: merge_head<T, 5>(rows, unit, 0, rest); break;
    case 5: merge_head<T, 6>(rows, unit, 0, rest), merge_head<T, 5>(rows, unit, rest, unit); break;
    case 6: merge_head<T, 7>(rows, unit, 0, rest), merge_head<T, 6>(rows, unit, rest, unit); break;
    case 7: merge_head<T, 8>(rows, unit, 0, rest), merge_head<T, 7>(rows, unit, rest, unit); break;
    default: merge_head<T, 8>(rows, unit, 0, unit);
  }
  int layers = 0;
  for (int64_t s = run / 8; s > 0; s /= 2) ++layers;
  for (int64_t stride = run / 8; layers > 0;) {
    const int take = layers == 2 || layers == 4 ? 2 : 3;
    const int64_t u = stride >> (take - 1);
    for (int64_t r = 0; r < u && r < n; ++r) {
      const int64_t wires = (n - r + u - 1) / u;
      if (take == 3)
        merge_tail3<T>(rows + r * T::floats, u * T::floats, wires);
      else
        merge_tail2<T>(rows + r * T::floats, u * T::floats, wires);
    }
    stride >>= take;
    layers -= take;
  }
}

// Merges blocks of 16 sorted rows into one run; n is a multiple of 16. Halves first, so that small merges stay in the first cache.
template <class T> void merge_blocks(float *rows, int64_t n) {
  if (n <= 16) return;
  int64_t run = 16;
  while (2 * run < n) run *= 2;
  merge_blocks<T>(rows, run);
  merge_blocks<T>(rows + run * T::floats, n - run);
  merge<T>(rows, run, n);
}

template <class T> SLOSH_INLINE void sort_block(float *rows) {
  T x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = T::get(rows + i * T::floats);
  sort16(x);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i].put(rows + i * T::floats);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
