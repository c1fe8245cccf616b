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
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "groups.h"
#include "nearest.h"

namespace slosh {
namespace {

std::vector<const Kernel *> kernels() {
  std::vector<const Kernel *> found;
#if defined(SLOSH_X86_VARIANTS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
  {
    if (__builtin_cpu_supports("avx512vnni")) found.push_back(&avx512vnni::kernel);
    found.push_back(&avx512::kernel);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    found.push_back(&avx2::kernel);
#endif
  found.push_back(&generic::kernel);
  return found;
}

const Kernel *chosen = kernels().front();

void run_embedding(Embedding job, int64_t n_sets, const float *directions, const float *reference, int threads) {
  if (n_sets == 0) return;
  const Kernel *const kernel = chosen;  // `use` may change it meanwhile, and the groups are laid out for this one
  const Groups groups(kernel->lanes, job.n_slices, job.dim, job.n_quantiles, directions, reference);
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
  parallel(tasks, grain, threads, kernel->scratch_bytes(job),
           [&](int64_t i, void *scratch) { kernel->embed(job, i / job.n_groups, i % job.n_groups, scratch); });
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
  Unlocked free;
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
  Unlocked free;
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
  Unlocked free;
  parallel(n, std::max<int64_t>(1, std::min<int64_t>(256, n / (16 * std::max(threads, 1)))), threads, 0,
           [&job, kernel = chosen](int64_t i, void *) { kernel->transport(job, i); });
}

typedef ndarray<const int16_t, ndim<2>, c_contig, nb::device::cpu> Shorts;
typedef ndarray<const double, ndim<1>, c_contig, nb::device::cpu> ConstDoubles;
typedef ndarray<int64_t, ndim<1>, c_contig, nb::device::cpu> Longs;

Vectors new_vectors(const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale, int64_t n, int64_t dim) {
  check(floats.has_value() != shorts.has_value(), "vectors: floats or shorts");
  if (floats) check(int64_t(floats->shape(0)) == n && int64_t(floats->shape(1)) == dim, "vectors must be (n, dim)");
  if (shorts) {
    check(int64_t(shorts->shape(0)) == n && int64_t(shorts->shape(1)) == dim, "vectors must be (n, dim)");
    check(scale && int64_t(scale->shape(0)) == n, "one scale a vector");
  }
  return {floats ? floats->data() : nullptr, shorts ? shorts->data() : nullptr, shorts ? scale->data() : nullptr, dim};
}

void squares(const Matrix &queries, const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale,
             const Offsets &offsets, const Offsets &positions, Doubles out, int threads) {
  const int64_t dim = int64_t(queries.shape(1)), n_queries = int64_t(queries.shape(0));
  const int64_t n = floats ? int64_t(floats->shape(0)) : shorts ? int64_t(shorts->shape(0)) : 0;
  const Vectors vectors = new_vectors(floats, shorts, scale, n, dim);
  check(int64_t(offsets.shape(0)) == n_queries + 1 && offsets.data()[0] == 0 && offsets.data()[n_queries] == int64_t(positions.shape(0)) &&
            out.shape(0) == positions.shape(0), "offsets must run from 0 to the number of positions");
  for (int64_t i = 0; i < n_queries; ++i) check(offsets.data()[i] <= offsets.data()[i + 1], "offsets must increase");
  for (size_t i = 0; i < positions.shape(0); ++i) check(positions.data()[i] >= 0 && positions.data()[i] < n, "a position that is not there");
  const Pairs job{queries.data(), vectors, offsets.data(), positions.data(), out.data()};
  threads = int(std::min<int64_t>(threads, 1 + int64_t(positions.shape(0)) * dim / 400000));
  Unlocked free;
  parallel(n_queries, std::max<int64_t>(1, std::min<int64_t>(64, n_queries / (8 * threads))), threads, 0,
           [&job, kernel = chosen](int64_t i, void *) { kernel->squares(job, i); });
}

typedef ndarray<const double, ndim<2>, c_contig, nb::device::cpu> Directions;

Basis new_basis(const ConstDoubles &middle, const std::optional<Directions> &directions, int64_t dim) {
  const int64_t padded = int64_t(middle.shape(0));
  check(padded % 8 == 0 && padded >= dim && (!directions || (int64_t(directions->shape(1)) == padded && directions->shape(0) > 0)),
        "directions and middle must be filled up to a multiple of eight");
  return {dim, directions ? int64_t(directions->shape(0)) : 0, padded, middle.data(), directions ? directions->data() : nullptr};
}

void prefixes(const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale, const ConstDoubles &middle,
              const std::optional<Directions> &directions, int64_t dim, Columns out, Doubles norms, int threads) {
  const int64_t n = int64_t(out.shape(0));
  const Prefixes job{new_basis(middle, directions, dim), new_vectors(floats, shorts, scale, n, dim), n, int64_t(out.shape(1)), out.data(), norms.data()};
  const int64_t p = job.basis.n_directions, padded = job.basis.padded;
  check(int64_t(out.shape(1)) >= job.basis.numbers() && int64_t(norms.shape(0)) == n, "out must be (n, directions + 1)");
  threads = int(std::min<int64_t>(threads, 1 + n * dim * (p + 1) / 400000));
  const int64_t tiles = (n + kTogether - 1) / kTogether;
  Unlocked free;
  parallel(tiles, std::max<int64_t>(1, std::min<int64_t>(32, tiles / (8 * threads))), threads, size_t(kTogether * (padded + p)) * sizeof(double) + 64,
           [&job, kernel = chosen](int64_t i, void *scratch) { kernel->prefixes(job, i, scratch); });
}

struct Found {
  double square;
  int64_t position;
};

// An array that Python will free.
template <class T> ndarray<nb::numpy, T, ndim<1>> owned(T *data, size_t size) {
  nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<T *>(p); });
  return ndarray<nb::numpy, T, ndim<1>>(data, {size}, owner);
}

typedef ndarray<const uint8_t, shape<-1, -1, 16, 4>, c_contig, nb::device::cpu> RowCodes;
typedef ndarray<const float, shape<-1, 16>, c_contig, nb::device::cpu> RowSquares;
typedef ndarray<const bool, ndim<1>, c_contig, nb::device::cpu> Allowed;
typedef ndarray<double, ndim<2>, c_contig, nb::device::cpu> Distances;
typedef ndarray<int64_t, ndim<2>, c_contig, nb::device::cpu> Positions;

// The centres of lists, in full and as rows of eight bits.
struct Heads {
  const Matrix centres;
  const RowCodes codes;
  const RowSquares squares;
  const Vector middle, steps, errors;
  const float farthest;

