// Products of matrices, by oneDNN.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gemm.h"
#include "prepacking.h"
#include "team.h"

namespace albert {

// Products x W^T of one x (n, k) and several W (m, k), and their gradients. Operands behind `first` others: x, each W,
// and, for products with prepacked weights, each W once more so. Operands are rounded to bfloat16 where that is what is
// multiplied; sums are not.
template <typename Number>
class Projections {
 public:
  Projections(const Operands &o, int first, int number, bool prepacked)
      : o_(o), first_(first), number_(number), prepacked_(prepacked ? Prepacking<Number>::get() : nullptr) {
    n_ = o.rows(first), k_ = o.last(first);
    fit_ = gemm<Number>() != nullptr && (prepacked_ || !prepacked);
    for (int i = 0; i < number; ++i) {
      fit_ = fit_ && o.ranks[first + 1 + i] == 2 && o.last(first + 1 + i) == k_;
      fit_ = fit_ && (!prepacked_ || o.last(first + 1 + number + i) >= Scratch::floats<Number>(width(i) * k_));
    }
  }

  // Writes each product (n, m). 0, or the number of an error, oneDNN's or 1: operands do not fit each other.
  int values(int out) {
    read(first_, prepacked_ ? first_ : first_ + number_);
    return each_slice(number_, [&](int i, int64_t slice, int64_t slices) {
      if (prepacked_) return multiply_prepacked(i, o_[out + i], slice, slices);
      multiply('N', 'T', n_, width(i), k_, x(), k_, weight(i), k_, 0.0f, o_[out + i], slice, slices);
    });
  }

  // Of each product's gradient dy (n, m), the first operands: writes that of x and those of each W.
  int gradients(int out) {
    for (int i = 0; i < number_; ++i) fit_ = fit_ && o_.rows(i) == n_ && o_.last(i) == width(i);
    read(0, first_ + number_);
    return each_slice(number_ + 1, [&](int i, int64_t slice, int64_t slices) {
      if (i) {
        const int64_t m = width(i - 1);
        multiply('T', 'N', m, k_, n_, numbers_[i - 1], m, x(), k_, 0.0f, o_[out + i], slice, slices);
        return;
      }
      for (int each = 0; each < number_; ++each) {
        const int64_t m = width(each);
        multiply('N', 'N', n_, k_, m, numbers_[each], m, weight(each), k_, each ? 1.0f : 0.0f, o_[out], slice, slices);
      }
    });
  }

 private:
  int64_t width(int i) const { return o_.shapes[first_ + 1 + i][0]; }
  const Number *x() const { return numbers_[first_]; }
  const Number *weight(int i) const { return numbers_[first_ + 1 + i]; }

  // Takes the operands from `begin` to `end`, rounded in all threads where they are to be. They lie in this thread's
  // scratch until it makes another one, which nothing here does.
  void read(int begin, int end) {
    if (!fit_) return;
    int64_t floats = 0;
    for (int i = begin; i <= end; ++i) floats += operand_floats<Number>(o_.rows(i) * o_.last(i));
    Scratch scratch(floats);
    numbers_.resize(end + 1);
    for (int i = begin; i <= end; ++i) numbers_[i] = as_operand<Number>(o_[i], o_.rows(i), o_.last(i), scratch);
  }

  // Calls work(i, slice, slices) for all slices of all i below `number`.
  template <typename Work>
  int each_slice(int number, Work work) {
    if (!fit_) return 1;
    int64_t entries = 0;  // as many as other operations do in this time
    for (int i = 0; i < number_; ++i) entries += n_ * width(i) * k_ / 128;
    const int64_t slices = std::max<int64_t>(1, std::min(Team::get().size(), entries / kLeast));
    Team::get().run(number * slices, [&](int64_t part) { work(part / slices, part % slices, slices); });
    return status_;
  }

  // One of so many slices of c (n, m), the product with prepacked weights.
  void multiply_prepacked(int i, float *c, int64_t slice, int64_t slices) {
    const int operand = first_ + 1 + number_ + i;
    const int64_t m = width(i), parts = Prepacking<Number>::parts(m), size = o_.last(operand) / parts;
    const int64_t groups = n_ >= m ? 1 : std::min(parts, slices);  // of parts; slices of a group differ in rows of x
    const int64_t group = slice % groups, place = slice / groups, places = (slices - group + groups - 1) / groups;
    const int64_t begin = n_ * place / places, rows = n_ * (place + 1) / places - begin;
    for (int64_t part = parts * group / groups; rows && part < parts * (group + 1) / groups; ++part) {
      const float *packed = o_[operand] + part * size;
      status_ |= prepacked_->multiply(rows, m, k_, part, x() + begin * k_, packed, c + begin * m);
    }
  }

  // One of so many slices, along the longer side, of c (m, n) = op(a) op(b) + beta c.
  void multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const Number *a, int64_t lda, const Number *b,
                int64_t ldb, float beta, float *c, int64_t slice, int64_t slices) {
    const int64_t ldc = n, longer = std::max(m, n), begin = longer * slice / slices;
    const int64_t size = longer * (slice + 1) / slices - begin;
    if (m >= n) {
      a += op_a == 'T' ? begin : begin * lda;
      c += begin * ldc;
      m = size;
    } else {
      b += op_b == 'T' ? begin * ldb : begin;
      c += begin;
      n = size;
    }
    if (size) status_ |= gemm<Number>()(op_a, op_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
  }

  const Operands &o_;
  const int first_, number_;
  const Prepacking<Number> *const prepacked_;
  std::vector<const Number *> numbers_;  // of operands
  int64_t n_, k_;
  bool fit_;
  std::atomic<int> status_{0};
};

}  // namespace albert
