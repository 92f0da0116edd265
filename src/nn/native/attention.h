// Attention by heads, and its gradient.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "arithmetic.h"
#include "dropout.h"
#include "gemm.h"
#include "team.h"

namespace albert {

// Attention by heads. Each head of each text is by itself; its queries are dealt with in blocks, so that their scores
// stay in a core's cache and never reach the memory. Shape letters: B texts, A heads, L tokens of a text, D size of a
// head, H = A D, N rows, B L of them where all texts have the same length; n queries of a block. Operands, behind
// `first` others:
//   0 to 2 queries, keys, values (N, H) without their biases; 3 to 5 the biases (H);
//   6 mask (B, 1, 1, L), added to scores; or the rows where texts of any lengths begin and the last one ends (B + 1)
//   int32;
//   7 embeddings of relative positions (2 M + 1, D);
//   8, 9 factors of dropout's hashes (N A, F) and of so many columns, the longest text's tokens or more, (C, F);
//   10 the number of heads, dropout's probability.
// An operand of rank 1 in the place of 7 or 8 and 9 means that there are none.
class Attention {
 public:
  Attention(const Operands &o, int first)
      : o_(o), first_(first), heads_(o.scalar(first + 10)), dropout_(o, first + 8, o[first + 10][1]) {
    hidden_ = o.last(first), size_ = heads_ > 0 ? hidden_ / heads_ : 0;
    scale_ = 1.0f / std::sqrt(static_cast<float>(size_));
    packed_ = o.ranks[first + 6] == 1;
    if (packed_) {
      const int32_t *begins = reinterpret_cast<const int32_t *>(o[first + 6]);
      no_mask_.resize(o.rows(first), 0.0f);
      for (int64_t i = 0; i + 1 < o.last(first + 6); ++i) {
        add_text(begins[i], begins[i + 1] - begins[i], no_mask_.data());
      }
    } else {
      const int64_t length = o.last(first + 6);
      for (int64_t i = 0; i < o.shapes[first + 6][0]; ++i) add_text(i * length, length, o[first + 6] + i * length);
    }
  }

  // Writes context (N, H), 0 in rows of no text, and, for the gradient, each query's largest score and 1 / its sum of
  // exponentials, (N A, 2): by text, head and place.
  int forward(float *context, float *sums) {
    clear_rows_of_no_text(context);
    return each_head([&](const Text &text, int64_t head) {
      const int64_t entries = text.length * size_, block = std::min(text.length, kQueries);
      Scratch scratch(3 * entries + block * (2 * text.length + text.width));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *scores = scratch.take(block * text.length), *kept_share = scratch.take(block * text.length);
      float *by_distance = scratch.take(block * text.width);
      read_head(text, head, query, key, value);
      for (int64_t begin = 0; begin < text.length; begin += block) {
        const int64_t rows = std::min(block, text.length - begin);
        const int64_t row = heads_ * text.first + head * text.length + begin;
        score(text, begin, rows, query, key, scores, by_distance);
        for (int64_t i = 0; i < rows; ++i) exponentials(text, scores + i * text.length, sums + 2 * (row + i));
        if (dropout_.given()) {
          dropout_.read(row, rows, text.length, kept_share);
#pragma omp simd
          for (int64_t i = 0; i < rows * text.length; ++i) scores[i] *= kept_share[i];
        }
        float *out = context + (text.first + begin) * hidden_ + head * size_;
        multiply('N', 'N', rows, size_, text.length, 1.0f, scores, text.length, value, size_, 0.0f, out, hidden_);
        add_by_distance(text, scores, begin, rows, 1.0f, out, by_distance);
        for (int64_t i = 0; i < rows; ++i) {
          const float inverse = sums[2 * (row + i) + 1];
          for (int64_t j = 0; j < size_; ++j) out[i * hidden_ + j] *= inverse;
        }
      }
    });
  }

