// The operations of src/nn/fused_layers.py, which read their operands once and write their results once, and of
// src/nn/fused_products.py.
//
// MindSpore calls every function with the addresses and shapes of its inputs and, behind them, of its outputs. All are
// float32 but labels, keys and rows where texts begin (int32), and exponentials, in whole floats. Rows are dealt out in as many equal parts as there are
// threads; sums over rows add up what each part has summed, in their order, so that results depend on the number of
// threads, and on nothing else.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "attention.h"
#include "dropout.h"
#include "gemm.h"
#include "linear_cross_entropy.h"
#include "projections.h"
#include "team.h"

using namespace albert;

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define OPERATION(name)                                                                                            \
  EXPORTED int name([[maybe_unused]] int count, void **data, int *ranks, int64_t **shapes, const char **, void *, \
                    void *)

// What keeps the operations from being called, as a sentence; "" if nothing does.
EXPORTED const char *obstacle() {
  return gemm<float>() ? "" : "MindSpore comes without libdnnl.so.3 or its dnnl_sgemm";
}

// Whether oneDNN multiplies bfloat16 by instructions of this CPU, which it elsewhere emulates.
EXPORTED int64_t multiplies_bfloat16() { return gemm<bfloat16>() && has_bfloat16(); }

// Called by src/nn/native_operations.py before the first operation.
EXPORTED void set_threads(int threads) { Team::threads = threads; }

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
  each_row_summed(o.rows(0), size, {o[4]}, [&](int64_t i, float *sums) {
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

// x (N, C), bias (C) -> y (N, C)
OPERATION(bias_gelu_erf) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[1];
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size;
    float *y = o[2] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j];
      y[j] = shifted * normal_distribution(shifted, exponential(-0.5f * shifted * shifted));
    }
  });
  return 0;
}

// dy (N, C), x (N, C), bias (C) -> dx (N, C), dbias (C)
OPERATION(bias_gelu_erf_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[2];
  each_row_summed(o.rows(0), size, {o[4]}, [&](int64_t i, float *sums) {
    const float *dy = o[0] + i * size, *x = o[1] + i * size;
    float *dx = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j], bell = exponential(-0.5f * shifted * shifted);
      dx[j] = dy[j] * (normal_distribution(shifted, bell) + shifted * kDensity * bell);
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
// dy (N, C), gamma (C), normal (N, C), inverse (N) -> dx (N, C), dgamma (C), dbeta (C), dbias (C)
OPERATION(norm_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row_summed(o.rows(0), 3 * size, {o[5], o[6], o[7]}, [&](int64_t i, float *sums) {
    float *dx = o[4] + i * size, *biases = sums + 2 * size;
    normalise_gradient(o[0] + i * size, o[1], o[2] + i * size, o[3][i], dx, sums, sums + size, size);
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) biases[j] += dx[j];
  });
  return 0;
}

// The operands of add_norm, factors by row (N, F) and by column (C, F) of dropout's hashes, probability (1)
// -> as add_norm, of dropout(x + bias) + residual
OPERATION(drop_add_norm) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const DropoutMask mask(o, 6, o.scalar(8));
  if (!mask.fits(o.rows(0), size)) return 1;
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *bias = o[1], *residual = o[2] + i * size, *kept_share = mask.row(i, size);
    float *normal = o[10] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) normal[j] = (x[j] + bias[j]) * kept_share[j] + residual[j];
    o[11][i] = normalise(normal, o[3], o[4], o[9] + i * size, size, o.scalar(5));
  });
  return 0;
}

// The operands of norm_gradient, factors by row (N, F) and by column (C, F) of dropout's hashes, probability (1)
// -> dresidual, dx (N, C), dgamma (C), dbeta (C), dbias (C)
OPERATION(drop_add_norm_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const DropoutMask mask(o, 4, o.scalar(6));
  if (!mask.fits(o.rows(0), size)) return 1;
  each_row_summed(o.rows(0), 3 * size, {o[9], o[10], o[11]}, [&](int64_t i, float *sums) {
    float *dresidual = o[7] + i * size, *dx = o[8] + i * size, *biases = sums + 2 * size;
    normalise_gradient(o[0] + i * size, o[1], o[2] + i * size, o[3][i], dresidual, sums, sums + size, size);
    const float *kept_share = mask.row(i, size);
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      dx[j] = dresidual[j] * kept_share[j];
      biases[j] += dx[j];
    }
  });
  return 0;
}