  void give(Lists &to) const {
    to.n_lists = int64_t(centres.shape(0)), to.stride = int64_t(centres.shape(1)), to.width = 4 * int64_t(codes.shape(1));
    check(to.n_lists > 0 && to.n_lists < int64_t(1) << 31 && int64_t(codes.shape(0)) == (to.n_lists + 15) / 16 && codes.shape(0) == squares.shape(0) &&
              codes.shape(0) == steps.shape(0) && codes.shape(0) == errors.shape(0), "one of each a list");
    check(to.width > 0 && to.stride == (to.width + 15) / 16 * 16 && to.stride <= kWidest && int64_t(middle.shape(0)) == to.stride, "centres must be filled up to a multiple of 16");
    to.centres = centres.data(), to.heads = {codes.data(), squares.data()}, to.middle = middle.data();
    to.head_steps = steps.data(), to.head_errors = errors.data(), to.farthest = farthest;
  }
};

// Rows (n, stride) to the lists whose centres are nearest, and their squared distances.
void nearest_lists(const Heads &heads, const Matrix &rows, Longs which, ndarray<float, ndim<1>, c_contig, nb::device::cpu> squares, int threads) {
  Lists lists{};
  heads.give(lists);
  const int64_t n = int64_t(rows.shape(0)), step = 64;
  check(int64_t(rows.shape(1)) == lists.stride && int64_t(which.shape(0)) == n && int64_t(squares.shape(0)) == n, "rows must be (n, stride)");
  threads = int(std::min<int64_t>(threads, 1 + n * lists.n_lists * lists.stride / 4000000));
  Unlocked free;
  parallel((n + step - 1) / step, 1, threads, 0, [&, kernel = chosen](int64_t i, void *) {
    const int64_t from = i * step;
    kernel->nearest_lists(lists, rows.data() + from * lists.stride, std::min(step, n - from), which.data() + from, squares.data() + from);
  });
}

typedef ndarray<uint8_t, ndim<1>, c_contig, nb::device::cpu> Marks;

// What the searches of one state have in common. Arrays are checked once, and held.
class LadderScan {
 public:
  LadderScan(const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale, int64_t dim, const ConstDoubles &middle,
             const std::optional<Directions> &directions, double rounding, double farthest, const Heads &heads, const RowCodes &codes, const RowSquares &biases,
             const Vector &rests, int64_t early, const ndarray<const int32_t, shape<-1, 16>, c_contig, nb::device::cpu> &slots, const ndarray<const uint16_t, ndim<1>, c_contig, nb::device::cpu> &masks,
             const Vector &steps, const Vector &errors, const Vector &radii, const Offsets &start, const Offsets &order, const std::optional<Marks> &marks, int mark_shift)
      : held_(nb::make_tuple(floats, shorts, scale, middle, directions, codes, biases, rests, slots, masks, steps, errors, radii, start, order, marks)), heads_(heads) {
    Lists &to = job_.lists;
    heads_.give(to);
    n_ = floats ? int64_t(floats->shape(0)) : shorts ? int64_t(shorts->shape(0)) : 0;
    job_.vectors = new_vectors(floats, shorts, scale, n_, dim);
    job_.basis = new_basis(middle, directions, dim);
    job_.rounding = rounding, job_.farthest = farthest;
    check(job_.basis.numbers() <= to.width && job_.basis.numbers() > to.width - 4, "rows must have the numbers of a prefix");
    const int64_t n_blocks = int64_t(codes.shape(0));
    check(4 * int64_t(codes.shape(1)) == to.width && int64_t(biases.shape(0)) == n_blocks && int64_t(rests.shape(0)) == n_blocks && int64_t(slots.shape(0)) == n_blocks && int64_t(masks.shape(0)) == n_blocks &&
              int64_t(order.shape(0)) == n_blocks && n_blocks < int64_t(1) << 28, "one of each a block");
    for (const Vector *each : {&steps, &errors, &radii}) check(int64_t(each->shape(0)) == to.n_lists, "one of each a list");
    check(int64_t(start.shape(0)) == to.n_lists + 1 && start.data()[0] == 0 && start.data()[to.n_lists] == n_blocks, "one of each a list");
    for (int64_t l = 0; l < to.n_lists; ++l) check(start.data()[l] <= start.data()[l + 1], "lists must follow each other");
    // What the blocks hold is checked where they are made and read (search/lists.py).
    check(early > 0 && early % 4 == 0 && early <= to.width, "early numbers must be a multiple of 4");
    to.rows = {codes.data(), biases.data()}, to.rests = rests.data(), to.early = early, to.slots = slots.data(), to.masks = masks.data();
    check(!marks || (mark_shift >= 0 && mark_shift < 40 && int64_t(marks->shape(0)) >= (n_ + (int64_t(1) << mark_shift) - 1) >> mark_shift), "one mark a group of vectors");
    job_.marks = marks ? marks->data() : nullptr, job_.mark_shift = mark_shift;
    to.steps = steps.data(), to.errors = errors.data(), to.radii = radii.data(), to.start = start.data(), to.order = order.data();
  }

