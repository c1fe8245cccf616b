// Every query with every vector that may be found. Squared distances come in float32 first, and those that may belong to the nearest once more in double:
// what is found, and in which order, depends on these alone.
#pragma once

#include "ladder.h"

namespace slosh {
namespace SLOSH_ARCH {

// A product that is to be rounded before anything is added to it: a stored number is scale * whole in float32, which a fused multiplication would miss.
template <class T> SLOSH_INLINE T rounded(T x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  volatile T kept = x;
  x = kept;
#endif
  return x;
}

SLOSH_INLINE Floats many(const float *from, float) { return load<Floats>(from); }
SLOSH_INLINE Floats many(const int16_t *from, float scale) {
#if SLOSH_LANES == 16
  return rounded(Floats(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))))) * scale);
#elif SLOSH_LANES == 8
  return rounded(Floats(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))))) * scale);
#else
  return rounded(Floats{one(from, scale), one(from + 1, scale), one(from + 2, scale), one(from + 3, scale)});
#endif
}

// |q - x|^2 in float32, a part of `dim` 2^-23 off or less.
template <class T> SLOSH_INLINE float rough_square(const float *q, const T *x, float scale, int64_t dim) {
  Floats parts[2] = {};
  int64_t i = 0;
  for (; i + 2 * SLOSH_LANES <= dim; i += 2 * SLOSH_LANES)
    for (int part = 0; part < 2; ++part) {
      const Floats d = load<Floats>(q + i + part * SLOSH_LANES) - many(x + i + part * SLOSH_LANES, scale);
      parts[part] += d * d;
    }
  float total = sum_of(parts[0] + parts[1]);
  for (; i < dim; ++i) {
    const float d = q[i] - rounded(one(x + i, scale));
    total += d * d;
  }
  return total;
}

// |q - x|^2 in double of V vectors, each with the bits that `square` gives it.
template <int V, class T> inline void squares_of(const float *q, const T *const *x, const float *scale, int64_t dim, double *out) {
  Wide8 parts[V][4] = {};
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32)
    for (int part = 0; part < 4; ++part) {
      const Wide8 mine = eight(q + i + 8 * part, 1);
      for (int v = 0; v < V; ++v) {
        const Wide8 d = mine - eight(x[v] + i + 8 * part, scale[v]);
        parts[v][part] += d * d;
      }
    }
  for (; i + 8 <= dim; i += 8) {
    const Wide8 mine = eight(q + i, 1);
    for (int v = 0; v < V; ++v) {
      const Wide8 d = mine - eight(x[v] + i, scale[v]);
      parts[v][0] += d * d;
    }
  }
  for (int v = 0; v < V; ++v) {
    out[v] = sum((parts[v][0] + parts[v][1]) + (parts[v][2] + parts[v][3]));
    for (int64_t j = i; j < dim; ++j) {
      const double d = double(q[j]) - double(one(x[v] + j, scale[v]));
      out[v] += d * d;
    }
  }
}

// A sum of squares in float32 that is above it belongs to a vector that is farther than one whose sum is `square`.
SLOSH_INLINE float rough_limit(float square, int64_t dim) {
  const double off = 1 + 2e-7 * double(dim + 8);
  const double limit = (double(square) * off + 1e-36) * off;  // below that a square in float32 has few digits
  return limit < 3e38 ? float(limit) * (1 + 2e-7f) : std::numeric_limits<float>::infinity();
}

constexpr int64_t kAside = kRows;                // vectors side by side, number by number
constexpr int kAskers = SLOSH_LANES == 4 ? 1 : SLOSH_LANES / 2;  // queries that look at them together
constexpr int64_t kChunkNumbers = 1 << 16;       // numbers of vectors that stay in the cache while all queries look at them
constexpr int64_t kChunkPlaces = 1024;           // and vectors
constexpr int64_t kCheckEvery = 64;              // numbers that are summed before it is seen whether any vector is still near enough
constexpr int64_t kFewQueries = 3;               // of which each compares the vectors by itself: putting them side by side takes as long
constexpr int64_t kSpareRoom = 22;               // vectors beyond those wanted that a query keeps before it sorts them out
constexpr int64_t kCounted = 32;                 // so few are put in order by counting
constexpr int kCountedRegisters = int(kCounted) / SLOSH_LANES;

SLOSH_INLINE bool operator<(const Float &a, const Float &b) { return a.value < b.value; }