// The operands of Attention -> context (N, H), largest scores and inverse sums (N A, 2)
OPERATION(attention) {
  const Operands o{data, ranks, shapes};
  return Attention(o, 0).forward(o[11], o[12]);
}

// dcontext (N, H), the operands of Attention, attention's second result
// -> gradients of queries, keys, values (N, H) and of their biases (H)
OPERATION(attention_gradient) {
  const Operands o{data, ranks, shapes};
  float *const gradients[] = {o[13], o[14], o[15]}, *const biases[] = {o[16], o[17], o[18]};
  return Attention(o, 1).backward(o[0], o[12], gradients, biases);
}

// Whole numbers by row (N, F) below 128, a key () int32 -> factors by row (N, F) of dropout's hashes
OPERATION(row_factors) {
  const Operands o{data, ranks, shapes};
  const int64_t features = o.last(0);
  const int64_t key = mixed(*static_cast<int32_t *>(data[1]));
  std::vector<float> odd(features);
  for (int64_t k = 0; k < features; ++k) odd[k] = (2 * (mixed(static_cast<int32_t>(key + k)) & 63) + 1) * 0x1p-11f;
  each_row(o.rows(0), features, [&](int64_t i) {
    const float *row = o[0] + i * features;
    float *factors = o[2] + i * features;
#pragma omp simd
    for (int64_t k = 0; k < features; ++k) {
      const float by_key = row[k] * odd[k];
      factors[k] = by_key - std::floor(by_key);
    }
  });
  return 0;
}

// x (N, C), factors by row (N, F) and by column (C, F) of dropout's hashes, probability (1) -> y (N, C); its own
// gradient
OPERATION(dropout) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const DropoutMask mask(o, 1, o.scalar(3));
  if (!mask.fits(o.rows(0), size)) return 1;
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *kept_share = mask.row(i, size);
    float *y = o[4] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) y[j] = x[j] * kept_share[j];
  });
  return 0;
}

// Tensors of any shape -> the sum of the squares of all their entries (1)
OPERATION(square_sum) {
  const Operands o{data, ranks, shapes};
  constexpr int64_t kBlock = 1 << 16;  // entries that are summed by themselves, whatever the number of threads
  std::vector<std::pair<const float *, int64_t>> blocks;
  for (int i = 0; i + 1 < count; ++i) {
    const int64_t size = ranks[i] ? o.rows(i) * o.last(i) : 1;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      blocks.emplace_back(o[i] + begin, std::min(kBlock, size - begin));
    }
  }
  std::vector<double> sums(blocks.size());
  each_row(blocks.size(), kBlock, [&](int64_t i) {
    float sum = 0.0f;
    const float *x = blocks[i].first;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < blocks[i].second; ++j) sum += x[j] * x[j];
    sums[i] = sum;
  });
  o[count - 1][0] = static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0));
  return 0;
}

// A factor (), tensors of any shape -> each times the factor
OPERATION(scale_all) {
  const Operands o{data, ranks, shapes};
  const float factor = o.scalar(0);
  for (int i = 1; i < (count + 1) / 2; ++i) {
    float *y = o[i + count / 2];
    const int64_t size = ranks[i] ? o.last(i) : 1;
    each_row(ranks[i] ? o.rows(i) : 1, size, [&](int64_t row) {
      const float *x = o[i] + row * size;
      if (factor == 0.0f) {  // also of what is not finite
        std::fill_n(y + row * size, size, 0.0f);
        return;
      }
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) y[row * size + j] = x[j] * factor;
    });
  }
  return 0;
}

