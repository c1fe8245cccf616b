// The quantiles of small sets, and their gradient. The host defines WARPS (of a block), AVERAGE (the rule),
// RESIDUAL and BACKWARD.

// The largest power of two that is at most SPAN.
#define HIGHEST \
  (SPAN >= 2048 ? 2048 : SPAN >= 1024 ? 1024 : SPAN >= 512 ? 512 : SPAN >= 256 ? 256 : SPAN >= 128 ? 128 : SPAN >= 64 ? 64 \
   : SPAN >= 32 ? 32 : SPAN >= 16 ? 16 : 8)

#define SHORT_M (0x7fffffff / (SPAN + 1) - 1)  // with so many quantiles ranks times M fit 32 bits, which are divided faster

// The sum of f(rank) over the ranks [from, to): in float32 where they are few, otherwise eight at a time, and those sums in double.
template <class Function> __device__ __forceinline__ float sum_ranks(int from, int to, Function f) {
  float rest = 0;
  if (to - from < 32) {
    for (int k = from; k < to; ++k) rest += f(k);
    return rest;
  }
  double total = 0;
  int k = from;
  for (; k + 8 <= to; k += 8)
    total += ((f(k) + f(k + 1)) + (f(k + 2) + f(k + 3))) + ((f(k + 4) + f(k + 5)) + (f(k + 6) + f(k + 7)));
  for (; k < to; ++k) rest += f(k);
  return float(total + rest);
}

