// What the kernels of slosh.gpu need of CUDA, on one thread of a CPU. Each thread of a block is a fiber, which runs until it waits for
// others: a block is done when all have ended, and then comes the next. What CUDA leaves open is made as bad as it may be: fibers run in
// either order, shared memory begins as NaN, asynchronous copies arrive when they are waited for and not before, and a warp that exchanges
// registers without one of its threads is an error.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Index {
  unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

#define BOTH(type) \
  static inline type min(type a, type b) { return b < a ? b : a; } \
  static inline type max(type a, type b) { return a < b ? b : a; }
BOTH(int)
BOTH(unsigned)
BOTH(long long)
BOTH(float)
BOTH(double)

template <class To, class From> static inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
static inline int __float_as_int(float x) { return same_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return same_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
template <class T> static inline T __ldg(const T *at) { return *at; }
static inline unsigned atomicMin(unsigned *at, unsigned x) {
  const unsigned before = *at;
  *at = min(before, x);
  return before;
}
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// -- fibers ---------------------------------------------------------------------------------------------------------------------

struct Copy {
  char *to;
  const char *from;
  int width, bytes;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 17);
  bool done;
  int warp_waits, block_waits;
  std::vector<std::vector<Copy>> copies;  // on their way, in groups; the last one is not closed yet
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
static unsigned char words[2][64][32][32];  // what the threads of a warp show each other, in turns
static std::vector<char> dynamic_shared;
static const char *failed = nullptr;

static void fail(const char *why) {
  failed = why;
  setcontext(&scheduler);
}
static void yield() {
  const unsigned own = current;
  swapcontext(&fibers[own].context, &scheduler);
}
static void wait_for(unsigned first, unsigned last, int Fiber::*waits) {
  const int own = ++(fibers[current].*waits);
  for (;;) {
    bool all = true;
    for (unsigned i = first; i < last && i < fibers.size(); ++i) all = all && (fibers[i].done || fibers[i].*waits >= own);
    if (all) return;
    yield();
  }
}
static void __syncthreads() { wait_for(0, unsigned(fibers.size()), &Fiber::block_waits); }
static void __syncwarp() { wait_for(current / 32 * 32, current / 32 * 32 + 32, &Fiber::warp_waits); }

// Shows `own` to the warp, and returns what its threads show: of thread i at [i].
template <class T> static const unsigned char (*shown(const T &own))[32] {
  static_assert(sizeof(T) <= 32, "a word of 32 bytes");
  const unsigned warp = current / 32;
  auto &turn = words[fibers[current].warp_waits % 2][warp];
  memcpy(turn[current % 32], &own, sizeof(T));
  __syncwarp();
  for (unsigned i = warp * 32; i < warp * 32 + 32; ++i)
    if (i >= fibers.size() || fibers[i].warp_waits < fibers[current].warp_waits) fail("a warp exchanges registers, and some of its threads have ended");
  return turn;
}
template <class T> static T of_thread(const unsigned char (*all)[32], unsigned i) {
  T found;
  memcpy(&found, all[i], sizeof(T));
  return found;
}
#define EVERY_THREAD(mask) \
  if ((mask) != 0xffffffffu) fail("a mask that is not of all threads")
template <class T> static T __shfl_xor_sync(unsigned mask, T own, int with, int width = 32) {
  EVERY_THREAD(mask);
  const unsigned lane = current % 32;
  return of_thread<T>(shown(own), (lane ^ with) / width == lane / width ? lane ^ with : lane);
}
template <class T> static T __shfl_up_sync(unsigned mask, T own, int by, int width = 32) {
  EVERY_THREAD(mask);
  const unsigned lane = current % 32;
  return of_thread<T>(shown(own), int(lane % width) >= by ? lane - by : lane);
}
template <class T> static T __shfl_sync(unsigned mask, T own, int from, int width = 32) {
  EVERY_THREAD(mask);
  const unsigned lane = current % 32;
  return of_thread<T>(shown(own), lane / width * width + from % width);
}

// -- asynchronous copies, and products on tensor cores --------------------------------------------------------------------------

static char middle_of_shared;
static inline unsigned long long __cvta_generic_to_shared(const void *at) { return (unsigned)(int)((const char *)at - &middle_of_shared); }
static void copy_async(unsigned to, const void *from, int width, int bytes) {
  char *const place = &middle_of_shared + (int)to;
  if ((uintptr_t)place % width || (bytes && (uintptr_t)from % width)) fail("an asynchronous copy that is not aligned");
  fibers[current].copies.back().push_back({place, (const char *)from, width, bytes});
}
static void commit_copies() { fibers[current].copies.emplace_back(); }
static void wait_copies(int n_left) {
  auto &copies = fibers[current].copies;
  while (int(copies.size()) - 1 > n_left) {
    for (const Copy &each : copies.front()) {
      memset(each.to, 0, each.width);
      if (each.bytes) memcpy(each.to, each.from, each.bytes);
    }
    copies.erase(copies.begin());
  }
}
// mma.sync.m16n8k8 of TF32, with the fragments of the PTX manual: thread 4 g + t has a(g, t), a(g + 8, t), a(g, t + 4), a(g + 8, t + 4),
// b(t, g), b(t + 4, g), and c(g, 2 t), c(g, 2 t + 1), c(g + 8, 2 t), c(g + 8, 2 t + 1).
static void multiply_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Own {
    unsigned a[4], b[2];
  } own;
  memcpy(own.a, a, sizeof(own.a)), memcpy(own.b, b, sizeof(own.b));
  const auto all = shown(own);
  const unsigned lane = current % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; ++k) {
      const unsigned left = of_thread<Own>(all, row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2];
      const unsigned right = of_thread<Own>(all, column * 4 + k % 4).b[k / 4];
      sum += double(__uint_as_float(left & 0xffffe000u)) * __uint_as_float(right & 0xffffe000u);
    }
    c[i] = float(sum);
  }
}

