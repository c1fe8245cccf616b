// Columns sorted in registers. A column is the values of one set along one slice. A group of LANES threads of a warp holds it, KEYS values
// a thread, and sorts it: each thread by a network, then the threads of the group by merging. The host defines LANES, KEYS, DIM (features
// of a point; 0: the values were projected before) and the macros SORT and MERGE.

#define SPAN (LANES * KEYS)
#define GROUPS (32 / LANES)
#define PLACE(rank) ((rank) + ((rank) >> 5))  // spreads the ranks that threads write at once over the banks of shared memory
#define WIDTH (PLACE(SPAN) | 1)
#define EVERY 0xffffffffu
#if WEIGHTED
typedef long long Key;  // the value, and below it the bits of the weight: of equal values the lightest comes first
#define LAST 0x7fffffffffffffffLL
#else
typedef int Key;
#define LAST 0x7fffffff  // above all values: an empty place
#endif

// The same whole numbers in the same order as the values, and back.
__device__ __forceinline__ int to_key(float value) {
  const int bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float to_value(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7fffffff)); }

#define BY_ORDER(a, b) \
  { \
    const Key low = min(a, b); \
    b = max(a, b); \
    a = low; \
  }
#if WEIGHTED
#define BY_SUM BY_ORDER
#else
// The sum modulo 2^32 less the minimum is the maximum, exactly. `plus` and `minus` are 1 and -1 in registers: products run on the unit
// that multiplies, which has nothing else to do.
#define BY_SUM(a, b) \
  { \
    const int low = min(a, b); \
    int sum; \
    asm("mad.lo.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(plus), "r"(b)); \
    asm("mad.lo.s32 %0, %1, %2, %3;" : "=r"(b) : "r"(low), "r"(minus), "r"(sum)); \
    a = low; \
  }
#endif

// Sorts the keys of every group: thread after thread, rising. `lane` is the place in the group.
__device__ __forceinline__ void sort_group(Key (&v)[KEYS], int lane, int plus, int minus) {
  SORT(v)
#pragma unroll 1
  for (int width = 2; width <= LANES; width *= 2) {
    bool low = !(lane & (width / 2));
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const Key a = __shfl_xor_sync(EVERY, v[KEYS - 1 - i], width - 1), b = __shfl_xor_sync(EVERY, v[i], width - 1);
      v[i] = low ? min(v[i], a) : max(v[i], a);
      v[KEYS - 1 - i] = low ? min(v[KEYS - 1 - i], b) : max(v[KEYS - 1 - i], b);
    }
    if (KEYS % 2) {
      const Key a = __shfl_xor_sync(EVERY, v[KEYS / 2], width - 1);
      v[KEYS / 2] = low ? min(v[KEYS / 2], a) : max(v[KEYS / 2], a);
    }
#pragma unroll 1
    for (int step = width / 4; step > 0; step /= 2) {
      low = !(lane & step);
#pragma unroll
      for (int i = 0; i < KEYS; ++i) {
        const Key a = __shfl_xor_sync(EVERY, v[i], step);
        v[i] = low ? min(v[i], a) : max(v[i], a);
      }
    }
    MERGE(v)
  }
}

struct Work {
  const float *points;         // (P, DIM), or values (slices, stride) where DIM is 0
  const long long *offsets;    // (n + 1,) where each set begins
  const int *sets;             // the sets to be done
  const float *weights;        // (P,), none of them negative
  const float *directions;     // (slices, DIM)
  long long stride;            // values of a slice
  int n_sets, n_slices, plus, minus;
};

// Loads the keys of the column of set `from ... from + size` along slice `slice`; places behind the last are empty.
__device__ __forceinline__ void load_keys(Key (&v)[KEYS], const Work &work, long long from, int size, int slice, int lane) {
#if DIM > 0
  float direction[DIM > 0 ? DIM : 1];
#pragma unroll
  for (int c = 0; c < DIM; ++c) direction[c] = __ldg(work.directions + slice * DIM + c);
  const float *p = work.points + from * DIM;
#else
  const float *p = work.points + slice * work.stride + from;
#endif
#pragma unroll
  for (int i = 0; i < KEYS; ++i) {
    const int element = i * LANES + lane;
    v[i] = LAST;
    if (element < size) {
#if DIM > 0
      float value = 0.f;
#pragma unroll
      for (int c = 0; c < DIM; ++c) value = fmaf(__ldg(p + element * DIM + c), direction[c], value);
#else
      const float value = __ldg(p + element);
#endif
#if WEIGHTED
      const float weight = __ldg(work.weights + from + element);
      if (weight > 0) v[i] = ((long long)to_key(value) << 32) | __float_as_int(weight);
#else
      v[i] = to_key(value);
#endif
    }
  }
}

