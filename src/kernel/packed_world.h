// Matrices and activations for tests of packed products, and what a product must give: read once
// more from the description of the formats, in plain C++.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernel/f16.h"
#include "kernel/packed_matmul.h"

namespace kvlink::kernel {

inline float HalfAt(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16ToF32(bits);
}

// A matrix in ggml's layout of random bytes, with small finite scales.
struct Weights {
  WeightType type;
  uint32_t rows, inputs;
  std::vector<std::byte> bytes;

  Weights(WeightType t, uint32_t num_rows, uint32_t num_inputs, uint32_t seed)
      : type(t), rows(num_rows), inputs(num_inputs) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    bytes.resize(size_t{rows} * (inputs / InputsOfBlock(t)) * BytesOfBlock(t));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    for (size_t at = 0; at < bytes.size(); at += BytesOfBlock(t)) {
      const float d = scale(rng);
      if (t == WeightType::kF32) {
        Set(at, d - 0.01f);
      } else if (t == WeightType::kBF16) {
        Set(at, F32ToBF16(d - 0.01f));
      } else if (t == WeightType::kF16) {
        Set(at, F32ToF16(d - 0.01f));
      } else if (t == WeightType::kQ6_K) {
        Set(at + 208, F32ToF16(d / 64));
      } else {
        const bool super = t == WeightType::kQ4_K || t == WeightType::kQ5_K;
        Set(at, F32ToF16(super ? d / 32 : d));
        if (super) Set(at + 2, F32ToF16(d / 16));
        if (t == WeightType::kQ4_1 || t == WeightType::kQ5_1) Set(at + 2, F32ToF16(-7.3f * d));
      }
    }
  }

  template <typename T>
  void Set(size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
  }

  PackedMatrix Pack(int threads = 1, const float* bias = nullptr) const {
    const PackedMatrix::Source source{type, bytes.data(), rows, bias};
    auto packed = PackedMatrix::Pack(inputs, {&source, 1}, threads);
    EXPECT_TRUE(packed.ok());
    return std::move(*packed);
  }

  const std::byte* Row(uint32_t r) const {
    return bytes.data() + r * (inputs / InputsOfBlock(type)) * BytesOfBlock(type);
  }
};

// Weights of block b (32 inputs) of a row as w = d[k] * u + m, k the half of the block: read once
// more from the description of the format, one element at a time.
struct PlainBlock {
  int32_t u[32];
  float d[2];
  float m = 0;
  bool has_m = false;
};

inline PlainBlock ReadPlain(WeightType type, const std::byte* row, uint32_t b) {
  PlainBlock out;
  const auto byte = [&](size_t at) { return static_cast<uint32_t>(row[at]); };
  const auto bit = [&](size_t at, uint32_t n) { return byte(at + n / 8) >> n % 8 & 1; };
  if (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
    row += b / 8 * BytesOfBlock(type);
    b %= 8;
    uint32_t scale = byte(4 + b % 4), min = byte(8 + b % 4);
    if (b < 4) {
      scale &= 63;
      min &= 63;
    } else {
      const uint32_t low = byte(12 + b % 4);
      scale = (scale >> 6) << 4 | (low & 15);
      min = (min >> 6) << 4 | low >> 4;
    }
    out.d[0] = out.d[1] = static_cast<float>(scale) * HalfAt(row);
    out.m = -(static_cast<float>(min) * HalfAt(row + 2));
    out.has_m = true;
    for (uint32_t k = 0; k < 32; k++) {
      const size_t nibbles = type == WeightType::kQ5_K ? 48 : 16;
      out.u[k] = static_cast<int32_t>(byte(nibbles + b / 2 * 32 + k) >> b % 2 * 4 & 15);
      if (type == WeightType::kQ5_K) out.u[k] += static_cast<int32_t>((byte(16 + k) >> b & 1) * 16);
    }
    return out;
  }
  if (type == WeightType::kQ6_K) {
    row += b / 8 * 210;
    b %= 8;
    for (uint32_t k = 0; k < 2; k++) {
      const auto scale = static_cast<int8_t>(byte(192 + 2 * b + k));
      out.d[k] = static_cast<float>(scale) * HalfAt(row + 208);
    }
    for (uint32_t k = 0; k < 32; k++) {
      const uint32_t low = byte(b / 4 * 64 + b % 2 * 32 + k) >> b % 4 / 2 * 4 & 15;
      const uint32_t high = byte(128 + b / 4 * 32 + k) >> b % 4 * 2 & 3;
      out.u[k] = static_cast<int32_t>(low + 16 * high) - 32;
    }
    return out;
  }
  row += b * BytesOfBlock(type);
  out.d[0] = out.d[1] = HalfAt(row);
  out.has_m = type == WeightType::kQ4_1 || type == WeightType::kQ5_1;
  if (out.has_m) out.m = HalfAt(row + 2);
  size_t at = out.has_m ? 4 : 2;
  for (uint32_t k = 0; k < 32; k++) {
    if (type == WeightType::kQ8_0) {
      out.u[k] = static_cast<int8_t>(byte(at + k));
      continue;
    }
    const bool five = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
    uint32_t u = byte(at + (five ? 4 : 0) + k % 16) >> k / 16 * 4 & 15;
    if (five) u += 16 * bit(at, k);
    out.u[k] = static_cast<int32_t>(u);
    if (!out.has_m) out.u[k] -= five ? 16 : 8;
  }
  return out;
}

