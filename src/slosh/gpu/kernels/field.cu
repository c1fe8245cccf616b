// The squared distance from each anchor to the nearest element of each set. A thread has an anchor of DIM features, and goes through a run
// of elements of one set; runs of the same set meet in a minimum, which does not depend on their order. The host defines DIM.

extern "C" __global__ void __launch_bounds__(128)
field(const float *points, const unsigned char *idle, const long long *runs, const int *set_of_run, int n_runs, const float *anchors,
      int n_anchors, float *squares) {
  const int anchor = blockIdx.y * blockDim.x + threadIdx.x, run = blockIdx.x;
  if (run >= n_runs || anchor >= n_anchors) return;
  float at[DIM];
#pragma unroll
  for (int c = 0; c < DIM; ++c) at[c] = anchors[(long long)anchor * DIM + c];
  float least = __int_as_float(0x7f800000);
  const long long last = runs[run + 1];
#pragma unroll 4
  for (long long p = runs[run]; p < last; ++p) {
    float square = 0;
#pragma unroll
    for (int c = 0; c < DIM; ++c) {
      const float away = __ldg(points + p * DIM + c) - at[c];
      square = fmaf(away, away, square);
    }
    if (idle && idle[p]) continue;
    least = fminf(least, square);
  }
  // What is not negative has the order of its bits.
  atomicMin((unsigned *)(squares + (long long)set_of_run[run] * n_anchors + anchor), __float_as_uint(least));
}
