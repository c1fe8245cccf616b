// Runs the generic kernel without Python, so that it can be tried on another machine or in an emulator: sorts, averages, linear
// quantiles and transport of random sets against loops that are too simple to be wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "job.h"

using namespace slosh;

static float uniform() { return float(std::rand()) / float(RAND_MAX) * 2 - 1; }

static int failures = 0;
static void close(double a, double b, const char *what, int64_t n) {
  if (std::fabs(a - b) > 1e-5) {
    if (++failures < 10) std::printf("%s, n = %lld: %g, expected %g\n", what, static_cast<long long>(n), a, b);
  }
}

int main() {
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
