// The operations of src/fused_layers.py: each reads its operands once and writes its results once.
//
// MindSpore calls every function with the addresses and shapes of its inputs and, behind them, of its outputs. All are
// float32 but labels (int32). Rows are dealt out in as many equal parts as there are threads; sums over rows add up what
// each part has summed, in their order, so that results depend on the number of threads, and on nothing else.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// What MindSpore gives: operands by their number, inputs first.
struct Operands {
  void **data;
  int *ranks;
  int64_t **shapes;

  float *operator[](int i) const { return static_cast<float *>(data[i]); }
  float scalar(int i) const { return *static_cast<float *>(data[i]); }
  int64_t last(int i) const { return shapes[i][ranks[i] - 1]; }
  int64_t rows(int i) const {
    int64_t product = 1;
    for (int axis = 0; axis + 1 < ranks[i]; ++axis) product *= shapes[i][axis];
    return product;
  }
};

// exp(x) to 2 units in the last place, 0 below -87; not a number stays that. The form is one that compilers vectorise:
// x = n ln 2 + r, and exp(r) by Cephes' polynomial.
inline float exponential(float x) {
  const float clipped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = std::nearbyint(clipped * 1.44269504f);
  const float r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : p * power;
}

// As many threads as set_threads says, which wait a tenth of a millisecond for the next operation before they sleep:
// MindSpore's own threads need the cores in between.
class Team {
 public:
  static int threads;  // of the team, the calling one among them; to be set before its first use

  static Team &get() {
    static Team *team = new Team;  // never deleted: its threads end with the process
    return *team;
  }

  int64_t size() const { return size_; }

  // Calls work(0) to work(parts - 1), each in the first thread that is free, once no other operation has them: a thread
  // whose core is busy with another program does fewer.
  void run(int64_t parts, const std::function<void(int64_t)> &work) {
    if (parts == 1) return work(0);
    std::lock_guard<std::mutex> alone(running_);
    work_ = &work;
    parts_ = parts;
    left_ = parts;
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      offer_ = (offer_ / kCall + 1) * kCall + parts;
    }
    wake_.notify_all();
    take_parts();
    for (int turn = 0; left_ > 0; ++turn) wait_a_little(turn);
  }

 private:
  Team() {
    try {
      for (int64_t number = 1; number < size_; ++number) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error &) {  // no more are allowed: those that there are do all parts
    }
  }

  void serve() {
    for (uint64_t call = 0;;) {
      for (int turn = 0; offer_ / kCall == call && turn < kTurns; ++turn) wait_a_little(turn);
      if (offer_ / kCall == call) {
        std::unique_lock<std::mutex> lock(sleeping_);
        wake_.wait(lock, [&] { return offer_ / kCall != call; });
      }
      call = offer_ / kCall;
      take_parts();
    }
  }

  void take_parts() {
    for (uint64_t offer = offer_; offer % kCall > 0;) {
      if (!offer_.compare_exchange_weak(offer, offer - 1)) continue;
      (*work_)(parts_ - offer % kCall);  // run() changes nothing before this part is done
      --left_;
      offer = offer_;
    }
  }

  static void wait_a_little(int turn) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (turn >= kTurns) std::this_thread::yield();
  }

  static constexpr int kTurns = 2000;          // some 100 microseconds on x86
  static constexpr uint64_t kCall = 1u << 16;  // above the number of parts
  const int64_t size_ = threads;
  const std::function<void(int64_t)> *work_ = nullptr;
  int64_t parts_ = 0;
  std::atomic<int64_t> left_{0};    // parts that are not done
  std::atomic<uint64_t> offer_{0};  // kCall times the number of operations so far, and parts that nobody has taken
  std::mutex running_, sleeping_;
  std::condition_variable wake_;
};

int Team::threads = 1;

constexpr int64_t kLeast = 16384;  // entries that are worth a thread

int64_t parts_of(int64_t rows, int64_t columns) {
  return std::max<int64_t>(1, std::min({Team::get().size(), rows, rows * columns / kLeast}));
}

// Calls work(row) for all rows, of so many columns.
template <typename Work>
void each_row(int64_t rows, int64_t columns, Work work) {
  const int64_t parts = parts_of(rows, columns);
  Team::get().run(parts, [&](int64_t part) {
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) work(i);
  });
}

// Calls work(row, sums) for all rows, where sums are `columns` numbers that begin as 0; the totals are those of all rows.
template <typename Work>
void each_row_summed(int64_t rows, int64_t columns, float *totals, Work work) {
  const int64_t parts = parts_of(rows, columns);
  std::vector<float> sums(parts * columns, 0.0f);
  Team::get().run(parts, [&](int64_t part) {
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) work(i, sums.data() + part * columns);
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t j = 0; j < columns; ++j) sums[j] += sums[part * columns + j];
  }
  std::memcpy(totals, sums.data(), columns * sizeof(float));
}

constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f * kLinear;

inline float gate(float x) { return 1.0f / (1.0f + exponential(-x * (kLinear + kCubic * x * x))); }

// y = (x - mean) / deviation * gamma + beta of a row; x is overwritten by (x - mean) / deviation.
inline float normalise(float *x, const float *gamma, const float *beta, float *y, int64_t size, float epsilon) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) sum += x[j];
  const float mean = sum / size;
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < size; ++j) squares += (x[j] - mean) * (x[j] - mean);
  const float inverse = 1.0f / std::sqrt(squares / size + epsilon);
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    x[j] = (x[j] - mean) * inverse;
    y[j] = x[j] * gamma[j] + beta[j];
  }
  return inverse;
}

// The gradient of a row of `normalise`: dx of dy; adds to the sums of gamma's and beta's.
inline void normalise_gradient(const float *dy, const float *gamma, const float *normal, float inverse, float *dx,
                               float *gammas, float *betas, int64_t size) {
  float mean = 0.0f, projection = 0.0f;
#pragma omp simd reduction(+ : mean, projection)
  for (int64_t j = 0; j < size; ++j) {
    const float gradient = dy[j] * gamma[j];
    mean += gradient;
    projection += gradient * normal[j];
    gammas[j] += dy[j] * normal[j];
    betas[j] += dy[j];
  }
  mean /= size;
  projection /= size;
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) dx[j] = (dy[j] * gamma[j] - mean - normal[j] * projection) * inverse;
}

// oneDNN's product of row-major matrices, c (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta c, in the calling thread;
// op transposes where it is 'T'. It is in the library that MindSpore has loaded.
using Sgemm = int (*)(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

Sgemm sgemm() {
  static void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  static const auto function = reinterpret_cast<Sgemm>(library ? dlsym(library, "dnnl_sgemm") : nullptr);
  return function;
}

// The product of one pair of matrices or of each of as many pairs, (..., m, n) = op(...) (..., m, k) op(...) (..., k, n).
class Products {
 public:
  Products(const Operands &o, bool transpose_a, bool transpose_b)
      : o_(o), transpose_a_(transpose_a), transpose_b_(transpose_b) {
    const int64_t *of_a = o.shapes[0] + o.ranks[0] - 2, *of_b = o.shapes[1] + o.ranks[1] - 2;
    m_ = of_a[transpose_a ? 1 : 0], k_ = of_a[transpose_a ? 0 : 1], n_ = of_b[transpose_b ? 0 : 1];
    lda_ = of_a[1], ldb_ = of_b[1];
    fit_ = o.ranks[0] == o.ranks[1] && of_b[transpose_b ? 1 : 0] == k_;
    for (int axis = 0; axis + 2 < o.ranks[0]; ++axis) {
      fit_ = fit_ && o.shapes[0][axis] == o.shapes[1][axis];
      pairs_ *= o.shapes[0][axis];
    }
  }

  // 0, or the number of an error, oneDNN's or 1: there is no oneDNN, or the shapes do not fit each other.
  int run() {
    if (!fit_ || !sgemm()) return 1;
    const int64_t cost = m_ * n_ * k_ / 128;  // as entries of other operations
    const int64_t threads = std::max<int64_t>(1, std::min(Team::get().size(), pairs_ * cost / kLeast));
    const bool whole = pairs_ >= 4 * threads || std::max(m_, n_) < 16 * threads;
    const int64_t slices = whole ? 1 : threads, units = pairs_ * slices, parts = std::min(threads, units);
    Team::get().run(parts, [&](int64_t part) {
      for (int64_t i = units * part / parts; i < units * (part + 1) / parts; ++i) slice(i / slices, i % slices, slices);
    });
    return status_;
  }

 private:
  // One of so many slices of the longer side of a result.
  void slice(int64_t pair, int64_t number, int64_t slices) {
    const float *a = o_[0] + pair * m_ * k_, *b = o_[1] + pair * k_ * n_;
    float *c = o_[2] + pair * m_ * n_;
    int64_t m = m_, n = n_;
    if (m >= n) {
      const int64_t begin = m_ * number / slices;
      m = m_ * (number + 1) / slices - begin;
      a += transpose_a_ ? begin : begin * lda_;
      c += begin * n_;
    } else {
      const int64_t begin = n_ * number / slices;
      n = n_ * (number + 1) / slices - begin;
      b += transpose_b_ ? begin * ldb_ : begin;
      c += begin;
    }
    const char op_a = transpose_a_ ? 'T' : 'N', op_b = transpose_b_ ? 'T' : 'N';
    status_ |= sgemm()(op_a, op_b, m, n, k_, 1.0f, a, lda_, b, ldb_, 0.0f, c, n_);
  }

  const Operands &o_;
  const bool transpose_a_, transpose_b_;
  int64_t m_, n_, k_, lda_, ldb_, pairs_ = 1;
  bool fit_;
  std::atomic<int> status_{0};
};

// Whether all labels are columns of rows of this size.
bool all_below(const int32_t *labels, int64_t rows, int64_t size) {
  return std::all_of(labels, labels + rows, [size](int32_t label) { return label >= 0 && label < size; });
}

// 0, or 1 / (1 - probability) where the fraction of the hash is at least the probability.
inline float kept(float hash, float probability) {
  return hash - std::floor(hash) >= probability ? 1.0f / (1.0f - probability) : 0.0f;
}

}  // namespace