  // Whether vectors were read that are not marked as checked.
  bool nearest(const Matrix &queries, int64_t depth, double reach, bool exact, const std::optional<Allowed> &allowed, const std::optional<Offsets> &skip,
               const std::optional<Offsets> &ranks, Distances out, Positions positions, Longs scanned, Longs candidates, int threads) const {
    Ladder job = asked(queries, allowed, skip, ranks, scanned, candidates);
    const int64_t n = int64_t(queries.shape(0));
    check(int64_t(out.shape(0)) == n && out.shape(0) == positions.shape(0) && out.shape(1) == positions.shape(1) && out.shape(1) > 0 && depth > 0,
          "out and positions must be (n_queries, k)");
    job.out = out.data(), job.out_positions = positions.data(), job.k = int64_t(out.shape(1));
    job.depth = std::max(depth, job.k), job.reach = float(reach), job.exact = exact;
    bool unchecked = false;
    job.unchecked = &unchecked;
    Unlocked free;
    run(job, n, threads);
    return unchecked;
  }

  nb::tuple within(const Matrix &queries, const ConstDoubles &radius, const std::optional<Allowed> &allowed, Longs scanned, Longs candidates, int threads) const {
    Ladder job = asked(queries, allowed, std::nullopt, std::nullopt, scanned, candidates);
    const int64_t n = int64_t(queries.shape(0));
    check(int64_t(radius.shape(0)) == n, "one radius a query");
    job.radius = radius.data(), job.k = job.depth = 1, job.exact = true;
    std::vector<std::vector<Found>> found(static_cast<size_t>(n));
    job.sink = &found;
    bool unchecked = false;
    job.unchecked = &unchecked;
    job.put = [](void *sink, int64_t query, double square, int64_t position) {
      (*static_cast<std::vector<std::vector<Found>> *>(sink))[size_t(query)].push_back({square, position});
    };
    {
      Unlocked free;
      run(job, n, threads);
    }
    size_t total = 0;
    for (const auto &f : found) total += f.size();
    int64_t *starts = new int64_t[size_t(n) + 1], *positions = new int64_t[total];
    double *result = new double[total];
    starts[0] = 0;
    for (int64_t i = 0, at = 0; i < n; ++i) {
      for (const Found &f : found[size_t(i)]) result[at] = f.square, positions[at++] = f.position;
      starts[i + 1] = at;
    }
    return nb::make_tuple(owned(starts, size_t(n) + 1), owned(result, total), owned(positions, total), unchecked);
  }

