// oneDNN's products of matrices, and operands for them.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <type_traits>

#include "arithmetic.h"
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

// Floats of scratch that an operand of so many numbers takes.
template <typename Number>
int64_t operand_floats(int64_t size) {
  return std::is_same_v<Number, float> ? 0 : Scratch::floats<Number>(size);
}

// Rows x columns of floats as what is multiplied: rounded in all threads into the scratch, or as they are.
template <typename Number>
const Number *as_operand(const float *x, int64_t rows, int64_t columns, Scratch &scratch) {
  if constexpr (std::is_same_v<Number, float>) {
    return x;
  } else {
    Number *rounded = scratch.take<Number>(rows * columns);
    each_share(rows, columns, [&](int64_t from, int64_t to) {
      to_bfloat16(x + from * columns, (to - from) * columns, rounded + from * columns);
    });
    return rounded;
  }
}

}  // namespace albert
