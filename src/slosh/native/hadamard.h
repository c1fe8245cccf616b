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

// For each of the upper binary digits of the place: sum and difference of the numbers with 0 and with 1 there.
inline void sums_of_pairs(float *x, int64_t size, int digits) {
  for (int d = 0; d < digits; ++d) {
    const int64_t half = size >> (d + 1);
    half >= SLOSH_LANES ? pairs<SLOSH_LANES>(x, size, half) : pairs<4>(x, size, half);
  }
}

// H x, with the upper and the lower half of the binary digits of its places swapped; x is overwritten, the result is in `out`.
inline void walsh_hadamard(float *x, float *out, int log_size) {
  const int low = log_size / 2;
  const int64_t size = int64_t(1) << log_size, rows = size >> low, columns = int64_t(1) << low;
  sums_of_pairs(x, size, log_size - low);
  for (int64_t i = 0; i < rows; i += 4)
    for (int64_t j = 0; j < columns; j += 4) transpose4(x + i * columns + j, columns, out + j * rows + i, rows);
  sums_of_pairs(out, size, low);
}

// H signs[1] H signs[0] H x, in place; `spare` has room for as many numbers. log_size is 4 or more.
inline void rotate(const Rotation &job, int64_t vector, void *spare) {
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
