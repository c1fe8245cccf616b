// values[slice][point] = <directions[slice], points[point]> on tensor cores, eight features at a time. With PRODUCTS 3 each factor is
// the sum of two numbers of TF32, and three of their four products are taken, so that nothing is lost but the last bits of float32; what
// eight features make is added up by plain additions, since tensor cores cut sums off rather than round them. With PRODUCTS 1 factors are
// rounded to TF32. A value depends on its point and its slice alone, so it has the same bits whatever else is computed. WIDE: dim is a
// multiple of 4, and rows begin at a multiple of 16 bytes.

#define POINTS 128
#define SLICES 64
#define FEATURES 16
#define PITCH (FEATURES + 4) // the 32 threads of a warp then read from 32 banks
#define STAGES 3
#define THREADS 128

__device__ __forceinline__ void fetch_to(float *shared, const float *from, int bytes) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(shared);
#if WIDE
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
#endif
}

// The nearest number of TF32, by whole numbers: the instruction that converts runs at a quarter of their rate.
__device__ __forceinline__ unsigned rounded(float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }

// c += a b for a of 16 slices by 8 features, b of 8 features by 8 points, all in fragments.
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
project(const float *points, long long n_points, int dim, const float *directions, int n_slices, float *values, long long stride) {
  __shared__ __align__(16) float held[STAGES][(POINTS + SLICES) * PITCH];
  const int thread = threadIdx.x, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const long long first = (long long)blockIdx.x * POINTS;
  const int from = blockIdx.y * SLICES;
  constexpr int WIDTH = WIDE ? 4 : 1, ACROSS = FEATURES / WIDTH, ROWS = THREADS / ACROSS;
  const int k = thread % ACROSS * WIDTH, row = thread / ACROSS;
  const int n_here = (int)min(n_points - first, (long long)POINTS), n_along = min(n_slices - from, SLICES);
  const float *own_points = points + (first + row) * dim + k, *own_slices = directions + (long long)(from + row) * dim + k;
  // Rows of points, and behind them rows of directions; what lies beyond the last one, or the last feature, is not read, but zero.
  auto fetch = [&](int c, float *to) {
    const int bytes = c + k < dim ? 4 * WIDTH : 0;
    to += row * PITCH + k;
#pragma unroll WIDE ? 4 : 2
    for (int r = 0; r < POINTS; r += ROWS) fetch_to(to + r * PITCH, own_points + r * dim + c, r + row < n_here ? bytes : 0);
#pragma unroll 2
    for (int r = 0; r < SLICES; r += ROWS) fetch_to(to + (POINTS + r) * PITCH, own_slices + r * dim + c, r + row < n_along ? bytes : 0);
  };
  float sums[4][4][4] = {};
  const int turns = (dim + FEATURES - 1) / FEATURES;
#pragma unroll
  for (int turn = 0; turn < STAGES - 1; ++turn) {
    if (turn < turns) fetch(turn * FEATURES, held[turn]);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int turn = 0; turn < turns; ++turn) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads(); // this turn's features are here, and nobody reads those of the turn before any more
    if (turn + STAGES - 1 < turns) fetch((turn + STAGES - 1) * FEATURES, held[(turn + STAGES - 1) % STAGES]);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float *near = held[turn % STAGES] + warp * 32 * PITCH, *along = held[turn % STAGES] + POINTS * PITCH;
#pragma unroll
    for (int f = 0; f < FEATURES; f += 8) {
      unsigned b[4][2], rest[4][2];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = near[(j * 8 + g) * PITCH + f + t + i * 4];
          b[j][i] = rounded(x);
          if (PRODUCTS == 3) rest[j][i] = rounded(x - __uint_as_float(b[j][i]));
        }
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        unsigned a[4], less[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = along[(s * 16 + g + i % 2 * 8) * PITCH + f + t + i / 2 * 4];
          a[i] = rounded(x);
          if (PRODUCTS == 3) less[i] = rounded(x - __uint_as_float(a[i]));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (PRODUCTS == 3) {
            float part[4] = {};
            multiply(part, less, b[j]);
            multiply(part, a, rest[j]);
            multiply(part, a, b[j]);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[s][j][i] += part[i];
          } else {
            multiply(sums[s][j], a, b[j]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slice = s * 16 + half * 8 + g, p = warp * 32 + t * 2;
      if (slice >= n_along) continue;
      float *to = values + (from + slice) * stride + first + p;
#pragma unroll
      for (int j = 0; j < 32; j += 8) {
        if (p + j + 1 < n_here) *(float2 *)(to + j) = make_float2(sums[s][j / 8][half * 2], sums[s][j / 8][half * 2 + 1]);
        else if (p + j < n_here) to[j] = sums[s][j / 8][half * 2];
      }
    }
}
