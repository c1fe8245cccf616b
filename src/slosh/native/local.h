// What the neighbours of each element within its set say, for elements of two or three coordinates: finds them (local_tree.h), sums their
// moments, and writes what these tell (local_moments.h) beside the coordinates.
//
// Elements that are as far as the k-th nearest all count, and so do those that only the rounding of the coordinates may have put farther: the
// result does not depend on the order of the elements.
#pragma once

#include <algorithm>
#include <cmath>

#include "job.h"
#include "local_moments.h"
#include "local_tree.h"

namespace slosh {
namespace SLOSH_ARCH {
namespace local {

// The coordinates are rounded to float32, twice if they were centred. The difference of two distances may be off by so much of their size.
constexpr double kRounding = 0x1p-20;

inline size_t scratch_bytes(const LocalShape &job) {
  const size_t n = size_t(whole_blocks(job.largest) + 2 * kBlock), moments = size_t(job.n_sizes * kMoments * kQueries);
  const size_t boxes = n / 8 + n / 64 + 512;  // two for each block, a fifteenth of that for all levels above, and groups are whole
  return n * sizeof(Place) + (n * (4 + 2 + 5) + boxes * 3) * sizeof(float) + moments * sizeof(double) + 64 * 64;
}

// The elements of a set that have a weight, scaled by a power of two to within 1, with their centre and the size that rounding is measured by.
template <int D> SLOSH_INLINE double start(const LocalShape &job, int64_t set, Tree &tree, double *centre, double *rounding) {
  const int64_t offset = job.offsets[set], n = job.offsets[set + 1] - offset;
  const float *points = job.points + offset * D, *weights = job.weights ? job.weights + offset : nullptr;
  float largest = 0;
  double size = 0, total = 0;
  tree.n = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (weights && !(weights[i] > 0)) continue;
    float far = 0;
    tree.place[tree.n] = Place{};
    for (int k = 0; k < D; ++k) {
      tree.place[tree.n].x[k] = points[i * D + k];
      far = std::max<float>(far, std::fabs(points[i * D + k]));
    }
    tree.place[tree.n++].element = uint32_t(i);
    largest = std::max<float>(largest, far);
    size += double(far);
  }
  int exponent = 0;
  std::frexp(largest, &exponent);
  const float scale = std::ldexp(1.0f, -std::max<int>(exponent, -100));
  for (int k = 0; k < D; ++k) centre[k] = 0;
  const float *origin = points + int64_t(tree.place[0].element) * D;  // equal elements are at no distance from their mean
  for (int64_t i = 0; i < tree.n; ++i) {
    const int64_t element = tree.place[i].element;
    const double w = weights ? double(weights[element]) : 1.0;
    total += w;
    for (int k = 0; k < D; ++k) {
      centre[k] += w * (double(points[element * D + k]) - double(origin[k]));
      tree.place[i].x[k] *= scale;
    }
  }
  for (int k = 0; k < D; ++k) centre[k] = double(origin[k]) + centre[k] / total;
  *rounding = kRounding * size * double(scale) / double(tree.n);
  return 1.0 / double(scale);
}

// One set, and where its columns are worked out.
template <int D> struct Work {
  static constexpr int each = 2 * D + 1;  // columns of a neighbourhood
  const LocalShape &job;
  const float *points;
  float *out;
  const int64_t columns;
  Tree tree{};
  Candidates found{};
  Neighbors near{};
  double *moments;  // (n_sizes, kMoments, kQueries)
  double centre[D], rounding, unit;

  Work(const LocalShape &j, int64_t set, Scratch scratch)
      : job(j), points(j.points + j.offsets[set] * D), out(nullptr), columns(D + 1 + j.n_sizes * each) {
    const int64_t room = whole_blocks(job.largest) + 2 * kBlock;
    out = job.out + job.offsets[set] * columns;
    tree.place = scratch.take<Place>(room);
    for (int k = 0; k < D; ++k) tree.x[k] = scratch.take<float>(room), near.x[k] = scratch.take<float>(room);
    tree.weight = scratch.take<float>(room), near.weight = scratch.take<float>(room);
    found.square = scratch.take<float>(room), near.square = scratch.take<float>(room);
    found.index = scratch.take<uint32_t>(room);
    moments = scratch.take<double>(job.n_sizes * kMoments * kQueries);
    unit = start<D>(job, set, tree, centre, &rounding);
    build<D>(tree, scratch);
    const float *weights = job.weights ? job.weights + job.offsets[set] : nullptr;
    for (int64_t i = 0; i < tree.n; ++i) tree.weight[i] = weights ? weights[tree.place[i].element] : 1.0f;
  }

  // The moments of the neighbourhoods of one query, kQueries numbers apart; `reach`: its `most` nearest elements are within.
  SLOSH_INLINE void gather(const float *q, int64_t most, double reach, double *to) {
    const double last = find_nearest<D>(tree, q, most, reach, rounding, found, near);
    const Candidates nearest{near.square, nullptr, near.count};
    for (int64_t s = 0; s < job.n_sizes; ++s, to += kMoments * kQueries) {
      const int64_t size = std::min(most, job.sizes[s]);
      const float limit = size == most ? kEverything : squared(std::sqrt(double(kth_square(nearest, size, squared(last + rounding)))) + rounding);
      sum_moments<D>(near, limit, to, kQueries);
    }
  }

  // The columns of `count` queries from the one at `first` on.
  SLOSH_INLINE void write(int64_t first, int count) {
    const auto put = [&](int i, int64_t column, double value) SLOSH_FLAT {
      out[int64_t(tree.place[first + i].element) * columns + D + column] = float(job.scale ? value * job.scale[column] : value);
    };
    for (int i = 0; i < count; ++i) {
      const float *x = points + int64_t(tree.place[first + i].element) * D;
      double square = 0;
      for (int k = 0; k < D; ++k) square += (double(x[k]) - centre[k]) * (double(x[k]) - centre[k]);
      put(i, 0, std::sqrt(square));
    }
    for (int64_t s = 0; s < job.n_sizes; ++s) {
      double described[each * kQueries];
      describe<D>(moments + s * kMoments * kQueries, rounding, described);
      for (int c = 0; c < each; ++c)
        for (int i = 0; i < count; ++i) put(i, 1 + s * each + c, described[c * kQueries + i] * (c <= D ? unit : 1.0));
    }
  }
};

template <int D> void local_shape_of(const LocalShape &job, int64_t set, Scratch scratch) {
  Work<D> work(job, set, scratch);
  const int64_t n = job.offsets[set + 1] - job.offsets[set], columns = work.columns;
  for (int64_t i = 0; i < n; ++i) {  // elements without weight have nothing else
    std::memcpy(work.out + i * columns, work.points + i * D, D * sizeof(float));
    std::memset(work.out + i * columns + D, 0, size_t(columns - D) * sizeof(float));
  }
  const Tree &tree = work.tree;
  const int64_t most = std::min(tree.n, job.sizes[job.n_sizes - 1]);
  int64_t run = kBlock;
  while (run < most) run *= 2;
  double reach = 0;
  for (int64_t first = 0; first < tree.n; first += kQueries) {
    const int count = int(std::min<int64_t>(kQueries, tree.n - first));
    if (first % run == 0) reach = run_reach<D>(tree, first, run);
    for (int i = 0; i < count; ++i) {
      const float *q = tree.place[first + i].x, *before = tree.place[std::max<int64_t>(first + i - 1, 0)].x;
      float step[D], moved = 0;
      for (int k = 0; k < D; ++k) step[k] = q[k] - before[k], moved += std::fabs(step[k]);
      if (first + i == 0 || moved > 0)
        work.gather(q, most, first + i ? std::min<double>(neighbors_reach<D>(work.near, step), reach) : reach, work.moments + i);
      else  // the same point has the same neighbours: many equal ones would take long
        for (int64_t s = 0; s < job.n_sizes * kMoments; ++s) work.moments[s * kQueries + i] = work.moments[s * kQueries + (i ? i - 1 : kQueries - 1)];
    }
    for (int i = count; i < kQueries; ++i)  // any numbers that can be worked with
      for (int64_t s = 0; s < job.n_sizes * kMoments; ++s) work.moments[s * kQueries + i] = 1;
    work.write(first, count);
  }
}

}  // namespace local

inline void local_shape(const LocalShape &job, int64_t set, void *memory) {
  const local::Scratch scratch{reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t(63))};
  (job.dim == 2 ? local::local_shape_of<2> : local::local_shape_of<3>)(job, set, scratch);
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
