// The Python binding of a copy whose target is not read soon; see module.cpp.
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "bindings.h"
#include "gil.h"

namespace slosh {
namespace {

typedef ndarray<const uint8_t, ndim<1>, c_contig, nb::device::cpu> Source;
typedef ndarray<uint8_t, ndim<1>, c_contig, nb::device::cpu> Target;

// More than a huge page: two threads that first touch one at the same time would both clear it.
constexpr int64_t kBytesTogether = int64_t(4) << 20;

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
  _mm_sfence();
#else
  std::memcpy(to, from, size_t(n));
#endif
}

void copy(Target to, const Source &from, int threads) {
  const int64_t n = int64_t(from.shape(0));
  check(int64_t(to.shape(0)) == n, "both must have as many bytes");
  uint8_t *const target = to.data();
  const uint8_t *const source = from.data();
  Unlocked free;
  parallel((n + kBytesTogether - 1) / kBytesTogether, 1, threads, 0, [&](int64_t i, void *) {
    const int64_t first = i * kBytesTogether;
    stream(target + first, source + first, std::min(kBytesTogether, n - first));
  });
}

}  // namespace

void add_copy(nb::module_ &m) {
  using namespace nb::literals;
  m.def("copy", &copy, "to"_a, "source"_a, "threads"_a);
}

}  // namespace slosh