  // Writes the gradients of queries, keys, values (N, H), 0 in rows of no text, and of their biases (H).
  int backward(const float *dout, const float *sums, float *const gradients[3], float *const biases[3]) {
    const int64_t texts = texts_.size();
    for (int which = 0; which < 3; ++which) clear_rows_of_no_text(gradients[which]);
    std::vector<float> of_texts(3 * texts * hidden_, 0.0f);
    const int status = each_head([&](const Text &text, int64_t head) {
      const int64_t entries = text.length * size_, block = std::min(text.length, kQueries);
      Scratch scratch(3 * entries + block * (3 * text.length + text.width));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *shares = scratch.take(block * text.length), *dshares = scratch.take(block * text.length);
      float *kept_share = scratch.take(block * text.length);
      float *by_distance = scratch.take(block * text.width);
      read_head(text, head, query, key, value);
      const int64_t corner = text.first * hidden_ + head * size_;
      for (int64_t begin = 0; begin < text.length; begin += block) {
        const int64_t rows = std::min(block, text.length - begin);
        const int64_t row = heads_ * text.first + head * text.length + begin;
        const float *dy = dout + corner + begin * hidden_;
        score(text, begin, rows, query, key, shares, by_distance);
        multiply('N', 'T', rows, text.length, size_, 1.0f, dy, hidden_, value, size_, 0.0f, dshares, text.length);
        if (text.width) {
          multiply('N', 'T', rows, text.width, size_, 1.0f, dy, hidden_, text.table, size_, 0.0f, by_distance,
                   text.width);
          spread(text, by_distance, begin, rows, dshares);
        }
        if (dropout_.given()) dropout_.read(row, rows, text.length, kept_share);
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t at = i * text.length;
          softmax_gradient(text, sums + 2 * (row + i), shares + at, dshares + at, kept_share + at);
        }
        const float *kept = dropout_.given() ? kept_share : shares, *of_block = query + begin * size_;
        const float more = begin ? 1.0f : 0.0f;
        float *dkey = gradients[1] + corner, *dvalue = gradients[2] + corner;
        multiply('T', 'N', text.length, size_, rows, 1.0f, kept, text.length, dy, hidden_, more, dvalue, hidden_);
        multiply('T', 'N', text.length, size_, rows, 1.0f, dshares, text.length, of_block, size_, more, dkey, hidden_);
        float *dquery = gradients[0] + corner + begin * hidden_;
        multiply('N', 'N', rows, size_, text.length, scale_, dshares, text.length, key, size_, 0.0f, dquery, hidden_);
        add_by_distance(text, dshares, begin, rows, scale_, dquery, by_distance);
      }
      for (int which = 0; which < 3; ++which) {
        float *total = of_texts.data() + (which * texts + (&text - texts_.data())) * hidden_ + head * size_;
        for (int64_t i = 0; i < text.length; ++i) {
          const float *row = gradients[which] + corner + i * hidden_;
          for (int64_t j = 0; j < size_; ++j) total[j] += row[j];
        }
      }
    });
    if (status) return status;
    for (int which = 0; which < 3; ++which) {
      std::fill_n(biases[which], hidden_, 0.0f);
      for (int64_t text = 0; text < texts; ++text) {
        const float *of_text = of_texts.data() + (which * texts + text) * hidden_;
        for (int64_t j = 0; j < hidden_; ++j) biases[which][j] += of_text[j];
      }
    }
    return status;
  }

 private:
  static constexpr int64_t kQueries = 128;  // of a block

  // Its rows are `length` from `first` on. mask: (L), added to scores. reach: the largest distance with an embedding of
  // its own; table: the embeddings from -reach to reach, of which there are `width`.
  struct Text {
    int64_t first, length, reach, width;
    const float *mask, *table;
  };

  void add_text(int64_t first, int64_t length, const float *mask) {
    if (length == 0) return;  // each_head would give such texts a share of the threads
    Text text{first, length, 0, 0, mask, nullptr};
    if (o_.ranks[first_ + 7] == 2) {
      const int64_t distance = o_.shapes[first_ + 7][0] / 2;
      text.reach = std::max<int64_t>(0, std::min(distance, length - 1)), text.width = 2 * text.reach + 1;
      text.table = o_[first_ + 7] + (distance - text.reach) * size_;
    }
    texts_.push_back(text);
  }

  // The row behind the last text.
  int64_t end() const { return texts_.empty() ? 0 : texts_.back().first + texts_.back().length; }

  // Those behind the last text, of (N, H).
  void clear_rows_of_no_text(float *rows) const {
    if (packed_ && fit()) std::fill_n(rows + end() * hidden_, (o_.rows(first_) - end()) * hidden_, 0.0f);
  }

  // Calls work(text, head) for all of them. 0, or the number of an error, oneDNN's or 1: operands do not fit.
  template <typename Work>
  int each_head(Work work) {
    if (!gemm<float>() || !fit()) return 1;
    int64_t cost = 0;
    for (const Text &text : texts_) cost += heads_ * text.length * (text.length + size_);
    const int64_t heads = texts_.size() * heads_, most = (packed_ ? 16 : 4) * Team::get().size();
    const int64_t parts = cost < 2 * kLeast ? 1 : std::min(heads, most);
    Team::get().run(parts, [&](int64_t part) {
      for (int64_t i = heads * part / parts; i < heads * (part + 1) / parts; ++i) work(texts_[i / heads_], i % heads_);
    });
    return status_;
  }

  // Whether the operands have the shapes that they should have, and a gradient that stands before them as well.
  bool fit() const {
    const int64_t rows = o_.rows(first_);
    bool fit = first_ == 0 || (o_.rows(0) == rows && o_.last(0) == hidden_);
    fit = fit && heads_ > 0 && heads_ * size_ == hidden_ && (packed_ ? end() <= rows : end() == rows && rows > 0);
    int64_t row = 0, longest = 0;
    for (const Text &text : texts_) {
      fit = fit && text.first == row && text.length >= 0;
      row += text.length, longest = std::max(longest, text.length);
    }
    for (int i = 0; i < 3; ++i) {
      const int x = first_ + i;
      fit = fit && o_.rows(x) == rows && o_.last(x) == hidden_ && o_.last(x + 3) == hidden_;
    }
    if (o_.ranks[first_ + 7] == 2) fit = fit && o_.last(first_ + 7) == size_;
    return fit && (!dropout_.given() || dropout_.fits(rows * heads_, longest));
  }

