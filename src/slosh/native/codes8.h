// Rows in eight bits, and how far a query q is from sixteen of them at once. A row is x = centre + step * (code - 128), number by number, up to an error
// whose norm is known. The query is coded once, about the middle m of all centres, and with |q - centre|^2 known one integer sum gives the distance:
//   |q - x|^2 = |q - centre|^2 + bias - 2 <q - m, x - centre>,   bias = |x - centre|^2 + 2 <centre - m, x - centre>, stored for each row.
// Coding the query moves this by at most 2 blur |x - centre|, blur being how far the coded query is from the query.
// The first numbers of a row, an early sum, bound the rest from below (Cauchy and Schwarz), and mostly exclude all rows of a block.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

constexpr int kRows = 16;  // rows of a block, whatever the lanes

#if defined(SLOSH_VNNI) || SLOSH_LANES == 4
constexpr float kLevels = 127;
#else
constexpr float kLevels = 63;  // products are added in pairs to 16 bits: 2 * 255 * 63 fits
#endif

typedef Lanes<SLOSH_LANES>::F Floats;
typedef int32_t Ints __attribute__((vector_size(4 * SLOSH_LANES)));
typedef int8_t Bytes __attribute__((vector_size(SLOSH_LANES)));
constexpr int kRegisters = kRows / SLOSH_LANES;  // registers of sixteen numbers

// A query in eight bits, about the middle.
struct Asked {
  alignas(64) int8_t code[kWidest];
  int32_t start_early, start_rest;  // what the integer sums of the early and of the other numbers begin with
  float square;                     // of the norm of the coded query
  float scale;                      // <coded query, x - centre> = scale / 2 * step * sum
  float blur;                       // how far the coded query is from the query, rounded up
  float norm;                       // of the query about the middle, rounded up
  float twice_rest;                 // twice the norm of the coded query without its early numbers, rounded up
};

typedef Lanes<4>::F Four;
#if SLOSH_LANES >= 8
typedef Lanes<8>::F Eight;
SLOSH_INLINE Four low(const Eight &x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3); }
SLOSH_INLINE Four high(const Eight &x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7); }
#endif
#if SLOSH_LANES >= 16
SLOSH_INLINE Eight low(const Floats &x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7); }
SLOSH_INLINE Eight high(const Floats &x) { return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15); }
#endif
SLOSH_INLINE float sum_of(const Four &x) { return (x[0] + x[1]) + (x[2] + x[3]); }
SLOSH_INLINE float largest_of(const Four &x) { return std::max(std::max(x[0], x[1]), std::max(x[2], x[3])); }
template <class V> SLOSH_INLINE float sum_of(const V &x) { return sum_of(low(x) + high(x)); }
template <class V> SLOSH_INLINE float largest_of(const V &x) { return largest_of(upper(low(x), high(x))); }

// `stride` numbers, a multiple of sixteen, of which those behind the width are zero; the first `early` of them, a multiple of four, are summed apart.
inline void code_query(const float *query, const float *middle, int64_t stride, int64_t early, Asked &to) {
  Floats most{}, norm{};
  const Floats none{};
  for (int64_t i = 0; i < stride; i += SLOSH_LANES) {
    const Floats d = load<Floats>(query + i) - load<Floats>(middle + i);
    most = upper(most, upper(d, none - d));
    norm += d * d;
  }
  const float largest = largest_of(most);
  const bool usual = largest > 1e-30f && largest < 1e30f;
  const float unit = usual ? largest / kLevels : 0.0f, inverse = usual ? kLevels / largest : 0.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
  Floats whole{}, squares{}, off{};
  for (int64_t i = 0; i < stride; i += SLOSH_LANES) {
    const Floats d = load<Floats>(query + i) - load<Floats>(middle + i);
    Floats v = d * inverse + kRound;
    v -= kRound;
    const Floats left = d - v * unit;
    whole += v, squares += v * v, off += left * left;
    store(to.code + i, __builtin_convertvector(__builtin_convertvector(v, Ints), Bytes));
  }
  int32_t first = 0, square = 0;
  for (int64_t i = 0; i < early; ++i) first += to.code[i], square += to.code[i] * to.code[i];
  const float total = sum_of(squares);
  to.start_early = -128 * first;
  to.start_rest = -128 * int32_t(sum_of(whole)) - to.start_early;
  to.square = unit * unit * total;
  to.scale = 2 * unit;
  to.blur = std::sqrt(sum_of(off)) * (1 + 1e-5f);
  to.norm = std::sqrt(sum_of(norm)) * (1 + 1e-5f);
  to.twice_rest = 2 * unit * std::sqrt(std::max(0.0f, total - float(square))) * (1 + 1e-5f);
}

// |x - y|^2 of `stride` numbers.
SLOSH_INLINE float square_of(const float *x, const float *y, int64_t stride) {
  Floats sum{};
  for (int64_t i = 0; i < stride; i += SLOSH_LANES) {
    const Floats d = load<Floats>(x + i) - load<Floats>(y + i);
    sum += d * d;
  }
  return sum_of(sum);
}