// The `wanted`-th of n numbers, at most kCounted; there are kCounted numbers at `x`, those behind n infinite.
inline float counted_out(const float *x, int64_t n, int64_t wanted) {
  const Floats infinite = all<Floats>(std::numeric_limits<float>::infinity());
  Floats each[kCountedRegisters];
  Ints counts[kCountedRegisters] = {};  // how many are not above it
  for (int part = 0; part < kCountedRegisters; ++part) each[part] = load<Floats>(x + part * SLOSH_LANES);
  for (int64_t i = 0; i < n; ++i) {
    const Floats other = all<Floats>(x[i]);
    for (int part = 0; part < kCountedRegisters; ++part) counts[part] -= Ints(other <= each[part]);
  }
  Floats least = infinite;
  const Ints enough = Ints{} + int32_t(wanted);
  for (int part = 0; part < kCountedRegisters; ++part) least = lower(least, counts[part] >= enough ? each[part] : infinite);
  return -largest_of(Floats{} - least);
}

struct Asker {
  float limit;  // a sum of squares in float32 that is above it belongs to a vector that is too far
  int64_t n;
};

typedef int64_t Long8 __attribute__((vector_size(64)));

// Few vectors, put in order without a branch: how many come before each of them, by distance, then rank.
struct Counted {
  alignas(64) double square[kCounted];
  alignas(64) int64_t rank[kCounted], before[kCounted];
  int64_t position[kCounted];

  inline void count(int64_t n) {
    for (int64_t i = n; i < (n + 7) / 8 * 8; ++i) square[i] = 0, rank[i] = 0;
    for (int64_t from = 0; from < n; from += 8) {
      const Wide8 squares = load<Wide8>(square + from);
      const Long8 ranks = load<Long8>(rank + from);
      Long8 found{};
      for (int64_t i = 0; i < n; ++i) found -= Long8(square[i] < squares) | (Long8(square[i] == squares) & Long8(rank[i] < ranks));
      store(before + from, found);
    }
  }
};

struct FlatTile {
  const Flat &job;
  const int64_t dim, first, n, wanted, room;  // one more than k shows a tie, and the own row of a query takes a place
  const int64_t n_minima;                     // lines of numbers that bound the nearest
  int64_t stride;                             // numbers from one query to the next
  const float *queries;
  std::vector<Asker> askers;
  std::vector<Near> near;                     // `room` for each query
  std::vector<Line> rounded_queries, minima;
  std::vector<Line> numbers;                  // of some vectors: of each sixteen the first numbers, then the second ones, and so on
  std::vector<Line> sums;                     // of some queries, squared distances to some vectors
  std::vector<Hit> hits;

  FlatTile(const Flat &j, int64_t from, int64_t to)
      : job(j), dim(j.vectors.dim), first(from), n(to - from), wanted(std::min(j.k, j.n_places) + (j.skip ? 2 : 1)), room(wanted + std::max(kSpareRoom, wanted / 2)),
        n_minima(std::max(kCounted / kRows, (2 * wanted + kRows - 1) / kRows)), stride(dim), queries(j.queries + from * dim),
        askers(size_t(n), Asker{std::numeric_limits<float>::infinity(), 0}), near(size_t(n * room)), minima(size_t(n_minima)) {
    if (!job.vectors.shorts) return;
    stride = ((dim + kRows - 1) / kRows | 1) * kRows;  // an odd number of cache lines, or the queries would fall into the same few sets of the cache
    rounded_queries.resize(size_t(n * stride / kRows));
    for (int64_t i = 0; i < n; ++i) round_to_16_bits(queries + i * dim, dim, rounded_queries[0].each + i * stride);
    queries = rounded_queries[0].each;
  }

  SLOSH_INLINE int64_t position(int64_t place) const { return job.positions ? job.positions[place] : place; }

  void put_aside(int64_t place, int64_t n_places) {
    for (int64_t v = 0; v < n_places; ++v) {
      const int64_t at = position(place + v);
      float *to = numbers[size_t(v / kAside * dim)].each + v % kAside;
      if (job.vectors.shorts) {
        const int16_t *from = job.vectors.shorts + at * dim;
        const float scale = job.vectors.scale[at];
        for (int64_t i = 0; i < dim; ++i) to[i * kAside] = one(from + i, scale);
      } else {
        const float *from = job.vectors.floats + at * dim;
        for (int64_t i = 0; i < dim; ++i) to[i * kAside] = from[i];
      }
    }
  }

