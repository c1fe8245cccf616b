// The Python bindings of the layers of networks; see module.cpp.
#include "bindings.h"
#include "gil.h"

namespace slosh {
namespace {

typedef ndarray<const float, ndim<3>, c_contig, nb::device::cpu> Panels;

constexpr int64_t kRowsTogether = 48;  // for which the weights of a panel are read from the second cache

// out[i] = f(weights rows[i] + bias), f(z) = z where z > 0 and slope * z elsewhere.
void dense(const Matrix &rows, const Panels &weights, const Matrix &bias, float slope, Columns out, int threads) {
  const int64_t n = int64_t(rows.shape(0)), dim = int64_t(rows.shape(1)), n_outputs = int64_t(out.shape(1)), panels = int64_t(weights.shape(0));
  check(int64_t(weights.shape(1)) == dim && int64_t(weights.shape(2)) == kDensePanel, "weights must be (panels, dim, outputs of a panel)");
  check(int64_t(bias.shape(0)) == panels && int64_t(bias.shape(1)) == kDensePanel, "bias must be (panels, outputs of a panel)");
  check(int64_t(out.shape(0)) == n && n_outputs > (panels - 1) * kDensePanel && n_outputs <= panels * kDensePanel, "out must be (rows, outputs)");
  Unlocked free;
  const Kernel *const kernel = chosen_kernel();
  const Dense job{rows.data(), weights.data(), bias.data(), dim, n_outputs, slope, out.data()};
  threads = int(std::min<double>(threads, 1 + double(n) * double(dim) * double(n_outputs) / 4e6));
  const int64_t parts = (n + kRowsTogether - 1) / kRowsTogether;
  parallel(parts * panels, 1, threads, 0, [&](int64_t i, void *) {
    const int64_t first = i / panels * kRowsTogether;
    kernel->dense(job, i % panels, first, std::min(n, first + kRowsTogether));
  });
}

}  // namespace

void add_dense(nb::module_ &m) {
  using namespace nb::literals;
  m.def("dense", &dense, "rows"_a, "weights"_a, "bias"_a, "slope"_a, "out"_a, "threads"_a);
}

}  // namespace slosh
