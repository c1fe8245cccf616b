// The ladder: lists near the query, their rows in eight bits, then the vectors of the best. Several queries climb together, list after list, so that a list
// is read once for all of them; what a query finds does not depend on the others.
#pragma once

#include "codes8.h"
#include "scan.h"

namespace slosh {
namespace SLOSH_ARCH {

struct Near {
  float square;
  uint32_t place;  // block * 16 + lane, or a list
};
SLOSH_INLINE bool operator<(const Near &a, const Near &b) { return a.square < b.square || (a.square == b.square && a.place < b.place); }

struct Visit {
  int32_t list, query;  // of the tile
};

constexpr int64_t kSpare = 48;                   // rows too many that a query may keep
constexpr size_t kFetched = 12;                  // vectors that are fetched before they are needed
constexpr int64_t kFetchedBlocks = 6;            // and blocks of the next list
constexpr int kAbreast = 4;                      // queries that scan a list side by side
constexpr int64_t kRounds[] = {4, 12, 1 << 30};  // lists of a query in a round: what one has found says how many are left for the next

// One query on its way.
struct Climb {
  const float *prefix, *vector;
  double slack;
  int64_t skip;
  Asked asked;
  float nearest_list;       // squared distance
  float limit, kth;         // squared distances: rows beyond the first are not kept; of the k-th row
  float error, shift;       // the most by which a row, and the square of an estimate, may be off
  size_t n_left, n_near;    // of `lists`, nearest last, how many are not scanned; and of `near`, how many are there
  std::vector<Near> lists, near;
  int64_t scanned, candidates;
};

struct Line {
  alignas(64) float each[16];
};
struct Double {
  double value;
};
struct Float {
  float value;
};
struct Set64 {
  uint64_t bits;
};

// A vector as 16 bits would store it: see search/store.py.
inline void round_to_16_bits(const float *from, int64_t dim, float *to) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
  Floats most{};
  const Floats none{};
  int64_t whole = 0;
  for (; whole + SLOSH_LANES <= dim; whole += SLOSH_LANES) {
    const Floats x = load<Floats>(from + whole);
    most = upper(most, upper(x, none - x));
  }
  float largest = largest_of(most);
  for (int64_t i = whole; i < dim; ++i) largest = std::max(largest, std::fabs(from[i]));
  const float scale = std::max(largest / 32767.0f, 1e-37f);
  for (int64_t i = 0; i < dim; ++i) to[i] = ((from[i] / scale + kRound) - kRound) * scale;
}

struct Tile {
  const Ladder &job;
  const Lists &lists;
  const int64_t first, n, wanted, depth;  // queries; the own row of a query takes a place
  const size_t full;
  std::vector<Climb> climbs;
  const size_t n_heads;                   // lines of sixteen
  std::vector<Line> heads;                // estimated squared distances of up to kAbreast queries to all centres
  std::vector<Visit> visits, sorted;
  std::vector<Near> counts;
  std::vector<Set64> visitors;          // of each list
  std::vector<Line> vectors, prefixes;  // of the queries