  // Adds the squared differences of the numbers `from` to `to` of Q queries and sixteen vectors.
  template <int Q> SLOSH_INLINE void add_squares(const float *asked, const Line *x, int64_t from, int64_t to, Floats (*total)[kRegisters]) const {
    for (int64_t i = from; i < to; ++i)
      for (int part = 0; part < kRegisters; ++part) {
        const Floats number = load<Floats>(x[i].each + part * SLOSH_LANES);
        for (int q = 0; q < Q; ++q) {
          const Floats d = number - asked[q * stride + i];
          total[q][part] += d * d;
        }
      }
  }

  // Fills `sums`, n_blocks lines for each of Q queries.
  template <int Q> void fill(int64_t query, int64_t n_blocks) {
    for (int64_t block = 0; block < n_blocks; ++block) {
      Floats total[Q][kRegisters] = {};
      add_squares<Q>(queries + query * stride, &numbers[size_t(block * dim)], 0, dim, total);
      for (int q = 0; q < Q; ++q) std::memcpy(sums[size_t(q * n_blocks + block)].each, total[q], sizeof(Line));
    }
  }

  // The same for one query and vectors where they lie.
  void fill_in_place(int64_t query, int64_t place, int64_t n_places) {
    const Vectors &v = job.vectors;
    const float *q = queries + query * stride;
    float *to = sums[0].each;
    for (int64_t i = 0; i < n_places; ++i) {
      const int64_t at = position(place + i);
      if (job.positions && place + i + 6 < job.n_places) fetch(v, job.positions[place + i + 6]);
      to[i] = v.shorts ? rough_square(q, v.shorts + at * dim, v.scale[at], dim) : rough_square(q, v.floats + at * dim, 1, dim);
    }
  }

  // A limit of the sums of the nearest: of the numbers in n_minima lines of lanes, each the least of its lane, as many as are wanted are not above it.
  float bound(const Line *mine, int64_t n_blocks) {
    const int64_t n_lines = std::min(n_minima, n_blocks);
    for (int64_t line = 0; line < n_minima; ++line)
      for (int part = 0; part < kRegisters; ++part) {
        Floats least = all<Floats>(std::numeric_limits<float>::infinity());
        for (int64_t b = line; b < n_blocks; b += n_minima) least = lower(least, load<Floats>(mine[b].each + part * SLOSH_LANES));
        store(minima[size_t(line)].each + part * SLOSH_LANES, least);
      }
    if (wanted > n_lines * kRows) return std::numeric_limits<float>::infinity();
    if (n_minima * kRows == kCounted) return rough_limit(counted_out(minima[0].each, n_lines * kRows, wanted), dim);
    Float *each = reinterpret_cast<Float *>(minima.data());
    std::nth_element(each, each + wanted - 1, each + n_lines * kRows);
    return rough_limit(each[wanted - 1].value, dim);
  }

  // Takes what `sums` has for a query of the vectors from `place` on; the first time, it finds out what is too far.
  void take(int64_t query, Line *mine, int64_t place, int64_t n_places) {
    const int64_t n_blocks = (n_places + kRows - 1) / kRows;
    for (int64_t l = n_places; l < n_blocks * kRows; ++l) mine[l / kRows].each[l % kRows] = std::numeric_limits<float>::infinity();
    if (place == 0) askers[size_t(query)].limit = bound(mine, n_blocks);
    for (int64_t b = 0; b < n_blocks; ++b) {
      const unsigned there = n_places - b * kRows >= kRows ? 0xffffu : (1u << (n_places - b * kRows)) - 1;
      const unsigned bits = Tile::at_most16(mine[b].each, askers[size_t(query)].limit) & there;
      if (bits) keep(query, mine[b].each, bits, place + b * kRows);
    }
  }

  // Those of sixteen vectors that may be among the nearest.
  SLOSH_INLINE void keep(int64_t query, const float *squares, unsigned bits, int64_t place) {
    Asker &asker = askers[size_t(query)];
    Near *mine = near.data() + query * room;
    for (; bits; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      if (asker.n == room) sort_out(query);
      if (asker.n == room) make_room(query);
      if (squares[lane] <= asker.limit) mine[asker.n++] = {squares[lane], uint32_t(place + lane)};
    }
  }

  void sort_out(int64_t query) {
    Asker &asker = askers[size_t(query)];
    Near *mine = near.data() + query * room;
    asker.limit = limit_of(mine, asker.n, wanted);
    asker.n = kept(mine, asker.n, asker.limit);
  }