#define OPERATION(name) \
  extern "C" int name(int, void **data, int *ranks, int64_t **shapes, const char **, void *, void *)

// Called by src/fused_layers.py before the first operation.
extern "C" void set_threads(int threads) { Team::threads = threads; }

// x (N, C), bias (C) -> y (N, C)
OPERATION(bias_gelu) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[1];
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size;
    float *y = o[2] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j];
      y[j] = shifted * gate(shifted);
    }
  });
  return 0;
}

// dy (N, C), x (N, C), bias (C) -> dx (N, C), dbias (C)
OPERATION(bias_gelu_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[2];
  each_row_summed(o.rows(0), size, o[4], [&](int64_t i, float *sums) {
    const float *dy = o[0] + i * size, *x = o[1] + i * size;
    float *dx = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j], open = gate(shifted);
      const float slope = shifted * (kLinear + 3.0f * kCubic * shifted * shifted);
      dx[j] = dy[j] * open * (1.0f + (1.0f - open) * slope);
      sums[j] += dx[j];
    }
  });
  return 0;
}

// x (N, C), gamma (C), beta (C), epsilon (1) -> y (N, C), normal (N, C), inverse (N)
OPERATION(layer_norm) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {
    float *normal = o[5] + i * size;
    std::memcpy(normal, o[0] + i * size, size * sizeof(float));
    o[6][i] = normalise(normal, o[1], o[2], o[4] + i * size, size, o.scalar(3));
  });
  return 0;
}

// x (N, C), bias (C), residual (N, C), gamma (C), beta (C), epsilon (1) -> y (N, C), normal (N, C), inverse (N)
OPERATION(add_norm) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *bias = o[1], *residual = o[2] + i * size;
    float *normal = o[7] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) normal[j] = x[j] + bias[j] + residual[j];
    o[8][i] = normalise(normal, o[3], o[4], o[6] + i * size, size, o.scalar(5));
  });
  return 0;
}

// Of layer_norm and add_norm:
// dy (N, C), gamma (C), normal (N, C), inverse (N) -> dx (N, C), sums (3, C): dgamma, dbeta, dbias
OPERATION(norm_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row_summed(o.rows(0), 3 * size, o[5], [&](int64_t i, float *sums) {
    float *dx = o[4] + i * size, *biases = sums + 2 * size;
    normalise_gradient(o[0] + i * size, o[1], o[2] + i * size, o[3][i], dx, sums, sums + size, size);
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) biases[j] += dx[j];
  });
  return 0;
}

// scores (B, A, L, K), mask (B, K), relative (L, B * A, K) -> probabilities (B, A, L, K)
// Without relative scores: scores, mask -> probabilities.
static void masked_softmax(const Operands &o, const float *relative, float *out) {
  const int64_t heads = o.shapes[0][1], length = o.shapes[0][2], size = o.last(0), groups = o.shapes[0][0] * heads;
  each_row(o.rows(0), size, [&](int64_t i) {
    const int64_t group = i / length, query = i % length;
    const float *scores = o[0] + i * size, *mask = o[1] + group / heads * size;
    const float *further = relative ? relative + (query * groups + group) * size : nullptr;
    float *y = out + i * size, largest = -INFINITY, sum = 0.0f;
    if (further) {
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) y[j] = scores[j] + further[j] + mask[j];
    } else {
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) y[j] = scores[j] + mask[j];
    }
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < size; ++j) largest = y[j] > largest ? y[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j) {
      y[j] = exponential(y[j] - largest);
      sum += y[j];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) y[j] *= inverse;
  });
}

