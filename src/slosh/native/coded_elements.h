// The products of elements.h in eight bits, where the machine multiplies four bytes at a time: four times as many as in float.
//
// Each element about the middle, x, is coded by itself, as a whole number of steps: x = x' + e, and |e| is known. The sum of products of the codes is
// exact, and xy is off from it by at most |e_x| Y + X' |e_y|. With any t > 0 a product ab is at most (t a^2 + b^2 / t) / 2, which parts it into one for
// the element of x and one for the element of y, as elements.h has them; t is the ratio of the means, for which that is nearly ab.
#pragma once

#include "elements.h"

namespace slosh {
namespace SLOSH_ARCH {

#if defined(SLOSH_VNNI)

// From as many features on it is worth it, and up to as many no sum overflows.
SLOSH_INLINE bool is_coded(int64_t dim) { return dim >= 48 && dim <= 16384; }

SLOSH_INLINE int64_t fours(int64_t dim) { return (dim + 3) / 4; }

// What is known of a coded element.
struct Code {
  float step;            // of the codes
  int32_t sum;           // of the codes
  double square, error;  // |x|^2; |x - x'|^2
};

// Sixteen numbers of an element about the middle, or those of them that there are, and zeros.
SLOSH_INLINE Lanes<16>::F about_middle(const float *from, const float *middle, int64_t k, int64_t dim) {
  typedef Lanes<16>::F F;
  if (k + 16 <= dim) return load<F>(from + k) - load<F>(middle + k);
  const __mmask16 there = __mmask16((1u << (dim - k)) - 1);
  return F(_mm512_maskz_loadu_ps(there, from + k)) - F(_mm512_maskz_loadu_ps(there, middle + k));
}

// Codes an element about the middle: four bytes, `bias` more than the codes, every `apart` bytes.
inline Code code_element(const float *from, const float *middle, int64_t dim, int bias, uint8_t *to, int64_t apart) {
  typedef Lanes<16>::F F;
  typedef Lanes<8>::F H;
  typedef Lanes<8>::D D;
  F most{};
  for (int64_t k = 0; k < dim; k += 16) {
    const F d = about_middle(from, middle, k, dim);
    most = upper(most, upper(d, -d));
  }
  const float largest = _mm512_reduce_max_ps(most);
  const bool usual = largest > 1e-15f;  // squares of smaller numbers, or of their parts, are lost in float
  Code result{usual ? largest / 127 : 0.0f, 0, 0, 0};
  const float inverse = usual ? 127 / largest : 0.0f;
  D square[2] = {};
  F error{};
  __m512i sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < dim; k += 16) {
    const F d = about_middle(from, middle, k, dim);
    F v = d * inverse + 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
    v -= 12582912.0f;
    const F off = d - v * result.step;
    error += off * off;
    const D low = widen(H(_mm512_castps512_ps256(d))), high = widen(H(_mm512_extractf32x8_ps(d, 1)));
    square[0] += low * low, square[1] += high * high;
    const __m512i whole = _mm512_cvtps_epi32(v);
    sum = _mm512_add_epi32(sum, whole);
    uint8_t bytes[16];
    _mm_storeu_si128(reinterpret_cast<__m128i *>(bytes), _mm_add_epi8(_mm512_cvtepi32_epi8(whole), _mm_set1_epi8(char(bias))));
    if (apart == 4 && k + 16 <= dim) {
      std::memcpy(to + k, bytes, 16);
      continue;
    }
    for (int64_t f = 0; f < 4 && k / 4 + f < fours(dim); ++f) std::memcpy(to + (k / 4 + f) * apart, bytes + 4 * f, 4);
  }
  // What is rounded of the error, in float, is less than a thousandth of it, and less than a few of the last digits of the element.
  result.square = _mm512_reduce_add_pd(__m512d(square[0] + square[1]));
  result.error = usual ? double(_mm512_reduce_add_ps(error)) * 1.002 + 0x1p-40 * result.square + double(dim) * 0x1p-149 : result.square;
  result.sum = _mm512_reduce_add_epi32(sum);
  return result;
}

// Codes in the places of the floats: (panels, features / 4, V W, 4) of x and (rows, row_step) of y.
struct CodedSpace : ElementSpace {
  Code *x, *y;     // (lanes,), (rows,)
  float *x_steps;  // (lanes,)

  static size_t bytes(int64_t dim) {
    const int64_t lanes = element_lanes(dim), rows = element_rows(dim);
    return ElementSpace::bytes(dim) + size_t(lanes + rows) * sizeof(Code) + size_t(lanes) * sizeof(float) + 64;
  }
  CodedSpace(void *scratch, int64_t dim) : ElementSpace(scratch, dim) {
    char *at = static_cast<char *>(scratch) + ElementSpace::bytes(dim);
    x = reinterpret_cast<Code *>((reinterpret_cast<uintptr_t>(at) + 63) & ~uintptr_t(63));
    y = x + element_lanes(dim);
    x_steps = reinterpret_cast<float *>(y + element_rows(dim));
  }
};

inline void code_panels(const CodedSpace &space, const float *points, int64_t n, int64_t dim) {
  find_middle(space, points, n, dim);
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t width = n - first > SLOSH_LANES ? kPanel : SLOSH_LANES, count = n - first < width ? n - first : width;
    uint8_t *panel = reinterpret_cast<uint8_t *>(space.panels + first * dim);
    if (count < width) std::memset(panel, 128, size_t(fours(dim) * width * 4));
    for (int64_t l = 0; l < width; ++l) {
      if (l < count) space.x[first + l] = code_element(points + (first + l) * dim, space.middle, dim, 128, panel + 4 * l, 4 * width);
      space.x_steps[first + l] = l < count ? space.x[first + l].step : 0.0f;
      if (l >= count) space.slack[first + l] = -__builtin_inff();  // never the nearest
    }
  }
}

