// Runs the generic kernel without Python, so that it can be tried on another machine or in an emulator: sorts, averages, linear
// quantiles, transport, distance fields and extents of neighbourhoods of random sets, and Hamming distances of random codes, against loops that
// are too simple to be wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "job.h"
#include "nearest.h"

using namespace slosh;

static float uniform() { return float(std::rand()) / float(RAND_MAX) * 2 - 1; }

static int failures = 0;
static void close(double a, double b, const char *what, int64_t n) {
  if (std::fabs(a - b) > 1e-5) {
    if (++failures < 10) std::printf("%s, n = %lld: %g, expected %g\n", what, static_cast<long long>(n), a, b);
  }
}

// The nearest codes: any number of words and codes, all or a few of them allowed, rows in order or not.
static void codes(const Kernel &kernel) {
  for (int64_t words : {1, 2, 3, 4, 5, 16, 17, 65})
    for (int64_t n : {1, 7, 8, 31, 32, 33, 300, 1001}) {
      const int64_t blocks = (n + kCodes * kFour - 1) / (kCodes * kFour) * kFour, k = std::min<int64_t>(n, 1 + std::rand() % 40);
      const int same = std::rand() % 3;  // the fewer bits are drawn, the more distances are equal
      std::vector<uint64_t> code(size_t(n * words)), query(static_cast<size_t>(words)), store(size_t(blocks * words * kCodes));
      const auto draw = [&] { return uint64_t(std::rand()) << 40 ^ uint64_t(std::rand()) << 20 ^ uint64_t(std::rand()); };
      for (uint64_t &x : code) x = same == 0 ? draw() : same == 1 ? draw() & draw() & draw() & draw() & draw() : 0;
      for (uint64_t &x : query) x = same == 0 ? draw() : 0;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t w = 0; w < words; ++w) store[size_t((i / kRow * words + w) * kRow + i % kRow)] = code[size_t(i * words + w)];
      for (int kind = 0; kind < 6; ++kind) {
        std::vector<int64_t> rows(static_cast<size_t>(n)), active;
        std::vector<uint8_t> allowed(static_cast<size_t>(blocks));
        std::iota(rows.begin(), rows.end(), 0);
        if (kind % 2) std::reverse(rows.begin(), rows.end());
        std::vector<uint64_t> expected;
        for (int64_t i = 0; i < n; ++i) {
          if (kind >= 2 && std::rand() % (kind >= 4 ? 50 : 2)) continue;
          allowed[size_t(i / kCodes)] |= uint8_t(1 << i % kCodes);
          uint64_t distance = 0;
          for (int64_t w = 0; w < words; ++w)
            for (uint64_t x = code[size_t(i * words + w)] ^ query[size_t(w)]; x; x &= x - 1) ++distance;
          expected.push_back(distance << kPositionBits | uint64_t(i));
        }
        for (int64_t b = 0; b < blocks; ++b)
          if (allowed[size_t(b)]) active.push_back(b);
        std::sort(expected.begin(), expected.end(), Before{rows.data()});
        expected.resize(size_t(k), kNoCode);
        const bool listed = kind >= 4;
        const Codes job{store.data(), allowed.data(), listed ? active.data() : nullptr, words, listed ? int64_t(active.size()) : blocks};
        std::vector<uint64_t> found(static_cast<size_t>(k));
        nearest(kernel, job, query.data(), 0, 1, 0, job.n_places, k, kind % 2 ? rows.data() : nullptr, found.data(), k);
        for (size_t j = 0; j < found.size(); ++j)
          if (found[j] != expected[j] && ++failures < 10)
            std::printf("codes, %d words, n = %d, kind %d: place %d differs\n", int(words), int(n), kind, int(j));
      }
    }
}

