// From sorted values to M numbers a slice. F is one lane (float) or a vector of lanes whose elements share their weights, and
// with them the cut points of the bins; `step` is the distance of two rows in floats.
#pragma once

#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// The mean of Q over each of the M equal bins of (0, 1], n elements of equal weight. Sums run over the differences to the bin's first
// element, so their rounding scales with the bin's spread and not with the distance from zero. With Residual, `residual`
// gains the sum over the bins of n * integral (Q - mean)^2, lane by lane.
template <class F, bool Residual> SLOSH_INLINE void average(const float *rows, int64_t step, int64_t n, int64_t M, float *means,
                                                            int64_t means_step, double *residual) {
  constexpr int W = sizeof(F) / sizeof(float);
  const float per_bin = float(double(M) / double(n));
  int64_t i = 0, rest = 0;  // the bin begins `rest / M` into element i
  const int64_t whole = n / M, part = n % M;
  for (int64_t m = 0; m < M; ++m) {
    int64_t j = i + whole, end = rest + part;  // and ends `end / M` into element j
    if (end >= M) end -= M, ++j;
    const F first = load<F>(rows + i * step);
    F mean = first;
    if (j > i) {
      const float tail = float(end) / float(M);
      F sum{};
      int64_t k = i + 1;
      for (; k + 8 <= j; k += 8) {
        const float *p = rows + k * step;
        const F a = (load<F>(p) - first) + (load<F>(p + step) - first);
        const F b = (load<F>(p + 2 * step) - first) + (load<F>(p + 3 * step) - first);
        const F c = (load<F>(p + 4 * step) - first) + (load<F>(p + 5 * step) - first);
        const F d = (load<F>(p + 6 * step) - first) + (load<F>(p + 7 * step) - first);
        sum += (a + b) + (c + d);
      }
      for (; k < j; ++k) sum += load<F>(rows + k * step) - first;
      if (end) sum += (load<F>(rows + j * step) - first) * tail;
      mean += sum * per_bin;
      if (Residual) {
        const float head = float(M - rest) / float(M);
        const F f = first - mean;
        F squares = f * f * head;
        for (k = i + 1; k < j; ++k) {
          const F x = load<F>(rows + k * step) - mean;
          squares += x * x;
        }
        if (end) {
          const F x = load<F>(rows + j * step) - mean;
          squares += x * x * tail;
        }
        float lane[W];
        store(lane, squares);
        for (int l = 0; l < W; ++l) residual[l] += double(lane[l]);
      }
    }
    store(means + m * means_step, mean);
    i = j, rest = end;
  }
}

// Q at t = (m + 1) / M by linear interpolation through the points ((i + 1) / n, x_i), constant below the first.
template <class F> SLOSH_INLINE void linear(const float *rows, int64_t step, int64_t n, int64_t M, float *values, int64_t values_step) {
  for (int64_t m = 0; m < M; ++m) {
    const int64_t at = (m + 1) * n - M;  // M times the position among the elements
    F v = load<F>(rows);
    if (at > 0) {
      const int64_t i = at / M, part = at % M;
      v = load<F>(rows + i * step);
      if (part) v += (load<F>(rows + (i + 1) * step) - v) * (float(part) / float(M));
    }
    store(values + m * values_step, v);
  }
}

// The same two rules for one lane whose n elements have weights (all positive, in the order of the values, summing to `total`).
template <bool Residual> SLOSH_INLINE void weighted_average(const float *rows, const float *weights, int64_t step, int64_t n, double total,
                                                            int64_t M, float *means, int64_t means_step, double *residual) {
  const double width = total / double(M);
  int64_t i = 0;
  double left = weights[0];  // what is left of the weight of element i
  for (int64_t m = 0; m < M; ++m) {
    const int64_t from = i;
    const double from_left = left, first = rows[i * step];
    double need = width, sum = 0;
    while (need > left && i + 1 < n) {
      sum += left * (double(rows[i * step]) - first);
      need -= left;
      ++i;
      left = weights[i * step];
    }
    sum += need * (double(rows[i * step]) - first);
    left -= need;
    const double mean = first + sum / width;
    if (Residual) {
      for (int64_t k = from; k <= i; ++k) {
        const double x = double(rows[k * step]) - mean;
        *residual += x * x * (k == i ? need : k == from ? from_left : double(weights[k * step]));
      }
    }
    means[m * means_step] = float(mean);
    if (left <= 0 && i + 1 < n) left = weights[++i * step];
  }
}

