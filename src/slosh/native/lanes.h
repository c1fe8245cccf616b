// One vector of W floats: each lane is a slice. The code is written once in the compiler's vector types (GCC, Clang) and
// compiled once for each instruction set; SLOSH_ARCH names the namespace of that copy, SLOSH_LANES its widest vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define SLOSH_FLAT __attribute__((always_inline))
#define SLOSH_INLINE inline SLOSH_FLAT

namespace slosh {
namespace SLOSH_ARCH {

template <int W> struct Lanes {
  typedef float F __attribute__((vector_size(4 * W)));
  typedef double D __attribute__((vector_size(8 * W)));
};

template <class V> SLOSH_INLINE V load(const void *p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V> SLOSH_INLINE void store(void *p, const V &v) { std::memcpy(p, &v, sizeof(V)); }

template <class V> SLOSH_INLINE V all(float x) { return V{} + x; }

// The same lanes in double, one lane being a plain number.
template <class F> struct WideOf {
  typedef typename Lanes<sizeof(F) / sizeof(float)>::D type;
};
template <> struct WideOf<float> {
  typedef double type;
};
template <class F> using Wide = typename WideOf<F>::type;

SLOSH_INLINE double widen(float x) { return double(x); }
template <class F> SLOSH_INLINE Wide<F> widen(const F &x) { return __builtin_convertvector(x, Wide<F>); }
template <class F> SLOSH_INLINE F narrow(const Wide<F> &x) { return __builtin_convertvector(x, F); }
template <> SLOSH_INLINE float narrow<float>(const double &x) { return float(x); }

// lane[l] += x[l]
template <class D> SLOSH_INLINE void add_lanes(double *lane, const D &x) {
  double each[sizeof(D) / sizeof(double)];
  store(each, x);
  for (size_t l = 0; l < sizeof(D) / sizeof(double); ++l) lane[l] += each[l];
}

// GCC 12 makes a compare and a blend of `a < b ? a : b`; the minimum and maximum instructions take half the time.
template <class V> SLOSH_INLINE V lower(V a, V b) { return a < b ? a : b; }
template <class V> SLOSH_INLINE V upper(V a, V b) { return a < b ? b : a; }
#if defined(__x86_64__)
template <> SLOSH_INLINE Lanes<4>::F lower(Lanes<4>::F a, Lanes<4>::F b) { return _mm_min_ps(a, b); }
template <> SLOSH_INLINE Lanes<4>::F upper(Lanes<4>::F a, Lanes<4>::F b) { return _mm_max_ps(a, b); }
#if SLOSH_LANES >= 8
template <> SLOSH_INLINE Lanes<8>::F lower(Lanes<8>::F a, Lanes<8>::F b) { return _mm256_min_ps(a, b); }
template <> SLOSH_INLINE Lanes<8>::F upper(Lanes<8>::F a, Lanes<8>::F b) { return _mm256_max_ps(a, b); }
#endif
#if SLOSH_LANES >= 16
template <> SLOSH_INLINE Lanes<16>::F lower(Lanes<16>::F a, Lanes<16>::F b) { return _mm512_min_ps(a, b); }
template <> SLOSH_INLINE Lanes<16>::F upper(Lanes<16>::F a, Lanes<16>::F b) { return _mm512_max_ps(a, b); }
#endif
#elif defined(__ARM_NEON)
template <> SLOSH_INLINE Lanes<4>::F lower(Lanes<4>::F a, Lanes<4>::F b) { return vminq_f32(a, b); }
template <> SLOSH_INLINE Lanes<4>::F upper(Lanes<4>::F a, Lanes<4>::F b) { return vmaxq_f32(a, b); }
#endif

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

// A block of 4 by 4 numbers, rows `from_step` apart, to its transpose, rows `to_step` apart.
SLOSH_INLINE void transpose4(const float *from, int64_t from_step, float *to, int64_t to_step) {
  typedef Lanes<4>::F F;
  const F a = load<F>(from), b = load<F>(from + from_step), c = load<F>(from + 2 * from_step), d = load<F>(from + 3 * from_step);
  const F ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const F ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
  store(to + to_step, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
  store(to + 2 * to_step, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
  store(to + 3 * to_step, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

// The same for 8 by 8.
#if SLOSH_LANES >= 8
SLOSH_INLINE void transpose8(const float *from, int64_t from_step, float *to, int64_t to_step) {
  typedef Lanes<4>::F H;
  typedef Lanes<8>::F F;
#pragma GCC unroll 2
  for (int half = 0; half < 8; half += 4) {
    const auto both = [&](int64_t row) SLOSH_FLAT {  // four numbers of a row, and of the fourth after it
      const float *p = from + row * from_step + half;
      return __builtin_shufflevector(load<H>(p), load<H>(p + 4 * from_step), 0, 1, 2, 3, 4, 5, 6, 7);
    };
    const F a = both(0), b = both(1), c = both(2), d = both(3);
    const F ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13), cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    const F ab2 = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15), cd2 = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    float *t = to + half * to_step;
    store(t, __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13));
    store(t + to_step, __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15));
    store(t + 2 * to_step, __builtin_shufflevector(ab2, cd2, 0, 1, 8, 9, 4, 5, 12, 13));
    store(t + 3 * to_step, __builtin_shufflevector(ab2, cd2, 2, 3, 10, 11, 6, 7, 14, 15));
  }
}
#endif

// The values of 16 elements in W lanes to W columns, `to_step` apart.
template <int W> SLOSH_INLINE void transpose_tile(const typename Lanes<W>::F *x, float *to, int64_t to_step) {
  const float *tile = reinterpret_cast<const float *>(x);  // read by `load` only
#if SLOSH_LANES >= 8
  if (W >= 8) {
#pragma GCC unroll 2
    for (int l = 0; l < W; l += 8)
#pragma GCC unroll 2
      for (int r = 0; r < 16; r += 8) transpose8(tile + r * W + l, W, to + l * to_step + r, to_step);
    return;
  }
#endif
  for (int l = 0; l < W; l += 4)
    for (int r = 0; r < 16; r += 4) transpose4(tile + r * W + l, W, to + l * to_step + r, to_step);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
