// From sorted values to M numbers a slice. F is one lane (float) or a vector of lanes whose elements share their weights, and
// with them the cut points of the bins; `step` is the distance of two rows in floats.
#pragma once

#include "lanes.h"

namespace slosh {
namespace SLOSH_ARCH {

// The sum of f(row) over the rows [from, to): eight at a time in float32, those sums in double. A long bin, or one far value in it,
// then costs no digits of the others.
template <class F, class Function> SLOSH_INLINE Wide<F> sum_rows(const float *rows, int64_t step, int64_t from, int64_t to, Function f) {
  Wide<F> total{};
  int64_t k = from;
  for (; k + 8 <= to; k += 8) {
    const float *p = rows + k * step;
    const F a = f(load<F>(p)) + f(load<F>(p + step)), b = f(load<F>(p + 2 * step)) + f(load<F>(p + 3 * step));
    const F c = f(load<F>(p + 4 * step)) + f(load<F>(p + 5 * step)), d = f(load<F>(p + 6 * step)) + f(load<F>(p + 7 * step));
    total += widen(F((a + b) + (c + d)));
  }
  F rest{};
  for (; k < to; ++k) rest += f(load<F>(rows + k * step));
  return total + widen(rest);
}

// The mean of Q over each of the M equal bins of (0, 1], n elements of equal weight. Sums run over the differences to an element in the
// middle of the bin, so their rounding scales with the bin's spread and not with the distance from zero. With Residual, `residual` gains the
// sum over the bins of n * integral (Q - mean)^2, lane by lane.
template <class F, bool Residual> SLOSH_INLINE void average(const float *rows, int64_t step, int64_t n, int64_t M, float *means,
                                                            int64_t means_step, double *residual) {
  const double per_bin = double(M) / double(n);
  int64_t i = 0, rest = 0;  // the bin begins `rest / M` into element i
  const int64_t whole = n / M, part = n % M;
  for (int64_t m = 0; m < M; ++m) {
    int64_t j = i + whole, end = rest + part;  // and ends `end / M` into element j
    if (end >= M) end -= M, ++j;
    F mean = load<F>(rows + i * step);
    if (j > i) {
      const double head = double(M - rest) / double(M), tail = double(end) / double(M);
      const F first = mean, last = load<F>(rows + (end ? j : i) * step), middle = load<F>(rows + (i + (j - i) / 2) * step);
      if (whole < 32) {  // so few that float32 loses nothing the result would show
        F sum = (first - middle) * float(head);
        if (end) sum += (last - middle) * float(tail);
        for (int64_t k = i + 1; k < j; ++k) sum += load<F>(rows + k * step) - middle;
        mean = middle + sum * float(per_bin);
      } else {
        Wide<F> sum = sum_rows<F>(rows, step, i + 1, j, [&](F x) SLOSH_FLAT { return x - middle; });
        sum += widen(F(first - middle)) * head;
        if (end) sum += widen(F(last - middle)) * tail;
        mean = middle + narrow<F>(sum * per_bin);
      }
      if (Residual) {
        Wide<F> squares = sum_rows<F>(rows, step, i + 1, j, [&](F x) SLOSH_FLAT { return (x - mean) * (x - mean); });
        squares += widen(F((first - mean) * (first - mean))) * head;
        if (end) squares += widen(F((last - mean) * (last - mean))) * tail;
        add_lanes(residual, squares);
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

// The average rule for one lane whose n elements have weights (all positive, in the order of the values, summing to `total`). In double,
// and an element inside a bin counts with its own weight, never with a difference of sums: a light element may lie far out.
template <bool Residual> SLOSH_INLINE void weighted_average(const float *rows, const float *weights, int64_t step, int64_t n, double total,
                                                            int64_t M, float *means, int64_t means_step, double *residual) {
  const double width = total / double(M);
  int64_t i = 0;
  double left = weights[0];  // what is left of the weight of element i
  for (int64_t m = 0; m < M; ++m) {
    const int64_t from = i;
    const double from_left = left, first = rows[i * step];
    const bool to_the_end = m + 1 == M;
    double need = width, sum = 0;
    while ((need > left || to_the_end) && i + 1 < n) {
      sum += left * (double(rows[i * step]) - first);
      need -= left;
      ++i;
      left = weights[i * step];
    }
    const double taken = to_the_end ? left : need;
    sum += taken * (double(rows[i * step]) - first);
    left -= taken;
    const double mean = first + sum / width;
    if (Residual) {
      for (int64_t k = from; k <= i; ++k) {
        const double x = double(rows[k * step]) - mean;
        *residual += x * x * (k == i ? taken : k == from ? from_left : double(weights[k * step]));
      }
    }
    means[m * means_step] = float(mean);
    if (left <= 0 && i + 1 < n) left = weights[++i * step];
  }
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
    if (m + 1 == M) value = rows[(n - 1) * step], risen = t;  // exactly, however the sums were rounded
    values[m * values_step] = float(t < risen ? low + (value - low) * ((t - before) / (risen - before)) : value);
  }
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
