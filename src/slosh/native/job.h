// What the bindings hand to the kernel: plain pointers to arrays that outlive the call. The kernel is compiled once for each
// instruction set; `Kernel` is one such copy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slosh {

enum class Rule { average, linear, sort };

// W slices that are worked on together, in the lanes of one vector.
struct Group {
  int64_t first;              // slice
  int64_t count;              // slices used of the lanes
  int64_t lanes;              // 4, 8 or 16
  int64_t step;               // floats from one row of these to the next
  const float *directions;    // (dim, lanes), or null if the values are projected already
  const float *reference;     // (n_quantiles, lanes), or null
};

struct Embedding {
  const float *points;        // (P, dim), or (P, n_slices) values if projected already
  const float *weights;       // (P,) or null
  const int64_t *offsets;     // (n_sets + 1,)
  int64_t dim, n_slices, n_quantiles;
  Rule rule;
  float scale;
  const Group *groups;
  int64_t n_groups;
  float *out;                 // average, linear: row s at out + s * out_step, n_slices * n_quantiles; sort: (P, n_slices)
  int64_t out_step;
  float *out_weights;         // sort with weights: (P, n_slices)
  double *residual;           // (n_sets, slices / 4 rounded up) or null: the sum over four slices each
  int64_t largest;            // elements of the largest set
};

// Sorted slices of two collections, and which pairs of sets to compare.
struct Transport {
  const float *a, *b;                  // (P, n_slices)
  const float *a_weights, *b_weights;  // (P, n_slices), each or null
  const int64_t *a_offsets, *b_offsets;
  const int64_t *pairs;                // (n, 2): a set of a, a set of b
  int64_t n_slices;
  double *out;                         // (n,) mean over the slices of the squared distance
};

struct Kernel {
  const char *name;
  int64_t lanes;
  size_t (*scratch_bytes)(const Embedding &);
  void (*embed)(const Embedding &, int64_t set, int64_t group, void *scratch);
  void (*transport)(const Transport &, int64_t pair);
  double (*exchange_rate)(int64_t rounds);  // compare-exchanges done, for the benchmark's floor
};

namespace generic { extern const Kernel kernel; }
#if defined(SLOSH_X86_VARIANTS)
namespace avx2 { extern const Kernel kernel; }
namespace avx512 { extern const Kernel kernel; }
#endif

}  // namespace slosh