// logits (N, V), labels (N) int32 -> losses (N), hits (N), log of the sums (N)
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
    o[4][i] = largest + std::log(sum);
    o[2][i] = valid ? o[4][i] - x[labels[i]] : NAN;
    o[3][i] = valid && std::find(x, x + labels[i] + 1, largest) == x + labels[i] ? 1.0f : 0.0f;  // the first of equals
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

// x (N, K), one or several W (M, K) -> each x W^T (N, M)
template <typename Number>
static int project(const Operands &o, int count) {
  const int number = (count - 1) / 2;
  return Projections<Number>(o, 0, number, false).values(1 + number);
}

// x (N, K), one or several W (M, K), each W prepacked -> each x W^T (N, M)
template <typename Number>
static int project_prepacked(const Operands &o, int count) {
  const int number = (count - 1) / 3;
  return Projections<Number>(o, 0, number, true).values(1 + 2 * number);
}

// dy (N, M) of each, x (N, K), each W (M, K) -> dx (N, K), each dW (M, K)
template <typename Number>
static int project_gradient(const Operands &o, int count) {
  const int number = (count - 2) / 3;
  return Projections<Number>(o, number, number, false).gradients(2 * number + 1);
}

static std::atomic<int64_t> prepacked_weights{0};

// W (M, K) -> W for products x W^T
template <typename Number>
static int prepack(const Operands &o, int) {
  const auto *prepacking = Prepacking<Number>::get();
  if (!prepacking) return 1;
  ++prepacked_weights;
  std::atomic<int> status{0};
  const int64_t m = o.rows(0), k = o.last(0), parts = prepacking->parts(m), size = o.last(1) / parts;
  Team::get().run(parts, [&](int64_t part) { status |= prepacking->pack(m, k, part, o[0], o[1] + part * size); });
  return status;
}

// Floats that W (m, k) has when it is prepacked; 0: it cannot be.
template <typename Number>
static int64_t prepacked_size(int64_t m, int64_t k) {
  const auto *prepacking = Prepacking<Number>::get();
  return prepacking ? prepacking->parts(m) * prepacking->part_size(m, k) : 0;
}

// x (N, K), W (V, K), bias (V), labels (N) int32 -> losses, hits, sums (N) and exponentials (N, floats of V numbers)
template <typename Number>
static int linear_cross_entropy(const Operands &o, int) {
  LinearCrossEntropy<Number> losses(o, 0);
  return losses.forward(o, 2, 3, o[4], o[5], o[6], reinterpret_cast<Number *>(o[7]));
}

// dlosses (N), x (N, K), W (V, K), sums (N), exponentials (N, floats of V numbers) -> dx (N, K), dW (V, K), dbias (V)
template <typename Number>
static int linear_cross_entropy_gradient(const Operands &o, int) {
  LinearCrossEntropy<Number> losses(o, 1);
  return losses.backward(o[0], o[3], reinterpret_cast<Number *>(o[4]), o[5], o[6], o[7]);
}

// The products by the type of what is multiplied.
#define PRODUCTS(name, Number)                                                                                  \
  OPERATION(project_##name) { return project<Number>({data, ranks, shapes}, count); }                           \
  OPERATION(project_prepacked_##name) { return project_prepacked<Number>({data, ranks, shapes}, count); }       \
  OPERATION(project_gradient_##name) { return project_gradient<Number>({data, ranks, shapes}, count); }         \
  OPERATION(linear_cross_entropy_##name) { return linear_cross_entropy<Number>({data, ranks, shapes}, count); } \
  OPERATION(linear_cross_entropy_gradient_##name) {                                                             \
    return linear_cross_entropy_gradient<Number>({data, ranks, shapes}, count);                                 \
  }                                                                                                             \
  OPERATION(prepack_##name) { return prepack<Number>({data, ranks, shapes}, count); }                           \
  EXPORTED int64_t prepacked_size_##name(int64_t m, int64_t k) { return prepacked_size<Number>(m, k); }

PRODUCTS(float32, float)
PRODUCTS(bfloat16, bfloat16)

// How many have been prepacked in this process.
EXPORTED int64_t prepackings() { return prepacked_weights; }
