// Attention by heads, and its gradient.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arithmetic.h"
#include "projections.h"
#include "team.h"

namespace albert {

// Space for one thread's numbers, kept from operation to operation.
class Scratch {
 public:
  explicit Scratch(int64_t size) {
    if (static_cast<int64_t>(space_.size()) < size) space_.resize(size);
  }

  float *take(int64_t size) {
    float *begin = space_.data() + taken_;
    taken_ += size;
    return begin;
  }

 private:
  static thread_local std::vector<float> space_;
  int64_t taken_ = 0;
};

inline thread_local std::vector<float> Scratch::space_;

// Attention by heads. Each head of each text is by itself; its queries are dealt with in blocks, so that their scores
// stay in a core's cache and never reach the memory. Shape letters: B texts, A heads, L tokens, D size of a head,
// H = A D, N = B L; n queries of a block. Operands, behind `first` others:
//   0 to 2 queries, keys, values (N, H) without their biases; 3 to 5 the biases (H);
//   6 mask (B, 1, 1, L), added to scores; 7 embeddings of relative positions (2 M + 1, D);
//   8, 9 factors of dropout's hashes (B A L, F), (L, F);
//   10 the number of heads, dropout's probability.
// An operand of rank 1 in the place of 7 or 8 and 9 means that there are none.
class Attention {
 public:
  Attention(const Operands &o, int first)
      : o_(o), first_(first), heads_(o.scalar(first + 10)), probability_(o[first + 10][1]) {
    texts_ = o.shapes[first + 6][0], length_ = o.last(first + 6);
    hidden_ = o.last(first), size_ = heads_ > 0 ? hidden_ / heads_ : 0;
    scale_ = 1.0f / std::sqrt(static_cast<float>(size_));
    if (o.ranks[first + 7] == 2) {
      const int64_t distance = o.shapes[first + 7][0] / 2;
      reach_ = std::min(distance, length_ - 1), width_ = 2 * reach_ + 1;
      table_ = o[first + 7] + (distance - reach_) * size_;
    }
    if (o.ranks[first + 8] == 2) features_ = o.last(first + 8);
  }

  // Writes context (N, H) and, for the gradient, each query's largest score and 1 / its sum of exponentials,
  // (B A, L, 2).
  int forward(float *context, float *sums) {
    return each_head([&](int64_t text, int64_t head) {
      const int64_t entries = length_ * size_, block = std::min(length_, kQueries);
      Scratch scratch(3 * entries + block * (2 * length_ + width_));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *scores = scratch.take(block * length_), *kept_share = scratch.take(block * length_);
      float *by_distance = scratch.take(block * width_);
      read_head(text, head, query, key, value);
      for (int64_t begin = 0; begin < length_; begin += block) {
        const int64_t rows = std::min(block, length_ - begin), first_row = (text * heads_ + head) * length_ + begin;
        score(text, begin, rows, query, key, scores, by_distance);
        for (int64_t i = 0; i < rows; ++i) softmax(scores + i * length_, sums + 2 * (first_row + i));
        if (features_) {
          keep(first_row, rows, kept_share);
          for (int64_t i = 0; i < rows * length_; ++i) scores[i] *= kept_share[i];
        }
        float *out = context + (text * length_ + begin) * hidden_ + head * size_;
        multiply('N', 'N', rows, size_, length_, 1.0f, scores, length_, value, size_, 0.0f, out, hidden_);
        add_by_distance(scores, begin, rows, 1.0f, out, by_distance);
      }
    });
  }

