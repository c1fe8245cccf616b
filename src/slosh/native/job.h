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

// What the quantiles of sets, (n_sets, n_slices * n_quantiles), were differentiated by, and where the gradients of what they are made of go; see gradient.h.
struct Gradient {
  Embedding sets;              // points, weights, offsets, groups with directions, rule
  const float *grad;           // row s at grad + s * grad_step
  int64_t grad_step;
  int64_t width;               // dim, filled up to whole vectors
  const float *directions;     // (n_slices filled up to 16, width)
  const int64_t *blocks;       // (n_blocks + 1,) the first sets of blocks, which are worked on by one thread each
  int64_t block_step;          // numbers of the directions
  float *of_points;            // (P, dim) or null
  float *of_weights;           // (P,) or null
  double *of_directions;       // (n_blocks, block_step) or null: the sums of each block
  bool weighted;               // whether slices are walked through one by one, because there are weights on this side or the other
};

// The same of the squared distances of the sets of two collections, set by set; see transport_gradient.h. What both sides share is in `a`.
struct TransportGradient {
  Gradient a, b;
  const double *grad;          // (n_sets,)
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

// Stored vectors by position: floats, or 16-bit whole numbers with a scale for each vector.
struct Vectors {
  const float *floats;    // (n, dim) or null
  const int16_t *shorts;  // (n, dim) or null
  const float *scale;     // (n,), with shorts
  int64_t dim;
};

// Which vectors to compare each query with.
struct Pairs {
  const float *queries;      // (n_queries, dim)
  Vectors vectors;
  const int64_t *offsets;    // (n_queries + 1,)
  const int64_t *positions;  // those of query i: offsets[i] to offsets[i + 1]
  double *out;               // squared distances, like positions
};

// Vectors to compare with every query, and how many of the nearest to keep.
struct Flat {
  const float *queries;      // (n_queries, dim)
  Vectors vectors;
  const int64_t *positions;  // (n_places,) those that may be found; null: all of them
  int64_t n_places, k;
  const int64_t *skip;       // (n_queries,) a position that is not to be found, or null
  const int64_t *ranks;      // (n,) for equal distances; null: the position
  double *out;               // (n_queries, k) distances
  int64_t *out_positions;
  bool *tied;                // (n_queries,) whether another one is as far as the last of the k
};

// Orthonormal directions; none: the prefix of a vector is the whole of it. Rows of `directions` and `middle` are filled up with zeros to a multiple of eight.
struct Basis {
  int64_t dim, n_directions, padded;  // numbers of a vector, directions, numbers of a direction
  const double *middle;               // (padded,)
  const double *directions;           // (n_directions, padded), or null

