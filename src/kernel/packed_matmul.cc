#include "kernel/packed_matmul.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernel/f16.h"

// Highway compiles the part below once per instruction set and picks one at run time. AVX3_DL has
// the int8 dot product.
#define HWY_WANT_AVX3_DL 1
#include "kernel/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/packed_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "kernel/packed_matmul-inl.h"

#if HWY_ONCE
namespace kvlink::kernel {
namespace {

constexpr size_t kNarrowBlockBytes = 256 + 64;  // 16 x 32 nibbles, d and m as F16
constexpr size_t kWideBlockBytes = 512 + 32;    // 16 x 32 bytes, d as F16

size_t SourceBlockBytes(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return 18;
    case WeightType::kQ4_1:
      return 20;
    case WeightType::kQ8_0:
      return 34;
  }
  return 0;
}

// One row's block into lane `lane` of a packed block.
void PackBlock(WeightType type, const uint8_t* src, uint8_t* dst, uint32_t lane) {
  uint16_t d;
  std::memcpy(&d, src, 2);
  if (type == WeightType::kQ8_0) {
    for (uint32_t j = 0; j < 8; j++)
      for (uint32_t i = 0; i < 4; i++)
        dst[j * 64 + lane * 4 + i] = static_cast<uint8_t>(src[2 + 4 * j + i] ^ 0x80);
    std::memcpy(dst + 512 + lane * 2, &d, 2);
    return;
  }
  // ggml's nibbles: byte i holds input i (low) and input i + 16 (high), which is the order of the
  // dot product here too.
  const uint8_t* nibbles = src + (type == WeightType::kQ4_1 ? 4 : 2);
  for (uint32_t j = 0; j < 4; j++) std::memcpy(dst + j * 64 + lane * 4, nibbles + 4 * j, 4);
  std::memcpy(dst + 256 + lane * 2, &d, 2);
  uint16_t m;
  if (type == WeightType::kQ4_1) {
    std::memcpy(&m, src + 2, 2);
  } else {
    m = F32ToF16(-8.0f * F16ToF32(d));
  }
  std::memcpy(dst + 288 + lane * 2, &m, 2);
}

}  // namespace

void PackedMatrix::Free::operator()(std::byte* p) const { std::free(p); }

Result<PackedMatrix> PackedMatrix::Pack(WeightType type, uint32_t inputs,
                                        std::span<const Source> sources, int threads) {
  if (inputs == 0 || inputs % kQuantBlock != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "packed matrix: inputs must be a positive multiple of 32, not " + std::to_string(inputs));
  }
  PackedMatrix w;
  w.inputs_ = inputs;
  w.wide_ = type == WeightType::kQ8_0;
  struct Row {
    const uint8_t* data;
  };
  const size_t row_bytes = inputs / kQuantBlock * SourceBlockBytes(type);
  std::vector<Row> rows;
  for (const Source& s : sources)
    for (uint32_t r = 0; r < s.rows; r++)
      rows.push_back({reinterpret_cast<const uint8_t*>(s.data) + r * row_bytes});
  if (rows.empty()) return Status(StatusCode::kInvalidArgument, "packed matrix: no rows");
  w.rows_ = static_cast<uint32_t>(rows.size());
  const size_t block_bytes = w.wide_ ? kWideBlockBytes : kNarrowBlockBytes;
  const uint32_t num_blocks = inputs / kQuantBlock;
  w.panel_bytes_ = block_bytes * num_blocks;
  // A little room behind the last panel, since the kernel prefetches ahead.
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (w.panel_bytes_ * w.panels() + 4096 + 4095) / 4096 * 4096;
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  w.data_.reset(static_cast<std::byte*>(
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)));
  if (!w.data_) {
    return Status(StatusCode::kResourceExhausted,
                  "packed matrix: no memory for " + std::to_string(bytes) + " bytes of weights");
  }
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(w.data_.get(), bytes, MADV_HUGEPAGE);
#endif
  auto pack = [&](uint32_t begin, uint32_t end) {
    for (uint32_t p = begin; p < end; p++) {
      uint8_t* panel = reinterpret_cast<uint8_t*>(w.data_.get()) + p * w.panel_bytes_;
      const uint32_t lanes = std::min<uint32_t>(kPanelRows, w.rows_ - p * kPanelRows);
      if (lanes < kPanelRows) std::memset(panel, 0, w.panel_bytes_);
      for (uint32_t lane = 0; lane < lanes; lane++) {
        const uint8_t* src = rows[p * kPanelRows + lane].data;
        for (uint32_t b = 0; b < num_blocks; b++)
          PackBlock(type, src + b * SourceBlockBytes(type), panel + b * block_bytes, lane);
      }
    }
  };
  const uint32_t n = w.panels();
  const uint32_t parts = std::clamp<uint32_t>(static_cast<uint32_t>(threads), 1, n);
  std::vector<std::thread> workers;
  for (uint32_t i = 1; i < parts; i++)
    workers.emplace_back(pack, n * uint64_t{i} / parts, n * uint64_t{i + 1} / parts);
  pack(0, n / parts);
  for (std::thread& t : workers) t.join();
  return w;
}

HWY_EXPORT(QuantizeRows);
HWY_EXPORT(RmsNormQuantizeRows);
HWY_EXPORT(SwiGluQuantizeRows);
HWY_EXPORT(MultiplyPanels);
HWY_EXPORT(TargetIsa);

Isa MultiplyIsa() { return HWY_DYNAMIC_DISPATCH(TargetIsa)(); }

void Quantize(const float* x, size_t x_stride, uint32_t inputs, std::byte* out, uint32_t begin,
              uint32_t end) {
  HWY_DYNAMIC_DISPATCH(QuantizeRows)(x, x_stride, inputs, out, begin, end);
}

void RmsNormQuantize(const float* x, size_t x_stride, uint32_t inputs, const float* weight,
                     float eps, std::byte* out, uint32_t begin, uint32_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormQuantizeRows)(x, x_stride, inputs, weight, eps, out, begin, end);
}

void SwiGluQuantize(const float* x, size_t x_stride, uint32_t inputs, std::byte* out,
                    uint32_t begin, uint32_t end) {
  HWY_DYNAMIC_DISPATCH(SwiGluQuantizeRows)(x, x_stride, inputs, out, begin, end);
}

void Multiply(const PackedMatrix& w, const std::byte* x, uint32_t num, float* y, size_t y_stride,
              const float* residual, size_t residual_stride, uint32_t panel_begin,
              uint32_t panel_end) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanels)
  (w, x, num, y, y_stride, residual, residual_stride, panel_begin, panel_end);
}

}  // namespace kvlink::kernel
#endif  // HWY_ONCE
