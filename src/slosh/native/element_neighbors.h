// The neighbours of each element within its set, as lists that all layers of a network share: the k nearest by the coordinates, those as near as the
// k-th, and those that only the rounding of the coordinates may have put farther, as in local.h.
//
// Up to three coordinates are searched by the tree of local_tree.h. Beyond, all pairs are compared: some queries at a time with all elements, in double.
// Elements are numbered by their place in an order in which equal ones, and with a tree near ones, stand together. Equal elements share a list, and an
// element whose neighbours are all elements has none. So lists are short but for sets that are crowded within the rounding; what does not fit into
// the bounded store is searched for again in each layer.
#pragma once

#include <algorithm>
#include <cmath>

#include "job.h"
#include "local_tree.h"

namespace slosh {
namespace SLOSH_ARCH {
namespace local {

constexpr double kCoordinateRounding = 0x1p-20;           // see kRounding in local.h
constexpr int64_t kStoredMembers = int64_t(1) << 24;      // 64 MB a thread
constexpr int kAsking = 16;                               // queries that are compared with all elements at a time
constexpr int64_t kCompared = 64;                         // elements that are compared with them at a time
constexpr int kDoubles = SLOSH_LANES / 2;                 // lanes of a vector of doubles
typedef Lanes<kDoubles>::D Doubles;

struct Members {
  const uint32_t *places;
  int64_t count;
};

// Where a list begins, or what it is instead: all elements, that of the place before, or one that did not fit.
constexpr int64_t kAll = -1, kSame = -2, kUnstored = -3;

struct Smaller {
  bool operator()(double a, double b) const { return a < b; }
};

struct RowOrder {
  const float *points;
  int64_t dim;
  bool operator()(uint32_t a, uint32_t b) const {
    const float *x = points + int64_t(a) * dim, *y = points + int64_t(b) * dim;
    for (int64_t k = 0; k < dim; ++k)
      if (x[k] != y[k]) return x[k] < y[k];
    return a < b;
  }
};

struct NeighborLists {
  int64_t n, k, dim;
  const volatile int32_t *stop;
  uint32_t *element;    // (n,) of each place
  double rounding;
  float scale;
  const float *points;  // of the set
  int64_t *start;       // (n,) where the list of a place begins, or kAll, kSame, kUnstored
  uint32_t *count, *members;
  int64_t stored, room;
  Tree tree;
  Candidates found;
  Neighbors near;
  // All pairs.
  double *block;            // (dim, kCompared) elements that are compared
  double *asking;           // (dim, kAsking) those that ask
  double *squares;          // (kAsking, squares_step) squared distances
  double *exact;            // (2 n,) those of candidates
  int64_t squares_step, first_asking;
};

SLOSH_INLINE int64_t stored_members(const ElementNetwork &job) {
  const int64_t n = job.largest, k = std::min(job.n_neighbors, n);
  return std::min(kStoredMembers, n * std::min(n, 2 * k + 16));
}

inline size_t neighbor_bytes(const ElementNetwork &job) {
  const size_t n = size_t(whole_blocks(job.largest) + 2 * kBlock), boxes = n / 8 + n / 64 + 512;  // see scratch_bytes in local.h
  size_t bytes = n * sizeof(uint32_t) + 64 * 64;
  if (!job.n_neighbors) return bytes;
  bytes += n * (sizeof(int64_t) + sizeof(uint32_t)) + size_t(stored_members(job)) * sizeof(uint32_t) + n * 2 * sizeof(float);
  if (job.dim <= 3) return bytes + n * sizeof(Place) + (n * (4 + 5) + boxes * 3) * sizeof(float);
  return bytes + size_t(job.dim) * (kCompared + kAsking) * sizeof(double) + (n + kCompared) * (kAsking + 2) * sizeof(double);
}

// The elements that have a weight, and what the size of their coordinates says. The mean size is summed in whole numbers: it has the same bits for
// any order of the elements.
inline void take_elements(const ElementNetwork &job, int64_t set, NeighborLists &lists, Scratch &scratch) {
  const int64_t offset = job.offsets[set], n = job.offsets[set + 1] - offset;
  const float *weights = job.weights ? job.weights + offset : nullptr;
  lists.points = job.points + offset * job.dim, lists.dim = job.dim, lists.stop = job.stop;
  lists.element = scratch.take<uint32_t>(whole_blocks(job.largest) + 2 * kBlock);
  lists.n = 0;
  for (int64_t i = 0; i < n; ++i) {
    lists.element[lists.n] = uint32_t(i);
    lists.n += !weights || weights[i] > 0;
  }
  lists.k = std::min(job.n_neighbors, lists.n);
  if (!lists.k) return;
  const auto size_of = [&](int64_t i) {
    const float *x = lists.points + int64_t(lists.element[i]) * job.dim;
    float far = 0;
    for (int64_t k = 0; k < job.dim; ++k) far = std::max<float>(far, std::fabs(x[k]));
    return far;
  };
  float largest = 0;
  for (int64_t i = 0; i < lists.n; ++i) largest = std::max<float>(largest, size_of(i));
  int exponent = 0;
  std::frexp(largest, &exponent);
  lists.scale = std::ldexp(1.0f, -std::max<int>(exponent, -100));
  int bits = 0;
  std::frexp(double(lists.n), &bits);
  int64_t size = 0;  // in steps so large that no sum of n overflows
  for (int64_t i = 0; i < lists.n; ++i) size += int64_t(std::ldexp(double(size_of(i) * lists.scale), 62 - bits));
  lists.rounding = kCoordinateRounding * std::ldexp(double(size), bits - 62) / double(lists.n);
}

// Bit l: lane l is at most `limit`.
SLOSH_INLINE unsigned doubles_within(const Doubles &x, double limit) {
#if SLOSH_LANES >= 16
  return unsigned(_mm512_cmp_pd_mask(x, _mm512_set1_pd(limit), _CMP_LE_OQ));
#elif SLOSH_LANES >= 8
  return unsigned(_mm256_movemask_pd(_mm256_cmp_pd(x, _mm256_set1_pd(limit), _CMP_LE_OQ)));
#else
  return unsigned(x[0] <= limit) | unsigned(x[1] <= limit) << 1;
#endif
}

// The sums over the coordinates of R queries and V vectors of elements; each is one chain.
template <int R, int V> SLOSH_INLINE void square_tile(const double *x, const double *asking, int64_t dim, double *to, int64_t step) {
  Doubles sum[R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = Doubles{};
  for (int64_t k = 0; k < dim; ++k, x += kCompared, asking += kAsking)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Doubles each = load<Doubles>(x + v * kDoubles);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Doubles away = each - asking[r];
        sum[r][v] += away * away;
      }
    }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(to + r * step + v * kDoubles, sum[r][v]);
}

// The squared distances of `count` queries from the place `first` on to all places.
inline void compare_all(NeighborLists &lists, int64_t first, int64_t count) {
  constexpr int R = 4, V = 2;
  const int64_t dim = lists.dim;
  const auto row = [&](int64_t place) SLOSH_FLAT { return lists.points + int64_t(lists.element[std::min(place, lists.n - 1)]) * dim; };
  for (int64_t q = 0; q < kAsking; ++q) {
    const float *x = row(first + std::min(q, count - 1));
    for (int64_t k = 0; k < dim; ++k) lists.asking[k * kAsking + q] = double(x[k] * lists.scale);
  }
  for (int64_t at = 0; at < lists.n; at += kCompared) {
    for (int64_t j = 0; j < kCompared; ++j) {
      const float *x = row(at + j);
      for (int64_t k = 0; k < dim; ++k) lists.block[k * kCompared + j] = double(x[k] * lists.scale);
    }
    for (int64_t j = 0; j < kCompared; j += V * kDoubles)
      for (int64_t q = 0; q < count; q += R)
        square_tile<R, V>(lists.block + j, lists.asking + q, dim, lists.squares + q * lists.squares_step + at + j, lists.squares_step);
  }
  for (int64_t q = 0; q < kAsking; ++q)
    for (int64_t j = lists.n; j < lists.squares_step; ++j) lists.squares[q * lists.squares_step + j] = double(kOutside);
  lists.first_asking = first;
}

// The neighbours of a place, of the squares of all places.
inline Members choose(NeighborLists &lists, const double *squares) {
  // The k-th smallest of the smallest of some groups is no smaller than the k-th of all.
  constexpr int groups = int(kCompared), vectors = groups / kDoubles, some = vectors < 8 ? vectors : 8;
  double bound = double(kOutside) / 2;
  if (lists.k <= groups / 2 && lists.n >= groups) {
    float least[groups], largest = 0;
    for (int first = 0; first < vectors; first += some) {
      Doubles each[some];
#pragma GCC unroll 8
      for (int v = 0; v < some; ++v) each[v] = load<Doubles>(squares + (first + v) * kDoubles);
      for (int64_t i = groups; i < lists.squares_step; i += groups)
#pragma GCC unroll 8
        for (int v = 0; v < some; ++v) {
          const Doubles x = load<Doubles>(squares + i + (first + v) * kDoubles);
          each[v] = x < each[v] ? x : each[v];
        }
      for (int v = 0; v < some; ++v)
        for (int l = 0; l < kDoubles; ++l) least[(first + v) * kDoubles + l] = float(each[v][l]);
    }
    for (int g = 0; g < groups; ++g) largest = std::max<float>(largest, least[g]);
    const float kth = kth_square(Candidates{least, nullptr, groups}, lists.k, largest);
    bound = double(squared(std::sqrt(double(kth)) + lists.rounding));
  }
  int64_t count = 0;
  for (int64_t i = 0; i < lists.squares_step; i += kDoubles)
    for (unsigned bits = doubles_within(load<Doubles>(squares + i), bound); bits; bits &= bits - 1) {
      const int64_t at = i + __builtin_ctz(bits);
      lists.exact[count] = squares[at];
      lists.found.index[count++] = uint32_t(at);
    }
  double *const sorted = lists.exact + count;
  std::memcpy(sorted, lists.exact, size_t(count) * sizeof(double));
  std::nth_element(sorted, sorted + lists.k - 1, sorted + count, Smaller{});
  const double reach = std::sqrt(sorted[lists.k - 1]) + lists.rounding;
  int64_t n_near = 0;
  for (int64_t i = 0; i < count; ++i) {
    lists.found.index[n_near] = lists.found.index[i];
    n_near += std::sqrt(lists.exact[i]) <= reach;
  }
  return {lists.found.index, n_near};
}

SLOSH_INLINE bool is_stopped(const NeighborLists &lists) { return lists.stop && *lists.stop; }

template <int D> void put_places(NeighborLists &lists, const ElementNetwork &job, Scratch &scratch) {
  const int64_t room = whole_blocks(job.largest) + 2 * kBlock;
  Tree &tree = lists.tree;
  tree = Tree{};
  tree.n = lists.n;
  tree.place = scratch.take<Place>(room);
  for (int k = 0; k < D; ++k) tree.x[k] = scratch.take<float>(room), lists.near.x[k] = scratch.take<float>(room);
  tree.weight = scratch.take<float>(room), lists.near.weight = scratch.take<float>(room), lists.near.square = scratch.take<float>(room);
  for (int64_t i = 0; i < lists.n; ++i) {
    const float *x = lists.points + int64_t(lists.element[i]) * lists.dim;
    tree.place[i] = Place{};  // one coordinate: the second is zero
    for (int64_t k = 0; k < std::min<int64_t>(D, lists.dim); ++k) tree.place[i].x[k] = x[k] * lists.scale;
    tree.place[i].element = lists.element[i];
    tree.weight[i] = 1;
  }
  build<D>(tree, scratch);
  for (int64_t i = 0; i < lists.n; ++i) lists.element[i] = tree.place[i].element;
}

// The neighbours of a place; `reach`: at least k elements are so near.
template <int D> SLOSH_INLINE Members search_tree(NeighborLists &lists, int64_t place, double reach) {
  find_nearest<D>(lists.tree, lists.tree.place[place].x, lists.k, reach, lists.rounding, lists.found, lists.near);
  return {lists.found.index, lists.near.count};
}

SLOSH_INLINE void put_list(NeighborLists &lists, int64_t place, const Members &found) {
  lists.count[place] = uint32_t(found.count);
  if (found.count == lists.n) {
    lists.start[place] = kAll;
  } else if (lists.stored + found.count > lists.room) {
    lists.start[place] = kUnstored;
  } else {
    std::memcpy(lists.members + lists.stored, found.places, size_t(found.count) * sizeof(uint32_t));
    lists.start[place] = lists.stored;
    lists.stored += found.count;
  }
}

template <int D> void list_by_tree(NeighborLists &lists) {
  const Tree &tree = lists.tree;
  int64_t run = kBlock;
  while (run < lists.k) run *= 2;
  double reach = 0;
  for (int64_t i = 0; i < lists.n && !is_stopped(lists); ++i) {
    if (i % run == 0) reach = run_reach<D>(tree, i, run);
    const float *q = tree.place[i].x, *before = tree.place[std::max<int64_t>(i - 1, 0)].x;
    float step[D], moved = 0;
    for (int k = 0; k < D; ++k) step[k] = q[k] - before[k], moved += std::fabs(step[k]);
    if (i && !(moved > 0))
      lists.start[i] = kSame;
    else
      put_list(lists, i, search_tree<D>(lists, i, i ? std::min<double>(neighbors_reach<D>(lists.near, step), reach) : reach));
  }
}

// The neighbours of a place by comparing it, and some after it, with all.
inline Members search_all(NeighborLists &lists, int64_t place) {
  const int64_t first = place / kAsking * kAsking;
  if (lists.first_asking != first) compare_all(lists, first, std::min<int64_t>(kAsking, lists.n - first));
  return choose(lists, lists.squares + (place - first) * lists.squares_step);
}

inline void list_by_all_pairs(NeighborLists &lists) {
  for (int64_t i = 0; i < lists.n && !is_stopped(lists); ++i) {
    const float *x = lists.points + int64_t(lists.element[i]) * lists.dim;
    const float *before = lists.points + int64_t(lists.element[std::max<int64_t>(i - 1, 0)]) * lists.dim;
    bool same = i > 0;
    for (int64_t k = 0; same && k < lists.dim; ++k) same = x[k] == before[k];
    if (same)
      lists.start[i] = kSame;
    else
      put_list(lists, i, search_all(lists, i));
  }
}

// Finds the neighbours of all elements of a set that have a weight, and puts these in order.
inline void find_neighbors(const ElementNetwork &job, int64_t set, NeighborLists &lists, Scratch &scratch) {
  take_elements(job, set, lists, scratch);
  if (!lists.k) return;
  const int64_t room = whole_blocks(job.largest) + 2 * kBlock;
  lists.start = scratch.take<int64_t>(room), lists.count = scratch.take<uint32_t>(room);
  lists.room = stored_members(job), lists.stored = 0;
  lists.members = scratch.take<uint32_t>(lists.room);
  lists.found.square = scratch.take<float>(room), lists.found.index = scratch.take<uint32_t>(room);
  if (lists.k == lists.n) {
    for (int64_t i = 0; i < lists.n; ++i) lists.start[i] = kAll;
  } else if (job.dim <= 3) {
    (job.dim == 3 ? put_places<3> : put_places<2>)(lists, job, scratch);
    (job.dim == 3 ? list_by_tree<3> : list_by_tree<2>)(lists);
  } else {
    lists.block = scratch.take<double>(job.dim * kCompared), lists.asking = scratch.take<double>(job.dim * kAsking);
    lists.squares_step = (lists.n + kCompared - 1) / kCompared * kCompared;
    lists.squares = scratch.take<double>(lists.squares_step * kAsking), lists.exact = scratch.take<double>(2 * lists.n);
    lists.first_asking = -1;
    std::sort(lists.element, lists.element + lists.n, RowOrder{lists.points, lists.dim});
    list_by_all_pairs(lists);
  }
}

// The neighbours of a place whose list is neither kAll nor kSame.
inline Members members_of(NeighborLists &lists, int64_t place) {
  if (lists.start[place] >= 0) return {lists.members + lists.start[place], int64_t(lists.count[place])};
  if (lists.dim > 3) return search_all(lists, place);
  return lists.dim == 3 ? search_tree<3>(lists, place, 4) : search_tree<2>(lists, place, 4);
}

}  // namespace local
}  // namespace SLOSH_ARCH
}  // namespace slosh