// The distance field: sets of any size, blocks of anchors that are full or not, elements without weight.
static void fields(const Kernel &kernel) {
  for (int64_t dim : {1, 2, 3, 4, 11})
    for (int64_t n : {1, 2, 3, 4, 5, 50})
      for (int64_t K : {1, 7, 8, 40})
        for (int weighted = 0; weighted < 2; ++weighted) {
          const int64_t width = kernel.field_anchors, blocks = (K + width - 1) / width;
          std::vector<float> points(size_t(n * dim)), weights(static_cast<size_t>(n)), anchors(size_t(K * dim)), laid(size_t(blocks * dim * width));
          std::vector<float> out(static_cast<size_t>(K));
          for (float &x : points) x = uniform();
          for (float &x : anchors) x = uniform();
          for (float &x : weights) x = uniform() > 0 ? 1.0f : 0.0f;
          weights[size_t(std::rand() % n)] = 1;
          for (int64_t a = 0; a < K; ++a)
            for (int64_t k = 0; k < dim; ++k) laid[size_t((a / width * dim + k) * width + a % width)] = anchors[size_t(a * dim + k)];
          const std::vector<int64_t> offsets = {0, n};
          const Field job{points.data(), weighted ? weights.data() : nullptr, offsets.data(), dim, K, laid.data(), out.data(), K};
          for (int64_t b = 0; b < blocks; ++b) kernel.field(job, 0, b);
          for (int64_t a = 0; a < K; ++a) {
            double least = HUGE_VAL;
            for (int64_t i = 0; i < n; ++i) {
              double square = 0;
              for (int64_t k = 0; k < dim; ++k) square += std::pow(double(points[size_t(i * dim + k)]) - double(anchors[size_t(a * dim + k)]), 2);
              if (!weighted || weights[size_t(i)] > 0) least = std::min(least, std::sqrt(square));
            }
            close(out[size_t(a)], least, "field", n);
          }
        }
}

// The distance to the centre, and the total extent of the nearest elements and the distance to their mean, of every element.
static void neighborhoods(const Kernel &kernel) {
  for (int64_t dim : {2, 3})
    for (int64_t n : {1, 2, 8, 16, 17, 100, 700}) {
      const int64_t sizes[] = {4, 20}, each = 2 * dim + 1, columns = dim + 1 + 2 * each, offsets[] = {0, n};
      std::vector<float> points(size_t(n * dim)), out(size_t(n * columns));
      for (float &x : points) x = uniform();
      const LocalShape job{points.data(), nullptr, offsets, dim, sizes, 2, nullptr, out.data(), n};
      std::vector<char> scratch(kernel.local_bytes(job));
      kernel.local_shape(job, 0, scratch.data());
      double rounding = 0;  // what is farther than the last by no more than this counts too
      for (int64_t i = 0; i < n; ++i) {
        double far = 0;
        for (int64_t k = 0; k < dim; ++k) far = std::max(far, std::fabs(double(points[size_t(i * dim + k)])));
        rounding += far / double(n) / 1048576;
      }
      for (int64_t i = 0; i < n; ++i) {
        std::vector<std::pair<double, int64_t>> near;
        double centre = 0;
        for (int64_t j = 0; j < n; ++j) {
          double square = 0;
          for (int64_t k = 0; k < dim; ++k) square += std::pow(double(points[size_t(i * dim + k)]) - double(points[size_t(j * dim + k)]), 2);
          near.push_back({square, j});
        }
        std::sort(near.begin(), near.end());
        const auto mean = [&](int64_t k, int64_t m) {
          double sum = 0;
          for (int64_t j = 0; j < m; ++j) sum += double(points[size_t(near[size_t(j)].second * dim + k)]);
          return sum / double(m);
        };
        const float *row = out.data() + i * columns;
        for (int64_t k = 0; k < dim; ++k) centre += std::pow(double(row[k]) - mean(k, n), 2);
        close(row[dim], std::sqrt(centre), "centre", n);
        for (int64_t s = 0; s < 2; ++s) {
          int64_t m = std::min(n, sizes[s]);
          const double last = std::sqrt(near[size_t(m - 1)].first);
          while (m < n && std::sqrt(near[size_t(m)].first) <= last + rounding) ++m;
          const float *found = row + dim + 1 + s * each;
          double extent = 0, expected = 0, offset = 0, length = 0;
          for (int64_t k = 0; k < dim; ++k) {
            const double middle = mean(k, m);
            for (int64_t j = 0; j < m; ++j) expected += std::pow(double(points[size_t(near[size_t(j)].second * dim + k)]) - middle, 2) / double(m);
            extent += double(found[k]) * double(found[k]), length += double(found[dim + 1 + k]) * double(found[dim + 1 + k]);
            offset += std::pow(double(row[k]) - middle, 2);
          }
          close(extent, expected, "extent", n);
          close(found[dim], std::sqrt(offset), "offset", n);
          close(length, 1, "normal", n);
        }
      }
    }
}