// Adds the products of four numbers of sixteen rows with those of a query.
SLOSH_INLINE void add_products(Ints *sums, const uint8_t *rows, int32_t four) {
#if defined(SLOSH_VNNI)
  sums[0] = Ints(_mm512_dpbusd_epi32(__m512i(sums[0]), _mm512_loadu_si512(rows), _mm512_set1_epi32(four)));
#elif SLOSH_LANES == 16
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_loadu_si512(rows), _mm512_set1_epi32(four));
  sums[0] += Ints(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#elif SLOSH_LANES == 8
  const __m256i query = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1);
  for (int part = 0; part < 2; ++part) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows + 32 * part)), query);
    sums[part] += Ints(_mm256_madd_epi16(pairs, one));
  }
#else
  int8_t query[4];
  std::memcpy(query, &four, 4);
  int32_t lane[kRows];
  std::memcpy(lane, sums, sizeof(lane));
  for (int l = 0; l < kRows; ++l) lane[l] += rows[4 * l] * query[0] + rows[4 * l + 1] * query[1] + rows[4 * l + 2] * query[2] + rows[4 * l + 3] * query[3];
  std::memcpy(sums, lane, sizeof(lane));
#endif
}

// Adds the products of the numbers `from` to `to` of the sixteen rows of a block with those of Q queries.
template <int Q> SLOSH_INLINE void add_all_products(const Asked *const *asked, const uint8_t *block, int64_t from, int64_t to, Ints (*sums)[kRegisters]) {
  int64_t i = from;
  if (Q * kRegisters < 2) {  // each addition would wait for the one before: two sums are added at the end
    constexpr int kSums = 2;
    Ints parts[kSums - 1][Q][kRegisters] = {};
    for (; i + 4 * kSums <= to; i += 4 * kSums)
      for (int part = 0; part < kSums; ++part)
        for (int q = 0; q < Q; ++q) {
          int32_t four;
          std::memcpy(&four, asked[q]->code + i + 4 * part, 4);
          add_products(part ? parts[part - 1][q] : sums[q], block + (i + 4 * part) * kRows, four);
        }
    for (int q = 0; q < Q; ++q)
      for (int r = 0; r < kRegisters; ++r) sums[q][r] += parts[0][q][r];
  }
  for (; i < to; i += 4)
    for (int q = 0; q < Q; ++q) {
      int32_t four;
      std::memcpy(&four, asked[q]->code + i, 4);
      add_products(sums[q], block + i * kRows, four);
    }
}

// Squared distances of Q coded queries to sixteen rows that are coded about the middle too; `squares` are those of their norms.
template <int Q> SLOSH_INLINE void estimate(const Asked *const *asked, const uint8_t *block, const float *squares, float step, int64_t width, Floats (*out)[kRegisters]) {
  Ints sums[Q][kRegisters];
  for (int q = 0; q < Q; ++q)
    for (int part = 0; part < kRegisters; ++part) sums[q][part] = Ints{} + (asked[q]->start_early + asked[q]->start_rest);
  add_all_products<Q>(asked, block, 0, width, sums);
  for (int q = 0; q < Q; ++q)
    for (int part = 0; part < kRegisters; ++part)
      out[q][part] = load<Floats>(squares + part * SLOSH_LANES) + asked[q]->square - __builtin_convertvector(sums[q][part], Floats) * (asked[q]->scale * step);
}

// Bit l: lane l is not above `limit`; what float32 cannot tell (NaN) is not.
template <int W> SLOSH_INLINE unsigned not_above(const typename Lanes<W>::F &x, float limit) {
  float lane[W];
  store(lane, x);
  unsigned bits = 0;
  for (int l = 0; l < W; ++l) bits |= unsigned(!(lane[l] > limit)) << l;
  return bits;
}
#if defined(__x86_64__)
template <> SLOSH_INLINE unsigned not_above<4>(const Lanes<4>::F &x, float limit) {
  return unsigned(_mm_movemask_ps(_mm_cmpngt_ps(x, _mm_set1_ps(limit))));
}
#if SLOSH_LANES >= 8
template <> SLOSH_INLINE unsigned not_above<8>(const Lanes<8>::F &x, float limit) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NGT_UQ)));
}
#endif
#if SLOSH_LANES >= 16
template <> SLOSH_INLINE unsigned not_above<16>(const Lanes<16>::F &x, float limit) {
  return unsigned(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NGT_UQ));
}
#endif
#endif

SLOSH_INLINE unsigned not_above16(const Floats *x, float limit) {
  unsigned bits = 0;
  for (int part = 0; part < kRegisters; ++part) bits |= not_above<SLOSH_LANES>(x[part], limit) << (part * SLOSH_LANES);
  return bits;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
