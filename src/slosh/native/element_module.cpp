// The bindings of the network over elements: arrays in, arrays out, matrices laid out for the kernel.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "bindings.h"
#include "gil.h"

namespace slosh {
namespace {

constexpr int64_t kWidestLayer = 1 << 10, kMostLayers = 64;

// A layer as Python hands it over: own, neighbors or None, scale, shift.
typedef std::tuple<Matrix, std::optional<Matrix>, Vector, Vector> LayerArrays;

// Matrices in tiles of outputs, and numbers of outputs padded to whole vectors.
struct Layers {
  std::vector<ElementLayer> list;
  std::vector<std::vector<float>> store;

  explicit Layers(const Kernel &kernel, const std::vector<LayerArrays> &arrays, int64_t lanes) {
    const auto tiles = [&](const Matrix &matrix) {
      const int64_t n_out = int64_t(matrix.shape(0)), n_in = int64_t(matrix.shape(1)), padded = (n_out + lanes - 1) / lanes * lanes;
      std::vector<float> laid(size_t(padded * n_in));
      for (int64_t first = 0; first < n_out;) {
        const int64_t tile = kernel.layer_tile(n_out - first), count = std::min(tile, n_out - first);
        for (int64_t o = 0; o < count; ++o)
          for (int64_t k = 0; k < n_in; ++k) laid[size_t(first * n_in + k * tile + o)] = matrix.data()[(first + o) * n_in + k];
        first += tile;
      }
      store.push_back(std::move(laid));
      return store.back().data();
    };
    const auto padded = [&](const Vector &numbers) {
      std::vector<float> laid(numbers.data(), numbers.data() + numbers.shape(0));
      laid.resize((laid.size() + size_t(lanes) - 1) / size_t(lanes) * size_t(lanes));
      store.push_back(std::move(laid));
      return store.back().data();
    };
    for (const auto &[own, neighbors, scale, shift] : arrays) {
      ElementLayer layer{};
      layer.n_out = int64_t(own.shape(0)), layer.n_in = int64_t(own.shape(1));
      layer.own = tiles(own), layer.neighbors = neighbors ? tiles(*neighbors) : nullptr;
      layer.scale = padded(scale), layer.shift = padded(shift);
      list.push_back(layer);
    }
  }
};

void element_network(const Matrix &points, const Offsets &offsets, const std::optional<Vector> &weights, const Matrix &inputs, int64_t n_neighbors,
                     const std::vector<LayerArrays> &layers, double slope, Output out,
                     const std::optional<ndarray<const int32_t, shape<1>, c_contig, nb::device::cpu>> &stop, int threads) {
  ElementNetwork job{};
  const int64_t n_points = int64_t(points.shape(0)), n = int64_t(offsets.shape(0)) - 1;
  job.largest = check_offsets(offsets, n_points);
  job.dim = int64_t(points.shape(1));
  check(job.dim > 0, "at least one coordinate");
  if (weights) check(int64_t(weights->shape(0)) == n_points, "one weight a point");
  check(int64_t(inputs.shape(0)) == n_points, "one row of inputs a point");
  check(n_neighbors > 0, "at least one neighbour");
  check(!layers.empty() && int64_t(layers.size()) <= kMostLayers, "at least one layer, and not too many");
  int64_t width = int64_t(inputs.shape(1)), products = 0;
  check(width > 0, "at least one input");
  for (const auto &[own, neighbors, scale, shift] : layers) {
    const int64_t n_out = int64_t(own.shape(0));
    check(n_out > 0 && n_out <= kWidestLayer, "a layer has 1 to 1,024 outputs");
    check(int64_t(own.shape(1)) == width, "a layer must take what the one before gives");
    if (neighbors) check(int64_t(neighbors->shape(0)) == n_out && int64_t(neighbors->shape(1)) == width, "neighbors must be like own");
    check(int64_t(scale.shape(0)) == n_out && int64_t(shift.shape(0)) == n_out, "one scale and one shift an output");
    if (neighbors) job.n_neighbors = n_neighbors;
    products += (neighbors ? 2 : 1) * n_out * width;
    job.columns += n_out;
    width = n_out;
  }
  check(int64_t(out.shape(0)) == n_points && int64_t(out.shape(1)) == job.columns && (n == 0 || out.stride(1) == 1), "out must be (points, outputs of all layers) with contiguous rows");
  if (n == 0) return;
  job.points = points.data(), job.weights = weights ? weights->data() : nullptr, job.offsets = offsets.data();
  job.inputs = inputs.data(), job.slope = float(slope), job.out = out.data(), job.out_step = out.stride(0), job.stop = stop ? stop->data() : nullptr;
  Unlocked free;
  const Kernel *const kernel = chosen_kernel();
  const Layers laid(*kernel, layers, kernel->layer_tile(1));
  job.layers = laid.list.data(), job.n_layers = int64_t(laid.list.size());
  threads = int(std::min<double>(threads, 1 + double(n_points) * double(products + (job.n_neighbors ? 10000 : 0)) / 4e6));  // about 100 us of work for each
  parallel(n, std::max<int64_t>(1, std::min<int64_t>(16, n / (16 * std::max(threads, 1)))), threads, kernel->network_bytes(job),
           [&](int64_t i, void *scratch) { kernel->element_network(job, i, scratch); });
}

}  // namespace

void add_element_network(nb::module_ &m) {
  using namespace nb::literals;
  m.def("element_network", &element_network, "points"_a, "offsets"_a, "weights"_a.none(), "inputs"_a, "n_neighbors"_a, "layers"_a, "slope"_a, "out"_a, "stop"_a.none(), "threads"_a);
}

}  // namespace slosh