OPERATION(attention_weights) {
  const Operands o{data, ranks, shapes};
  masked_softmax(o, nullptr, o[2]);
  return 0;
}

OPERATION(relative_attention_weights) {
  const Operands o{data, ranks, shapes};
  masked_softmax(o, o[2], o[3]);
  return 0;
}

// dy (..., K), y (..., K) -> dx (..., K)
OPERATION(softmax_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *dy = o[0] + i * size, *y = o[1] + i * size;
    float *dx = o[2] + i * size, sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j) sum += dy[j] * y[j];
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) dx[j] = y[j] * (dy[j] - sum);
  });
  return 0;
}

// x (P, Q, R, D) -> (P, R, Q, D)
OPERATION(swap_middle_axes) {
  const Operands o{data, ranks, shapes};
  const int64_t q = shapes[0][1], r = shapes[0][2], size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {  // rows of the output
    const int64_t p = i / (q * r), of_r = i / q % r, of_q = i % q;
    std::memcpy(o[1] + i * size, o[0] + ((p * q + of_q) * r + of_r) * size, size * sizeof(float));
  });
  return 0;
}

// x (B, L, A, D), bias (A, D), scale (1) -> (x + bias) scale as (B, A, L, D)
OPERATION(split_heads) {
  const Operands o{data, ranks, shapes};
  const int64_t length = shapes[0][1], heads = shapes[0][2], size = o.last(0);
  const float scale = o.scalar(2);
  each_row(o.rows(0), size, [&](int64_t i) {  // rows of the output
    const int64_t batch = i / (heads * length), head = i / length % heads, place = i % length;
    const float *x = o[0] + ((batch * length + place) * heads + head) * size, *bias = o[1] + head * size;
    float *y = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) y[j] = (x[j] + bias[j]) * scale;
  });
  return 0;
}

// dy (B, A, L, D), scale (1) -> dx (B, L, A, D), dbias (A, D)
OPERATION(split_heads_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t heads = shapes[0][1], length = shapes[0][2], size = o.last(0);
  const float scale = o.scalar(1);
  each_row_summed(shapes[0][0] * length, heads * size, o[3], [&](int64_t i, float *sums) {
    const int64_t batch = i / length, place = i % length;
    for (int64_t head = 0; head < heads; ++head) {
      const float *dy = o[0] + ((batch * heads + head) * length + place) * size;
      float *dx = o[2] + (i * heads + head) * size, *own = sums + head * size;
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) {
        dx[j] = dy[j] * scale;
        own[j] += dx[j];
      }
    }
  });
  return 0;
}

// x (N, C), hashes (N, C), probability (1) -> y (N, C); its own gradient
OPERATION(dropout) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float probability = o.scalar(2);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *hashes = o[1] + i * size;
    float *y = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) y[j] = x[j] * kept(hashes[j], probability);
  });
  return 0;
}

// logits (N, V), labels (N) int32 -> losses (N), log of the sums (N)
OPERATION(cross_entropy) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const int32_t *labels = static_cast<int32_t *>(data[1]);
  const bool valid = all_below(labels, o.rows(0), size);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size;
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < size; ++j) largest = x[j] > largest ? x[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j) sum += exponential(x[j] - largest);
    o[3][i] = largest + std::log(sum);
    o[2][i] = valid ? o[3][i] - x[labels[i]] : NAN;
  });
  return valid ? 0 : 1;
}

// dlosses (N), logits (N, V), labels (N) int32, log of the sums (N) -> dlogits (N, V)
OPERATION(cross_entropy_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(1);
  const int32_t *labels = static_cast<int32_t *>(data[2]);
  if (!all_below(labels, o.rows(1), size)) return 1;
  each_row(o.rows(1), size, [&](int64_t i) {
    const float *x = o[1] + i * size, weight = o[0][i], logarithm = o[3][i];
    float *dx = o[4] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) dx[j] = exponential(x[j] - logarithm) * weight;
    dx[labels[i]] -= weight;
  });
  return 0;
}

// Whether the operations below can be called.
extern "C" bool has_products() { return sgemm() != nullptr; }

// x (..., M, K), y (..., K, N) -> x y (..., M, N)
OPERATION(product) { return Products(Operands{data, ranks, shapes}, false, false).run(); }

// x (..., M, K), y (..., N, K) -> x y^T (..., M, N)
OPERATION(product_nt) { return Products(Operands{data, ranks, shapes}, false, true).run(); }

// x (..., K, M), y (..., K, N) -> x^T y (..., M, N)
OPERATION(product_tn) { return Products(Operands{data, ranks, shapes}, true, false).run(); }
