// The Python bindings of the loops of part search; see module.cpp.
#include <cmath>
#include <utility>

#include "bindings.h"

namespace slosh {
namespace {

typedef ndarray<const int64_t, shape<-1, 2>, c_contig, nb::device::cpu> PairList;
typedef ndarray<const double, ndim<1>, c_contig, nb::device::cpu> Squares;
typedef ndarray<int64_t, ndim<1>, c_contig, nb::device::cpu> Positions;

// A sum whose rounding does not grow with the number of terms (Neumaier's).
struct Sum {
  double sum = 0, rest = 0;
  void add(double x) {
    const double next = sum + x;
    rest += std::fabs(sum) >= std::fabs(x) ? (sum - next) + x : (x - next) + sum;
    sum = next;
  }
  double value() const { return sum + rest; }
};

constexpr int64_t kPairsTogether = 16;  // for which the elements of x are laid out once

// Of each element of set pairs[i, 0] of x, the nearest element of set pairs[i, 1] of y: its squared distance, and which one it is.
void nearest_elements(const Matrix &x, const Offsets &x_offsets, const Matrix &y, const Offsets &y_offsets, const std::optional<Vector> &y_weights,
                      const PairList &pairs, const Offsets &starts, Doubles squares, Positions which, int threads) {
  check_offsets(x_offsets, int64_t(x.shape(0)));
  check_offsets(y_offsets, int64_t(y.shape(0)));
  const int64_t n_x = int64_t(x_offsets.shape(0)) - 1, n_y = int64_t(y_offsets.shape(0)) - 1, n = int64_t(pairs.shape(0)), dim = int64_t(x.shape(1));
  check(dim > 0 && int64_t(y.shape(1)) == dim, "x and y must have the same features");
  if (y_weights) check(y_weights->shape(0) == y.shape(0), "one weight a point");
  check(int64_t(starts.shape(0)) == n + 1 && starts.data()[0] == 0, "starts must be (pairs + 1,) from 0 on");
  const int64_t *pair = pairs.data(), *sizes = x_offsets.data();
  double steps = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t a = pair[2 * i], b = pair[2 * i + 1];
    check(a >= 0 && a < n_x && b >= 0 && b < n_y, "a set that is not there");
    check(starts.data()[i + 1] - starts.data()[i] == sizes[a + 1] - sizes[a], "starts must leave a place for each element of x");
    steps += double(sizes[a + 1] - sizes[a]) * double(y_offsets.data()[b + 1] - y_offsets.data()[b]) * double(dim);
  }
  check(int64_t(squares.shape(0)) == starts.data()[n] && squares.shape(0) == which.shape(0), "squares and which must be as long as starts say");
  const ElementPairs job{x.data(), sizes, y.data(), y_weights ? y_weights->data() : nullptr, y_offsets.data(), dim, pair, starts.data(), squares.data(), which.data()};
  nb::gil_scoped_release free;
  const Kernel *const kernel = chosen_kernel();
  const int64_t lanes = kernel->element_lanes(dim);
  std::vector<ElementTask> tasks;
  for (int64_t first = 0, last; first < n; first = last) {
    for (last = first + 1; last < n && last < first + kPairsTogether && pair[2 * last] == pair[2 * first];) ++last;
    const int64_t size = sizes[pair[2 * first] + 1] - sizes[pair[2 * first]];
    for (int64_t from = 0; from < size; from += lanes) tasks.push_back({first, last, from, std::min(size, from + lanes)});
  }
  threads = int(std::min<double>(threads, 1 + steps / 2e6));
  parallel(int64_t(tasks.size()), 1, threads, kernel->element_bytes(dim), [&](int64_t i, void *scratch) { kernel->nearest_elements(job, tasks[size_t(i)], scratch); });
}

// The weighted mean of the roots of squares, or of squares, of each pair: over the share `coverage` of the mass that has the smallest. Set sets[i] of x
// has the weights of pair i.
void covered_means(const Squares &squares, const Offsets &starts, const Offsets &sets, const Offsets &x_offsets, const std::optional<Vector> &x_weights, double coverage,
                   bool squared, Doubles out) {
  const int64_t n = int64_t(sets.shape(0)), n_x = int64_t(x_offsets.shape(0)) - 1;
  check(int64_t(starts.shape(0)) == n + 1 && starts.data()[0] == 0 && starts.data()[n] == int64_t(squares.shape(0)), "starts must run from 0 to the number of squares");
  check(int64_t(out.shape(0)) == n, "one result a pair");
  if (x_weights) check(int64_t(x_weights->shape(0)) == x_offsets.data()[n_x], "one weight a point");
  for (int64_t i = 0; i < n; ++i) {
    const int64_t set = sets.data()[i];
    check(set >= 0 && set < n_x, "a set that is not there");
    check(starts.data()[i + 1] - starts.data()[i] == x_offsets.data()[set + 1] - x_offsets.data()[set] && starts.data()[i + 1] > starts.data()[i],
          "starts must leave a place for each element of x");
  }
  check(coverage > 0 && coverage <= 1, "coverage must be above 0 and at most 1");
  nb::gil_scoped_release free;
  std::vector<std::pair<double, double>> sorted;  // squares and weights
  for (int64_t i = 0; i < n; ++i) {
    const double *square = squares.data() + starts.data()[i];
    const float *weights = x_weights ? x_weights->data() + x_offsets.data()[sets.data()[i]] : nullptr;
    const int64_t size = starts.data()[i + 1] - starts.data()[i];
    Sum total, sum;
    sorted.clear();
    for (int64_t k = 0; k < size; ++k) {
      const double weight = weights ? double(weights[k]) : 1.0;
      if (!(weight > 0)) continue;
      total.add(weight);
      if (coverage < 1)
        sorted.emplace_back(square[k], weight);
      else
        sum.add(weight * (squared ? square[k] : std::sqrt(square[k])));
    }
    const double limit = coverage * total.value();
    std::sort(sorted.begin(), sorted.end());
    Sum upto;
    for (const auto &[value, weight] : sorted) {
      const double left = limit - upto.value();
      if (!(left > 0)) break;
      sum.add(std::min(left, weight) * (squared ? value : std::sqrt(value)));
      upto.add(weight);
    }
    out.data()[i] = sum.value() / limit;
  }
}

}  // namespace

void add_parts(nb::module_ &m) {
  using namespace nb::literals;
  m.def("nearest_elements", &nearest_elements, "x"_a, "x_offsets"_a, "y"_a, "y_offsets"_a, "y_weights"_a.none(), "pairs"_a, "starts"_a, "squares"_a, "which"_a,
        "threads"_a);
  m.def("covered_means", &covered_means, "squares"_a, "starts"_a, "sets"_a, "x_offsets"_a, "x_weights"_a.none(), "coverage"_a, "squared"_a, "out"_a);
}

}  // namespace slosh