  // Coordinates along the directions, and the norm of the rest.
  __attribute__((always_inline)) int64_t numbers() const { return directions ? n_directions + 1 : dim; }
};

struct Prefixes {
  Basis basis;
  Vectors vectors;
  int64_t n, out_step;
  float *out;     // row i at out + i * out_step
  double *norms;  // (n,) of the vectors about the middle
};
constexpr int kTogether = 4;        // vectors that are worked on together

// Rows of eight bits in blocks of sixteen: four numbers of row after row, (width / 4, 16, 4), so that one instruction multiplies four numbers of sixteen
// rows. See codes8.h.
struct Coded {
  const uint8_t *codes;   // (n_blocks, width / 4, 16, 4)
  const float *biases;    // (n_blocks, 16), for the centres |step * (code - 128)|^2
};
constexpr int64_t kWidest = 256;  // numbers of a row, at most

// Prefixes of the stored vectors in lists about centres, and the centres themselves as rows of one list; see ladder.h and search/lists.py.
struct Lists {
  int64_t width, stride;       // numbers of a row: a multiple of 4; and filled up with zeros to one of 16, in `centres` and in queries
  int64_t early;               // the first numbers of a row, a multiple of 4, which alone exclude most blocks; the width if none are
  int64_t n_lists;
  Coded rows;
  const float *rests;          // (n_blocks,) no row has a larger norm about its centre without its early numbers, as coded
  const int32_t *slots;        // (n_blocks, 16) positions
  const uint16_t *masks;       // (n_blocks,) bit l: lane l may be found
  const float *centres;        // (n_lists, stride)
  const float *steps;          // (n_lists,)
  const float *errors;         // (n_lists,) no row is farther from what its code says
  const float *radii;          // (n_lists,) no row is farther from its centre
  const int64_t *start;        // (n_lists + 1,)
  const int64_t *order;        // (n_blocks,) blocks of list after list
  Coded heads;                 // the centres in eight bits, (n_lists / 16 rounded up, ...)
  const float *middle;         // (stride,) their centre
  const float *head_steps, *head_errors;  // (n_lists / 16 rounded up,) and theirs, block by block
  float farthest;              // the largest norm of a centre about the middle, rounded up
};

constexpr uint8_t kMarkRead = 1, kMarkChecked = 2;
struct Ladder {
  Lists lists;
  Vectors vectors;
  Basis basis;
  double rounding, farthest;   // rounding moves a prefix by at most this part of its vector's norm about the middle; the largest norm that is stored
  const float *queries;        // (n_queries, dim), which are rounded as the vectors are
  const bool *allowed;         // (n,) which positions may be found; null: all of them
  const int64_t *skip;         // (n_queries,) a position that is not to be found, or null
  const int64_t *ranks;        // (n,) for equal distances; null: the position
  int64_t k, depth;            // nearest: how many, vectors to compare at most
  float reach;                 // and which lists to scan, see ladder.h
  bool exact;
  const double *radius;        // (n_queries,) all within it; null for the k nearest
  double *out;                 // (n_queries, k)
  int64_t *out_positions;
  int64_t *scanned, *candidates;  // (n_queries,)
  uint8_t *marks;              // of each group of 2^mark_shift vectors, what is read of them: kMarkRead unless it is kMarkChecked; null: nothing is noted
  int mark_shift;
  bool *unchecked;             // set if a vector was read whose group is not kMarkChecked
  void *sink;                  // with radius: where what is found goes
  void (*put)(void *sink, int64_t query, double square, int64_t position);
};

// Codes of bits, 32 of them side by side in a group: the first words of all 32, then their second words, and so on. Memory is read in its order
// then, which halves the time where it is the bottleneck. Eight codes of a group are a block; all blocks of a group are there, and may be read, though
// none of their codes be allowed.
constexpr int kCodes = 8;
constexpr int kFour = 4;           // blocks of a group
constexpr int kRow = kCodes * kFour;
constexpr int kPlaces = 64;        // places looked at in one call, at most
constexpr int kPositionBits = 40;  // a code that was found is one number: its distance above so many bits, and its position below

struct Codes {
  const uint64_t *groups;     // (n_blocks / 4, n_words, 32)
  const uint8_t *allowed;     // (n_blocks,) bit l: whether code l of the block may be found
  const int64_t *active;      // (n_places,) the blocks to look at, in increasing order; null: all of them
  int64_t n_words, n_places;  // without `active` n_places is n_blocks, a multiple of 4