#if BACKWARD
// What the elements of the ranks [below, upto) of a column get of the gradient of its quantiles, times size. A Whole holds (M + 1) (size + 1).
template <class Whole> __device__ __forceinline__ float share_of(const float *upstream, int M, int size, int below, int upto) {
  float sum = 0;
#if AVERAGE
  const Whole last = Whole(upto) * M;
  Whole begin = Whole(below) * M;
  int m = int(begin / size);
  for (Whole end = Whole(m + 1) * size;; end += size, ++m) {
    sum += __ldg(upstream + m) * float(min(end, last) - begin);
    if (end >= last) return sum;
    begin = end;
  }
#else
  // Value m lies between the elements i and i + 1, i = floor(((m + 1) size - M) / M); those below the first are the first.
  for (int m = max(0, int((Whole(below - 1) * M + M) / size) - 1); m < M; ++m) {
    const Whole where = Whole(m + 1) * size - M;
    const int low = where > 0 ? int(where / M) : 0;
    const float part = where > 0 ? float(int(where - Whole(low) * M)) / float(M) : 0.f;
    if (low >= upto) break;
    float share = 0;
    if (low >= below) share += 1.f - part;
    if (low + 1 >= below && low + 1 < upto) share += part;
    sum += __ldg(upstream + m) * share;
  }
  return sum * float(size);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
columns(Work work, const float *reference, float scale, int n_quantiles, float *out, long long out_stride, float *residual) {
  extern __shared__ float shared[];
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, in_warp = threadIdx.x & 31;
  const int lane = in_warp % LANES, group = in_warp / LANES, turns = (work.n_slices + GROUPS - 1) / GROUPS;
  const int at = warp / turns;
  if (at >= work.n_sets) return;
  const int set = work.sets[at];
  const long long from = work.offsets[set];
  const int size = int(work.offsets[set + 1] - from);
  const int asked = (warp % turns) * GROUPS + group, slice = min(asked, work.n_slices - 1);
  float *sorted = shared + ((threadIdx.x >> 5) * GROUPS + group) * WIDTH;
  {
    Key v[KEYS];
    load_keys(v, work, from, size, slice, lane);
    sort_group(v, lane, work.plus, work.minus);
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
      const int rank = lane * KEYS + i;
      sorted[PLACE(rank)] = to_value(v[i]);
    }
  }
  __syncwarp();
  const bool real = asked < work.n_slices;
  const int M = n_quantiles;
#if BACKWARD
  // `reference` is the gradient of the vectors here, and `out` that of the values, (slices, stride).
  const float *upstream = reference + (long long)set * out_stride + (long long)slice * M;
  const float unit = scale / float(size);
#pragma unroll 4
  for (int i = 0; i < KEYS; ++i) {
    const int element = i * LANES + lane;
    if (element >= size || !real) continue;
#if DIM > 0
    const float *p = work.points + from * DIM + element * DIM;
    float value = 0.f;
#pragma unroll
    for (int c = 0; c < DIM; ++c) value = fmaf(__ldg(p + c), __ldg(work.directions + slice * DIM + c), value);
#else
    const float value = __ldg(work.points + slice * work.stride + from + element);
#endif
    int below = 0;  // how many are smaller
#pragma unroll
    for (int step = HIGHEST; step > 0; step /= 2) {
      const int next = below + step;
      if (next <= size && sorted[PLACE(next - 1)] < value) below = next;
    }
    int upto = below + 1;  // how many are not larger: equal ones share what all of them get
    if (upto < size && sorted[PLACE(upto)] == value) {
      int rest = size - upto;
      while (rest > 0) {
        const int half = rest >> 1, middle = upto + half;
        if (sorted[PLACE(middle)] <= value) upto = middle + 1, rest -= half + 1;
        else rest = half;
      }
    }
    const float sum = M <= SHORT_M ? share_of<int>(upstream, M, size, below, upto) : share_of<long long>(upstream, M, size, below, upto);
    const int n_equal = upto - below;
    out[(long long)slice * work.stride + from + element] = n_equal > 1 ? sum * unit / float(n_equal) : sum * unit;
  }
#else
  float *row = out + (long long)set * out_stride + (long long)slice * M;
#if RESIDUAL
  double squares = 0;
#endif
#if AVERAGE
  // Bin m begins `rest / M` into element i, and ends `over / M` into element j. From one bin of this thread to its next one i grows by
  // `whole`, and `rest` by `part`, less M where that is too much.
  const int per_bin = size / M, left = size % M, whole = LANES * size / M, part = LANES * size % M;
  const float share = 1.f / float(M), density = float(M) / float(size);
  int i = lane * size / M, rest = lane * size % M;
#endif
  for (int m = lane; m < M; m += LANES) {
    float q;
#if AVERAGE
    int j = i + per_bin, over = rest + left;
    if (over >= M) over -= M, ++j;
    const float first = sorted[PLACE(i)];
    q = first;
    if (j > i) {
      const float middle = sorted[PLACE(i + (j - i) / 2)];
      const float head = float(M - rest) * share, tail = float(over) * share, last = over ? sorted[PLACE(j)] : middle;
      const float sum = sum_ranks(i + 1, j, [&](int k) { return sorted[PLACE(k)] - middle; });
      q = middle + (sum + ((first - middle) * head + (last - middle) * tail)) * density;
#if RESIDUAL
      squares += sum_ranks(i + 1, j, [&](int k) { const float x = sorted[PLACE(k)] - q; return x * x; });
      squares += (first - q) * (first - q) * head + (over ? (last - q) * (last - q) * tail : 0.f);
#endif
    }
    i += whole, rest += part;
    if (rest >= M) rest -= M, ++i;
#else
    const long long where = (long long)(m + 1) * size - M;
    q = sorted[0];
    if (where > 0) {
      const int i = int(where / M), part = int(where % M);
      q = sorted[PLACE(i)];
      if (part) q += (sorted[PLACE(i + 1)] - q) * (float(part) / float(M));
    }
#endif
    if (real) row[m] = (q - (reference ? __ldg(reference + slice * M + m) : 0.f)) * scale;
  }
#if RESIDUAL
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) squares += __shfl_xor_sync(EVERY, squares, step);
  if (lane == 0 && real) residual[(long long)set * work.n_slices + slice] = float(squares / size);
#endif
#endif
}
