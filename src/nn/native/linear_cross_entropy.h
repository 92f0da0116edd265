// Cross-entropy of a product's rows, such as the scores of a vocabulary.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "arithmetic.h"
#include "gemm.h"
#include "team.h"

namespace albert {

// -log softmax(x W^T + bias)[label] of each row of x (n, k), with W (m, k) and bias (m), and its gradient. Logits are made
// in blocks that fit into a cache. Instead of them and of their gradient, exponentials are stored, in the type that is
// multiplied: exp(logit - reference), at the label less their sum, so that the gradient of a logit is dloss / sum times its
// exponential.
//
// A row's reference is the largest logit of its first block. Where a later block has a logit that is larger by more than
// kRange, that one becomes the reference, and the exponentials already written are multiplied by exp(old - new). Less is
// tolerated, as it overflows nothing and writing again takes time.
template <typename Number>
class LinearCrossEntropy {
 public:
  // Operands from `first` on: x, W.
  LinearCrossEntropy(const Operands &o, int first) : x_(o[first]), weight_(o[first + 1]) {
    n_ = o.rows(first), k_ = o.last(first), m_ = o.rows(first + 1);
    width_ = std::is_same_v<Number, float> ? m_ : (m_ + 1) / 2 * 2;
    fit_ = gemm<Number>() != nullptr && o.ranks[first] == 2 && o.ranks[first + 1] == 2 && o.last(first + 1) == k_;
  }

  // Operands `bias` and `labels`; writes losses, hits, sums (n) and exponentials (n, width). 0, or the number of an error.
  int forward(const Operands &o, int bias, int labels, float *losses, float *hits, float *sums, Number *exponentials) {
    const int32_t *columns = static_cast<int32_t *>(o.data[labels]);
    fit_ = fit_ && o.last(bias) == m_ && o.last(labels) == n_;
    if (!fit_ || !all_below(columns, n_, m_)) {
      std::fill_n(losses, n_, NAN);
      return 1;
    }
    Scratch scratch(operand_floats<Number>(n_ * k_) + operand_floats<Number>(m_ * k_));
    const Number *x = as_operand<Number>(x_, n_, k_, scratch), *weight = as_operand<Number>(weight_, m_, k_, scratch);
    each_share(n_, m_, [&](int64_t begin, int64_t end) {
      std::vector<float> block(std::min(kRows, end - begin) * kColumns);
      for (; begin < end; begin += kRows) {
        const int64_t count = std::min(kRows, end - begin);
        std::vector<Row> rows(count);
        for (int64_t first = 0; first < m_; first += kColumns) {
          const int64_t size = std::min(kColumns, m_ - first);
          status_ |= gemm<Number>()('N', 'T', count, size, k_, 1.0f, x + begin * k_, k_, weight + first * k_, k_, 0.0f,
                                    block.data(), size);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t row = begin + i;
            rows[i].take(block.data() + i * size, o[bias] + first, first, size, columns[row], exponentials + row * width_);
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = begin + i, label = columns[row];
          losses[row] = std::log(rows[i].sum) - (rows[i].of_label - rows[i].reference);
          hits[row] = rows[i].largest_column == label ? 1.0f : 0.0f;
          sums[row] = rows[i].sum;
          round_to(exponential(rows[i].of_label - rows[i].reference) - rows[i].sum, exponentials[row * width_ + label]);
        }
      }
    });
    return status_;
  }

  // Of the losses' gradients (n) and what `forward` wrote: writes the gradients of x, W and bias.
  int backward(const float *dlosses, const float *sums, const Number *exponentials, float *dx, float *dweight,
               float *dbias) {
    if (!fit_) return 1;
    std::vector<float> factors(n_), scaled_x(n_ * k_);
    each_row(n_, k_, [&](int64_t i) {
      factors[i] = dlosses[i] / sums[i];
      for (int64_t j = 0; j < k_; ++j) scaled_x[i * k_ + j] = x_[i * k_ + j] * factors[i];
    });
    Scratch scratch(operand_floats<Number>(n_ * k_) + operand_floats<Number>(m_ * k_));
    const Number *x = as_operand<Number>(scaled_x.data(), n_, k_, scratch);
    const Number *weight = as_operand<Number>(weight_, m_, k_, scratch);
    each_share(n_, m_, [&](int64_t begin, int64_t end) {
      status_ |= gemm<Number>()('N', 'N', end - begin, k_, m_, 1.0f, exponentials + begin * width_, width_, weight, k_, 0.0f,
                                dx + begin * k_, k_);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < k_; ++j) dx[i * k_ + j] *= factors[i];
      }
    });
    each_share(m_, n_, [&](int64_t begin, int64_t end) {
      status_ |= gemm<Number>()('T', 'N', end - begin, k_, n_, 1.0f, exponentials + begin, width_, x, k_, 0.0f,
                                dweight + begin * k_, k_);
      std::fill(dbias + begin, dbias + end, 0.0f);
      for (int64_t i = 0; i < n_; ++i) {
        const Number *row = exponentials + i * width_;
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) dbias[j] += factors[i] * as_float(row[j]);
      }
    });
    return status_;
  }

 private:
  // What is known of a row after its first blocks.
  struct Row {
    float reference = std::numeric_limits<float>::lowest();  // finite: -inf less this is -inf
    float largest = -INFINITY, sum = 0.0f, of_label = 0.0f;
    int64_t largest_column = -1;

    // Takes the next block, whose products become logits, and writes its part of the row's exponentials.
    void take(float *logits, const float *bias, int64_t first, int64_t size, int64_t label, Number *exponentials_of_row) {
      float block_largest = -INFINITY;
#pragma omp simd reduction(max : block_largest)
      for (int64_t j = 0; j < size; ++j) {
        logits[j] += bias[j];
        block_largest = logits[j] > block_largest ? logits[j] : block_largest;
      }
      if (block_largest > largest) {
        largest = block_largest;
        largest_column = first + (std::find(logits, logits + size, largest) - logits);
      }
      if (block_largest > reference + kRange) {
        const float factor = exponential(reference - block_largest);
        for (int64_t j = 0; j < first; ++j) round_to(as_float(exponentials_of_row[j]) * factor, exponentials_of_row[j]);
        sum *= factor;
        reference = block_largest;
      }
      if (label >= first && label < first + size) of_label = logits[label - first];
      Number *exponentials = exponentials_of_row + first;
      float added = 0.0f;
#pragma omp simd reduction(+ : added)
      for (int64_t j = 0; j < size; ++j) {
        const float value = exponential(logits[j] - reference);
        added += value;
        round_to(value, exponentials[j]);
      }
      sum += added;
    }
  };

  static constexpr int64_t kRows = 512, kColumns = 256;  // of a block
  static constexpr float kRange = 40.0f;                 // exp of it, times m, is far from the largest float

  const float *const x_, *const weight_;
  int64_t n_, k_, m_;
  int64_t width_;  // numbers stored of a row: whole floats, which MindSpore takes them for
  bool fit_;
  std::atomic<int> status_{0};
};

}  // namespace albert