 private:
  Ladder asked(const Matrix &queries, const std::optional<Allowed> &allowed, const std::optional<Offsets> &skip, const std::optional<Offsets> &ranks, Longs &scanned,
               Longs &candidates) const {
    const size_t n = queries.shape(0);
    check(!allowed || int64_t(allowed->shape(0)) >= n_, "one bit a position");
    check(int64_t(queries.shape(1)) == job_.basis.dim && (!skip || skip->shape(0) == n) && (!ranks || int64_t(ranks->shape(0)) >= n_) && scanned.shape(0) == n &&
              candidates.shape(0) == n, "one of each a query");
    Ladder job = job_;
    job.queries = queries.data(), job.allowed = allowed ? allowed->data() : nullptr, job.skip = skip ? skip->data() : nullptr, job.ranks = ranks ? ranks->data() : nullptr;
    job.scanned = scanned.data(), job.candidates = candidates.data();
    return job;
  }

  // Queries that climb together read a list once; an exact search visits nearly all lists, and remembers them.
  static void run(const Ladder &job, int64_t n, int threads) {
    const int64_t held = std::max<int64_t>(1, (int64_t(1) << 22) / (job.depth + 64));  // queries of which the best rows are held at a time
    const int64_t most = std::min<int64_t>(job.exact ? 64 : 1024, held), tile = std::max<int64_t>(1, std::min(most, (n + threads - 1) / threads));
    parallel((n + tile - 1) / tile, 1, threads, 0, [&job, n, tile, kernel = chosen](int64_t i, void *) { kernel->ladder(job, i * tile, std::min(n, (i + 1) * tile)); });
  }

  nb::object held_;
  Heads heads_;
  Ladder job_{};
  int64_t n_ = 0;
};

int64_t count_true(const Allowed &mask) { return chosen->true_positions(mask.data(), int64_t(mask.shape(0)), nullptr); }

typedef ndarray<bool, ndim<1>, c_contig, nb::device::cpu> Flags;

// The nearest of the vectors that a mask allows, or of all of them, by comparing each.
void flat(const Matrix &queries, const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale,
          const std::optional<Allowed> &allowed, const std::optional<Offsets> &skip, const std::optional<Offsets> &ranks, Distances out, Positions found, Flags tied,
          int threads) {
  const int64_t dim = int64_t(queries.shape(1)), n_queries = int64_t(queries.shape(0));
  const int64_t n = floats ? int64_t(floats->shape(0)) : shorts ? int64_t(shorts->shape(0)) : 0;
  check(!allowed || int64_t(allowed->shape(0)) == n, "one entry of the mask a vector");
  check(int64_t(out.shape(0)) == n_queries && found.shape(0) == out.shape(0) && found.shape(1) == out.shape(1) && out.shape(1) > 0 &&
            int64_t(tied.shape(0)) == n_queries && (!skip || int64_t(skip->shape(0)) == n_queries) && (!ranks || int64_t(ranks->shape(0)) >= n),
        "out must be (n_queries, k)");
  const Vectors vectors = new_vectors(floats, shorts, scale, n, dim);
  check(n < int64_t(1) << 32, "too many vectors");
  Unlocked free;
  std::vector<int64_t> positions;
  if (allowed) {
    positions.resize(size_t(chosen->true_positions(allowed->data(), n, nullptr)));
    chosen->true_positions(allowed->data(), n, positions.data());
  }
  const Flat job{queries.data(), vectors, allowed ? positions.data() : nullptr, allowed ? int64_t(positions.size()) : n, int64_t(out.shape(1)),
                 skip ? skip->data() : nullptr, ranks ? ranks->data() : nullptr, out.data(), found.data(), tied.data()};
  threads = int(std::min<int64_t>(threads, 1 + n_queries * job.n_places * dim / 400000));
  // Queries that go together put the vectors side by side once.
  const int64_t most = std::max<int64_t>(4, std::min<int64_t>(1024, (int64_t(1) << 20) / (job.k + 64)));  // that of which the best are held at a time
  const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(most, (n_queries + threads - 1) / threads));
  parallel((n_queries + tile - 1) / tile, 1, threads, 0,
           [&job, n_queries, tile, kernel = chosen](int64_t i, void *) { kernel->flat(job, i * tile, std::min(n_queries, (i + 1) * tile)); });
}

typedef ndarray<const uint64_t, ndim<2>, c_contig, nb::device::cpu> Words;
typedef ndarray<const uint64_t, shape<-1, -1, kRow>, c_contig, nb::device::cpu> CodeGroups;
typedef ndarray<const uint8_t, ndim<1>, c_contig, nb::device::cpu> Masks;