  void multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    status_ |= gemm<float>()(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }

  // A head's queries (scaled), keys and values with their biases, (L, D) each.
  void read_head(const Text &text, int64_t head, float *query, float *key, float *value) const {
    float *const made[] = {query, key, value};
    for (int which = 0; which < 3; ++which) {
      const float *x = o_[first_ + which] + text.first * hidden_ + head * size_;
      const float *bias = o_[first_ + 3 + which] + head * size_, scale = which ? 1.0f : scale_;
      for (int64_t i = 0; i < text.length; ++i) {
        float *row = made[which] + i * size_;
#pragma omp simd
        for (int64_t j = 0; j < size_; ++j) row[j] = (x[i * hidden_ + j] + bias[j]) * scale;
      }
    }
  }

  // Scores of a block's queries with all keys, (n, L), without the mask.
  void score(const Text &text, int64_t begin, int64_t rows, const float *query, const float *key, float *scores,
             float *by_distance) {
    const float *of_block = query + begin * size_;
    multiply('N', 'T', rows, text.length, size_, 1.0f, of_block, size_, key, size_, 0.0f, scores, text.length);
    if (text.width) {
      multiply('N', 'T', rows, text.width, size_, 1.0f, of_block, size_, text.table, size_, 0.0f, by_distance,
               text.width);
      spread(text, by_distance, begin, rows, scores);
    }
  }

  // Adds to each entry of x (n, L) that of its distance, key's place - query's place, cut off at the table's ends.
  void spread(const Text &text, const float *by_distance, int64_t begin, int64_t rows, float *x) const {
    for (int64_t i = 0; i < rows; ++i) {
      const float *far = by_distance + i * text.width;
      float *row = x + i * text.length;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - text.reach);
      const int64_t high = std::min(text.length, place + text.reach + 1);
      const float *near = far + (text.reach - place);  // by the key's place
      for (int64_t j = 0; j < low; ++j) row[j] += far[0];
      for (int64_t j = low; j < high; ++j) row[j] += near[j];
      for (int64_t j = high; j < text.length; ++j) row[j] += far[text.width - 1];
    }
  }

  // Adds alpha x E to y (n, D), rows hidden_ apart, where E are the embeddings of x's (n, L) distances.
  void add_by_distance(const Text &text, const float *x, int64_t begin, int64_t rows, float alpha, float *y,
                       float *by_distance) {
    if (!text.width) return;
    std::fill_n(by_distance, rows * text.width, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const float *row = x + i * text.length;
      float *far = by_distance + i * text.width;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - text.reach);
      const int64_t high = std::min(text.length, place + text.reach + 1);
      float *near = far + (text.reach - place);
      for (int64_t j = low; j < high; ++j) near[j] = row[j];
      float before = 0.0f, behind = 0.0f;
#pragma omp simd reduction(+ : before)
      for (int64_t j = 0; j < low; ++j) before += row[j];
#pragma omp simd reduction(+ : behind)
      for (int64_t j = high; j < text.length; ++j) behind += row[j];
      far[0] += before, far[text.width - 1] += behind;
    }
    multiply('N', 'N', rows, size_, text.width, alpha, by_distance, text.width, text.table, size_, 1.0f, y, hidden_);
  }

  // A query's scores x become exponentials: what their softmax is, but for the factor 1 / sum. The largest score and
  // that factor.
  void exponentials(const Text &text, float *x, float *sums) const {
    const float *mask = text.mask;
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < text.length; ++j) {
      x[j] += mask[j];
      largest = x[j] > largest ? x[j] : largest;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < text.length; ++j) {
      x[j] = exponential(x[j] - largest);
      sum += x[j];
    }
    sums[0] = largest, sums[1] = 1.0f / sum;
  }

  // Of a query: scores become probabilities, gradients of what dropout leaves of these become those of the scores, and
  // what dropout multiplies by becomes what it leaves.
  void softmax_gradient(const Text &text, const float *sums, float *shares, float *dshares, float *kept_share) const {
    const float *mask = text.mask, largest = sums[0], inverse = sums[1];
    const int64_t length = text.length;
    float total = 0.0f;
    if (dropout_.given()) {
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) dshares[j] *= kept_share[j];
    }
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < length; ++j) {
      shares[j] = exponential(shares[j] + mask[j] - largest) * inverse;
      total += shares[j] * dshares[j];
    }
#pragma omp simd
    for (int64_t j = 0; j < length; ++j) dshares[j] = shares[j] * (dshares[j] - total);
    if (dropout_.given()) {
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) kept_share[j] *= shares[j];
    }
  }

  const Operands &o_;
  const int first_;
  const int64_t heads_;
  const DropoutMask dropout_;
  bool packed_;
  int64_t hidden_, size_;
  float scale_;
  std::vector<float> no_mask_;
  std::vector<Text> texts_;
  std::atomic<int> status_{0};
};

}  // namespace albert
