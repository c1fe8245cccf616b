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

typedef ndarray<const uint8_t, ndim<2>, c_contig, nb::device::cpu> Codes8;
typedef ndarray<const int32_t, ndim<2>, c_contig, nb::device::cpu> Ids;
typedef ndarray<int32_t, ndim<2>, c_contig, nb::device::cpu> IdsOut;
typedef ndarray<double, ndim<2>, c_contig, nb::device::cpu> Table;

// The nearest anchors of each point, and their distances: (points, n_near).
void nearest_anchors(const Matrix &points, const Matrix &anchors, IdsOut ids, Table distances, int threads) {
  const int64_t n = int64_t(points.shape(0)), K = int64_t(anchors.shape(0)), dim = int64_t(points.shape(1)), A = int64_t(ids.shape(1));
  check(dim > 0 && int64_t(anchors.shape(1)) == dim, "points and anchors must have the same features");
  check(A > 0 && A <= K && K < int64_t(1) << 31, "there must be as many anchors as are asked for");
  check(int64_t(ids.shape(0)) == n && int64_t(distances.shape(0)) == n && int64_t(distances.shape(1)) == A, "ids and distances must be (points, n_near)");
  nb::gil_scoped_release free;
  const Kernel *const kernel = chosen_kernel();
  const int64_t tile = kernel->anchor_tile(), padded = (K + tile - 1) / tile * tile, step = row_step(dim), width = kernel->anchor_points();
  std::vector<float> rows(size_t(padded * step)), start(size_t(padded), -INFINITY), middle(static_cast<size_t>(dim));
  for (int64_t k = 0; k < dim; ++k) {
    double sum = 0;
    for (int64_t a = 0; a < K; ++a) sum += double(anchors.data()[a * dim + k]);
    middle[size_t(k)] = float(sum / double(K));
  }
  for (int64_t a = 0; a < K; ++a) {
    double square = 0;
    for (int64_t k = 0; k < dim; ++k) {
      const float x = anchors.data()[a * dim + k] - middle[size_t(k)];
      rows[size_t(a * step + k)] = x;
      square += double(x) * double(x);
    }
    start[size_t(a)] = float(-square / 2);
  }
  const Anchors job{points.data(), anchors.data(), n, K, dim, A, middle.data(), rows.data(), start.data(), ids.data(), distances.data()};
  threads = int(std::min<double>(threads, 1 + double(n) * double(K) * double(dim) / 2e6));
  parallel((n + width - 1) / width, 1, threads, kernel->anchor_bytes(job), [&](int64_t i, void *scratch) { kernel->nearest_anchors(job, i, scratch); });
}

int64_t check_rows(const std::optional<Offsets> &rows, int64_t n) {
  for (size_t i = 0; rows && i < rows->shape(0); ++i) check(rows->data()[i] >= 0 && rows->data()[i] < n, "a row that is not there");
  return rows ? int64_t(rows->shape(0)) : n;
}