// The copy that scans codes: AVX-512 alone cannot count bits.
const Kernel &code_kernel() {
#if defined(SLOSH_X86_VARIANTS)
  if (chosen == &avx512::kernel && !__builtin_cpu_supports("avx512vpopcntdq")) return avx2::kernel;
#endif
  return *chosen;
}

// A thread costs tens of microseconds; a step (four words of eight codes) takes about 4 ns.
int code_threads(const Codes &job, int64_t n, int threads) {
  return int(std::max<int64_t>(1, std::min<int64_t>(threads, 1 + n * job.n_places * ((job.n_words + 3) / 4) / 50000)));
}

Codes new_codes(const Words &queries, const CodeGroups &groups, const Masks &allowed, const std::optional<Offsets> &active) {
  const int64_t n_blocks = int64_t(groups.shape(0)) * kFour;
  check(queries.shape(1) == groups.shape(1) && groups.shape(1) > 0 && groups.shape(1) < 1 << 16, "queries and codes must have the same number of words");
  check(int64_t(allowed.shape(0)) == n_blocks, "one mask a block");
  check(n_blocks < (int64_t(1) << kPositionBits) / kCodes, "too many codes");
  int64_t before = -1;
  for (size_t i = 0; active && i < active->shape(0); ++i) {
    const int64_t block = active->data()[i];
    check(block > before && block < n_blocks, "active blocks must increase, and be there");
    before = block;
  }
  return {groups.data(), allowed.data(), active ? active->data() : nullptr, int64_t(groups.shape(1)), active ? int64_t(active->shape(0)) : n_blocks};
}

// The k nearest codes of each query: distances and positions (n_queries, k), equal distances by row; `rows` null: by position. Filled up with inf, -1.
void nearest_codes(const Words &queries, const CodeGroups &groups, const Masks &allowed, const std::optional<Offsets> &active, const std::optional<Offsets> &rows,
                   ndarray<double, ndim<2>, c_contig, nb::device::cpu> distances, ndarray<int64_t, ndim<2>, c_contig, nb::device::cpu> positions, int threads) {
  const Codes job = new_codes(queries, groups, allowed, active);
  const int64_t n = int64_t(queries.shape(0)), k = int64_t(distances.shape(1));
  check(k > 0 && int64_t(distances.shape(0)) == n && int64_t(positions.shape(0)) == n && int64_t(positions.shape(1)) == k, "out must be (queries, k)");
  for (int64_t i = rows ? int64_t(rows->shape(0)) : 0; rows && i < int64_t(groups.shape(0)) * kRow; ++i)
    check(!(allowed.data()[i / kCodes] >> i % kCodes & 1), "one row a code");
  if (n == 0) return;
  // A pass is shared by up to 16 queries, as long as what they keep is little. Where there are fewer passes than threads, several threads share the
  // codes of one, and what they found is merged: the same k, however many there are.
  threads = code_threads(job, n, threads);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(16, (int64_t(1) << 20) / (4 * k + 1024)));
  const int64_t tile = std::max<int64_t>(1, std::min(most, (n + threads - 1) / threads)), tiles = (n + tile - 1) / tile;
  const int64_t parts = std::max<int64_t>(1, std::min(threads / tiles, job.n_places / std::max<int64_t>(512, k)));
  const Kernel &kernel = code_kernel();
  const int64_t *order = rows ? rows->data() : nullptr;
  double *out = distances.data();
  int64_t *out_positions = positions.data();
  Unlocked free;
  std::vector<uint64_t> found(size_t(n * parts * k));  // (n, parts, k)
  parallel(tiles * parts, 1, threads, 0, [&](int64_t i, void *) {
    const int64_t from = i / parts * tile, to = std::min(n, from + tile), part = i % parts;
    const auto border = [&](int64_t p) { return p == parts ? job.n_places : p * job.n_places / parts / kFour * kFour; };
    nearest(kernel, job, queries.data(), from, to, border(part), border(part + 1), k, order, found.data() + (from * parts + part) * k, parts * k);
  });
  for (int64_t q = 0; q < n; ++q) {
    uint64_t *best = found.data() + q * parts * k;
    if (parts > 1) std::sort(best, best + parts * k, Before{order});
    for (int64_t j = 0; j < k; ++j) {
      const bool there = best[j] != kNoCode;
      out[q * k + j] = there ? double(distance_of(best[j])) : HUGE_VAL;
      out_positions[q * k + j] = there ? position_of(best[j]) : -1;
    }
  }
}

