// The Python binding of a copy whose target is not read soon; see module.cpp.
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "bindings.h"
#include "gil.h"

namespace slosh {
namespace {

// Rows of bytes; rows may be apart.
typedef ndarray<const uint8_t, ndim<2>, nb::device::cpu> Source;
typedef ndarray<uint8_t, ndim<2>, nb::device::cpu> Target;

// More than a huge page: two threads that first touch one at the same time would both clear it.
constexpr int64_t kBytesTogether = int64_t(4) << 20;

// Of shorter rows too many cache lines would be written in two parts, each of them past the caches, which takes longer.
constexpr int64_t kStreamed = int64_t(1) << 16;

// Writes past the caches, so that a line of the target is not read before it is written.
void stream(uint8_t *to, const uint8_t *from, int64_t n) {
#if defined(__SSE2__)
  const int64_t head = std::min<int64_t>(n, int64_t(-reinterpret_cast<uintptr_t>(to) & 15));
  std::memcpy(to, from, size_t(head));
  int64_t i = head;
  for (; i + 64 <= n; i += 64) {
    const __m128i *const source = reinterpret_cast<const __m128i *>(from + i);
    __m128i *const target = reinterpret_cast<__m128i *>(to + i);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + i, from + i, size_t(n - i));
#else
  std::memcpy(to, from, size_t(n));
#endif
}

// Waits until what was streamed is in memory.
void finish() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

void copy(Target to, const Source &from, int threads) {
  int64_t n = int64_t(from.shape(0)), width = int64_t(from.shape(1));
  check(int64_t(to.shape(0)) == n && int64_t(to.shape(1)) == width, "both must have the same shape");
  check(width < 2 || (to.stride(1) == 1 && from.stride(1) == 1), "the bytes of a row must be side by side");
  const int64_t to_stride = n > 1 ? to.stride(0) : width, from_stride = n > 1 ? from.stride(0) : width;
  if (to_stride == width && from_stride == width) {
    width *= n;
    n = 1;
  }
  if (!n || !width) return;
  uint8_t *const target = to.data();
  const uint8_t *const source = from.data();
  // A piece is a run of short rows, or a part of a long one.
  const int64_t rows = std::max<int64_t>(1, kBytesTogether / width), parts = (width + kBytesTogether - 1) / kBytesTogether;
  Unlocked free;
  parallel((n + rows - 1) / rows * parts, 1, threads, 0, [&](int64_t i, void *) {
    const int64_t first = i / parts * rows, last = std::min(n, first + rows), begin = i % parts * kBytesTogether;
    const int64_t length = std::min(kBytesTogether, width - begin);
    for (int64_t row = first; row < last; ++row) {
      uint8_t *const at = target + row * to_stride + begin;
      const uint8_t *const what = source + row * from_stride + begin;
      if (length < kStreamed) std::memcpy(at, what, size_t(length));
      else stream(at, what, length);
    }
    finish();
  });
}

}  // namespace

void add_copy(nb::module_ &m) {
  using namespace nb::literals;
  m.def("copy", &copy, "to"_a, "source"_a, "threads"_a);
}

}  // namespace slosh
