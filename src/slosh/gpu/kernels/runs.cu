// Sorts runs of large sets: a run is up to SPAN values of a set, one warp sorts one along one slice, in place. No zero stays negative.

extern "C" __global__ void __launch_bounds__(128)
runs(float *values, long long stride, const long long *starts, const int *sizes, int n_runs, int n_slices, int plus, int minus) {
  extern __shared__ float shared[];
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
  const int run = warp / n_slices;
  if (run >= n_runs) return;
  float *at = values + (warp % n_slices) * stride + starts[run];
  const int size = sizes[run];
  float *sorted = shared + (threadIdx.x >> 5) * WIDTH;
  {
    Key v[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
      const int element = i * LANES + lane;
      v[i] = element < size ? to_key(at[element] + 0.f) : LAST;
    }
    sort_group(v, lane, plus, minus);
#pragma unroll
    for (int i = 0; i < KEYS; ++i) sorted[PLACE(lane * KEYS + i)] = to_value(v[i]);
  }
  __syncwarp();
  for (int k = lane; k < size; k += 32) at[k] = sorted[PLACE(k)];
}