// All codes at most limits[i] bits away from query i: offsets by query, distances and positions, in the order of the positions.
nb::tuple codes_within(const Words &queries, const CodeGroups &groups, const Masks &allowed, const std::optional<Offsets> &active, const Offsets &limits, int threads) {
  const Codes job = new_codes(queries, groups, allowed, active);
  const int64_t n = int64_t(queries.shape(0)), step = chunk_places(job.n_words), tile = 16;
  check(int64_t(limits.shape(0)) == n, "one limit a query");
  std::vector<std::vector<uint64_t>> found(static_cast<size_t>(n));
  {
    const Kernel &kernel = code_kernel();
    Unlocked free;
    parallel((n + tile - 1) / tile, 1, code_threads(job, n, threads), 0, [&](int64_t i, void *) {
      std::vector<uint64_t> some(size_t(step * kCodes));
      for (int64_t place = 0; place < job.n_places; place += step)
        for (int64_t q = i * tile; q < std::min(n, (i + 1) * tile); ++q) {
          const int64_t last = std::min(job.n_places, place + step);
          const int64_t count = kernel.near_codes(job, queries.data() + q * job.n_words, place, last, limits.data()[q], some.data());
          found[size_t(q)].insert(found[size_t(q)].end(), some.begin(), some.begin() + count);
        }
    });
  }
  size_t total = 0;
  for (const auto &f : found) total += f.size();
  int64_t *starts = new int64_t[size_t(n) + 1], *positions = new int64_t[total];
  double *distances = new double[total];
  starts[0] = 0;
  for (int64_t i = 0, at = 0; i < n; ++i) {
    for (const uint64_t code : found[size_t(i)]) distances[at] = double(distance_of(code)), positions[at++] = position_of(code);
    starts[i + 1] = at;
  }
  return nb::make_tuple(owned(starts, size_t(n) + 1), owned(distances, total), owned(positions, total));
}

void rotate(Columns vectors, const Matrix &signs, int threads) {
  const int64_t n = int64_t(vectors.shape(0)), size = int64_t(vectors.shape(1));
  check(size >= 16 && (size & (size - 1)) == 0 && signs.shape(0) == 2 && int64_t(signs.shape(1)) == size, "vectors must be (n, a power of two), signs (2, like it)");
  Rotation job{vectors.data(), signs.data(), 0};
  while (int64_t(1) << job.log_size < size) ++job.log_size;
  Unlocked free;
  parallel(n, 32, threads, size_t(size) * sizeof(float), [&job, kernel = chosen](int64_t i, void *spare) { kernel->rotate(job, i, spare); });
}

// The distance from each anchor to the nearest element of each set: (sets, anchors).
void field(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const Matrix &anchors, Output out, int threads) {
  check_offsets(offsets, int64_t(points.shape(0)));
  const int64_t n = int64_t(offsets.shape(0)) - 1, dim = int64_t(points.shape(1)), n_anchors = int64_t(anchors.shape(0));
  if (weights) check(weights->shape(0) == points.shape(0), "one weight a point");
  check(dim > 0 && int64_t(anchors.shape(1)) == dim && n_anchors > 0, "anchors must be (n_anchors, dim)");
  check(int64_t(out.shape(0)) == n && int64_t(out.shape(1)) == n_anchors && out.stride(1) == 1, "out must be (sets, n_anchors) with contiguous rows");
  Field job{points.data(), weights ? weights->data() : nullptr, offsets.data(), dim, n_anchors, nullptr, out.data(), out.stride(0)};
  Unlocked free;
  const Kernel *const kernel = chosen;
  const int64_t width = kernel->field_anchors, n_blocks = (n_anchors + width - 1) / width;
  std::vector<float> store(size_t(n_blocks * dim * width));  // what fills up the last block is computed and thrown away
  for (int64_t a = 0; a < n_anchors; ++a)
    for (int64_t k = 0; k < dim; ++k) store[size_t((a / width * dim + k) * width + a % width)] = anchors.data()[a * dim + k];
  job.anchors = store.data();
  const int64_t tasks = n * n_blocks;
  threads = int(std::min<int64_t>(threads, 1 + job.offsets[n] * n_blocks * dim / 50000));
  const int64_t grain = std::max<int64_t>(1, std::min<int64_t>(64 * n_blocks, tasks / (16 * std::max(threads, 1))));
  parallel(tasks, grain, threads, 0, [&](int64_t i, void *) { kernel->field(job, i / n_blocks, i % n_blocks); });
}

