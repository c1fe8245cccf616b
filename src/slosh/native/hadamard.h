// The Walsh-Hadamard transforms of a random rotation (hash/rotations.py), one vector at a time in the first cache. Nothing is done but sums of two
// numbers and changes of sign, in NumPy's order, so that the bits are the same as there.
#pragma once

#include "job.h"
#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

template <int W> SLOSH_INLINE void pairs(float *x, int64_t size, int64_t half) {
  typedef typename Lanes<W>::F F;
  for (float *end = x + size; x < end; x += 2 * half)
    for (int64_t j = 0; j < half; j += W) {
      const F a = load<F>(x + j), b = load<F>(x + half + j);
      store(x + j, a + b), store(x + half + j, a - b);
    }
}

template <int W> SLOSH_INLINE void two_digits(float *x, int64_t size, int64_t half) {
  typedef typename Lanes<W>::F F;
  const int64_t quarter = half / 2;
  for (float *end = x + size; x < end; x += 2 * half)
    for (int64_t j = 0; j < quarter; j += W) {
      const F a = load<F>(x + j), b = load<F>(x + quarter + j), c = load<F>(x + half + j), d = load<F>(x + half + quarter + j);
      const F e = a + c, f = b + d, g = a - c, h = b - d;
      store(x + j, e + f), store(x + quarter + j, e - f), store(x + half + j, g + h), store(x + half + quarter + j, g - h);
    }
}

// For each of the upper binary digits of the place: sum and difference of the numbers with 0 and with 1 there. Two digits at a time, and what fits
// into the first cache is done with before the next piece is begun: the sums are the same in any order.
inline void sums_of_pairs(float *x, int64_t size, int digits) {
  constexpr int64_t PIECE = 4096;
  int d = 0;
  for (; digits - d >= 2 && (size >> d) > PIECE; d += 2) two_digits<SLOSH_LANES>(x, size, size >> (d + 1));
  const int64_t piece = size >> d;
  for (float *end = x + size; d < digits && x < end; x += piece)
    for (int e = d; e < digits;) {
      const int64_t half = size >> (e + 1);
      if (digits - e >= 2 && half >= 2 * SLOSH_LANES) two_digits<SLOSH_LANES>(x, piece, half), e += 2;
      else half >= SLOSH_LANES ? pairs<SLOSH_LANES>(x, piece, half) : pairs<4>(x, piece, half), ++e;
    }
}

// H x, with the upper and the lower half of the binary digits of its places swapped; x is overwritten, the result is in `out`.
inline void walsh_hadamard(float *x, float *out, int log_size) {
  const int low = log_size / 2;
  const int64_t size = int64_t(1) << log_size, rows = size >> low, columns = int64_t(1) << low;
  sums_of_pairs(x, size, log_size - low);
  // In tiles of 16 by 16: a line of the cache is then filled before it is thrown out.
  for (int64_t i = 0; i < rows; i += 16)
    for (int64_t j = 0; j < columns; j += 16)
      for (int64_t p = i; p < i + 16 && p < rows; p += 4)
        for (int64_t q = j; q < j + 16 && q < columns; q += 4) transpose4(x + p * columns + q, columns, out + q * rows + p, rows);
  sums_of_pairs(out, size, low);
}

// H signs[1] H signs[0] H x, in place; `spare` has room for as many numbers. log_size is 4 or more.
void rotate(const Rotation &job, int64_t vector, void *spare) {
  const int64_t size = int64_t(1) << job.log_size;
  float *x = job.vectors + vector * size, *y = static_cast<float *>(spare);
  for (int round = 0; round < 3; ++round) {
    if (round)
      for (int64_t i = 0; i < size; ++i) x[i] = y[i] * job.signs[(round - 1) * size + i];
    walsh_hadamard(x, y, job.log_size);
  }
  std::memcpy(x, y, size_t(size) * sizeof(float));
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
