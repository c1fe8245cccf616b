// The k nearest codes of a few queries, in one pass over the codes that is shared by all of them. A distance is a small whole number: the farthest
// that still counts is known at any time from how often each distance was met, and no heap is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "job.h"

namespace slosh {

// Blocks that one query looks at before the next one does: they stay in the first cache meanwhile (16 KB).
inline int64_t chunk_places(int64_t n_words) { return std::max<int64_t>(kFour, std::min<int64_t>(kPlaces, 256 / n_words / kFour * kFour)); }

// One found code, as `near_codes` gives it.
inline int64_t distance_of(uint64_t code) { return int64_t(code >> kPositionBits); }
inline int64_t position_of(uint64_t code) { return int64_t(code & ((uint64_t(1) << kPositionBits) - 1)); }

constexpr uint64_t kNoCode = ~uint64_t(0);

// By distance, then row; rows null: position.
struct Before {
  const int64_t *rows;
  bool operator()(uint64_t a, uint64_t b) const {
    return !rows || (a ^ b) >> kPositionBits || a == kNoCode || b == kNoCode ? a < b : rows[position_of(a)] < rows[position_of(b)];
  }
};

// The k nearest of what is offered, in the order of the positions. Equal distances are ordered by row; with `rows` null that is the order of
// the positions.
class Nearest {
 public:
  // At most `chunk` are offered at a time, and `total` altogether.
  Nearest(int64_t k, int64_t n_bits, int64_t chunk, int64_t total, const int64_t *rows)
      : k_(k), rows_(rows), far_(n_bits), met_(size_t(n_bits) + 1), kept_(size_t(std::min(4 * k + chunk, total))) {}

  // The largest distance that may still be among the k nearest: a later row of the same distance comes after those that are there.
  int64_t limit() const { return inside_ < k_ || rows_ ? far_ : far_ - 1; }

  void offer(const uint64_t *found, int64_t n) {
    if (size_ + n > int64_t(kept_.size())) squeeze();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t distance = distance_of(found[i]);
      if (distance > limit()) continue;
      kept_[size_t(size_++)] = found[i];
      ++met_[size_t(distance)];
      ++inside_;
      while (inside_ - met_[size_t(far_)] >= k_) inside_ -= met_[size_t(far_--)];
    }
  }

  // Sorted by distance, then row; returns how many, k at most. `out` has room for k.
  int64_t take(uint64_t *out) {
    squeeze();
    std::vector<int64_t> place(size_t(far_) + 2);
    for (int64_t i = 0; i < size_; ++i) ++place[size_t(distance_of(kept_[size_t(i)])) + 1];
    for (size_t d = 1; d < place.size(); ++d) place[d] += place[d - 1];
    std::vector<uint64_t> sorted(static_cast<size_t>(size_));
    for (int64_t i = 0; i < size_; ++i) sorted[size_t(place[size_t(distance_of(kept_[size_t(i)]))]++)] = kept_[size_t(i)];
    if (rows_) std::sort(sorted.begin(), sorted.end(), Before{rows_});
    const int64_t n = std::min(size_, k_);
    std::copy_n(sorted.begin(), n, out);
    return n;
  }

 private:
  // Forgets what has become too far. At most 2 k stay: fewer than k are nearer than `far_`, and at most k were taken at that distance, except where
  // rows decide between them.
  void squeeze() {
    int64_t n = 0;
    for (int64_t i = 0; i < size_; ++i) {
      kept_[size_t(n)] = kept_[size_t(i)];
      n += distance_of(kept_[size_t(i)]) <= far_;
    }
    size_ = n;
    if (size_ <= 2 * k_) return;
    std::nth_element(kept_.begin(), kept_.begin() + k_ - 1, kept_.begin() + size_, Before{rows_});
    met_[size_t(far_)] -= size_ - k_;
    size_ = inside_ = k_;
  }

  const int64_t k_;
  const int64_t *rows_;
  int64_t far_;                    // the largest distance that counts
  int64_t size_ = 0, inside_ = 0;  // how many are kept, and how many of them are at most far_ away
  std::vector<int64_t> met_;       // how often each distance was taken
  std::vector<uint64_t> kept_;     // in the order of the positions
};

// The nearest of the queries [from, to) among the places [first, last): k numbers for each, `step` numbers apart, filled up with kNoCode.
inline void nearest(const Kernel &kernel, const Codes &job, const uint64_t *queries, int64_t from, int64_t to, int64_t first, int64_t last, int64_t k,
                    const int64_t *rows, uint64_t *out, int64_t step) {
  const int64_t chunk = chunk_places(job.n_words);
  std::vector<Nearest> each(size_t(to - from), Nearest(k, 64 * job.n_words, chunk * kCodes, (last - first) * kCodes, rows));
  std::vector<uint64_t> found(size_t(chunk * kCodes));
  for (int64_t place = first; place < last; place += chunk)
    for (int64_t q = from; q < to; ++q) {
      Nearest &mine = each[size_t(q - from)];
      const int64_t n = kernel.near_codes(job, queries + q * job.n_words, place, std::min(last, place + chunk), mine.limit(), found.data());
      if (n) mine.offer(found.data(), n);
    }
  for (int64_t q = from; q < to; ++q, out += step) {
    const int64_t n = each[size_t(q - from)].take(out);
    std::fill(out + n, out + k, kNoCode);
  }
}

}  // namespace slosh
