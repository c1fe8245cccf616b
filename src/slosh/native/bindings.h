// What the bindings share: types of arrays, checks of what would read or write outside of one, threads, and the kernel that was chosen.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "job.h"

namespace nb = nanobind;
using nb::ndarray, nb::ndim, nb::shape, nb::c_contig;

namespace slosh {

typedef ndarray<const float, ndim<2>, c_contig, nb::device::cpu> Matrix;
typedef ndarray<const float, ndim<1>, c_contig, nb::device::cpu> Vector;
typedef ndarray<const int64_t, ndim<1>, c_contig, nb::device::cpu> Offsets;
typedef ndarray<float, ndim<2>, nb::device::cpu> Output;
typedef ndarray<float, ndim<2>, c_contig, nb::device::cpu> Columns;
typedef ndarray<double, ndim<1>, c_contig, nb::device::cpu> Doubles;

// The kernel of this machine, or the one that `use` has chosen.
const Kernel *chosen_kernel();

// Add what parts_module.cpp, gradient_module.cpp, dense_module.cpp, element_module.cpp, copy_module.cpp and order_module.cpp have.
void add_parts(nb::module_ &m);
void add_gradients(nb::module_ &m);
void add_dense(nb::module_ &m);
void add_element_network(nb::module_ &m);
void add_copy(nb::module_ &m);
void add_order(nb::module_ &m);

// Calls work(i, scratch) for i in [0, n), `grain` at a time, on several threads. Each i is done by one thread alone, so the result does not
// depend on how many there are.
template <class Work> void parallel(int64_t n, int64_t grain, int threads, size_t scratch, Work work) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex lock;
  const auto run = [&] {
    try {
      const std::unique_ptr<char[]> memory(scratch ? new char[scratch] : nullptr);
      for (int64_t from; (from = next.fetch_add(grain)) < n;)
        for (int64_t i = from; i < std::min(n, from + grain); ++i) work(i, memory.get());
    } catch (...) {
      const std::lock_guard<std::mutex> guard(lock);
      failure = std::current_exception();
      next = n;
    }
  };
  const int64_t useful = std::min<int64_t>(threads, (n + grain - 1) / grain);  // a thread without work is not begun
  std::vector<std::thread> others;
  for (int64_t t = 1; t < useful; ++t) {
    try {
      others.emplace_back(run);
    } catch (const std::exception &) {
      break;  // no more threads, or no memory for them: the ones there are do the work
    }
  }
  run();
  for (std::thread &t : others) t.join();
  if (failure) std::rethrow_exception(failure);
}

inline void check(bool good, const char *what) {
  if (!good) throw std::invalid_argument(what);
}

inline int64_t check_offsets(const Offsets &offsets, int64_t n_points) {
  const int64_t n = int64_t(offsets.shape(0)) - 1;
  check(n >= 0 && offsets.data()[0] == 0 && offsets.data()[n] == n_points, "offsets must run from 0 to the number of points");
  int64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t size = offsets.data()[i + 1] - offsets.data()[i];
    check(size > 0, "every set needs at least one point");
    largest = std::max(largest, size);
  }
  check(largest < int64_t(1) << 31, "a set has more than 2^31 points");
  return largest;
}

}  // namespace slosh