  // What the sums of the nearest `some` are not above.
  float limit_of(Near *mine, int64_t count, int64_t some) const {
    if (count <= kCounted) {
      Line squares[kCounted / kRows];
      float *each = squares[0].each;
      for (int64_t i = 0; i < kCounted; ++i) each[i] = i < count ? mine[i].square : std::numeric_limits<float>::infinity();
      return rough_limit(counted_out(each, count, some), dim);
    }
    std::nth_element(mine, mine + some - 1, mine + count);
    return rough_limit(mine[some - 1].square, dim);
  }

  static int64_t kept(Near *mine, int64_t count, float limit) {
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Near each = mine[i];
      mine[left] = each;
      left += each.square <= limit;
    }
    return left;
  }

  // So many vectors are as near as float32 can tell that they fill the room: the best of them are kept, by their distances in double and their ranks.
  void make_room(int64_t query) {
    Asker &asker = askers[size_t(query)];
    Near *mine = near.data() + query * room;
    compare(query, mine, asker.n);
    std::nth_element(hits.begin(), hits.begin() + wanted - 1, hits.end());
    std::vector<Near> best(static_cast<size_t>(wanted));
    for (int64_t i = 0; i < wanted; ++i) best[size_t(i)] = mine[hits[size_t(i)].position];
    std::copy(best.begin(), best.end(), mine);
    asker.n = wanted;
  }

  // Fills `hits` with distances in double; the position of a hit is its number.
  void compare(int64_t query, const Near *mine, int64_t count) {
    hits.resize(size_t(count));
    compare(query, mine, count, [this](int64_t i, double exact, int64_t at) { hits[size_t(i)] = {exact, job.ranks ? job.ranks[at] : at, i}; });
  }

  // Calls put(i, square, position) for each.
  template <class Put> SLOSH_INLINE void compare(int64_t query, const Near *mine, int64_t count, Put put) const {
    constexpr int kTogetherInDouble = SLOSH_LANES == 16 ? 5 : 1;  // as many sums as registers hold
    const Vectors &v = job.vectors;
    const float *q = queries + query * stride;
    int64_t i = 0;
    for (; i + kTogetherInDouble <= count; i += kTogetherInDouble) {
      int64_t at[kTogetherInDouble];
      double exact[kTogetherInDouble];
      for (int j = 0; j < kTogetherInDouble; ++j) at[j] = position(mine[i + j].place);
      if (v.shorts) {
        const int16_t *x[kTogetherInDouble];
        float scale[kTogetherInDouble];
        for (int j = 0; j < kTogetherInDouble; ++j) x[j] = v.shorts + at[j] * dim, scale[j] = v.scale[at[j]];
        squares_of<kTogetherInDouble>(q, x, scale, dim, exact);
      } else {
        const float *x[kTogetherInDouble], scale[kTogetherInDouble] = {};
        for (int j = 0; j < kTogetherInDouble; ++j) x[j] = v.floats + at[j] * dim;
        squares_of<kTogetherInDouble>(q, x, scale, dim, exact);
      }
      for (int j = 0; j < kTogetherInDouble; ++j) put(i + j, exact[j], at[j]);
    }
    for (; i < count; ++i) {
      const int64_t at = position(mine[i].place);
      put(i, square(v, q, at), at);
    }
  }

  // The same as `fill` and `take`, where most vectors are seen to be too far by some of their numbers.
  template <int Q> void look(int64_t query, int64_t place, int64_t n_places) {
    for (int64_t from = 0; from < n_places; from += kAside) {
      const unsigned there = n_places - from >= kAside ? 0xffffu : (1u << (n_places - from)) - 1;
      Floats total[Q][kRegisters] = {};
      unsigned bits[Q] = {}, any = 1;
      for (int64_t i = 0; i < dim && any; i += kCheckEvery) {
        add_squares<Q>(queries + query * stride, &numbers[size_t(from / kAside * dim)], i, std::min(dim, i + kCheckEvery), total);
        any = 0;
        for (int q = 0; q < Q; ++q) {
          bits[q] = 0;
          for (int part = 0; part < kRegisters; ++part) bits[q] |= at_most<SLOSH_LANES>(total[q][part], askers[size_t(query + q)].limit) << (part * SLOSH_LANES);
          any |= bits[q] &= there;
        }
      }
      for (int q = 0; any && q < Q; ++q)
        if (bits[q]) {
          float each[kAside];
          std::memcpy(each, total[q], sizeof(each));
          keep(query + q, each, bits[q], place + from);
        }
    }
  }

  // Writes the k nearest of those that were kept.
  void write(int64_t query) {
    Near *mine = near.data() + query * room;
    int64_t count = askers[size_t(query)].n;
    if (job.skip)
      for (int64_t i = 0; i < count; ++i)
        if (position(mine[i].place) == job.skip[first + query]) mine[i--] = mine[--count];
    if (count > job.k) count = kept(mine, count, limit_of(mine, count, job.k));
    double *out = job.out + (first + query) * job.k;
    int64_t *out_positions = job.out_positions + (first + query) * job.k;
    double next = -1;  // the distance of the first one that is left out
    if (count <= kCounted) {
      Counted each;
      compare(query, mine, count, [this, &each](int64_t i, double exact, int64_t at) SLOSH_FLAT {
        each.square[i] = exact, each.rank[i] = job.ranks ? job.ranks[at] : at, each.position[i] = at;
      });
      each.count(count);
      for (int64_t i = 0; i < count; ++i)
        if (each.before[i] < job.k)
          out[each.before[i]] = each.square[i], out_positions[each.before[i]] = each.position[i];
        else if (each.before[i] == job.k)
          next = std::sqrt(each.square[i]);
    } else {
      compare(query, mine, count);
      std::sort(hits.begin(), hits.end());
      for (int64_t i = 0; i < std::min(count, job.k); ++i) out[i] = hits[size_t(i)].square, out_positions[i] = position(mine[hits[size_t(i)].position].place);
      if (count > job.k) next = std::sqrt(hits[size_t(job.k)].square);
    }
    for (int64_t i = 0; i < std::min(count, job.k); ++i) out[i] = std::sqrt(out[i]);
    for (int64_t i = count; i < job.k; ++i) out[i] = std::numeric_limits<double>::infinity(), out_positions[i] = -1;
    job.tied[first + query] = next == out[job.k - 1];
  }

  void run() {
    const int64_t step = std::max(kAside, std::min(kChunkPlaces, kChunkNumbers / dim) / kAside * kAside);
    const int64_t most = (std::min(step, job.n_places) + kAside - 1) / kAside;  // blocks
    const bool few = n <= kFewQueries;
    if (!few) numbers.resize(size_t(most * dim));
    sums.resize(size_t(most * (few ? 1 : kAskers)));
    for (int64_t place = 0; place < job.n_places; place += step) {
      const int64_t some = std::min(step, job.n_places - place), n_blocks = (some + kAside - 1) / kAside;
      if (!few) put_aside(place, some);
      int64_t query = 0;
      for (; few && query < n; ++query) fill_in_place(query, place, some), take(query, sums.data(), place, some);
      for (; place == 0 && query + kAskers <= n; query += kAskers) {
        fill<kAskers>(query, n_blocks);
        for (int q = 0; q < kAskers; ++q) take(query + q, sums.data() + q * n_blocks, place, some);
      }
      for (; place == 0 && query < n; ++query) fill<1>(query, n_blocks), take(query, sums.data(), place, some);
      for (; query + kAskers <= n; query += kAskers) look<kAskers>(query, place, some);
      for (; query < n; ++query) look<1>(query, place, some);
    }
    for (int64_t query = 0; query < n; ++query) write(query);
  }
};

