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

void embed_gradient(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const Matrix &directions, int64_t n_quantiles,
                    bool average, double scale, const Matrix &grad, const std::optional<Columns> &of_points, const std::optional<Floats> &of_weights,
                    const std::optional<Columns> &of_directions, int threads) {
  Gradient job{};
  Embedding &sets = job.sets;
  const int64_t n = int64_t(offsets.shape(0)) - 1, L = int64_t(directions.shape(0)), P = int64_t(points.shape(0)), dim = int64_t(points.shape(1));
  sets.largest = check_offsets(offsets, P);
  check(L > 0 && n_quantiles > 0 && dim > 0 && int64_t(directions.shape(1)) == dim, "directions must be (n_slices, dim)");
  check(int64_t(grad.shape(0)) == n && int64_t(grad.shape(1)) == L * n_quantiles, "grad must be (sets, n_slices * n_quantiles)");
  if (weights) check(int64_t(weights->shape(0)) == P, "one weight a point");
  if (of_points) check(int64_t(of_points->shape(0)) == P && int64_t(of_points->shape(1)) == dim, "of_points must be like points");
  if (of_weights) check(weights && int64_t(of_weights->shape(0)) == P, "of_weights must be like weights");
  if (of_directions) check(int64_t(of_directions->shape(0)) == L && int64_t(of_directions->shape(1)) == dim, "of_directions must be like directions");
  sets.points = points.data(), sets.weights = weights ? weights->data() : nullptr, sets.offsets = offsets.data();
  sets.scale = float(scale), sets.dim = dim, sets.n_slices = L, sets.n_quantiles = n_quantiles, sets.rule = average ? Rule::average : Rule::linear;
  Unlocked free;
  const Kernel *const kernel = chosen_kernel();
  const Groups groups(kernel->lanes, L, dim, n_quantiles, directions.data(), nullptr);
  sets.groups = groups.list.data(), sets.n_groups = int64_t(groups.list.size());
  job.grad = grad.data(), job.grad_step = L * n_quantiles, job.width = kernel->gradient_width(dim);
  const int64_t rows = (L + 15) / 16 * 16;
  const std::vector<float> filled = fill_up(directions.data(), L, dim, rows, job.width);
  job.directions = filled.data(), job.block_step = rows * job.width;
  const std::vector<int64_t> blocks = cut_blocks(offsets.data(), n, of_directions ? job.block_step : 1);
  const int64_t n_blocks = int64_t(blocks.size()) - 1;
  std::vector<double> sums(of_directions ? size_t(n_blocks * job.block_step) : 0, 0.0);
  job.blocks = blocks.data(), job.of_directions = of_directions ? sums.data() : nullptr;
  job.of_points = of_points ? of_points->data() : nullptr, job.of_weights = of_weights ? of_weights->data() : nullptr;
  threads = int(std::min<int64_t>(threads, 1 + P * L * (1 + dim / 16) / 100000));
  parallel(n_blocks, 1, threads, kernel->gradient_bytes(job), [&](int64_t i, void *scratch) { kernel->gradient(job, i, scratch); });
  if (!of_directions) return;
  for (int64_t l = 0; l < L; ++l)
    for (int64_t k = 0; k < dim; ++k) {
      double sum = 0;
      for (int64_t b = 0; b < n_blocks; ++b) sum += sums[size_t(b * job.block_step + l * job.width + k)];
      of_directions->data()[l * dim + k] = float(sum);
    }
}

}  // namespace

void add_gradients(nb::module_ &m) {
  using namespace nb::literals;
  m.def("embed_gradient", &embed_gradient, "points"_a, "offsets"_a, "weights"_a.none(), "directions"_a, "n_quantiles"_a, "average"_a, "scale"_a, "grad"_a,
        "of_points"_a.none(), "of_weights"_a.none(), "of_directions"_a.none(), "threads"_a);
}

}  // namespace slosh
