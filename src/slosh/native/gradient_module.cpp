// The bindings of gradients, for slosh.torch: arrays in, arrays out, the GIL released, threads over blocks of sets.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "groups.h"

namespace slosh {
namespace {

typedef ndarray<float, ndim<1>, c_contig, nb::device::cpu> Floats;

constexpr int64_t kMostBlocks = 64;
constexpr int64_t kBlockNumbers = int64_t(1) << 23;  // of the sums of all blocks: 64 MB

// Blocks of sets of about the same number of points, whatever the number of threads: their sums are added in order, so that the result has the
// same bits for any.
std::vector<int64_t> cut_blocks(const int64_t *offsets, int64_t n_sets, int64_t numbers) {
  const int64_t most = std::max<int64_t>(1, std::min(kMostBlocks, kBlockNumbers / std::max<int64_t>(numbers, 1)));
  const int64_t points = offsets[n_sets];
  std::vector<int64_t> blocks{0};
  for (int64_t set = 0, k = 1; set < n_sets; ++set)
    if (offsets[set + 1] >= points / most * k + points % most * k / most) {
      blocks.push_back(set + 1);
      while (k <= most && offsets[set + 1] >= points / most * k + points % most * k / most) ++k;
    }
  if (blocks.back() != n_sets) blocks.push_back(n_sets);
  return blocks;
}

// Directions with zeros behind the features and behind the last slice.
std::vector<float> fill_up(const float *directions, int64_t n_slices, int64_t dim, int64_t rows, int64_t width) {
  std::vector<float> filled(size_t(rows * width), 0.0f);
  for (int64_t l = 0; l < n_slices; ++l) std::copy_n(directions + l * dim, dim, filled.data() + l * width);
  return filled;
}

// The gradients that are asked for.
struct Asked {
  std::optional<Columns> points;
  std::optional<Floats> weights;

  void give(Gradient &to, int64_t n_points) const {
    if (points) check(int64_t(points->shape(0)) == n_points && int64_t(points->shape(1)) == to.sets.dim, "of_points must be like points");
    if (weights) check(to.sets.weights && int64_t(weights->shape(0)) == n_points, "of_weights must be like weights");
    to.of_points = points ? points->data() : nullptr, to.of_weights = weights ? weights->data() : nullptr;
  }
};

void give_sets(Gradient &to, const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const Matrix &directions) {
  Embedding &sets = to.sets;
  sets.largest = check_offsets(offsets, int64_t(points.shape(0)));
  check(directions.shape(0) > 0 && points.shape(1) > 0 && directions.shape(1) == points.shape(1), "directions must be (n_slices, dim)");
  if (weights) check(weights->shape(0) == points.shape(0), "one weight a point");
  sets.points = points.data(), sets.weights = weights ? weights->data() : nullptr, sets.offsets = offsets.data();
  sets.dim = int64_t(points.shape(1)), sets.n_slices = int64_t(directions.shape(0));
  to.weighted = weights.has_value();
}

// Directions, and their gradient: sums of blocks of sets, and the sum of those.
struct Slices {
  const Kernel *const kernel = chosen_kernel();  // `use` may change it meanwhile
  const int64_t n_slices, dim, width = kernel->gradient_width(dim), rows = (n_slices + 15) / 16 * 16;
  const Groups groups;
  const std::vector<float> filled;
  const std::vector<int64_t> blocks;
  const int64_t n_blocks = int64_t(blocks.size()) - 1;
  std::vector<double> sums;

  Slices(const float *directions, int64_t n_slices, int64_t dim, const int64_t *offsets, int64_t n_sets, bool wanted)
      : n_slices(n_slices), dim(dim), groups(kernel->lanes, n_slices, dim, 0, directions, nullptr),
        filled(fill_up(directions, n_slices, dim, rows, width)), blocks(cut_blocks(offsets, n_sets, wanted ? rows * width : 1)),
        sums(wanted ? size_t(n_blocks * rows * width) : 0, 0.0) {}

  void give(Gradient &to) {
    to.sets.groups = groups.list.data(), to.sets.n_groups = int64_t(groups.list.size());
    to.width = width, to.directions = filled.data(), to.blocks = blocks.data(), to.block_step = rows * width;
    to.of_directions = sums.empty() ? nullptr : sums.data();
  }

  // A thread costs tens of microseconds: begin none for less work than that.
  int useful_threads(int threads, int64_t n_points) const { return int(std::min<int64_t>(threads, 1 + n_points * n_slices * (1 + dim / 16) / 100000)); }

