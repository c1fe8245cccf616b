// The Python binding of the order of float64 numbers within ragged sets; see module.cpp.
#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "gil.h"

namespace slosh {
namespace {

typedef ndarray<const double, ndim<2>, c_contig, nb::device::cpu> Values;
typedef ndarray<int64_t, ndim<2>, c_contig, nb::device::cpu> Order;

// Whole numbers that are ordered as the numbers are, and have a place for NaN.
int64_t ordered(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 63) & INT64_MAX);
}

uint32_t ordered(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 ? ~uint32_t(0) : uint32_t(1) << 31);
}

constexpr int64_t kFewKeys = 48;

// Sorts keys by their upper halves, byte by byte; equal ones stay as they are. `spare` has room for as many. Returns where they are then.
uint64_t *by_upper_half(uint64_t *keys, uint64_t *spare, int64_t n) {
  if (n < kFewKeys) {
    std::sort(keys, keys + n);
    return keys;
  }
  int64_t counts[4][256] = {};
  for (int64_t j = 0; j < n; ++j)
    for (int byte = 0; byte < 4; ++byte) ++counts[byte][keys[j] >> (32 + 8 * byte) & 255];
  for (int byte = 0; byte < 4; ++byte) {
    int64_t *const place = counts[byte];
    if (place[keys[0] >> (32 + 8 * byte) & 255] == n) continue;
    int64_t before = 0;
    for (int value = 0; value < 256; ++value) {
      const int64_t count = place[value];
      place[value] = before;
      before += count;
    }
    for (int64_t j = 0; j < n; ++j) spare[place[keys[j] >> (32 + 8 * byte) & 255]++] = keys[j];
    std::swap(keys, spare);
  }
  return keys;
}

// Writes the elements first, first + 1, ... of a set by rising value, of equal ones by rising tie. `keys` has room for twice as many.
//
// What is sorted are values rounded to float32, and the elements with them; those that are then equal are compared as they are.
void order_set(const double *values, const int64_t *ties, int64_t first, int64_t n, uint64_t *keys, int64_t *out) {
  for (int64_t j = 0; j < n; ++j) keys[j] = uint64_t(ordered(float(values[j]))) << 32 | uint64_t(j);
  const uint64_t *const sorted = by_upper_half(keys, keys + n, n);
  for (int64_t j = 0; j < n; ++j) out[j] = int64_t(sorted[j] & UINT32_MAX);
  for (int64_t from = 0, to; from < n; from = to) {
    for (to = from + 1; to < n && sorted[to] >> 32 == sorted[from] >> 32;) ++to;
    if (to - from == 1) continue;
    std::sort(out + from, out + to, [&](int64_t a, int64_t b) {
      const int64_t x = ordered(values[a]), y = ordered(values[b]);
      return x != y ? x < y : ties[a] < ties[b];
    });
  }
  for (int64_t j = 0; j < n; ++j) out[j] += first;
}

void order(const Values &values, const Offsets &offsets, const Offsets &ties, const Order &out, int threads) {
  const int64_t rows = int64_t(values.shape(0)), n = int64_t(values.shape(1)), sets = int64_t(offsets.shape(0)) - 1;
  check(int64_t(out.shape(0)) == rows && int64_t(out.shape(1)) == n && int64_t(ties.shape(0)) == n, "arrays must be as long as each other");
  const int64_t *const starts = offsets.data(), *const tie = ties.data();
  int64_t largest = 0;
  check(sets >= 0 && starts[0] == 0 && starts[sets] == n, "offsets must go from 0 to the number of elements");
  for (int64_t i = 0; i < sets; ++i) {
    check(starts[i] <= starts[i + 1], "offsets must not fall");
    largest = std::max(largest, starts[i + 1] - starts[i]);
  }
  check(largest <= UINT32_MAX, "a set has too many elements");
  const double *const from = values.data();
  int64_t *const to = out.data();
  Unlocked free;
  parallel(rows * sets, 64, threads, size_t(largest) * 2 * sizeof(uint64_t), [&](int64_t i, void *scratch) {
    const int64_t first = starts[i % sets], at = i / sets * n + first;
    order_set(from + at, tie + first, first, starts[i % sets + 1] - first, static_cast<uint64_t *>(scratch), to + at);
  });
}

}  // namespace

void add_order(nb::module_ &m) {
  using namespace nb::literals;
  m.def("order", &order, "values"_a, "offsets"_a, "ties"_a, "out"_a, "threads"_a);
}

}  // namespace slosh
