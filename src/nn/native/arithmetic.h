// Formulas, in a form that compilers vectorise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace albert {

using bfloat16 = uint16_t;  // the upper half of a float

// The nearest one, of two as near the even one; not a number stays that.
inline bfloat16 to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<bfloat16>(x != x ? 0x7fc0u : nearest);
}

inline void to_bfloat16(const float *x, int64_t size, bfloat16 *y) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) y[j] = to_bfloat16(x[j]);
}

inline float as_float(float x) { return x; }

inline float as_float(bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void round_to(float x, float &y) { y = x; }
inline void round_to(float x, bfloat16 &y) { y = to_bfloat16(x); }

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

constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f * kLinear;

inline float gate(float x) { return 1.0f / (1.0f + exponential(-x * (kLinear + kCubic * x * x))); }

constexpr float kDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)

// The normal distribution function at x, to 3e-7, given exp(-x x / 2). The polynomial in t approximates the tail over
// t exp(-x x / 2) with a relative error of 1.4e-8 (least squares, weighted until the largest error was smallest).
inline float normal_distribution(float x, float bell) {
  const float t = 1.0f / (1.0f + 0.21f * std::fabs(x));
  float p = -7.203552451e-2f;
  p = p * t + 2.854610650e-1f;
  p = p * t - 3.342059230e-1f;
  p = p * t + 3.540529043e-1f;
  p = p * t - 9.725959635e-2f;
  p = p * t + 1.263613878e-1f;
  p = p * t + 6.878833557e-2f;
  p = p * t + 8.512966666e-2f;
  p = p * t + 8.370768625e-2f;
  const float tail = bell * t * p;
  return x < 0.0f ? tail : 1.0f - tail;
}

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

}  // namespace albert