  // Writes the gradients of queries, keys, values (N, H) and of their biases (H).
  int backward(const float *dout, const float *sums, float *const gradients[3], float *const biases[3]) {
    std::vector<float> of_texts(3 * texts_ * hidden_, 0.0f);
    const int status = each_head([&](int64_t text, int64_t head) {
      const int64_t entries = length_ * size_, block = std::min(length_, kQueries);
      Scratch scratch(5 * entries + block * (4 * length_ + width_));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *dkey = scratch.take(entries), *dvalue = scratch.take(entries);
      float *shares = scratch.take(block * length_), *dshares = scratch.take(block * length_);
      float *kept_share = scratch.take(block * length_), *kept_shares = scratch.take(block * length_);
      float *by_distance = scratch.take(block * width_);
      read_head(text, head, query, key, value);
      const int64_t corner = text * length_ * hidden_ + head * size_;
      for (int64_t begin = 0; begin < length_; begin += block) {
        const int64_t rows = std::min(block, length_ - begin), first_row = (text * heads_ + head) * length_ + begin;
        const float *dy = dout + corner + begin * hidden_;
        score(text, begin, rows, query, key, shares, by_distance);
        multiply('N', 'T', rows, length_, size_, 1.0f, dy, hidden_, value, size_, 0.0f, dshares, length_);
        if (width_) {
          multiply('N', 'T', rows, width_, size_, 1.0f, dy, hidden_, table_, size_, 0.0f, by_distance, width_);
          spread(by_distance, begin, rows, dshares);
        }
        if (features_) keep(first_row, rows, kept_share);
        for (int64_t i = 0; i < rows; ++i) {
          softmax_gradient(i, sums + 2 * (first_row + i), shares, dshares, kept_share, kept_shares);
        }
        const float *used = features_ ? kept_shares : shares;
        const float more = begin ? 1.0f : 0.0f;
        multiply('T', 'N', length_, size_, rows, 1.0f, used, length_, dy, hidden_, more, dvalue, size_);
        const float *of_block = query + begin * size_;
        multiply('T', 'N', length_, size_, rows, 1.0f, dshares, length_, of_block, size_, more, dkey, size_);
        float *dquery = gradients[0] + corner + begin * hidden_;
        multiply('N', 'N', rows, size_, length_, scale_, dshares, length_, key, size_, 0.0f, dquery, hidden_);
        add_by_distance(dshares, begin, rows, scale_, dquery, by_distance);
      }
      copy_rows(dkey, size_, gradients[1] + corner, hidden_);
      copy_rows(dvalue, size_, gradients[2] + corner, hidden_);
      for (int which = 0; which < 3; ++which) {
        float *total = of_texts.data() + (which * texts_ + text) * hidden_ + head * size_;
        for (int64_t i = 0; i < length_; ++i) {
          const float *row = gradients[which] + corner + i * hidden_;
          for (int64_t j = 0; j < size_; ++j) total[j] += row[j];
        }
      }
    });
    if (status) return status;
    for (int which = 0; which < 3; ++which) {
      std::fill_n(biases[which], hidden_, 0.0f);
      for (int64_t text = 0; text < texts_; ++text) {
        const float *of_text = of_texts.data() + (which * texts_ + text) * hidden_;
        for (int64_t j = 0; j < hidden_; ++j) biases[which][j] += of_text[j];
      }
    }
    return status;
  }

 private:
  static constexpr int64_t kQueries = 128;  // of a block

  // Calls work(text, head) for all of them. 0, or the number of an error, oneDNN's or 1: operands do not fit.
  template <typename Work>
  int each_head(Work work) {
    if (!sgemm() || !fit()) return 1;
    const int64_t heads = texts_ * heads_, cost = heads * length_ * (length_ + size_);
    const int64_t parts = cost < 2 * kLeast ? 1 : std::min(heads, 4 * Team::get().size());
    Team::get().run(parts, [&](int64_t part) {
      for (int64_t i = heads * part / parts; i < heads * (part + 1) / parts; ++i) work(i / heads_, i % heads_);
    });
    return status_;
  }

  // Whether the operands have the shapes that they should have, and a gradient that stands before them as well.
  bool fit() const {
    bool fit = first_ == 0 || (o_.rows(0) == texts_ * length_ && o_.last(0) == hidden_);
    fit = fit && heads_ > 0 && heads_ * size_ == hidden_ && texts_ * length_ > 0;
    for (int i = 0; i < 3; ++i) {
      const int x = first_ + i;
      fit = fit && o_.rows(x) == texts_ * length_ && o_.last(x) == hidden_ && o_.last(x + 3) == hidden_;
    }
    if (width_) fit = fit && o_.last(first_ + 7) == size_;
    if (features_) {
      fit = fit && o_.rows(first_ + 8) == texts_ * heads_ * length_ && o_.rows(first_ + 9) == length_ &&
            o_.last(first_ + 9) == features_;
    }
    return fit;
  }

  void multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    status_ |= sgemm()(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }

  void copy_rows(const float *from, int64_t from_step, float *to, int64_t to_step) const {
    for (int64_t i = 0; i < length_; ++i) std::memcpy(to + i * to_step, from + i * from_step, size_ * sizeof(float));
  }

  // A head's queries (scaled), keys and values with their biases, (L, D) each.
  void read_head(int64_t text, int64_t head, float *query, float *key, float *value) const {
    float *const made[] = {query, key, value};
    for (int which = 0; which < 3; ++which) {
      const float *x = o_[first_ + which] + text * length_ * hidden_ + head * size_;
      const float *bias = o_[first_ + 3 + which] + head * size_, scale = which ? 1.0f : scale_;
      for (int64_t i = 0; i < length_; ++i) {
        float *row = made[which] + i * size_;
#pragma omp simd
        for (int64_t j = 0; j < size_; ++j) row[j] = (x[i * hidden_ + j] + bias[j]) * scale;
      }
    }
  }

