// Masks of dropout.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "projections.h"
#include "team.h"

namespace albert {

// mix_bits of src/dropout.py.
inline int32_t mixed(int32_t bits) {
  bits = static_cast<int32_t>(static_cast<uint32_t>(bits) * 2654435761u);
  bits ^= bits >> 15;
  bits = static_cast<int32_t>(static_cast<uint32_t>(bits) * 2246822519u);
  return bits ^ bits >> 13;
}

// What dropout multiplies entries by: 1 / (1 - probability) where the fraction of an entry's hash is at least the
// probability, else 0. The hashes are a product of two operands, factors by row (N, F) and by column (C or more, F); an
// operand of rank 1 in their place means that there are none.
class DropoutMask {
 public:
  DropoutMask(const Operands &o, int first, float probability) : o_(o), first_(first), probability_(probability) {
    if (o.ranks[first] == 2) features_ = o.last(first);
  }

  bool given() const { return features_ > 0; }

  // Whether it has so many rows, and so many columns or more.
  bool fits(int64_t rows, int64_t columns) const {
    return given() && gemm<float>() && o_.rows(first_) == rows && o_.rows(first_ + 1) >= columns &&
           o_.last(first_ + 1) == features_;
  }

  // Writes some rows of it (rows, columns). 0, or the number of oneDNN's error.
  int read(int64_t first_row, int64_t rows, int64_t columns, float *kept_share) const {
    const float *by_row = o_[first_] + first_row * features_;
    const float *by_column = o_[first_ + 1];
    const int status = gemm<float>()('N', 'T', rows, columns, features_, 1.0f, by_row, features_, by_column, features_,
                                     0.0f, kept_share, columns);
    const float probability = probability_, scale = 1.0f / (1.0f - probability);
#pragma omp simd
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float hash = kept_share[i];
      kept_share[i] = hash - std::floor(hash) >= probability ? scale : 0.0f;
    }
    return status;
  }

  // Calls work(row, kept_share) for all rows, dealt out to the threads. 0, or the number of an error, oneDNN's or 1: it
  // does not have so many rows and columns.
  template <typename Work>
  int each_row(int64_t rows, int64_t columns, Work work) const {
    if (!fits(rows, columns)) return 1;
    std::atomic<int> status{0};
    each_share(rows, columns, [&](int64_t begin, int64_t end) { status |= some_rows(begin, end, columns, work); });
    return status;
  }

  // Calls work(row, kept_share) for the rows from begin to end, in their order: kept_share are a row's columns.
  template <typename Work>
  int some_rows(int64_t begin, int64_t end, int64_t columns, Work work) const {
    Scratch scratch(kRows * columns);
    float *kept_share = scratch.take(kRows * columns);
    int status = 0;
    for (int64_t first = begin; first < end; first += kRows) {
      const int64_t rows = std::min(kRows, end - first);
      status |= read(first, rows, columns, kept_share);
      for (int64_t i = 0; i < rows; ++i) work(first + i, kept_share + i * columns);
    }
    return status;
  }

 private:
  static constexpr int64_t kRows = 32;  // at once, so that they stay in a core's cache

  const Operands &o_;
  const int first_;
  const float probability_;
  int64_t features_ = 0;
};

}  // namespace albert
