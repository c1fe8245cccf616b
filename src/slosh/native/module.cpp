// The Python bindings: arrays in, arrays out, the GIL released, threads over sets. Shapes and values were checked in Python
// (sets.py); what is checked here again is what would read or write outside of an array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "job.h"

namespace nb = nanobind;
using nb::ndarray, nb::ndim, nb::shape, nb::c_contig;

namespace slosh {
namespace {

typedef ndarray<const float, ndim<2>, c_contig, nb::device::cpu> Matrix;
typedef ndarray<const float, ndim<1>, c_contig, nb::device::cpu> Vector;
typedef ndarray<const int64_t, ndim<1>, c_contig, nb::device::cpu> Offsets;
typedef ndarray<float, ndim<2>, nb::device::cpu> Output;
typedef ndarray<float, ndim<2>, c_contig, nb::device::cpu> Columns;
typedef ndarray<double, ndim<1>, c_contig, nb::device::cpu> Doubles;

std::vector<const Kernel *> kernels() {
  std::vector<const Kernel *> found;
#if defined(SLOSH_X86_VARIANTS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    found.push_back(&avx512::kernel);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    found.push_back(&avx2::kernel);
#endif
  found.push_back(&generic::kernel);
  return found;
}

const Kernel *chosen = kernels().front();

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
    } catch (const std::system_error &) {
      break;  // no more threads to be had: the ones there are do the work
    }
  }
  run();
  for (std::thread &t : others) t.join();
  if (failure) std::rethrow_exception(failure);
}

void check(bool good, const char *what) {
  if (!good) throw std::invalid_argument(what);
}