// All vectors whose largest difference to query i is at most radius[i]: queries, differences and positions, in no order. `positions` are those that may
// be found, null: all.
nb::tuple largest_within(const Matrix &queries, const std::optional<Matrix> &floats, const std::optional<Shorts> &shorts, const std::optional<Vector> &scale,
                         const std::optional<Offsets> &positions, const ConstDoubles &radius, int threads) {
  const int64_t dim = int64_t(queries.shape(1)), n_queries = int64_t(queries.shape(0));
  const int64_t n = floats ? int64_t(floats->shape(0)) : shorts ? int64_t(shorts->shape(0)) : 0;
  check(int64_t(radius.shape(0)) == n_queries, "one radius a query");
  for (size_t i = 0; positions && i < positions->shape(0); ++i) check(positions->data()[i] >= 0 && positions->data()[i] < n, "a position that is not there");
  struct Near {
    int64_t query, position;
    double largest;
  };
  Differences job{queries.data(), new_vectors(floats, shorts, scale, n, dim), positions ? positions->data() : nullptr, radius.data(), nullptr};
  job.put = [](void *sink, int64_t query, double largest, int64_t position) {
    static_cast<std::vector<Near> *>(sink)->push_back({query, position, largest});
  };
  // Some vectors for all queries, then the next ones: they are read from memory once.
  const int64_t n_places = positions ? int64_t(positions->shape(0)) : n, step = std::max<int64_t>(16, (int64_t(1) << 18) / dim);
  const int64_t parts = (n_places + step - 1) / step;
  std::vector<std::vector<Near>> found(static_cast<size_t>(parts));
  {
    Unlocked free;
    const Kernel *const kernel = chosen;
    parallel(parts, 1, threads, 0, [&](int64_t part, void *) {
      for (int64_t q = 0; q < n_queries; ++q) kernel->largest_within(job, q, part * step, std::min(n_places, (part + 1) * step), &found[size_t(part)]);
    });
  }
  size_t total = 0, at = 0;
  for (const auto &f : found) total += f.size();
  int64_t *which = new int64_t[total], *where = new int64_t[total];
  double *largest = new double[total];
  for (auto &f : found) {
    for (const Near &near : f) which[at] = near.query, where[at] = near.position, largest[at++] = near.largest;
    std::vector<Near>().swap(f);
  }
  return nb::make_tuple(owned(which, total), owned(largest, total), owned(where, total));
}

void local_shape(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const std::vector<int64_t> &sizes,
                 const std::optional<ConstDoubles> &scale, Columns out, int threads) {
  LocalShape job{};
  job.largest = check_offsets(offsets, int64_t(points.shape(0)));
  job.dim = int64_t(points.shape(1)), job.n_sizes = int64_t(sizes.size());
  check(job.dim == 2 || job.dim == 3, "points of two or three coordinates");
  check(job.n_sizes > 0 && job.n_sizes < 1 << 10, "at least one size of a neighbourhood");
  for (size_t s = 0; s < sizes.size(); ++s) check(sizes[s] > (s ? sizes[s - 1] : 0), "sizes must be positive, and increase");
  if (weights) check(weights->shape(0) == points.shape(0), "one weight a point");
  const int64_t columns = 1 + job.n_sizes * (2 * job.dim + 1);
  if (scale) check(int64_t(scale->shape(0)) == columns, "one scale a column");
  check(out.shape(0) == points.shape(0) && int64_t(out.shape(1)) == job.dim + columns, "out must be (points, dim + columns)");
  const int64_t n = int64_t(offsets.shape(0)) - 1;
  if (n == 0) return;
  job.points = points.data(), job.weights = weights ? weights->data() : nullptr, job.offsets = offsets.data();
  job.sizes = sizes.data(), job.scale = scale ? scale->data() : nullptr, job.out = out.data();
  threads = int(std::min<int64_t>(threads, 1 + int64_t(points.shape(0)) / 256));  // about 100 us of work for each
  Unlocked free;
  const Kernel *const kernel = chosen;
  parallel(n, std::max<int64_t>(1, std::min<int64_t>(16, n / (16 * std::max(threads, 1)))), threads, kernel->local_bytes(job),
           [&](int64_t i, void *scratch) { kernel->local_shape(job, i, scratch); });
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

const Kernel *chosen_kernel() { return chosen; }

}  // namespace slosh

