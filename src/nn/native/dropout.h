// Masks of dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "team.h"

namespace albert {

// mix_bits of src/nn/dropout.py.
inline int32_t mixed(int32_t bits) {
  bits = static_cast<int32_t>(static_cast<uint32_t>(bits) * 2654435761u);
  bits ^= bits >> 15;
  bits = static_cast<int32_t>(static_cast<uint32_t>(bits) * 2246822519u);
  return bits ^ bits >> 13;
}

// What dropout multiplies entries by: 1 / (1 - probability) where the fraction of an entry's hash is at least the
// probability, else 0. The hashes are a product of two operands (Dropout.factors in src/nn/dropout.py), factors by row
// (N, F) and by column (C or more, F); an operand of rank 1 in their place means that there are none. Those of a row
// are F whole numbers in steps of 2^-11, those of a column F whole numbers, of whose products a hash is an eighth. So
// the fractions are sums of F products of whole numbers modulo 2^14, for which 16 bits are enough.
class DropoutMask {
 public:
  DropoutMask(const Operands &o, int first, float probability)
      : by_row_(o[first]),
        scale_(1.0f / (1.0f - probability)),
        least_(std::ceil(probability * kSteps)),
        given_(o.ranks[first] == 2) {
    if (!given_ || o.last(first) != kFeatures || o.last(first + 1) != kFeatures) return;
    rows_ = o.rows(first), columns_ = o.rows(first + 1);
    const int64_t blocks = (columns_ + kBlock - 1) / kBlock;
    by_column_.resize(blocks * kBlock * kFeatures);
    for (int64_t j = 0; j < columns_; ++j) {
      uint16_t *of_block = by_column_.data() + j / kBlock * kBlock * kFeatures;
      const float *numbers = o[first + 1] + j * kFeatures;
      for (int k = 0; k < kFeatures; ++k) of_block[k * kBlock + j % kBlock] = whole(numbers[k]);
    }
  }

  bool given() const { return given_; }

  // Whether it has so many rows, and so many columns or more.
  bool fits(int64_t rows, int64_t columns) const { return rows_ == rows && columns_ >= columns; }

  // Writes some rows of it (rows, columns).
  void read(int64_t first_row, int64_t rows, int64_t columns, float *kept_share) const {
    for (int64_t i = 0; i < rows; ++i) {
      const float *factors = by_row_ + (first_row + i) * kFeatures;
      uint16_t numbers[kFeatures];
      for (int k = 0; k < kFeatures; ++k) numbers[k] = whole(factors[k] * 0x1p11f);
      for (int64_t begin = 0; begin < columns; begin += kBlock) {
        float kept[kBlock];
        read_block(numbers, by_column_.data() + begin * kFeatures, kept);
        std::copy_n(kept, std::min(kBlock, columns - begin), kept_share + i * columns + begin);
      }
    }
  }

  // A row of so many columns, in this thread's scratch.
  const float *row(int64_t i, int64_t columns) const {
    float *kept_share = Scratch(columns).take(columns);
    read(i, 1, columns, kept_share);
    return kept_share;
  }

 private:
  static constexpr int kFeatures = 16;
  static constexpr int64_t kBlock = 64;  // columns at once, whose sums stay in registers
  static constexpr uint16_t kSteps = 1 << 14;

  static uint16_t whole(float number) { return static_cast<uint16_t>(static_cast<int32_t>(number)); }

  void read_block(const uint16_t *numbers, const uint16_t *by_column, float *kept) const {
    const uint16_t least = least_;
    const float scale = scale_;
    uint16_t sums[kBlock] = {};
    for (int k = 0; k < kFeatures; ++k) {
#pragma omp simd
      for (int64_t j = 0; j < kBlock; ++j) sums[j] += numbers[k] * by_column[k * kBlock + j];
    }
#pragma omp simd
    for (int64_t j = 0; j < kBlock; ++j) kept[j] = sums[j] % kSteps >= least ? scale : 0.0f;
  }

  const float *by_row_;
  const float scale_;
  const uint16_t least_;  // of the fractions that are kept, in steps
  const bool given_;
  int64_t rows_ = 0, columns_ = 0;
  std::vector<uint16_t> by_column_;  // (blocks, F, columns of a block)
};

}  // namespace albert