int64_t check_offsets(const Offsets &offsets, int64_t n_points) {
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

// Slices in groups of lanes, widest first, with their directions and reference numbers laid out lane by lane.
struct Groups {
  std::vector<Group> list;
  std::vector<float> store;

  Groups(int64_t widest, int64_t L, int64_t dim, int64_t M, const float *directions, const float *reference) {
    for (int64_t first = 0; first < L;) {
      int64_t lanes = widest;
      while (lanes > 4 && L - first <= lanes / 2) lanes /= 2;
      const int64_t count = std::min(lanes, L - first);
      list.push_back({first, count, lanes, lanes, nullptr, nullptr});
      first += count;
    }
    size_t size = 0;
    for (const Group &g : list) size += size_t(g.lanes) * size_t((directions ? dim : 0) + (reference ? M : 0));
    store.assign(size, 0.0f);
    float *at = store.data();
    const auto lay = [&](const Group &g, const float *rows, int64_t width) {
      float *from = at;
      for (int64_t l = 0; l < g.count; ++l)
        for (int64_t k = 0; k < width; ++k) from[k * g.lanes + l] = rows[(g.first + l) * width + k];
      at += width * g.lanes;
      return static_cast<const float *>(from);
    };
    for (Group &g : list) {
      if (directions) g.directions = lay(g, directions, dim);
      if (reference) g.reference = lay(g, reference, M);
    }
  }
};

void run_embedding(Embedding job, int64_t n_sets, const float *directions, const float *reference, int threads) {
  if (n_sets == 0) return;
  const Groups groups(chosen->lanes, job.n_slices, job.dim, job.n_quantiles, directions, reference);
  job.groups = groups.list.data();
  job.n_groups = int64_t(groups.list.size());
  std::vector<double> parts;
  const int64_t n_parts = (job.n_slices + 3) / 4;
  double *residual = job.residual;
  if (residual) {
    parts.resize(size_t(n_sets * n_parts));
    job.residual = parts.data();
  }
  // A thread costs tens of microseconds, more on a busy machine: begin none for less work than that (about 1 ns a step).
  const int64_t steps = job.offsets[n_sets] * job.n_slices * (1 + (directions ? job.dim / 32 : 0));
  threads = int(std::min<int64_t>(threads, 1 + steps / 200000));
  const int64_t tasks = n_sets * job.n_groups;
  const int64_t grain = std::max<int64_t>(1, std::min<int64_t>(64 * job.n_groups, tasks / (16 * std::max(threads, 1))));
  parallel(tasks, grain, threads, chosen->scratch_bytes(job),
           [&](int64_t i, void *scratch) { chosen->embed(job, i / job.n_groups, i % job.n_groups, scratch); });
  if (residual)
    for (int64_t s = 0; s < n_sets; ++s) {
      double sum = 0;
      for (int64_t p = 0; p < n_parts; ++p) sum += parts[size_t(s * n_parts + p)];
      residual[s] = sum / double(job.n_slices);
    }
}

Embedding new_job(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const std::optional<Matrix> &directions,
                  int64_t n_slices) {
  Embedding job{};
  job.largest = check_offsets(offsets, int64_t(points.shape(0)));
  if (weights) check(weights->shape(0) == points.shape(0), "one weight a point");
  if (directions)
    check(int64_t(directions->shape(0)) == n_slices && directions->shape(1) == points.shape(1), "directions must be (n_slices, dim)");
  else
    check(int64_t(points.shape(1)) == n_slices, "projected values must be (points, n_slices)");
  check(n_slices > 0, "at least one slice");
  job.points = points.data();
  job.weights = weights ? weights->data() : nullptr;
  job.offsets = offsets.data();
  job.dim = int64_t(points.shape(1));
  job.n_slices = n_slices;
  return job;
}

void embed(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const std::optional<Matrix> &directions,
           const std::optional<Matrix> &reference, int64_t n_slices, int64_t n_quantiles, bool average, double scale, Output out,
           const std::optional<Doubles> &residual, int threads) {
  Embedding job = new_job(points, offsets, weights, directions, n_slices);
  const int64_t n = int64_t(offsets.shape(0)) - 1;
  check(n_quantiles > 0, "at least one quantile");
  check(int64_t(out.shape(0)) == n && int64_t(out.shape(1)) == n_slices * n_quantiles && out.stride(1) == 1,
        "out must be (sets, n_slices * n_quantiles) with contiguous rows");
  if (reference)
    check(int64_t(reference->shape(0)) == n_slices && int64_t(reference->shape(1)) == n_quantiles, "reference must be (n_slices, n_quantiles)");
  if (residual) check(average && int64_t(residual->shape(0)) == n, "residual: one number a set, average rule only");
  job.n_quantiles = n_quantiles;
  job.rule = average ? Rule::average : Rule::linear;
  job.scale = float(scale);
  job.out = out.data();
  job.out_step = out.stride(0);
  job.residual = residual ? residual->data() : nullptr;
  nb::gil_scoped_release free;
  run_embedding(job, n, directions ? directions->data() : nullptr, reference ? reference->data() : nullptr, threads);
}

void sort(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const std::optional<Matrix> &directions,
          int64_t n_slices, Columns out, const std::optional<Columns> &out_weights, int threads) {
  Embedding job = new_job(points, offsets, weights, directions, n_slices);
  check(out.shape(0) == points.shape(0) && int64_t(out.shape(1)) == n_slices, "out must be (points, n_slices)");
  check(out_weights.has_value() == weights.has_value(), "weights in, weights out");
  if (out_weights) check(out_weights->shape(0) == points.shape(0) && int64_t(out_weights->shape(1)) == n_slices, "out_weights must be (points, n_slices)");
  job.rule = Rule::sort;
  job.out = out.data();
  job.out_weights = out_weights ? out_weights->data() : nullptr;
  nb::gil_scoped_release free;
  run_embedding(job, int64_t(offsets.shape(0)) - 1, directions ? directions->data() : nullptr, nullptr, threads);
}

void transport(const Matrix &a, const Offsets &a_offsets, const std::optional<Matrix> &a_weights, const Matrix &b, const Offsets &b_offsets,
               const std::optional<Matrix> &b_weights, const ndarray<const int64_t, shape<-1, 2>, c_contig, nb::device::cpu> &pairs,
               Doubles out, int threads) {
  check_offsets(a_offsets, int64_t(a.shape(0)));
  check_offsets(b_offsets, int64_t(b.shape(0)));
  check(a.shape(1) == b.shape(1) && a.shape(1) > 0, "a and b must have the same number of slices");
  if (a_weights) check(a_weights->shape(0) == a.shape(0) && a_weights->shape(1) == a.shape(1), "a_weights must be like a");
  if (b_weights) check(b_weights->shape(0) == b.shape(0) && b_weights->shape(1) == b.shape(1), "b_weights must be like b");
  check(out.shape(0) == pairs.shape(0), "one number a pair");
  if (pairs.shape(0) == 0) return;
  const int64_t n = int64_t(pairs.shape(0)), na = int64_t(a_offsets.shape(0)) - 1, nb_ = int64_t(b_offsets.shape(0)) - 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t s = pairs.data()[2 * i], t = pairs.data()[2 * i + 1];
    check(s >= 0 && s < na && t >= 0 && t < nb_, "a pair names a set that is not there");
  }
  const int64_t steps = n * int64_t(a.shape(1)) * (int64_t(a.shape(0)) / na + int64_t(b.shape(0)) / nb_ + 1);
  threads = int(std::min<int64_t>(threads, 1 + steps / 200000));
  const Transport job{a.data(), b.data(), a_weights ? a_weights->data() : nullptr, b_weights ? b_weights->data() : nullptr,
                      a_offsets.data(), b_offsets.data(), pairs.data(), int64_t(a.shape(1)), out.data()};
  nb::gil_scoped_release free;
  parallel(n, std::max<int64_t>(1, std::min<int64_t>(256, n / (16 * std::max(threads, 1)))), threads, 0,
           [&](int64_t i, void *) { chosen->transport(job, i); });
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const Kernel *k : kernels()) result.emplace_back(k->name);
  return result;
}

void use(const std::string &name) {
  for (const Kernel *k : kernels())
    if (name == k->name) {
      chosen = k;
      return;
    }
  throw std::invalid_argument("no such kernel on this machine: " + name);
}

double exchange_rate(int64_t rounds) {
  const auto start = std::chrono::steady_clock::now();
  const double done = chosen->exchange_rate(rounds);
  return done / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace
}  // namespace slosh

NB_MODULE(_native, m) {
  using namespace nb::literals;
  m.doc() = "The native kernel; slosh.kernel is its Python face.";
  m.def("embed", &slosh::embed, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a.none(), "reference"_a.none(), "n_slices"_a,
        "n_quantiles"_a, "average"_a, "scale"_a, "out"_a, "residual"_a.none(), "threads"_a);
  m.def("sort", &slosh::sort, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a.none(), "n_slices"_a, "out"_a,
        "out_weights"_a.none(), "threads"_a);
  m.def("transport", &slosh::transport, "a"_a, "a_offsets"_a, "a_weights"_a.none(), "b"_a, "b_offsets"_a, "b_weights"_a.none(), "pairs"_a,
        "out"_a, "threads"_a);
  m.def("names", &slosh::names, "The instruction sets this machine can run, best first.");
  m.def("name", [] { return std::string(slosh::chosen->name); }, "The instruction set in use.");
  m.def("use", &slosh::use, "name"_a, "Take another instruction set of `names()`, for tests and benchmarks.");
  m.def("exchange_rate", &slosh::exchange_rate, "rounds"_a, "Compare-exchanges of single numbers a second, in registers.");
}