// Bounds of the one-sided distances from queries to sets, from their fields: (queries, sets).
void field_bounds(const Codes8 &fields, const std::optional<Offsets> &rows, const Ids &near, const Codes8 &away, const Offsets &offsets, const Vector &weights,
                  const std::optional<Squares> &limits, bool squared, const Squares &low_scale, const Squares &high_scale, Table lower, Table upper, int threads) {
  const int64_t K = int64_t(fields.shape(1)), n = check_rows(rows, int64_t(fields.shape(0))), m = int64_t(near.shape(0)), A = int64_t(near.shape(1));
  const int64_t largest = check_offsets(offsets, m), n_queries = int64_t(offsets.shape(0)) - 1;
  check(A > 0 && int64_t(away.shape(0)) == m && int64_t(away.shape(1)) == A && int64_t(weights.shape(0)) == m, "near, away and weights must have a row an element");
  check(int64_t(low_scale.shape(0)) == n_queries && int64_t(high_scale.shape(0)) == n_queries && (!limits || int64_t(limits->shape(0)) == n_queries), "one scale and limit a query");
  check(int64_t(lower.shape(0)) == n_queries && int64_t(lower.shape(1)) == n && int64_t(upper.shape(0)) == n_queries && int64_t(upper.shape(1)) == n,
        "lower and upper must be (queries, sets)");
  bool uniform = true;
  for (int64_t e = 0; e < m; ++e) uniform &= weights.data()[e] == 1 || weights.data()[e] == 0;
  const std::unique_ptr<bool[]> used(new bool[size_t((K + 15) / 16)]());
  for (int64_t j = 0; j < m * A; ++j) {
    const int32_t id = near.data()[j];
    check(id >= 0 && id < K, "an anchor that is not there");
    used[size_t(id / 16)] = true;
  }
  nb::gil_scoped_release free;
  const Kernel *const kernel = chosen_kernel();
  const FieldBounds job{fields.data(), rows ? rows->data() : nullptr, n, K, used.get(), near.data(), away.data(), A, offsets.data(), n_queries, largest, weights.data(), uniform,
                        limits ? limits->data() : nullptr, squared, low_scale.data(), high_scale.data(), lower.data(), upper.data()};
  threads = int(std::min<double>(threads, 1 + double(n) * (double(K) + double(m) * double(A)) / 4e7));
  if (n_queries)
    parallel((n + kernel->block_sets - 1) / kernel->block_sets, 1, threads, kernel->bounds_bytes(job), [&](int64_t i, void *scratch) { kernel->field_bounds(job, i, scratch); });
}

// The products of rows of bytes with the fields of queries: (queries, sets).
void histogram_products(const Codes8 &shares, const std::optional<Offsets> &rows, const Matrix &fields, Table out, int threads) {
  const int64_t K = int64_t(shares.shape(1)), n = check_rows(rows, int64_t(shares.shape(0))), n_queries = int64_t(fields.shape(0));
  check(int64_t(fields.shape(1)) == K, "the fields must have as many anchors as the histograms");
  check(int64_t(out.shape(0)) == n_queries && int64_t(out.shape(1)) == n, "out must be (queries, sets)");
  nb::gil_scoped_release free;
  const Kernel *const kernel = chosen_kernel();
  const Histograms job{shares.data(), rows ? rows->data() : nullptr, n, K, n_queries, fields.data(), out.data()};
  threads = int(std::min<double>(threads, 1 + double(n) * double(K) * double(n_queries) / 4e6));
  constexpr int64_t together = 64;
  parallel((n + together - 1) / together, 1, threads, 0, [&](int64_t i, void *) { kernel->histogram_products(job, i * together, std::min(n, (i + 1) * together)); });
}

}  // namespace

void add_parts(nb::module_ &m) {
  using namespace nb::literals;
  m.def("nearest_elements", &nearest_elements, "x"_a, "x_offsets"_a, "y"_a, "y_offsets"_a, "y_weights"_a.none(), "pairs"_a, "starts"_a, "squares"_a, "which"_a,
        "threads"_a);
  m.def("covered_means", &covered_means, "squares"_a, "starts"_a, "sets"_a, "x_offsets"_a, "x_weights"_a.none(), "coverage"_a, "squared"_a, "out"_a);
  m.def("nearest_anchors", &nearest_anchors, "points"_a, "anchors"_a, "ids"_a, "distances"_a, "threads"_a);
  m.def("field_bounds", &field_bounds, "fields"_a, "rows"_a.none(), "near"_a, "away"_a, "offsets"_a, "weights"_a, "limits"_a.none(), "squared"_a, "low_scale"_a,
        "high_scale"_a, "lower"_a, "upper"_a, "threads"_a);
  m.def("histogram_products", &histogram_products, "shares"_a, "rows"_a.none(), "fields"_a, "out"_a, "threads"_a);
}

}  // namespace slosh
