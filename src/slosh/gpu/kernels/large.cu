// Quantiles of large sets, whose runs are sorted: the value at a rank by deciding its bits, then the sums between ranks, run by run. And
// the gradient of their values. AVERAGE is the rule.

#define EVERY 0xffffffffu

__device__ __forceinline__ unsigned to_order(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_order(unsigned order) {
  return __uint_as_float(order ^ ((order >> 31) ? 0x80000000u : 0xffffffffu));
}

// How many of the sorted values [low, high) are below `order`, and `low` more.
__device__ __forceinline__ int count_below(const float *run, int low, int high, unsigned order) {
  while (low < high) {
    const int middle = (low + high) >> 1;
    if (to_order(run[middle]) < order) low = middle + 1;
    else high = middle;
  }
  return low;
}

struct Large {
  const float *values;        // (slices, stride), each run of a set sorted
  long long stride;
  const long long *starts;    // (n_sets,) where the values of a large set begin
  const long long *sizes;     // (n_sets,)
  const long long *cut_starts;  // (n_sets,) where the cuts of a set begin in `cuts`, for the first slice; runs times ranks a slice
  long long cut_stride;         // cuts of a slice
  int n_sets, n_slices, n_ranks;
};

// For each set, slice and rank: the value at that rank (from 0), and how many of each run are smaller. `ranks` (n_sets, n_ranks).
// `width` threads work on one rank.
extern "C" __global__ void __launch_bounds__(128)
cuts(Large work, const long long *ranks, int width, float *found, int *cuts) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long job = thread / width, n_jobs = (long long)work.n_sets * work.n_slices * work.n_ranks;
  const bool real = job < n_jobs;
  const long long safe = real ? job : n_jobs - 1;
  const int lane = int(thread % width), j = int(safe % work.n_ranks), slice = int(safe / work.n_ranks % work.n_slices);
  const int set = int(safe / work.n_ranks / work.n_slices);
  const long long size = work.sizes[set], rank = ranks[(long long)set * work.n_ranks + j];
  const int n_runs = int((size + MAX_RUN - 1) / MAX_RUN);
  const float *column = work.values + slice * work.stride + work.starts[set];
  const int first_size = int(min((long long)MAX_RUN, size - (long long)lane * MAX_RUN));
  int low = 0, high = lane < n_runs ? first_size : 0;  // of this thread's first run: what is not yet decided
  unsigned order = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const unsigned trial = order | (1u << bit);
    const int cut = lane < n_runs ? count_below(column + (long long)lane * MAX_RUN, low, high, trial) : 0;
    long long below = cut;
    for (int run = lane + width; run < n_runs; run += width) {
      const int in_run = int(min((long long)MAX_RUN, size - (long long)run * MAX_RUN));
      below += count_below(column + (long long)run * MAX_RUN, 0, in_run, trial);
    }
    for (int step = 1; step < width; step *= 2) below += __shfl_xor_sync(EVERY, below, step);
    if (below <= rank) order = trial, low = cut;
    else high = cut;
  }
  if (!real) return;
  const long long at = ((long long)set * work.n_slices + slice) * work.n_ranks + j;
  if (lane == 0) found[at] = from_order(order);
  if (!cuts) return;
  int *row = cuts + slice * work.cut_stride + work.cut_starts[set] + (long long)j * n_runs;
  if (lane < n_runs) row[lane] = low;
  for (int run = lane + width; run < n_runs; run += width) {
    const int in_run = int(min((long long)MAX_RUN, size - (long long)run * MAX_RUN));
    row[run] = count_below(column + (long long)run * MAX_RUN, 0, in_run, order);
  }
}

// The sum of f over the values of a run between two cuts, by the threads of a warp: eight in float32, those sums in double.
template <class Function> __device__ __forceinline__ double sum_run(const float *run, int from, int to, int lane, Function f) {
  double total = 0;
  float some = 0;
  int n = 0;
  for (int k = from + lane; k < to; k += 32) {
    some += f(run[k]);
    if (++n == 8) total += some, some = 0, n = 0;
  }
  return total + some;
}