  Tile(const Ladder &j, int64_t from, int64_t to)
      : job(j), lists(j.lists), first(from), n(to - from), wanted(j.k + (j.skip ? 1 : 0)), depth(j.depth + (j.skip ? 1 : 0)),
        full(size_t(depth + std::max<int64_t>(128, depth / 2))), climbs(size_t(n)), n_heads(size_t((lists.n_lists + kRows - 1) / kRows)),
        heads(n_heads * size_t(std::min<int64_t>(n, kAbreast))) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const int64_t dim = job.vectors.dim;
    const float *queries = job.queries + first * dim;
    if (job.vectors.shorts) {
      vectors.resize(size_t((n * dim + kRows - 1) / kRows));
      for (int64_t i = 0; i < n; ++i) round_to_16_bits(queries + i * dim, dim, vectors[0].each + i * dim);
      queries = vectors[0].each;
    }
    prefixes.assign(size_t(n * lists.stride / kRows), Line{});
    std::vector<Double> norms(static_cast<size_t>(n)), scratch(size_t(kTogether * (job.basis.padded + job.basis.n_directions)) + 8);
    const Prefixes about{job.basis, {queries, nullptr, nullptr, dim}, n, lists.stride, prefixes[0].each, &norms[0].value};
    for (int64_t tile = 0; tile * kTogether < n; ++tile) slosh::SLOSH_ARCH::prefixes(about, tile, scratch.data());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t q = first + i;
      Climb &c = climbs[size_t(i)];
      c.prefix = prefixes[0].each + i * lists.stride, c.vector = queries + i * dim;
      c.slack = job.rounding * (norms[size_t(i)].value + job.farthest), c.skip = job.skip ? job.skip[q] : -1;
      c.limit = c.kth = kInfinity, c.error = c.shift = 0, c.nearest_list = kInfinity, c.n_left = c.n_near = 0, c.scanned = c.candidates = 0;
      code_query(c.prefix, lists.middle, lists.stride, lists.early, c.asked);
    }
  }

  template <int Q> void look_at_heads(const Asked *const *by) {
    for (size_t b = 0; b < n_heads; ++b) {
      Floats found[Q][kRegisters];
      estimate<Q>(by, lists.heads.codes + int64_t(b) * kRows * lists.width, lists.heads.biases + b * kRows, lists.head_steps[b], lists.width, found);
      for (int q = 0; q < Q; ++q) std::memcpy(heads[size_t(q) * n_heads + b].each, found[q], sizeof(found[q]));
    }
  }

  // Calls use(query, its heads) for every query. Several look at the centres together.
  template <class Use> void with_heads(Use use) {
    int32_t q = 0;
    for (; q + kAbreast <= int32_t(n); q += kAbreast) {
      const Asked *by[kAbreast];
      for (int i = 0; i < kAbreast; ++i) by[i] = &climbs[size_t(q + i)].asked;
      look_at_heads<kAbreast>(by);
      for (int i = 0; i < kAbreast; ++i) use(q + i, heads.data() + size_t(i) * n_heads);
    }
    for (; q < int32_t(n); ++q) {
      const Asked *by = &climbs[size_t(q)].asked;
      look_at_heads<1>(&by);
      use(q, heads.data());
    }
  }

  // The nearest of the heads of a query, the first of several; -1 if none is left, or float32 has overflowed.
  int64_t nearest_head(const Line *mine) const {
    Floats least = all<Floats>(std::numeric_limits<float>::infinity());
    for (size_t b = 0; b < n_heads; ++b)
      for (int part = 0; part < kRegisters; ++part) least = lower(least, load<Floats>(mine[b].each + part * SLOSH_LANES));
    float lane[SLOSH_LANES], best = std::numeric_limits<float>::infinity();
    store(lane, least);
    for (int l = 0; l < SLOSH_LANES; ++l) best = std::min(best, lane[l]);
    for (size_t b = 0; b < n_heads && best < std::numeric_limits<float>::infinity(); ++b) {
      const unsigned bits = at_most16(mine[b].each, best);
      if (bits) return int64_t(b) * kRows + __builtin_ctz(bits);
    }
    return -1;
  }

  static unsigned at_most16(const float *x, float limit) {
    unsigned bits = 0;
    for (int part = 0; part < kRegisters; ++part) bits |= at_most<SLOSH_LANES>(load<Floats>(x + part * SLOSH_LANES), limit) << (part * SLOSH_LANES);
    return bits;
  }

  // Rows of a list to Q queries whose squared distances to its centre are `base`; take(q, square, place) gets those that are not above limit(q). Returns how
  // many rows there are.
  template <int Q, class Limit, class Take> SLOSH_INLINE int64_t scan(int32_t list, const Asked *const *by, const float *base, Limit limit, Take take) {
    const int64_t begin = lists.start[list], end = lists.start[list + 1], bytes = lists.width * kRows, early = lists.early;
    float factor[Q];
    for (int q = 0; q < Q; ++q) factor[q] = by[q]->scale * lists.steps[list];
    int64_t rows = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = lists.order[i];
      if (i + 1 < end && lists.order[i + 1] != block + 1) {  // the machine cannot guess the next one
        const uint8_t *next = lists.rows.codes + lists.order[i + 1] * bytes;
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(next + b);
      }
      const unsigned mask = lists.masks[block];
      if (!mask) continue;
      rows += __builtin_popcount(mask);
      const uint8_t *codes = lists.rows.codes + block * bytes;
      const float rest = lists.rests[block];
      Floats bias[kRegisters];
      std::memcpy(bias, lists.rows.biases + block * kRows, sizeof(bias));
      Ints sums[Q][kRegisters];
      for (int q = 0; q < Q; ++q)
        for (int part = 0; part < kRegisters; ++part) sums[q][part] = Ints{} + by[q]->start_early;
      add_all_products<Q>(by, codes, 0, early, sums);
      unsigned bits[Q];
      for (int q = 0; q < Q; ++q) {
        Floats low[kRegisters];
        for (int part = 0; part < kRegisters; ++part) low[part] = bias[part] - __builtin_convertvector(sums[q][part], Floats) * factor[q];
        bits[q] = not_above16(low, (limit(q) - base[q]) + by[q]->twice_rest * rest) & mask;
      }
      for (int q = 0; q < Q; ++q) {
        if (!bits[q]) continue;
        for (int part = 0; part < kRegisters; ++part) sums[q][part] += by[q]->start_rest;
        add_all_products<1>(by + q, codes, early, lists.width, sums + q);
        Floats found[kRegisters];
        for (int part = 0; part < kRegisters; ++part) found[part] = (bias[part] + base[q]) - __builtin_convertvector(sums[q][part], Floats) * factor[q];
        unsigned left = not_above16(found, limit(q)) & mask;
        if (!left) continue;
        float each[kRows];
        std::memcpy(each, found, sizeof(each));
        for (; left; left &= left - 1) {
          const int lane = __builtin_ctz(left);
          take(q, each[lane], uint32_t(block * kRows + lane));
        }
      }
    }
    return rows;
  }

  // Keeps the best `depth` rows.
  void cut(Climb &c) const {
    if (int64_t(c.n_near) <= depth) return;
    std::nth_element(c.near.begin(), c.near.begin() + depth - 1, c.near.begin() + int64_t(c.n_near));
    c.n_near = size_t(depth);
    c.limit = c.near[c.n_near - 1].square;
  }

  // Asked only of rows that are near enough: few are, and so a filter costs next to nothing.
  SLOSH_INLINE bool permitted(uint32_t place) const { return !job.allowed || job.allowed[lists.slots[place]]; }

  SLOSH_INLINE void keep(Climb &c, float square, uint32_t place) const {
    if (!(square <= c.limit) || !permitted(place)) return;
    c.near[c.n_near++] = {square, place};
    if (c.n_near == full) cut(c);
  }

  // Q queries scan a list and keep its best rows.
  template <int Q> void approach(int32_t list, const int32_t *who) {
    const Asked *by[Q];
    Climb *c[Q];
    float base[Q];
    const float error = lists.errors[list];
    for (int q = 0; q < Q; ++q) {
      c[q] = &climbs[size_t(who[q])];
      by[q] = &c[q]->asked;
      base[q] = square_of(c[q]->prefix, lists.centres + list * lists.stride, lists.stride);
      c[q]->error = std::max(c[q]->error, error);
      c[q]->shift = std::max(c[q]->shift, 2 * by[q]->blur * (lists.radii[list] + error));
    }
    const int64_t rows = scan<Q>(list, by, base, [&](int q) SLOSH_FLAT { return c[q]->limit; },
                                 [&](int q, float square, uint32_t place) SLOSH_FLAT { keep(*c[q], square, place); });
    for (int q = 0; q < Q; ++q) {
      c[q]->scanned += rows;
      if (int64_t(c[q]->n_near) >= depth + kSpare) cut(*c[q]);
    }
  }

  // How far the k-th row is, by its estimate.
  void measure(Climb &c) const {
    cut(c);
    if (int64_t(c.n_near) < wanted) return;
    if (depth == wanted && int64_t(c.n_near) == depth && c.limit < std::numeric_limits<float>::infinity()) {
      c.kth = c.limit;
      return;
    }
    std::nth_element(c.near.begin(), c.near.begin() + wanted - 1, c.near.begin() + int64_t(c.n_near));
    c.kth = c.near[size_t(wanted - 1)].square;
  }

  // A list is scanned if |query - centre|^2 exceeds that of the nearest list by at most reach times the distance of the k-th row found, to the power 1.5.
  // A row lies in another list than the nearest if it lies beyond the plane between the two, and the difference of the squares is how far away that plane
  // is, up to a factor, the distance of the centres: that would be a power of 1. With the larger one queries far from all rows find as much as others.
  float farthest_list(const Climb &c) const {
    const float kth = std::sqrt(std::max(0.0f, c.kth));  // an estimate may be less than nothing
    return c.nearest_list + job.reach * kth * std::sqrt(kth);
  }

  // The nearest list, and more of them until k rows are found; then the others that may be worth a scan, nearest last.
  void begin(int32_t query, Line *mine) {
    Climb &c = climbs[size_t(query)];
    c.near.resize(full);
    for (int64_t scanned = 0; scanned < lists.n_lists && int64_t(c.n_near) < wanted; ++scanned) {
      const int64_t l = nearest_head(mine);
      if (l < 0) break;
      if (!scanned) c.nearest_list = mine[size_t(l / kRows)].each[l % kRows];
      mine[size_t(l / kRows)].each[l % kRows] = std::numeric_limits<float>::infinity();
      approach<1>(int32_t(l), &query);
    }
    measure(c);
    const float farthest = std::min(farthest_list(c), std::numeric_limits<float>::max());
    for (size_t b = 0; b < n_heads; ++b)
      for (unsigned bits = at_most16(mine[b].each, farthest); bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        c.lists.push_back({mine[b].each[lane], uint32_t(b * kRows) + uint32_t(lane)});
      }
    std::sort(c.lists.rbegin(), c.lists.rend());
    c.n_left = c.lists.size();
  }

  // Fetches what is looked at first of the first blocks of a list.
  void fetch_list(int32_t list) const {
    const int64_t begin = lists.start[list], end = std::min(lists.start[list + 1], begin + kFetchedBlocks);
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t *codes = lists.rows.codes + lists.order[i] * lists.width * kRows;
      for (int64_t b = 0; b < lists.early * kRows; b += 64) __builtin_prefetch(codes + b);
      __builtin_prefetch(lists.rows.biases + lists.order[i] * kRows);
    }
  }

  // Calls four(list, queries), two and one for the visits, list after list.
  template <class Four, class Two, class One> void visit(Four four, Two two, One one) {
    if (n == 1) {  // nobody to share a list with; what is found does not depend on the order
      for (size_t i = 0; i < visits.size(); ++i) {
        if (i + 1 < visits.size()) fetch_list(visits[i + 1].list);
        one(visits[i].list, &visits[i].query);
      }
      return;
    }
    counts.assign(size_t(lists.n_lists) + 1, {0, 0});
    sorted.resize(visits.size());
    for (const Visit &v : visits) ++counts[size_t(v.list) + 1].place;
    for (int64_t l = 0; l < lists.n_lists; ++l) counts[size_t(l) + 1].place += counts[size_t(l)].place;
    for (const Visit &v : visits) sorted[counts[size_t(v.list)].place++] = v;
    for (size_t i = 0; i < sorted.size();) {
      int32_t who[kAbreast];
      int n_who = 0;
      const int32_t list = sorted[i].list;
      for (; i < sorted.size() && sorted[i].list == list && n_who < kAbreast; ++i) who[n_who++] = sorted[i].query;
      if (n_who == kAbreast) {
        four(list, who);
        continue;
      }
      if (n_who >= 2) two(list, who);
      if (n_who % 2) one(list, who + n_who - 1);
    }
  }

  void approach_all() {
    with_heads([this](int32_t q, Line *mine) { begin(q, mine); });
    for (const int64_t some : kRounds) {
      visits.clear();
      for (int32_t q = 0; q < int32_t(n); ++q) {
        Climb &c = climbs[size_t(q)];
        const float farthest = farthest_list(c);
        for (int64_t i = 0; i < some && c.n_left && c.lists[c.n_left - 1].square <= farthest; ++i) visits.push_back({int32_t(c.lists[--c.n_left].place), q});
      }
      if (visits.empty()) break;
      visit([this](int32_t list, const int32_t *who) { approach<kAbreast>(list, who); }, [this](int32_t list, const int32_t *who) { approach<2>(list, who); },
            [this](int32_t list, const int32_t *who) { approach<1>(list, who); });
      for (Climb &c : climbs) measure(c);
    }
  }

  // What an estimate may be, squared, if the vector is within `radius`.
  static float limit_of(double radius, double off) {
    const double reach = radius * (1 + 1e-5) + off;
    const double squared = reach * reach * (1 + 1e-6) + 1e-36;  // below that a square in float32 has few digits
    return squared < 3e38 ? float(squared) : std::numeric_limits<float>::infinity();
  }

  // Notes that a vector is read, for those who check the file it lies in before they use what was found. Threads may note the same one at a time.
  static void note(const Ladder &job, int64_t position) {
    if (!job.marks) return;
    uint8_t *mark = job.marks + (position >> job.mark_shift);
    if (__atomic_load_n(mark, __ATOMIC_RELAXED) == kMarkChecked) return;
    __atomic_store_n(mark, kMarkRead, __ATOMIC_RELAXED);
    __atomic_store_n(job.unchecked, true, __ATOMIC_RELAXED);
  }

  // Sorts `near`, and fetches the vectors that are compared first.
  void line_up(Climb &c) const {
    c.near.resize(c.n_near);
    std::sort(c.near.begin(), c.near.end());
    for (size_t i = 0; i < std::min<size_t>(c.near.size(), kFetched); ++i) fetch(job.vectors, lists.slots[c.near[i].place]);
  }

  // The vectors of `near`, in order, until no later one can be among the k nearest.
  Nearest rerank(Climb &c, bool bounds) {
    Nearest nearest{job.ranks, job.k, {}};
    nearest.hits.reserve(size_t(job.k));
    const double off = bounds ? 0.0 : c.slack + double(c.error);
    const float shift = bounds ? 0.0f : c.shift;
    float limit = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < c.near.size() && c.near[i].square <= limit; ++i) {
      if (i + kFetched < c.near.size()) fetch(job.vectors, lists.slots[c.near[i + kFetched].place]);
      const int64_t position = lists.slots[c.near[i].place];
      if (position == c.skip) continue;
      ++c.candidates;
      note(job, position);
      nearest.take(square(job.vectors, c.vector, position), position);
      if (nearest.full()) limit = limit_of(std::sqrt(nearest.farthest()), off) + shift;
    }
    return nearest;
  }

  // All rows that a vector within the radius may have, with lower bounds of their distances; `reach` is that radius, plus what rounding a prefix may do.
  template <int Q> void surround(int32_t list, const int32_t *who, const Float *reach) {
    const Asked *by[Q];
    Climb *c[Q];
    float limit[Q], base[Q], shift[Q];
    const float error = lists.errors[list], radius = lists.radii[list] + error, *centre = lists.centres + list * lists.stride;
    for (int q = 0; q < Q; ++q) {
      c[q] = &climbs[size_t(who[q])];
      by[q] = &c[q]->asked;
      base[q] = square_of(c[q]->prefix, centre, lists.stride);
      const float rounding = 4e-6f * (base[q] + radius * (radius + 2 * (lists.farthest + by[q]->norm)));
      shift[q] = (rounding + 2 * by[q]->blur * radius) * (1 + 1e-5f);
      const float most = reach[who[q]].value + error;
      limit[q] = most * most * (1 + 1e-5f) + shift[q] + 1e-36f;  // below that a square in float32 has few digits
    }
    const int64_t rows = scan<Q>(list, by, base, [&](int q) SLOSH_FLAT { return limit[q]; }, [&](int q, float square, uint32_t place) {
      if (!permitted(place)) return;
      const float low = std::sqrt(std::max(0.0f, square - shift[q])) * (1 - 1e-5f) - (error + float(c[q]->slack)) * (1 + 1e-5f);
      ++c[q]->n_near;
      c[q]->near.push_back({low > 0 ? low * low * (1 - 1e-5f) : 0.0f, place});
    });
    for (int q = 0; q < Q; ++q) c[q]->scanned += rows;
  }

  // Bit l: list 16 b + l, estimated at `line`, may hold a row within this reach. `rounding` is that of the estimates.
  unsigned may_hold(size_t b, const Line &line, float reach, float rounding) const {
    float radii[kRows] = {};
    const int64_t first = int64_t(b) * kRows;
    std::memcpy(radii, lists.radii + first, sizeof(float) * size_t(std::min<int64_t>(kRows, lists.n_lists - first)));
    unsigned bits = 0;
    for (int l = 0; l < kRows; ++l) {
      const float far = reach + radii[l], near = line.each[l] * (1 - 1e-5f) - rounding;
      bits |= unsigned(!(near > far * far * (1 + 1e-5f) && near < std::numeric_limits<float>::infinity())) << l;  // infinite: float32 has overflowed
    }
    return first + kRows <= lists.n_lists ? bits : bits & ((1u << (lists.n_lists - first)) - 1);
  }

  // Calls use(query, what it finds), query by query. The vectors of one are on their way while those of the one before are compared.
  template <class Use> void rerank_all(bool bounds, Use use) {
    line_up(climbs[0]);
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 < n) line_up(climbs[size_t(i + 1)]);
      use(i, rerank(climbs[size_t(i)], bounds));
    }
  }

  void surround_all(const double *radius) {
    visitors.assign(size_t(lists.n_lists), {0});
    std::vector<Float> reach(static_cast<size_t>(n));
    with_heads([&](int32_t q, const Line *mine) {
      Climb &c = climbs[size_t(q)];
      c.near.clear(), c.n_near = 0;
      const float far = reach[size_t(q)].value = float(std::min((radius[q] + c.slack) * (1 + 1e-5) + 1e-18, 3e38));
      const float rounding = 4e-6f * (c.asked.square + lists.farthest * lists.farthest);
      for (size_t b = 0; b < n_heads; ++b)
        for (unsigned bits = may_hold(b, mine[b], far + c.asked.blur + lists.head_errors[b], rounding); bits; bits &= bits - 1)
          visitors[b * kRows + size_t(__builtin_ctz(bits))].bits |= uint64_t(1) << q;
    });
    for (int32_t list = 0; list < int32_t(lists.n_lists); ++list)
      for (uint64_t bits = visitors[size_t(list)].bits; bits;) {
        int32_t who[kAbreast];
        int n_who = 0;
        for (; bits && n_who < kAbreast; bits &= bits - 1) who[n_who++] = __builtin_ctzll(bits);
        if (n_who == kAbreast) {
          surround<kAbreast>(list, who, reach.data());
          continue;
        }
        if (n_who >= 2) surround<2>(list, who, reach.data());
        if (n_who % 2) surround<1>(list, who + n_who - 1, reach.data());
      }
  }
};

