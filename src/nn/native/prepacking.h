// Weights in the order in which oneDNN's products x W^T read them, for several products with the same weights.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "arithmetic.h"
#include "team.h"

namespace albert {

// What oneDNN has for recurrent networks, whose steps share their weights; no part of its public interface, so that its
// functions go by their C++ names. They take column-major matrices. Number is what is multiplied, float or bfloat16.
// Shape letters: x (n, k), W (m, k).
template <typename Number>
class Prepacking {
 public:
  // Null where a function is missing.
  static const Prepacking *get() {
    static const Prepacking all;
    return all.size_ && all.pack_ && all.compute_ && all.concurrency_ && all.set_concurrency_ ? &all : nullptr;
  }

  // W lies in parts of some rows each, packed one by one.
  static int64_t parts(int64_t m) { return std::max<int64_t>(1, std::min(Team::get().size(), m / kRows)); }

  // Floats of each part; 0: W cannot be packed.
  int64_t part_size(int64_t m, int64_t k) const {
    const int64_t rows = (m + parts(m) - 1) / parts(m);
    size_t bytes = 0;
    bool pays = false;
    const Alone alone(*this);
    if (size_("A", "T", "N", &rows, &kUsual, &k, &k, &k, &bytes, &pays)) return 0;
    return static_cast<int64_t>((bytes + kPage - 1) / kPage * kPage / sizeof(float));
  }

  // Packs a part of W. 0 or oneDNN's error.
  int pack(int64_t m, int64_t k, int64_t part, const float *weights, float *packed) const {
    const int64_t begin = m * part / parts(m), rows = m * (part + 1) / parts(m) - begin;
    const Alone alone(*this);
    if constexpr (std::is_same_v<Number, float>) {
      return pack_("A", "T", "N", &rows, &kUsual, &k, &k, &k, weights + begin * k, packed);
    } else {
      Number *rounded = Scratch(Scratch::floats<Number>(rows * k)).take<Number>(rows * k);
      to_bfloat16(weights + begin * k, rows * k, rounded);
      return pack_("A", "T", "N", &rows, &kUsual, &k, &k, &k, rounded, reinterpret_cast<Number *>(packed));
    }
  }

  // The columns of c (n, m) = x W^T that a part of W gives. 0 or oneDNN's error.
  int multiply(int64_t n, int64_t m, int64_t k, int64_t part, const Number *x, const float *packed, float *c) const {
    const int64_t begin = m * part / parts(m), rows = m * (part + 1) / parts(m) - begin;
    const float nothing = 0.0f;
    const Number *of_part = reinterpret_cast<const Number *>(packed);
    return compute_("P", "N", &rows, &n, &k, of_part, &k, x, &k, &nothing, c + begin, &m);
  }

 private:
  using Size = int (*)(const char *, const char *, const char *, const int64_t *, const int64_t *, const int64_t *,
                       const int64_t *, const int64_t *, size_t *, bool *);
  using Pack = int (*)(const char *, const char *, const char *, const int64_t *, const int64_t *, const int64_t *,
                       const int64_t *, const int64_t *, const Number *, Number *);
  using Compute = int (*)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const Number *,
                          const int64_t *, const Number *, const int64_t *, const float *, float *, const int64_t *);

  static constexpr int64_t kRows = 256;     // of a part at least, if there are so many
  static constexpr int64_t kUsual = 1024;   // rows of x; what is packed serves other numbers of them as well
  static constexpr size_t kPage = 4096;     // bytes

  // Weights are packed for one thread, though oneDNN would by itself think of all cores.
  class Alone {
   public:
    explicit Alone(const Prepacking &all) : all_(all) {
      all_.concurrency_(&before_);
      all_.set_concurrency_(1);
    }
    ~Alone() { all_.set_concurrency_(before_); }

   private:
    const Prepacking &all_;
    int before_ = 1;
  };

  Prepacking() {
    void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return;
    if constexpr (std::is_same_v<Number, float>) {
      find(library, "_ZN4dnnl4impl3cpu19sgemm_pack_get_sizeEPKcS3_S3_PKlS5_S5_S5_S5_PmPb", size_);
      find(library, "_ZN4dnnl4impl3cpu10sgemm_packEPKcS3_S3_PKlS5_S5_S5_S5_PKfPf", pack_);
      find(library, "_ZN4dnnl4impl3cpu13sgemm_computeEPKcS3_PKlS5_S5_PKfS5_S7_S5_S7_PfS5_", compute_);
    } else {
      find(library, "_ZN4dnnl4impl3cpu30gemm_bf16bf16f32_pack_get_sizeEPKcS3_S3_PKlS5_S5_S5_S5_PmPb", size_);
      find(library, "_ZN4dnnl4impl3cpu21gemm_bf16bf16f32_packEPKcS3_S3_PKlS5_S5_S5_S5_PKNS0_10bfloat16_tEPS6_", pack_);
      find(library,
           "_ZN4dnnl4impl3cpu24gemm_bf16bf16f32_computeEPKcS3_PKlS5_S5_PKNS0_10bfloat16_tES5_S8_S5_PKfPfS5_",
           compute_);
    }
    find(library, "dnnl_threadpool_interop_get_max_concurrency", concurrency_);
    find(library, "dnnl_threadpool_interop_set_max_concurrency", set_concurrency_);
  }

  template <typename Function>
  static void find(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }

  Size size_ = nullptr;
  Pack pack_ = nullptr;
  Compute compute_ = nullptr;
  int (*concurrency_)(int *) = nullptr;
  int (*set_concurrency_)(int) = nullptr;
};

}  // namespace albert