void flat(const Flat &job, int64_t first, int64_t last) { FlatTile(job, first, last).run(); }

// Bit i: byte i is not zero.
SLOSH_INLINE uint64_t not_zero(const bool *mask) {
#if SLOSH_LANES == 16
  const __m512i bytes = _mm512_loadu_si512(mask);
  return _mm512_test_epi8_mask(bytes, bytes);
#elif SLOSH_LANES == 8
  const __m256i zero = _mm256_setzero_si256();
  const auto zeros = [&](int64_t i) SLOSH_FLAT { return uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(mask + i)), zero))); };
  return ~(uint64_t(zeros(32)) << 32 | zeros(0));
#else
  uint64_t words[8], any = 0, bits = 0;
  std::memcpy(words, mask, sizeof(words));
  for (int w = 0; w < 8; ++w) any |= words[w];
  for (int i = 0; any && i < 64; ++i) bits |= uint64_t(mask[i]) << i;
  return bits;
#endif
}

// Counts where a mask is true; writes these positions, unless `out` is null.
int64_t true_positions(const bool *mask, int64_t n, int64_t *out) {
  int64_t found = 0, at = 0;
  for (; at + 64 <= n; at += 64) {
    uint64_t bits = not_zero(mask + at);
    if (!out) found += __builtin_popcountll(bits);
    for (; out && bits; bits &= bits - 1) out[found++] = at + __builtin_ctzll(bits);
  }
  for (; at < n; ++at)
    if (mask[at]) {
      if (out) out[found] = at;
      ++found;
    }
  return found;
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
