// The quantiles of small sets whose elements have weights. The host defines WEIGHTED as 1, WARPS (of a block), AVERAGE
// and RESIDUAL.

extern "C" __global__ void __launch_bounds__(32 * WARPS)
weighted(Work work, const float *reference, float scale, int n_quantiles, float *out, long long out_stride, float *residual) {
  extern __shared__ double shared[];
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, in_warp = threadIdx.x & 31;
  const int lane = in_warp % LANES, group = in_warp / LANES, turns = (work.n_slices + GROUPS - 1) / GROUPS;
  const int at = warp / turns;
  if (at >= work.n_sets) return;
  const int set = work.sets[at];
  const long long from = work.offsets[set];
  const int size = int(work.offsets[set + 1] - from), M = n_quantiles;
  const int asked = (warp % turns) * GROUPS + group, slice = min(asked, work.n_slices - 1);
  double *starts = shared + (threadIdx.x >> 5) * 32 + group * LANES;  // the weight before the elements of each thread of the group
  float *values = (float *)(shared + WARPS * 32) + ((threadIdx.x >> 5) * GROUPS + group) * 2 * WIDTH, *weights = values + WIDTH;
  double own = 0;
  int n = 0;  // elements with a weight
  {
    Key v[KEYS];
    load_keys(v, work, from, size, slice, lane);
    sort_group(v, lane, work.plus, work.minus);
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
      const int rank = lane * KEYS + i;
      const bool there = v[i] != LAST;
      const float weight = there ? __int_as_float(int(v[i])) : 0.f;
      values[PLACE(rank)] = to_value(int(v[i] >> 32));
      weights[PLACE(rank)] = weight;
      own += weight, n += there;
    }
  }
  double upto = own;
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) {
    const double before = __shfl_up_sync(EVERY, upto, step, LANES);
    if (lane >= step) upto += before;
    n += __shfl_xor_sync(EVERY, n, step);
  }
  starts[lane] = upto - own;
  const double total = __shfl_sync(EVERY, upto, LANES - 1, LANES);
  __syncwarp();
  const bool real = asked < work.n_slices;
  float *row = out + (long long)set * out_stride + (long long)slice * M;
  const double width = total / M;
  double squares = 0;
  for (int m = lane; m < M; m += LANES) {
    // The element in which the place t of the cumulative weight lies: first the thread that held it, then the element.
    auto find = [&](double t, double &before) {
      int thread = 0;
#pragma unroll
      for (int step = LANES / 2; step > 0; step /= 2)
        if (starts[thread + step] <= t) thread += step;
      int i = min(thread * KEYS, n - 1);
      before = starts[i / KEYS];
      for (int k = i / KEYS * KEYS; k < i; ++k) before += weights[PLACE(k)];
      while (i + 1 < n && before + weights[PLACE(i)] <= t) before += weights[PLACE(i)], ++i;
      return i;
    };
    double before;
    float q;
#if AVERAGE
    const double t = width * m;
    int i = find(t, before);
    const int begin = i;
    const double first = values[PLACE(i)], first_left = max(before + double(weights[PLACE(i)]) - t, 0.0);
    double left = first_left, need = width, sum = 0;
    const bool to_the_end = m + 1 == M;
    while ((need > left || to_the_end) && i + 1 < n) {
      sum += left * (double(values[PLACE(i)]) - first);
      need -= left;
      ++i;
      left = weights[PLACE(i)];
    }
    const double taken = to_the_end ? left : min(need, left);
    sum += taken * (double(values[PLACE(i)]) - first);
    const double mean = first + sum / width;
    q = float(mean);
#if RESIDUAL
    for (int k = begin; k <= i; ++k) {
      const double x = double(values[PLACE(k)]) - mean;
      squares += x * x * (k == i ? taken : k == begin ? first_left : double(weights[PLACE(k)]));
    }
#endif
#else
    q = values[PLACE(n - 1)];
    if (m + 1 < M) {
      // Q rises from the value below to that of the elements at t while the lightest of these counts, and stays there.
      const double t = width * (m + 1);
      int i = find(t, before);
      if (before >= t && i > 0) {  // t is where the element before ends
        --i;
        before -= weights[PLACE(i)];
      }
      const float value = values[PLACE(i)];
      while (i > 0 && values[PLACE(i - 1)] == value) {
        --i;
        before -= weights[PLACE(i)];
      }
      const double low = i > 0 ? values[PLACE(i - 1)] : value, lightest = weights[PLACE(i)];
      q = t < before + lightest ? float(low + (value - low) * max(t - before, 0.0) / lightest) : value;
    }
#endif
    if (real) row[m] = (q - (reference ? __ldg(reference + slice * M + m) : 0.f)) * scale;
  }
#if RESIDUAL
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) squares += __shfl_xor_sync(EVERY, squares, step);
  if (lane == 0 && real) residual[(long long)set * work.n_slices + slice] = float(squares / total);
#endif
}