inline float BFloat(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return BF16ToF32(bits);
}

// What Multiply must give to the last bit: sum_b over whole blocks, in order, of one output.
inline float PlainIntProduct(const Weights& w, uint32_t r, const std::byte* input, float sum) {
  const auto* x = reinterpret_cast<const QuantBlock*>(input);
  for (uint32_t b = 0; b < w.inputs / kQuantBlock; b++) {
    const PlainBlock block = ReadPlain(w.type, w.Row(r), b);
    const uint32_t parts = w.type == WeightType::kQ6_K ? 2 : 1;
    for (uint32_t part = 0; part < parts; part++) {
      int32_t dot = 0;
      for (uint32_t k = 32 / parts * part; k < 32 / parts * (part + 1); k++)
        dot += block.u[k] * x[b].q[k];
      sum = std::fma(static_cast<float>(dot), block.d[part] * x[b].scale, sum);
    }
    if (block.has_m) sum = std::fma(block.m, x[b].scaled_sum, sum);
  }
  return sum;
}

inline double WeightOf(const Weights& w, uint32_t r, uint32_t i) {
  const std::byte* p = w.Row(r) + size_t{i} * BytesOfBlock(w.type);
  if (w.type == WeightType::kF16) return HalfAt(p);
  if (w.type == WeightType::kBF16) return BFloat(p);
  float f;
  std::memcpy(&f, p, 4);
  return f;
}

inline double InputOf(InputFormat format, const std::byte* input, uint32_t i) {
  if (format == InputFormat::kBF16) return BFloat(input + size_t{i} * 2);
  float f;
  std::memcpy(&f, input + size_t{i} * 4, 4);
  return f;
}

inline std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// Activations of one product.
struct Inputs {
  std::vector<std::byte> bytes;
  InputRows rows;

  Inputs(const std::vector<float>& x, uint32_t inputs, InputFormat format) {
    rows.num = static_cast<uint32_t>(x.size() / inputs);
    rows.stride = InputRowBytes(format, inputs);
    bytes.resize(rows.num * rows.stride);
    Quantize(format, x.data(), inputs, inputs, bytes.data(), 0, rows.num);
    rows.data = bytes.data();
  }
  const std::byte* Row(uint32_t t) const { return bytes.data() + t * rows.stride; }
  InputRows Some(uint32_t first, uint32_t num) const { return {Row(first), rows.stride, num}; }
};

inline std::string NameOf(WeightType type) {
  static constexpr const char* kNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
                                           "Q5_K", "Q6_K", "F16",  "BF16", "F32"};
  return kNames[static_cast<int>(type)];
}

}  // namespace kvlink::kernel
