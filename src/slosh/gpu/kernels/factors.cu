// The gradients of points and directions, given that of the values <direction, point>. It is read once for both. The host defines DIM,
// OF_POINTS, OF_DIRECTIONS, THREADS of a block, and RUNS: a thread has so many runs of four points.

#define ELEMENTS (THREADS * 4 * RUNS)
#define SLICES 64  // directions in shared memory
#define EVERY 0xffffffffu

// of_points (P, DIM) grows by the gradient of points. `parts` (blocks, slices, DIM) gets what a block's points add to that of directions.
extern "C" __global__ void __launch_bounds__(THREADS)
factors(const float *gradient, long long stride, const float *points, long long n_points, const float *directions, int n_slices,
        float *of_points, float *parts) {
  __shared__ float along[SLICES][DIM], sums[THREADS / 32][SLICES][DIM];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const long long block = (long long)blockIdx.x * ELEMENTS;
  float p[RUNS * 4][DIM], total[RUNS * 4][DIM] = {};
#pragma unroll
  for (int i = 0; i < RUNS * 4; ++i) {
    const long long at = block + i / 4 * (THREADS * 4) + thread * 4 + i % 4;
#pragma unroll
    for (int c = 0; c < DIM; ++c) p[i][c] = at < n_points ? __ldg(points + at * DIM + c) : 0.f;
  }
  for (int first = 0; first < n_slices; first += SLICES) {
    const int n = min(SLICES, n_slices - first);
    __syncthreads();
    for (int i = thread; i < n * DIM; i += THREADS) along[i / DIM][i % DIM] = directions[(long long)first * DIM + i];
    __syncthreads();
#pragma unroll 4
    for (int s = 0; s < n; ++s) {
      float sum[DIM] = {};
#pragma unroll
      for (int r = 0; r < RUNS; ++r) {
        const long long at = block + r * (THREADS * 4) + thread * 4;
        const float *from = gradient + (first + s) * stride + at;
        float g[4] = {};
        if (at + 3 < n_points) {
          const float4 four = __ldg((const float4 *)from);
          g[0] = four.x, g[1] = four.y, g[2] = four.z, g[3] = four.w;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (at + i < n_points) g[i] = __ldg(from + i);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int c = 0; c < DIM; ++c) {
#if OF_POINTS
            total[r * 4 + i][c] = fmaf(g[i], along[s][c], total[r * 4 + i][c]);
#endif
            sum[c] = fmaf(g[i], p[r * 4 + i][c], sum[c]);
          }
      }
#if OF_DIRECTIONS
#pragma unroll
      for (int c = 0; c < DIM; ++c) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum[c] += __shfl_xor_sync(EVERY, sum[c], step);
        if (lane == 0) sums[warp][s][c] = sum[c];
      }
#endif
    }
#if OF_DIRECTIONS
    __syncthreads();
    for (int i = thread; i < n * DIM; i += THREADS) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < THREADS / 32; ++w) sum += sums[w][i / DIM][i % DIM];
      parts[((long long)blockIdx.x * n_slices + first) * DIM + i] = sum;
    }
#endif
  }
#if OF_POINTS
#pragma unroll
  for (int i = 0; i < RUNS * 4; ++i) {
    const long long at = block + i / 4 * (THREADS * 4) + thread * 4 + i % 4;
    if (at >= n_points) break;
#pragma unroll
    for (int c = 0; c < DIM; ++c) of_points[at * DIM + c] += total[i][c];
  }
#endif
}
