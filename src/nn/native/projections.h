// Products of matrices, by oneDNN.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "prepacking.h"
#include "team.h"

namespace albert {

// oneDNN's product of row-major matrices of numbers, float or bfloat16, c (m, n) = alpha op(a) (m, k) op(b) (k, n) +
// beta c, in the calling thread; op transposes where it is 'T'. It is in the library that MindSpore has loaded.
template <typename Number>
using Gemm = int (*)(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const Number *a, int64_t lda,
                     const Number *b, int64_t ldb, float beta, float *c, int64_t ldc);

template <typename Number>
Gemm<Number> gemm() {
  static void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  static const char *name = std::is_same_v<Number, float> ? "dnnl_sgemm" : "dnnl_gemm_bf16bf16f32";
  static const auto function = reinterpret_cast<Gemm<Number>>(library ? dlsym(library, name) : nullptr);
  return function;
}

// Whether oneDNN uses AVX-512's bfloat16 or AMX, which ONEDNN_MAX_CPU_ISA in the environment may keep it from.
inline bool has_bfloat16() {
  constexpr int kBfloat16 = 0xe7;  // dnnl_cpu_isa_avx512_core_bf16, whose bits AMX has as well
  static void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  static const auto isa = reinterpret_cast<int (*)()>(library ? dlsym(library, "dnnl_get_effective_cpu_isa") : nullptr);
  return isa && (isa() & kBfloat16) == kBfloat16;
}

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
    for (int i = begin; i <= end; ++i) floats += Scratch::floats<Number>(o_.rows(i) * o_.last(i));
    Scratch scratch(std::is_same_v<Number, float> ? 0 : floats);
    numbers_.resize(end + 1);
    for (int i = begin; i <= end; ++i) {
      if constexpr (std::is_same_v<Number, float>) {
        numbers_[i] = o_[i];
      } else {
        const int64_t rows = o_.rows(i), columns = o_.last(i);
        Number *rounded = scratch.take<Number>(rows * columns);
        each_share(rows, columns, [&](int64_t from, int64_t to) {
          to_bfloat16(o_[i] + from * columns, (to - from) * columns, rounded + from * columns);
        });
        numbers_[i] = rounded;
      }
    }
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
    if (!size) return;
    if (std::is_same_v<Number, bfloat16> && ldc >= kWide && op_a == 'N' && op_b == 'T' && beta == 0.0f) {
      multiply_wide(m, n, k, a, lda, b, ldb, c, ldc);
    } else {
      status_ |= gemm<Number>()(op_a, op_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
    }
  }

  // c (m, n) = a b^T where c has long rows, such as the scores of a vocabulary. oneDNN takes two to four times as long to
  // write them as it takes for blocks that fit into a cache, with which c is filled here.
  void multiply_wide(int64_t m, int64_t n, int64_t k, const Number *a, int64_t lda, const Number *b, int64_t ldb,
                     float *c, int64_t ldc) {
    constexpr int64_t kRows = 512, kColumns = 256;
    std::vector<float> block(std::min(m, kRows) * kColumns);
    for (int64_t column = 0; column < n; column += kColumns) {
      const int64_t columns = std::min(kColumns, n - column);
      for (int64_t row = 0; row < m; row += kRows) {
        const int64_t rows = std::min(kRows, m - row);
        status_ |= gemm<Number>()('N', 'T', rows, columns, k, 1.0f, a + row * lda, lda, b + column * ldb, ldb, 0.0f,
                                  block.data(), columns);
        for (int64_t i = 0; i < rows; ++i) {
          std::copy_n(block.data() + i * columns, columns, c + (row + i) * ldc + column);
        }
      }
    }
  }

  static constexpr int64_t kWide = 4096;  // columns of c from which on blocks are faster

  const Operands &o_;
  const int first_, number_;
  const Prepacking<Number> *const prepacked_;
  std::vector<const Number *> numbers_;  // of operands
  int64_t n_, k_;
  bool fit_;
  std::atomic<int> status_{0};
};

}  // namespace albert