  void add_up(float *to) const {
    for (int64_t l = 0; l < n_slices; ++l)
      for (int64_t k = 0; k < dim; ++k) {
        double sum = 0;
        for (int64_t b = 0; b < n_blocks; ++b) sum += sums[size_t((b * rows + l) * width + k)];
        to[l * dim + k] = float(sum);
      }
  }
};

void check_directions(const std::optional<Columns> &of_directions, const Matrix &directions) {
  if (of_directions) check(of_directions->shape(0) == directions.shape(0) && of_directions->shape(1) == directions.shape(1), "of_directions must be like directions");
}

void embed_gradient(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const Matrix &directions, int64_t n_quantiles,
                    bool average, double scale, const Matrix &grad, const std::optional<Columns> &of_points, const std::optional<Floats> &of_weights,
                    const std::optional<Columns> &of_directions, int threads) {
  Gradient job{};
  give_sets(job, points, offsets, weights, directions);
  const int64_t n = int64_t(offsets.shape(0)) - 1, L = job.sets.n_slices, P = int64_t(points.shape(0));
  check(n_quantiles > 0 && int64_t(grad.shape(0)) == n && int64_t(grad.shape(1)) == L * n_quantiles, "grad must be (sets, n_slices * n_quantiles)");
  Asked{of_points, of_weights}.give(job, P);
  check_directions(of_directions, directions);
  job.sets.n_quantiles = n_quantiles, job.sets.rule = average ? Rule::average : Rule::linear, job.sets.scale = float(scale);
  job.grad = grad.data(), job.grad_step = L * n_quantiles;
  Unlocked free;
  Slices slices(directions.data(), L, job.sets.dim, offsets.data(), n, of_directions.has_value());
  slices.give(job);
  const Kernel *const kernel = slices.kernel;
  parallel(slices.n_blocks, 1, slices.useful_threads(threads, P), kernel->gradient_bytes(job),
           [&](int64_t i, void *scratch) { kernel->gradient(job, i, scratch); });
  if (of_directions) slices.add_up(of_directions->data());
}

void transport_gradient(const Matrix &a, const Offsets &a_offsets, const std::optional<Vector> &a_weights, const Matrix &b, const Offsets &b_offsets,
                        const std::optional<Vector> &b_weights, const Matrix &directions,
                        const ndarray<const double, ndim<1>, c_contig, nb::device::cpu> &grad, const std::optional<Columns> &of_a,
                        const std::optional<Floats> &of_a_weights, const std::optional<Columns> &of_b, const std::optional<Floats> &of_b_weights,
                        const std::optional<Columns> &of_directions, int threads) {
  TransportGradient job{};
  give_sets(job.a, a, a_offsets, a_weights, directions);
  give_sets(job.b, b, b_offsets, b_weights, directions);
  job.a.weighted = job.b.weighted = a_weights || b_weights;
  const int64_t n = int64_t(grad.shape(0)), P = int64_t(a.shape(0) + b.shape(0));
  check(int64_t(a_offsets.shape(0)) == n + 1 && int64_t(b_offsets.shape(0)) == n + 1, "one number a pair of sets");
  Asked{of_a, of_a_weights}.give(job.a, int64_t(a.shape(0)));
  Asked{of_b, of_b_weights}.give(job.b, int64_t(b.shape(0)));
  check_directions(of_directions, directions);
  job.grad = grad.data();
  Unlocked free;
  std::vector<int64_t> offsets(size_t(n + 1));
  for (int64_t i = 0; i <= n; ++i) offsets[size_t(i)] = a_offsets.data()[i] + b_offsets.data()[i];
  Slices slices(directions.data(), job.a.sets.n_slices, job.a.sets.dim, offsets.data(), n, of_directions.has_value());
  slices.give(job.a);
  slices.give(job.b);
  const Kernel *const kernel = slices.kernel;
  parallel(slices.n_blocks, 1, slices.useful_threads(threads, P), kernel->transport_gradient_bytes(job),
           [&](int64_t i, void *scratch) { kernel->transport_gradient(job, i, scratch); });
  if (of_directions) slices.add_up(of_directions->data());
}

}  // namespace

void add_gradients(nb::module_ &m) {
  using namespace nb::literals;
  // What is written to is not converted: the results would go to a copy.
  m.def("embed_gradient", &embed_gradient, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a, "n_quantiles"_a, "average"_a, "scale"_a, "grad"_a,
        "of_points"_a.none().noconvert(), "of_weights"_a.none().noconvert(), "of_directions"_a.none().noconvert(), "threads"_a);
  m.def("transport_gradient", &transport_gradient, "a"_a, "a_offsets"_a, "a_weights"_a.none(), "b"_a, "b_offsets"_a, "b_weights"_a.none(), "directions"_a,
        "grad"_a, "of_a"_a.none().noconvert(), "of_a_weights"_a.none().noconvert(), "of_b"_a.none().noconvert(), "of_b_weights"_a.none().noconvert(),
        "of_directions"_a.none().noconvert(), "threads"_a);
}

}  // namespace slosh