#if !defined(SLOSH_TESTED)
#define SLOSH_TESTED generic
#endif

int main() {
  codes(SLOSH_TESTED::kernel);
  fields(SLOSH_TESTED::kernel);
  neighborhoods(SLOSH_TESTED::kernel);
  const Kernel &kernel = generic::kernel;
  const int64_t L = 4, M = 8, dim = 3;
  for (int64_t n : {1, 2, 3, 15, 16, 17, 50, 150, 513, 3072, 3073, 8193}) {
    for (int weighted = 0; weighted < 2; ++weighted) {
      std::vector<float> points(n * dim), weights(n), theta(dim * L);
      for (float &x : points) x = uniform();
      for (float &x : weights) x = uniform() + 1.5f;
      for (float &x : theta) x = uniform();
      const std::vector<int64_t> offsets = {0, n};
      const Group group = {0, L, 4, 4, theta.data(), nullptr};
      std::vector<float> out(size_t(std::max(n * L, L * M))), out_weights(n * L);
      double residual = 0;
      Embedding job{};
      job.points = points.data(), job.offsets = offsets.data(), job.dim = dim, job.n_slices = L, job.n_quantiles = M;
      job.weights = weighted ? weights.data() : nullptr;
      job.scale = 1, job.groups = &group, job.n_groups = 1, job.out = out.data(), job.out_step = L * M, job.largest = n;
      for (Rule rule : {Rule::average, Rule::linear, Rule::sort}) {
        job.rule = rule;
        job.residual = rule == Rule::average ? &residual : nullptr;
        job.out_weights = weighted && rule == Rule::sort ? out_weights.data() : nullptr;
        std::vector<char> scratch(kernel.scratch_bytes(job));
        kernel.embed(job, 0, 0, scratch.data());
        for (int64_t l = 0; l < L; ++l) {
          std::vector<double> value(n), cut(n);
          std::vector<int64_t> order(n);
          for (int64_t i = 0; i < n; ++i)
            for (int64_t k = 0; k < dim; ++k) value[i] += double(points[i * dim + k]) * double(theta[k * L + l]);
          std::iota(order.begin(), order.end(), 0);
          std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return value[a] < value[b]; });
          double total = 0, sum = 0;
          for (int64_t i = 0; i < n; ++i) total += weighted ? double(weights[i]) : 1.0;
          for (int64_t i = 0; i < n; ++i) sum += weighted ? double(weights[order[i]]) : 1.0, cut[i] = sum / total;
          if (rule == Rule::sort) {
            for (int64_t i = 0; i < n; ++i) close(out[i * L + l], value[order[i]], "sort", n);
            continue;
          }
          for (int64_t m = 0; m < M; ++m) {
            const double left = double(m) / M, right = double(m + 1) / M;
            double expected = 0;
            if (rule == Rule::average) {
              for (int64_t i = 0; i < n; ++i) {
                const double from = std::max(i ? cut[i - 1] : 0.0, left), to = std::min(cut[i], right);
                if (to > from) expected += (to - from) * M * value[order[i]];
              }
            } else {
              int64_t i = 0;
              while (i + 1 < n && cut[i] < right - 1e-12) ++i;
              expected = value[order[i]];
              if (i > 0) expected -= (expected - value[order[i - 1]]) * std::max(0.0, cut[i] - right) / (cut[i] - cut[i - 1]);
            }
            close(out[l * M + m], expected, rule == Rule::average ? "average" : "linear", n);
          }
        }
      }
      // The distance of a set from itself moved by 1 is 1.
      std::vector<float> moved(out.begin(), out.begin() + n * L);
      for (float &x : moved) x += 1;
      const int64_t pair[2] = {0, 0};
      double squared = -1;
      const float *w = weighted ? out_weights.data() : nullptr;
      kernel.transport({out.data(), moved.data(), w, w, offsets.data(), offsets.data(), pair, L, &squared}, 0);
      close(squared, 1, "transport", n);
    }
  }
  std::puts(failures ? "some differ" : "all equal");
  return failures != 0;
}