  // Scores of a block's queries with all keys, (n, L), the mask among them.
  void score(int64_t text, int64_t begin, int64_t rows, const float *query, const float *key, float *scores,
             float *by_distance) {
    const float *of_block = query + begin * size_, *mask = o_[first_ + 6] + text * length_;
    multiply('N', 'T', rows, length_, size_, 1.0f, of_block, size_, key, size_, 0.0f, scores, length_);
    if (width_) {
      multiply('N', 'T', rows, width_, size_, 1.0f, of_block, size_, table_, size_, 0.0f, by_distance, width_);
      spread(by_distance, begin, rows, scores);
    }
    for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < length_; ++j) scores[i * length_ + j] += mask[j];
    }
  }

  // Adds to each entry of x (n, L) that of its distance, key's place - query's place, cut off at the table's ends.
  void spread(const float *by_distance, int64_t begin, int64_t rows, float *x) const {
    for (int64_t i = 0; i < rows; ++i) {
      const float *far = by_distance + i * width_;
      float *row = x + i * length_;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - reach_);
      const int64_t high = std::min(length_, place + reach_ + 1);
      const float *near = far + (reach_ - place);  // by the key's place
      for (int64_t j = 0; j < low; ++j) row[j] += far[0];
      for (int64_t j = low; j < high; ++j) row[j] += near[j];
      for (int64_t j = high; j < length_; ++j) row[j] += far[width_ - 1];
    }
  }

  // Adds alpha x E to y (n, D), rows hidden_ apart, where E are the embeddings of x's (n, L) distances.
  void add_by_distance(const float *x, int64_t begin, int64_t rows, float alpha, float *y, float *by_distance) {
    if (!width_) return;
    std::fill_n(by_distance, rows * width_, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const float *row = x + i * length_;
      float *far = by_distance + i * width_;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - reach_);
      const int64_t high = std::min(length_, place + reach_ + 1);
      float *near = far + (reach_ - place);
      for (int64_t j = low; j < high; ++j) near[j] = row[j];
      float before = 0.0f, behind = 0.0f;
#pragma omp simd reduction(+ : before)
      for (int64_t j = 0; j < low; ++j) before += row[j];
#pragma omp simd reduction(+ : behind)
      for (int64_t j = high; j < length_; ++j) behind += row[j];
      far[0] += before, far[width_ - 1] += behind;
    }
    multiply('N', 'N', rows, size_, width_, alpha, by_distance, width_, table_, size_, 1.0f, y, hidden_);
  }

  // 0 or 1 / (1 - probability) for each of a block's probabilities, (n, L).
  void keep(int64_t first_row, int64_t rows, float *kept_share) {
    const float *by_row = o_[first_ + 8] + first_row * features_;
    multiply('N', 'T', rows, length_, features_, 1.0f, by_row, features_, o_[first_ + 9], features_, 0.0f, kept_share,
             length_);
#pragma omp simd
    for (int64_t i = 0; i < rows * length_; ++i) kept_share[i] = kept(kept_share[i], probability_);
  }

  // Softmax of a row in its place; its largest entry and 1 / its sum of exponentials.
  void softmax(float *x, float *sums) const {
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < length_; ++j) largest = x[j] > largest ? x[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < length_; ++j) {
      x[j] = exponential(x[j] - largest);
      sum += x[j];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) x[j] *= inverse;
    sums[0] = largest, sums[1] = inverse;
  }

  // Of a block's query i: scores become probabilities, and the gradients of what dropout leaves of the probabilities
  // those of the scores.
  void softmax_gradient(int64_t i, const float *sums, float *shares, float *dshares, const float *kept_share,
                        float *kept_shares) const {
    shares += i * length_, dshares += i * length_, kept_share += i * length_, kept_shares += i * length_;
    const float largest = sums[0], inverse = sums[1];
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) shares[j] = exponential(shares[j] - largest) * inverse;
    if (features_) {
#pragma omp simd
      for (int64_t j = 0; j < length_; ++j) {
        kept_shares[j] = shares[j] * kept_share[j];
        dshares[j] *= kept_share[j];
      }
    }
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < length_; ++j) total += shares[j] * dshares[j];
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) dshares[j] = shares[j] * (dshares[j] - total);
  }

  const Operands &o_;
  const int first_;
  const int64_t heads_;
  const float probability_;
  int64_t texts_, length_, hidden_, size_, reach_ = 0, width_ = 0, features_ = 0;
  float scale_;
  const float *table_ = nullptr;
  std::atomic<int> status_{0};
};

}  // namespace albert