  // Inlined always: it would otherwise be one function for all instruction sets, and the linker would take any of them.
  __attribute__((always_inline)) const uint64_t *block(int64_t b) const { return groups + b / kFour * n_words * kRow + b % kFour * kCodes; }
};

// Vectors of a power of two of numbers, rotated in place.
struct Rotation {
  float *vectors;      // (n, size)
  const float *signs;  // (2, size) 1 or -1
  int log_size;
};

// Anchors, and the sets whose distances to them are asked for; see field.h.
struct Field {
  const float *points;     // (P, dim)
  const float *weights;    // (P,) or null: elements of weight zero do not count
  const int64_t *offsets;  // (n_sets + 1,)
  int64_t dim, n_anchors;
  const float *anchors;    // (blocks, dim, anchors of a block)
  float *out;              // row s at out + s * out_step, n_anchors
  int64_t out_step;
};

// Pairs of sets: of each element of the one, the nearest of the other is asked for; see elements.h.
struct ElementPairs {
  const float *x;           // (P, dim)
  const int64_t *x_offsets;
  const float *y;           // (Q, dim)
  const float *y_weights;   // (Q,) or null: elements of weight zero do not count
  const int64_t *y_offsets;
  int64_t dim;
  const int64_t *pairs;     // (n, 2): a set of x, a set of y
  const int64_t *starts;    // (n,) where what is found of the elements of x begins
  double *squares;          // squared distances
  int64_t *which;           // the nearest elements, counted from the first of their set
};
// Pairs of one set of x, and some of its elements.
struct ElementTask {
  int64_t first, last;      // pairs
  int64_t from, to;         // elements, counted from the first of the set
};

// Floats from one row to the next: at a distance of a power of two all would fall into the same set of the first cache.
__attribute__((always_inline)) inline int64_t row_step(int64_t dim) { return dim % 256 ? dim : dim + 16; }

// Elements whose nearest anchors are asked for; see anchors.h.
struct Anchors {
  const float *points;      // (n_points, dim)
  const float *anchors;     // (n_anchors, dim)
  int64_t n_points, n_anchors, dim, n_near;
  const float *middle;      // (dim,)
  const float *rows;        // (n_anchors filled up to whole tiles, row_step): anchors about the middle
  const float *start;       // - |row|^2 / 2; of what fills up: - infinity
  int32_t *ids;             // (n_points, n_near)
  double *distances;        // (n_points, n_near)
};

// Distance fields in eight bits, and the queries whose one-sided distances they bound; see bounds.h.
struct FieldBounds {
  const uint8_t *fields;    // (sets, n_anchors)
  const int64_t *rows;      // (n_sets,) which of the sets; null: all of them
  int64_t n_sets, n_anchors;
  const bool *used;         // (n_anchors / 16,) whether any of so many anchors is near an element
  const int32_t *near;      // (elements, n_near) anchors
  const uint8_t *away;      // (elements, n_near) steps to them, rounded up
  int64_t n_near;
  const int64_t *offsets;   // (n_queries + 1,)
  int64_t n_queries, most_elements;
  const float *weights;     // (elements,)
  bool uniform;             // all weights are 0 or 1
  const double *limits;     // (n_queries,) the mass that counts; null: all of it
  bool squared;
  const double *low_scale, *high_scale;  // (n_queries,) what the sums are multiplied by
  double *lower, *upper;    // (n_queries, n_sets)
};

// Shares of mass in eight bits, and fields of queries to multiply them with.
struct Histograms {
  const uint8_t *shares;    // (sets, n_anchors)
  const int64_t *rows;      // (n_sets,) which of the sets; null: all of them
  int64_t n_sets, n_anchors, n_queries;
  const float *fields;      // (n_queries, n_anchors)
  double *out;              // (n_queries, n_sets)
};

// Vectors to compare with every query by their largest difference.
struct Differences {
  const float *queries;      // (n_queries, dim)
  Vectors vectors;
  const int64_t *positions;  // (n_places,) of the vectors that may be found; null: all of them
  const double *radius;      // (n_queries,)
  void (*put)(void *sink, int64_t query, double largest, int64_t position);
};

// What the neighbours of each element within its set say, for elements of two or three coordinates; see local.h.
struct LocalShape {
  const float *points;        // (P, dim)
  const float *weights;       // (P,) or null
  const int64_t *offsets;     // (n_sets + 1,)
  int64_t dim;                // 2 or 3
  const int64_t *sizes;       // (n_sizes,) elements of a neighbourhood, increasing
  int64_t n_sizes;
  const double *scale;        // what each column but the coordinates is multiplied by; null: 1
  float *out;                 // (P, dim + 1 + n_sizes * (2 dim + 1))
  int64_t largest;            // elements of the largest set
};

constexpr int64_t kDensePanel = 64;  // outputs of a panel, whatever the instruction set

// A dense layer of a network, and the rows that it is applied to; see dense.h.
struct Dense {
  const float *rows;     // (n, dim)
  const float *weights;  // (panels, dim, kDensePanel)
  const float *bias;     // (panels, kDensePanel)
  int64_t dim, n_outputs;
  float slope;           // of what is below zero
  float *out;            // (n, n_outputs)
};

// One layer of a network over elements. Outputs are padded to whole vectors. Matrices are laid out in tiles of outputs, one after the other: the tile
// from output o on begins at o * n_in, and has a row of its outputs for each input.
struct ElementLayer {
  int64_t n_in, n_out;
  const float *own;           // (tiles, n_in, outputs of a tile)
  const float *neighbors;     // the same, or null
  const float *scale, *shift; // (n_out, padded)
};

// A network over elements and their neighbours within the set; see element_network.h.
struct ElementNetwork {
  const float *points;        // (P, dim)
  const float *weights;       // (P,) or null
  const int64_t *offsets;     // (n_sets + 1,)
  int64_t dim;
  int64_t n_neighbors;        // 0: no layer has neighbours
  const float *inputs;        // (P, n_in of the first layer)
  const ElementLayer *layers;
  int64_t n_layers;
  float slope;
  float *out;                 // (P, columns), with contiguous rows
  int64_t columns, out_step;
  const volatile int32_t *stop;  // nothing is to be finished once it is not zero; null: never
  int64_t largest;            // elements of the largest set
};

struct Kernel {
  const char *name;
  int64_t lanes;
  size_t (*scratch_bytes)(const Embedding &);
  void (*embed)(const Embedding &, int64_t set, int64_t group, void *scratch);
  void (*transport)(const Transport &, int64_t pair);
  void (*squares)(const Pairs &, int64_t query);
  void (*prefixes)(const Prefixes &, int64_t tile, void *scratch);
  void (*nearest_lists)(const Lists &, const float *rows, int64_t n, int64_t *list, float *square);
  void (*ladder)(const Ladder &, int64_t first, int64_t last);
  void (*flat)(const Flat &, int64_t first, int64_t last);
  int64_t (*true_positions)(const bool *mask, int64_t n, int64_t *out);
  int64_t (*near_codes)(const Codes &, const uint64_t *query, int64_t first, int64_t last, int64_t limit, uint64_t *found);
  void (*rotate)(const Rotation &, int64_t vector, void *spare);
  int64_t field_anchors;  // of a block
  void (*field)(const Field &, int64_t set, int64_t block);
  void (*largest_within)(const Differences &, int64_t query, int64_t first, int64_t last, void *sink);
  size_t (*local_bytes)(const LocalShape &);
  void (*local_shape)(const LocalShape &, int64_t set, void *scratch);
  int64_t (*layer_tile)(int64_t left);    // outputs of the next tile, where so many are left
  size_t (*network_bytes)(const ElementNetwork &);
  void (*element_network)(const ElementNetwork &, int64_t set, void *scratch);
  int64_t (*element_lanes)(int64_t dim);  // elements of x of a task, at most
  size_t (*element_bytes)(int64_t dim);
  void (*nearest_elements)(const ElementPairs &, const ElementTask &, void *scratch);
  int64_t (*anchor_points)();  // of a panel
  int64_t (*anchor_tile)();
  size_t (*anchor_bytes)(const Anchors &);
  void (*nearest_anchors)(const Anchors &, int64_t panel, void *scratch);
  int64_t block_sets;  // whose fields are worked on together
  size_t (*bounds_bytes)(const FieldBounds &);
  void (*field_bounds)(const FieldBounds &, int64_t block, void *scratch);
  void (*histogram_products)(const Histograms &, int64_t first, int64_t last);
  void (*dense)(const Dense &, int64_t panel, int64_t first, int64_t last);
  int64_t (*gradient_width)(int64_t dim);
  size_t (*gradient_bytes)(const Gradient &);
  void (*gradient)(const Gradient &, int64_t block, void *scratch);
  size_t (*transport_gradient_bytes)(const TransportGradient &);
  void (*transport_gradient)(const TransportGradient &, int64_t block, void *scratch);
  double (*exchange_rate)(int64_t rounds);  // compare-exchanges done, for the benchmark's floor
};

namespace generic { extern const Kernel kernel; }
#if defined(SLOSH_X86_VARIANTS)
namespace avx2 { extern const Kernel kernel; }
namespace avx512 { extern const Kernel kernel; }
namespace avx512vnni { extern const Kernel kernel; }
#endif

}  // namespace slosh