void ladder(const Ladder &job, int64_t first, int64_t last) {
  Tile tile(job, first, last);
  if (job.radius) {
    tile.surround_all(job.radius + first);
    for (int64_t i = 0; i < tile.n; ++i) {
      Climb &c = tile.climbs[size_t(i)];
      const double radius = job.radius[first + i];
      for (size_t j = 0; j < c.near.size(); ++j) {
        if (j + kFetched < c.near.size()) fetch(job.vectors, job.lists.slots[c.near[j + kFetched].place]);
        const int64_t position = job.lists.slots[c.near[j].place];
        if (position == c.skip) continue;
        ++c.candidates;
        Tile::note(job, position);
        const double found = square(job.vectors, c.vector, position);
        if (std::sqrt(found) <= radius) job.put(job.sink, first + i, found, position);
      }
    }
  } else {
    tile.approach_all();
    std::vector<Double> radii(static_cast<size_t>(tile.n));
    const auto write = [&job, first](int64_t i, Nearest &&found) { found.write(job.out + (first + i) * job.k, job.out_positions + (first + i) * job.k); };
    if (job.exact) {
      tile.rerank_all(false, [&radii](int64_t i, const Nearest &found) { radii[size_t(i)].value = std::sqrt(found.farthest()); });
      tile.surround_all(&radii[0].value);
      tile.rerank_all(true, write);
    } else {
      tile.rerank_all(false, write);
    }
  }
  for (int64_t i = 0; i < tile.n; ++i) job.scanned[first + i] = tile.climbs[size_t(i)].scanned, job.candidates[first + i] = tile.climbs[size_t(i)].candidates;
}

