// values[slice][point] = <directions[slice], points[point]>: a product in tiles. Each number is one chain of multiply-adds in the order
// of the features, beginning with zero, so it has the same bits whatever else is computed.

#define POINTS 128
#define SLICES 64
#define FEATURES 8
#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
project(const float *points, long long n_points, int dim, const float *directions, int n_slices, float *values, long long stride) {
  __shared__ __align__(16) float a[2][FEATURES][POINTS + 4];
  __shared__ __align__(16) float b[2][FEATURES][SLICES + 4];
  const int thread = threadIdx.x, x = thread % 16, y = thread / 16, k = thread % FEATURES, row = thread / FEATURES;
  const long long first = (long long)blockIdx.x * POINTS;
  const int from = blockIdx.y * SLICES;
  float next_a[POINTS * FEATURES / THREADS], next_b[SLICES * FEATURES / THREADS], sums[8][8] = {};
  // The next features are fetched while the ones before are multiplied.
  auto fetch = [&](int c) {
#pragma unroll
    for (int t = 0; t < POINTS * FEATURES / THREADS; ++t) {
      const long long p = first + row + t * (THREADS / FEATURES);
      next_a[t] = p < n_points && c + k < dim ? __ldg(points + p * dim + c + k) : 0.f;
    }
#pragma unroll
    for (int t = 0; t < SLICES * FEATURES / THREADS; ++t) {
      const int s = from + row + t * (THREADS / FEATURES);
      next_b[t] = s < n_slices && c + k < dim ? __ldg(directions + (long long)s * dim + c + k) : 0.f;
    }
  };
  fetch(0);
  for (int c = 0, turn = 0; c < dim; c += FEATURES, turn ^= 1) {
#pragma unroll
    for (int t = 0; t < POINTS * FEATURES / THREADS; ++t) a[turn][k][row + t * (THREADS / FEATURES)] = next_a[t];
#pragma unroll
    for (int t = 0; t < SLICES * FEATURES / THREADS; ++t) b[turn][k][row + t * (THREADS / FEATURES)] = next_b[t];
    __syncthreads();
    if (c + FEATURES < dim) fetch(c + FEATURES);
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      const float4 p0 = *(const float4 *)&a[turn][f][x * 4], p1 = *(const float4 *)&a[turn][f][64 + x * 4];
      const float4 s0 = *(const float4 *)&b[turn][f][y * 4], s1 = *(const float4 *)&b[turn][f][32 + y * 4];
      const float p[8] = {p0.x, p0.y, p0.z, p0.w, p1.x, p1.y, p1.z, p1.w}, s[8] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(p[j], s[i], sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int slice = from + (i / 4) * 32 + y * 4 + i % 4;
    if (slice >= n_slices) continue;
    float *to = values + slice * stride + first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int p = half * 64 + x * 4;
      if (first + p + 3 < n_points) {
        *(float4 *)(to + p) = make_float4(sums[i][half * 4], sums[i][half * 4 + 1], sums[i][half * 4 + 2], sums[i][half * 4 + 3]);
      } else {
        for (int j = 0; j < 4; ++j)
          if (first + p + j < n_points) to[p + j] = sums[i][half * 4 + j];
      }
    }
  }
}