// The mean of each bin, one warp a bin. Ranks 1 ... M - 1 times size / M were cut, so n_ranks is M - 1. With `squares`, also the bin's
// part of the squared residual of the column, (n_sets, n_slices, M).
extern "C" __global__ void __launch_bounds__(128)
bins(Large work, const float *found, const int *cuts, int n_quantiles, const int *sets, const float *reference, float scale, float *out,
     long long out_stride, double *squares) {
  const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  const int lane = threadIdx.x & 31, M = n_quantiles;
  if (warp >= (long long)work.n_sets * work.n_slices * M) return;
  const int m = int(warp % M), slice = int(warp / M % work.n_slices), set = int(warp / M / work.n_slices);
  const long long size = work.sizes[set];
  const int n_runs = int((size + MAX_RUN - 1) / MAX_RUN);
  const float *column = work.values + slice * work.stride + work.starts[set];
  const float *values = found + ((long long)set * work.n_slices + slice) * (M - 1);
  const int *rows = cuts + slice * work.cut_stride + work.cut_starts[set];
  const int *begin = m > 0 ? rows + (long long)(m - 1) * n_runs : nullptr, *end = m + 1 < M ? rows + (long long)m * n_runs : nullptr;
  const float first = m > 0 ? values[m - 1] : column[0], last = m + 1 < M ? values[m] : first;
  const float base = m > 0 ? first : last;
  double sum = 0;
  long long below_first = 0, below_last = 0;
  for (int run = 0; run < n_runs; ++run) {
    const int in_run = int(min((long long)MAX_RUN, size - (long long)run * MAX_RUN));
    const int from = begin ? begin[run] : 0, to = end ? end[run] : in_run;
    sum += sum_run(column + (long long)run * MAX_RUN, from, to, lane, [&](float x) { return x - base; });
    below_first += from, below_last += to;
  }
  // How much of the bin's ends lies at the values of the two cuts, in elements.
  const double at_first = m > 0 ? double(m) * double(size) / M - double(below_first) : 0.0;
  const double at_last = m + 1 < M ? double(m + 1) * double(size) / M - double(below_last) : 0.0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(EVERY, sum, step);
  sum += at_last * double(last - base) - at_first * double(first - base);
  const float mean = base + float(sum * M / double(size));
  if (squares) {
    // The elements at the value of the first cut are counted, and not summed: some may be of the bins before, and what is rounded in their
    // squares would not go away with them.
    double total = 0;
    int n_first = 0;
    for (int run = 0; run < n_runs; ++run) {
      const int in_run = int(min((long long)MAX_RUN, size - (long long)run * MAX_RUN));
      const int from = begin ? begin[run] : 0, to = end ? end[run] : in_run;
      total += sum_run(column + (long long)run * MAX_RUN, from, to, lane, [&](float x) {
        n_first += x == first;
        return x == first ? 0.f : (x - mean) * (x - mean);
      });
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      total += __shfl_xor_sync(EVERY, total, step);
      n_first += __shfl_xor_sync(EVERY, n_first, step);
    }
    const double low = double(first) - mean, high = double(last) - mean;
    total += at_last * high * high + (n_first - at_first) * low * low;
    if (lane == 0) squares[warp] = max(total, 0.0) / double(size);
  }
  if (lane == 0) {
    const long long place = (long long)slice * M + m;
    out[(long long)sets[set] * out_stride + place] = (mean - (reference ? reference[place] : 0.f)) * scale;
  }
}

// For each value that was found: how many values of its set are below it, and how many are not above it. `width` threads work on one.
extern "C" __global__ void __launch_bounds__(128)
around(Large work, const float *found, int width, int *counts) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long job = thread / width, n_jobs = (long long)work.n_sets * work.n_slices * work.n_ranks;
  const long long safe = min(job, n_jobs - 1);
  const int lane = int(thread % width), slice = int(safe / work.n_ranks % work.n_slices), set = int(safe / work.n_ranks / work.n_slices);
  const long long size = work.sizes[set];
  const float *column = work.values + slice * work.stride + work.starts[set];
  const unsigned order = to_order(found[safe]);
  int below = 0, upto = 0;
  for (long long at = (long long)lane * MAX_RUN; at < size; at += (long long)width * MAX_RUN) {
    const int in_run = int(min((long long)MAX_RUN, size - at)), first = count_below(column + at, 0, in_run, order);
    below += first, upto += count_below(column + at, first, in_run, order + 1);
  }
  for (int step = 1; step < width; step *= 2) below += __shfl_xor_sync(EVERY, below, step), upto += __shfl_xor_sync(EVERY, upto, step);
  if (lane == 0 && job < n_jobs) counts[2 * job] = below, counts[2 * job + 1] = upto;
}

// Runs of sets as they were before they were sorted, and their sets, by number among the large ones.
struct Runs {
  const float *values;
  const long long *starts;
  const int *sizes, *sets;
  int n;
};

// The gradient of values, (slices, stride), from `upstream`, that of the vectors. A block works on a run along a slice. What an element gets
// depends on its rank, and elements that were not found at a rank that was asked for lie within one bin; equal ones share.
extern "C" __global__ void __launch_bounds__(128)
spread(Large work, Runs runs, const float *found, const int *counts, const float *upstream, long long upstream_stride, const int *sets,
       float scale, int n_quantiles, float *out) {
  const int run = int(blockIdx.x / work.n_slices), slice = int(blockIdx.x % work.n_slices), set = runs.sets[run], M = n_quantiles;
  const long long size = work.sizes[set], at = ((long long)set * work.n_slices + slice) * work.n_ranks;
  const long long place = slice * work.stride + runs.starts[run];
  const float *above = upstream + sets[set] * upstream_stride + (long long)slice * M;
  const float unit = scale / float(size);
  for (int i = threadIdx.x; i < runs.sizes[run]; i += blockDim.x) {
    const unsigned order = to_order(runs.values[place + i] + 0.f);  // no negative zero
    const int p = count_below(found + at, 0, work.n_ranks, order);
    const bool is_found = p < work.n_ranks && to_order(found[at + p]) == order;
    float sum = 0;
    int n_equal = 1;
    if (is_found) {
      const long long below = counts[2 * (at + p)], upto = counts[2 * (at + p) + 1];
      n_equal = int(upto - below);
#if AVERAGE
      const long long first = below * M, last = upto * M;
      for (int m = int(first / size); m < M && m * size < last; ++m)
        sum += above[m] * float(min(last, (m + 1) * size) - max(first, m * size));
#else
      // Value m lies between the elements i and i + 1, i = floor(((m + 1) size - M) / M).
      for (int m = max(0, int(((below - 1) * M + M) / size) - 1); m < M; ++m) {
        const long long where = max((m + 1) * size - M, 0ll), low = where / M;
        const float part = float(int(where % M)) / float(M);
        if (low >= upto) break;
        float share = 0;
        if (low >= below) share += 1.f - part;
        if (low + 1 >= below && low + 1 < upto) share += part;
        sum += above[m] * share;
      }
      sum *= float(size);
#endif
    } else {
#if AVERAGE
      sum = above[p] * float(M);
#endif
    }
    out[place + i] = sum * unit / float(n_equal);
  }
}