// The same for W lanes at once. Every lane has the weights in an order of its own, so its bins begin at other rows; but all lanes reach
// about the same bin in about the same row, so a few rows meet few bins. For each such meeting calls visit(m, overlap, key), overlap being the
// part of bin m that the element covers, lane by lane. False, after some visits, where the lanes run too far apart for this to pay.
template <int W, class Visit>
SLOSH_INLINE bool meet_bins(const float *rows, int64_t n, double total, int64_t M, Visit visit) {
  typedef typename Lanes<W>::F F;
  typedef typename Lanes<W>::D D;
  const double bins = double(M) / total;
  const int64_t at_once = n >= 8 * M ? 4 : n >= 4 * M ? 2 : 1;
  int64_t budget = 12 * n + 8 * M;
  D upto{};  // cumulative weight, in bins
  for (int64_t i = 0; i < n; i += at_once) {
    const int64_t count = n - i < at_once ? n - i : at_once;
    D edge[5];
    edge[0] = upto;
    for (int64_t r = 0; r < count; ++r) {
      upto += __builtin_convertvector(load<F>(rows + (i + r) * 2 * W + W), D) * bins;
      edge[r + 1] = upto;
    }
    if (i + count == n) edge[count] = D{} + double(M);
    double least = edge[0][0], most = edge[count][0];
    for (int l = 1; l < W; ++l) {
      least = edge[0][l] < least ? edge[0][l] : least;
      most = edge[count][l] > most ? edge[count][l] : most;
    }
    int64_t from = int64_t(least), to = int64_t(most);
    from = from < M - 1 ? from : M - 1, to = to < M - 1 ? to : M - 1;
    budget -= (to - from + 1) * count;
    if (budget < 0) return false;
    for (int64_t r = 0; r < count; ++r) {
      // Counted from bin `from`, so that float32 has digits enough.
      const F begin = __builtin_convertvector(edge[r] - double(from), F), end = __builtin_convertvector(edge[r + 1] - double(from), F);
      const F key = load<F>(rows + (i + r) * 2 * W);
      for (int64_t m = from; m <= to; ++m) {
        const float left = float(m - from);
        visit(m, upper(lower(end, all<F>(left + 1)) - upper(begin, all<F>(left)), F{}), key);
      }
    }
  }
  return true;
}

template <int W, bool Residual>
SLOSH_INLINE bool weighted_average_lanes(const float *rows, int64_t n, double total, int64_t M, float *means, double *residual) {
  typedef typename Lanes<W>::F F;
  const F centre = load<F>(rows + n / 2 * 2 * W);  // sums of differences to it round less
  for (int64_t m = 0; m < M; ++m) store(means + m * W, F{});
  const bool done = meet_bins<W>(rows, n, total, M, [&](int64_t m, F overlap, F key) SLOSH_FLAT {
    store(means + m * W, load<F>(means + m * W) + overlap * (key - centre));
  });
  if (!done) return false;
  for (int64_t m = 0; m < M; ++m) store(means + m * W, load<F>(means + m * W) + centre);
  if (Residual) {
    F squares{};
    meet_bins<W>(rows, n, total, M, [&](int64_t m, F overlap, F key) SLOSH_FLAT {
      const F x = key - load<F>(means + m * W);
      squares += overlap * x * x;
    });
    for (int l = 0; l < W; ++l) residual[l] = double(squares[l]) * total / double(M);
  }
  return true;
}

// Of equal values the lightest counts as the first: interpolation then does not depend on the order in which the elements came.
SLOSH_INLINE void weighted_linear(const float *rows, const float *weights, int64_t step, int64_t n, double total, int64_t M, float *values,
                                  int64_t values_step) {
  double before = 0, risen = 0, upto = 0, low = rows[0], value = rows[0];
  int64_t next = 0;  // Q rises from low to value between the cumulative weights before and risen, and stays there until upto
  for (int64_t m = 0; m < M; ++m) {
    const double t = total * double(m + 1) / double(M);
    while (next < n && (next == 0 || upto < t)) {
      double lightest = weights[next * step], sum = 0;
      low = next ? value : double(rows[0]);
      value = rows[next * step];
      for (; next < n && double(rows[next * step]) == value; ++next) {
        const double w = weights[next * step];
        lightest = w < lightest ? w : lightest;
        sum += w;
      }
      before = upto;
      risen = before + lightest;
      upto += sum;
    }
    values[m * values_step] = float(t < risen ? low + (value - low) * ((t - before) / (risen - before)) : value);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