constexpr int kRowsAbreast = SLOSH_LANES == 16 ? 8 : 4;  // rows that look for their lists together: as many sums as registers hold

// The list whose centre is nearest to each row of `stride` numbers, and its squared distance; of two that are as near, the first. The centres in eight
// bits leave few to compare: how far the one that seems nearest is says which of the others may be nearer.
template <int Q> inline void nearest_lists_of(const Lists &lists, const float *rows, int64_t *list, float *square, Line *found) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const size_t n_heads = size_t((lists.n_lists + kRows - 1) / kRows);
  Asked asked[Q];
  const Asked *by[Q];
  Floats least[Q];
  for (int q = 0; q < Q; ++q) {
    code_query(rows + q * lists.stride, lists.middle, lists.stride, lists.early, asked[q]);
    by[q] = &asked[q];
    least[q] = all<Floats>(kInfinity);
  }
  for (size_t b = 0; b < n_heads; ++b) {
    Floats some[Q][kRegisters];
    estimate<Q>(by, lists.heads.codes + int64_t(b) * kRows * lists.width, lists.heads.biases + b * kRows, lists.head_steps[b], lists.width, some);
    for (int q = 0; q < Q; ++q) {
      std::memcpy(found[size_t(q) * n_heads + b].each, some[q], sizeof(some[q]));
      for (int part = 0; part < kRegisters; ++part) least[q] = lower(some[q][part], least[q]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    const float *x = rows + q * lists.stride, seems = -largest_of(Floats{} - least[q]);
    const Line *mine = found + size_t(q) * n_heads;
    const auto bits_of = [mine](size_t b, float limit) SLOSH_FLAT {
      Floats near[kRegisters];
      std::memcpy(near, mine[b].each, sizeof(near));
      return not_above16(near, limit);
    };
    int64_t best = 0;
    for (size_t b = 0; b < n_heads && seems < kInfinity; ++b)
      if (const unsigned bits = bits_of(b, seems)) {
        best = std::min(int64_t(b) * kRows + __builtin_ctz(bits), lists.n_lists - 1);
        break;
      }
    float nearest = square_of(x, lists.centres + best * lists.stride, lists.stride);
    const float rounding = 4e-6f * (asked[q].square + lists.farthest * lists.farthest) + 1e-36f, reach = std::sqrt(nearest) * (1 + 1e-5f) + asked[q].blur;
    for (size_t b = 0; b < n_heads; ++b) {
      const float far = reach + lists.head_errors[b];
      for (unsigned bits = bits_of(b, far * far * (1 + 1e-5f) + rounding); bits; bits &= bits - 1) {
        const int64_t l = int64_t(b) * kRows + __builtin_ctz(bits);
        if (l >= lists.n_lists) break;
        const float exact = square_of(x, lists.centres + l * lists.stride, lists.stride);
        if (exact < nearest || (exact == nearest && l < best)) nearest = exact, best = l;
      }
    }
    list[q] = best, square[q] = nearest;
  }
}

void nearest_lists(const Lists &lists, const float *rows, int64_t n, int64_t *list, float *square) {
  std::vector<Line> found(size_t((lists.n_lists + kRows - 1) / kRows * kRowsAbreast));
  int64_t row = 0;
  for (; row + kRowsAbreast <= n; row += kRowsAbreast) nearest_lists_of<kRowsAbreast>(lists, rows + row * lists.stride, list + row, square + row, found.data());
  for (; row < n; ++row) nearest_lists_of<1>(lists, rows + row * lists.stride, list + row, square + row, found.data());
}

}  // namespace SLOSH_ARCH
}  // namespace slosh