// -- launches -------------------------------------------------------------------------------------------------------------------

template <class... Types, size_t... I> static void call(void (*kernel)(Types...), void **arguments, std::index_sequence<I...>) {
  kernel(*(Types *)arguments[I]...);
}
template <class... Types> static void call(void (*kernel)(Types...), void **arguments) {
  call(kernel, arguments, std::index_sequence_for<Types...>());
}
static void (*body)(void **);
static void **given;
static void run_fiber() {
  body(given);
  fibers[current].done = true;
  setcontext(&scheduler);
}
static const char *launch_all(void (*kernel)(void **), unsigned wide, unsigned high, unsigned threads, unsigned long shared, bool backwards,
                              void **arguments) {
  body = kernel, given = arguments, failed = nullptr;
  blockDim = {threads, 1, 1}, gridDim = {wide, high, 1};
  fibers.resize(threads);
  for (unsigned y = 0; y < high; ++y)
    for (unsigned x = 0; x < wide; ++x) {
      blockIdx = {x, y, 0};
      dynamic_shared.assign(shared + 16, char(0xff));
      for (Fiber &each : fibers) {
        each.done = false, each.warp_waits = each.block_waits = 0;
        each.copies.assign(1, {});
        getcontext(&each.context);
        each.context.uc_stack.ss_sp = each.stack.data();
        each.context.uc_stack.ss_size = each.stack.size();
        each.context.uc_link = nullptr;
        makecontext(&each.context, run_fiber, 0);
      }
      for (volatile bool left = true; left;) {
        left = false;
        for (volatile unsigned i = 0; i < threads; ++i) {
          current = backwards ? threads - 1 - i : i;
          if (fibers[current].done) continue;
          left = true;
          threadIdx = {current, 0, 0};
          swapcontext(&scheduler, &fibers[current].context);
          if (failed) return failed;
        }
      }
    }
  return nullptr;
}