// Codes elements of y from `at` on that have a weight, and says by how much their products may be off; returns how many, and moves `at` on.
inline int64_t code_rows(const CodedSpace &space, const float *y, const float *weights, int64_t n_y, int64_t n_x, int64_t dim, const Rounding &rounding, int64_t &at) {
  const int64_t most = element_rows(dim), step = row_step(dim);
  int64_t count = 0;
  double lengths[4] = {};  // sums: X, |e_x|, Y, |e_y|
  for (; at < n_y && count < most; ++at) {
    if (weights && !(weights[at] > 0)) continue;
    space.y[count] = code_element(y + at * dim, space.middle, dim, 0, reinterpret_cast<uint8_t *>(space.rows + count * step), 4);
    lengths[2] += __builtin_sqrt(space.y[count].square), lengths[3] += __builtin_sqrt(space.y[count].error);
    space.position[count++] = at;
  }
  for (int64_t i = 0; i < n_x; ++i) lengths[0] += __builtin_sqrt(space.x[i].square), lengths[1] += __builtin_sqrt(space.x[i].error);
  // The ratios: t for |e_x| and Y, and for X' and |e_y|. Where one of two is zero, so is their product.
  const double n_ratio = count ? double(n_x) / double(count) : 0;
  const bool first = lengths[1] > 0 && lengths[2] > 0, second = lengths[0] > 0 && lengths[3] > 0;
  const double t1 = first ? lengths[2] / lengths[1] * n_ratio : 0, t2 = second ? lengths[3] / lengths[0] * n_ratio : 0;
  const double over1 = first ? 1 / t1 : 0, over2 = second ? 1 / t2 : 0;
  constexpr double kMore = 1 + 1e-6;  // |x'| is at most |x| + |e|, and everything here is rounded
  for (int64_t i = 0; i < n_x; ++i) {
    const Code &code = space.x[i];
    const double length = __builtin_sqrt(code.square) + __builtin_sqrt(code.error);
    space.slack[i] = float((2 * rounding.x * code.square + code.error * t1 + length * length * t2) * kMore + rounding.tiny);
  }
  for (int64_t r = 0; r < count; ++r) {
    const Code &code = space.y[r];
    const double off = (rounding.y * code.square + (code.square * over1 + code.error * over2) / 2) * kMore;
    space.start[r] = float(-code.square / 2 - off);
    space.extra[r] = float(2 * off * kMore);
  }
  for (int64_t r = count; r < count + kRowTile && r < most; ++r) {  // what fills up a tile is never the nearest
    std::memset(space.rows + r * step, 0, size_t(4 * fours(dim)));
    space.start[r] = -__builtin_inff();
    space.y[r] = Code{0, 0, 0, 0};
  }
  return count;
}

// As element_sums, from codes.
template <int V, int R>
__attribute__((noinline)) void coded_sums(const uint8_t *panel, const float *rows, int64_t step, int64_t dim, const Code *codes, const float *start,
                                          const float *x_steps, float *table, float *floor) {
  typedef Lanes<16>::F F;
  __m512i sum[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[r][v] = _mm512_set1_epi32(-128 * codes[r].sum);
  const float *p[(R + 3) / 4];
  const int64_t step2 = 2 * step, step3 = 3 * step;
#pragma GCC unroll 3
  for (int q = 0; q < (R + 3) / 4; ++q) p[q] = rows + 4 * q * step;
  const int64_t n = fours(dim);
  for (int64_t k = 0; k < n; ++k, panel += V * 64) {
    __m512i x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[v] = _mm512_loadu_si512(panel + v * 64);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float *q = (r % 4 == 0 ? p[r / 4] : r % 4 == 1 ? p[r / 4] + step : r % 4 == 2 ? p[r / 4] + step2 : p[r / 4] + step3) + k;
      int32_t four;
      std::memcpy(&four, q, 4);
      const __m512i y = _mm512_set1_epi32(four);
      // As an intrinsic GCC 12 copies each sum, and keeps some of them in memory.
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[r][v]) : "v"(x[v]), "v"(y));
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    F most = load<F>(floor + v * 16);
    const F steps = load<F>(x_steps + v * 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const F found = F(_mm512_cvtepi32_ps(sum[r][v])) * (steps * codes[r].step) + start[r];
      most = upper(most, found);
      store(table + r * kPanel + v * 16, found);
    }
    store(floor + v * 16, most);
  }
}

template <int V> inline void multiply_codes(const CodedSpace &space, int64_t dim, int64_t first, int64_t n) {
  const int64_t step = row_step(dim);
  const uint8_t *panel = reinterpret_cast<const uint8_t *>(space.panels + first * dim);
  int64_t r = 0;
  for (; n - r > kFewRows; r += kRowTile)
    coded_sums<V, kRowTile>(panel, space.rows + r * step, step, dim, space.y + r, space.start + r, space.x_steps + first, space.table + r * kPanel, space.floor + first);
  for (; r < n; r += kFewRows)
    coded_sums<V, kFewRows>(panel, space.rows + r * step, step, dim, space.y + r, space.start + r, space.x_steps + first, space.table + r * kPanel, space.floor + first);
}

#else

SLOSH_INLINE bool is_coded(int64_t) { return false; }

#endif

}  // namespace SLOSH_ARCH
}  // namespace slosh