NB_MODULE(_native, m) {
  using namespace nb::literals;
  // A daemon thread that searches when the interpreter exits keeps what it holds, which is no leak of ours: its user would be told of one.
  nb::set_leak_warnings(false);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&slosh::Unlocked::end));
  m.doc() = "The native kernel; slosh.native.kernel is its Python face.";
  m.def("embed", &slosh::embed, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a.none(), "reference"_a.none(), "n_slices"_a,
        "n_quantiles"_a, "average"_a, "scale"_a, "out"_a, "residual"_a.none(), "threads"_a);
  m.def("sort", &slosh::sort, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a.none(), "n_slices"_a, "out"_a,
        "out_weights"_a.none(), "threads"_a);
  m.def("transport", &slosh::transport, "a"_a, "a_offsets"_a, "a_weights"_a.none(), "b"_a, "b_offsets"_a, "b_weights"_a.none(), "pairs"_a,
        "out"_a, "threads"_a);
  m.def("squares", &slosh::squares, "queries"_a, "floats"_a.none(), "shorts"_a.none(), "scale"_a.none(), "offsets"_a, "positions"_a, "out"_a,
        "threads"_a);
  m.def("prefixes", &slosh::prefixes, "floats"_a.none(), "shorts"_a.none(), "scale"_a.none(), "middle"_a, "directions"_a.none(), "dim"_a, "out"_a, "norms"_a,
        "threads"_a);
  nb::class_<slosh::Heads>(m, "Heads")
      .def("__init__", [](slosh::Heads *self, slosh::Matrix centres, slosh::RowCodes codes, slosh::RowSquares squares, slosh::Vector middle, slosh::Vector steps,
                          slosh::Vector errors, float farthest) { new (self) slosh::Heads{centres, codes, squares, middle, steps, errors, farthest}; },
           "centres"_a, "codes"_a, "squares"_a, "middle"_a, "steps"_a, "errors"_a, "farthest"_a);
  m.def("nearest_lists", &slosh::nearest_lists, "heads"_a, "rows"_a, "which"_a, "squares"_a, "threads"_a);
  nb::class_<slosh::LadderScan>(m, "LadderScan")
      .def(nb::init<const std::optional<slosh::Matrix> &, const std::optional<slosh::Shorts> &, const std::optional<slosh::Vector> &, int64_t, const slosh::ConstDoubles &,
                    const std::optional<slosh::Directions> &, double, double, const slosh::Heads &, const slosh::RowCodes &, const slosh::RowSquares &, const slosh::Vector &,
                    int64_t, const ndarray<const int32_t, shape<-1, 16>, c_contig, nb::device::cpu> &, const ndarray<const uint16_t, ndim<1>, c_contig, nb::device::cpu> &,
                    const slosh::Vector &, const slosh::Vector &, const slosh::Vector &, const slosh::Offsets &, const slosh::Offsets &,
                    const std::optional<slosh::Marks> &, int>(),
           "floats"_a.none(), "shorts"_a.none(), "scale"_a.none(), "dim"_a, "middle"_a, "directions"_a.none(), "rounding"_a, "farthest"_a, "heads"_a, "codes"_a, "biases"_a,
           "rests"_a, "early"_a, "slots"_a, "masks"_a, "steps"_a, "errors"_a, "radii"_a, "start"_a, "order"_a, "marks"_a.none(), "mark_shift"_a)
      .def("nearest", &slosh::LadderScan::nearest, "queries"_a, "depth"_a, "reach"_a, "exact"_a, "allowed"_a.none(), "skip"_a.none(), "ranks"_a.none(), "out"_a, "positions"_a, "scanned"_a,
           "candidates"_a, "threads"_a)
      .def("within", &slosh::LadderScan::within, "queries"_a, "radius"_a, "allowed"_a.none(), "scanned"_a, "candidates"_a, "threads"_a);
  m.def("flat", &slosh::flat, "queries"_a, "floats"_a.none(), "shorts"_a.none(), "scale"_a.none(), "allowed"_a.none(), "skip"_a.none(), "ranks"_a.none(), "out"_a, "found"_a, "tied"_a,
        "threads"_a);
  m.def("count_true", &slosh::count_true, "mask"_a);
  m.def("nearest_codes", &slosh::nearest_codes, "queries"_a, "groups"_a, "allowed"_a, "active"_a.none(), "rows"_a.none(), "distances"_a, "positions"_a,
        "threads"_a);
  m.def("codes_within", &slosh::codes_within, "queries"_a, "groups"_a, "allowed"_a, "active"_a.none(), "limits"_a, "threads"_a);
  m.def("rotate", &slosh::rotate, "vectors"_a, "signs"_a, "threads"_a);
  m.def("field", &slosh::field, "points"_a, "offsets"_a, "weights"_a.none(), "anchors"_a, "out"_a, "threads"_a);
  m.def("largest_within", &slosh::largest_within, "queries"_a, "floats"_a.none(), "shorts"_a.none(), "scale"_a.none(), "positions"_a.none(), "radius"_a,
        "threads"_a);
  m.def("local_shape", &slosh::local_shape, "points"_a, "offsets"_a, "weights"_a.none(), "sizes"_a, "scale"_a.none(), "out"_a, "threads"_a);
  slosh::add_parts(m);
  slosh::add_dense(m);
  slosh::add_gradients(m);
  slosh::add_element_network(m);
  slosh::add_copy(m);
  slosh::add_order(m);
  m.def("names", &slosh::names, "The instruction sets this machine can run, best first.");
  m.def("name", [] { return std::string(slosh::chosen->name); }, "The instruction set in use.");
  m.def("use", &slosh::use, "name"_a, "Take another instruction set of `names()`, for tests and benchmarks.");
  m.def("exchange_rate", &slosh::exchange_rate, "rounds"_a, "Compare-exchanges of single numbers a second, in registers.");
}
