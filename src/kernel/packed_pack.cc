#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernel/packed_layout.h"
#include "kernel/packed_matmul.h"

namespace kvlink::kernel {
namespace {

// One block of 32 weights as the file has it.
struct Block {
  std::array<uint8_t, kQuantBlock> u;
  std::array<uint8_t, 4> scales;  // F16 d and m, or scale and min, or two scales
};

void LowNibbles(const uint8_t* bytes, uint8_t* u) {
  for (uint32_t i = 0; i < 16; i++) {
    u[i] = bytes[i] & 15;
    u[i + 16] = bytes[i] >> 4;
  }
}

void AddFifthBits(const uint8_t* bytes, uint8_t* u) {
  uint32_t high;
  std::memcpy(&high, bytes, 4);
  for (uint32_t i = 0; i < 32; i++) u[i] |= static_cast<uint8_t>((high >> i & 1u) << 4);
}

// Block i of a super-block of Q4_K or Q5_K (which has fifth bits): {d, dmin, scales [12], fifth
// bits [32], nibbles [128]}.
void ReadSuperBlock(const uint8_t* src, uint32_t i, bool fifth_bits, Block* block) {
  const uint8_t* packed = src + 4;
  if (i < 4) {
    block->scales[0] = packed[i] & 63;
    block->scales[1] = packed[i + 4] & 63;
  } else {
    block->scales[0] = static_cast<uint8_t>((packed[i + 4] & 15) | packed[i - 4] >> 6 << 4);
    block->scales[1] = static_cast<uint8_t>(packed[i + 4] >> 4 | packed[i] >> 6 << 4);
  }
  const uint8_t* high = src + 16;
  const uint8_t* nibbles = src + (fifth_bits ? 48 : 16) + i / 2 * 32;
  std::array<uint8_t, 32> u;  // of its own, so that the loops become vectors
  if (i % 2 == 0) {
    for (uint32_t k = 0; k < 32; k++) u[k] = nibbles[k] & 15;
  } else {
    for (uint32_t k = 0; k < 32; k++) u[k] = nibbles[k] >> 4;
  }
  if (fifth_bits) {
    const auto bit = static_cast<uint8_t>(1u << i);
    for (uint32_t k = 0; k < 32; k++) u[k] |= static_cast<uint8_t>((high[k] & bit) != 0 ? 16 : 0);
  }
  block->u = u;
}

// Block i of a super-block of Q6_K: {nibbles [128], high bits [64], scales [16], d}.
void ReadQ6Block(const uint8_t* src, uint32_t i, Block* block) {
  const uint32_t half = i / 4, quarter = i % 4;
  const uint8_t* nibbles = src + half * 64 + quarter % 2 * 32;
  const uint8_t* high = src + 128 + half * 32;
  const uint32_t shift = quarter / 2 * 4;
  for (uint32_t k = 0; k < 32; k++) {
    block->u[k] =
        static_cast<uint8_t>((nibbles[k] >> shift & 15) | (high[k] >> 2 * quarter & 3) << 4);
  }
  block->scales[0] = src[192 + 2 * i];
  block->scales[1] = src[192 + 2 * i + 1];
}

// Block `i` of the row at `src`.
template <WeightType kType>
void ReadBlock(const uint8_t* src, uint32_t i, Block* block) {
  uint8_t* u = block->u.data();
  if constexpr (kType == WeightType::kQ4_K || kType == WeightType::kQ5_K) {
    ReadSuperBlock(src + i / 8 * BytesOfBlock(kType), i % 8, kType == WeightType::kQ5_K, block);
  } else if constexpr (kType == WeightType::kQ6_K) {
    ReadQ6Block(src + i / 8 * BytesOfBlock(kType), i % 8, block);
  } else {
    constexpr bool kAffine = LayoutOf(kType).affine();
    constexpr uint32_t kBits = LayoutOf(kType).bits;
    src += i * BytesOfBlock(kType);
    std::memcpy(block->scales.data(), src, kAffine ? 4 : 2);
    src += kAffine ? 4 : 2;
    if constexpr (kBits == 8) {
      for (uint32_t k = 0; k < 32; k++) u[k] = src[k] ^ 0x80;
    } else {
      LowNibbles(src + (kBits == 5 ? 4 : 0), u);
      if constexpr (kBits == 5) AddFifthBits(src, u);
    }
  }
}

template <uint32_t kBits>
void WriteQuants(const uint8_t* u, uint8_t* dst, uint32_t lane) {
  if constexpr (kBits == 8) {
    for (uint32_t j = 0; j < 8; j++) std::memcpy(dst + j * 64 + lane * 4, u + 4 * j, 4);
    return;
  }
  uint8_t nibbles[16];
  for (uint32_t k = 0; k < 16; k++)
    nibbles[k] = static_cast<uint8_t>((u[k] & 15) | (u[k + 16] & 15) << 4);
  for (uint32_t j = 0; j < 4; j++) std::memcpy(dst + j * 64 + lane * 4, nibbles + 4 * j, 4);
  if constexpr (kBits == 4) return;
  constexpr uint32_t kVectors = kBits == 5 ? 1 : 2, kStep = 8 / kVectors;
  uint8_t high[8] = {};
  for (uint32_t v = 0; v < kVectors; v++)
    for (uint32_t j = 0; j < kStep; j++)
      for (uint32_t k = 0; k < 4; k++)
        high[v * 4 + k] |= static_cast<uint8_t>(u[(v * kStep + j) * 4 + k] >> 4 << j * kVectors);
  for (uint32_t v = 0; v < kVectors; v++)
    std::memcpy(dst + 256 + v * 64 + lane * 4, high + 4 * v, 4);
}

// The super-scales of the group that begins at block `first` of the row at `src`.
template <WeightType kType>
void WriteSuperScales(const uint8_t* src, uint32_t first, uint8_t* dst, uint32_t lane) {
  src += first / 8 * BytesOfBlock(kType);
  if constexpr (LayoutOf(kType).scales == ScaleKind::kSuper) {
    std::memcpy(dst + lane * 2, src, 2);
    std::memcpy(dst + 32 + lane * 2, src + 2, 2);
  } else if constexpr (LayoutOf(kType).pairs()) {
    std::memcpy(dst + lane * 2, src + 208, 2);
  }
}

// Blocks [first, last) of a row, one group, into lane `lane` of half a panel's group.
template <WeightType kType>
void PackGroup(const uint8_t* src, uint32_t first, uint32_t last, uint8_t* half, uint32_t lane) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  for (uint32_t i = 0; first + i < last; i++) {
    Block block;
    ReadBlock<kType>(src, first + i, &block);
    WriteQuants<kLayout.bits>(block.u.data(), half + i * kLayout.quant_bytes(), lane);
    uint8_t* scales = half + kLayout.scales_of(i);
    if constexpr (kLayout.scales == ScaleKind::kF16 || kLayout.scales == ScaleKind::kF16Affine) {
      std::memcpy(scales + lane * 2, &block.scales[0], 2);
      if (kLayout.affine()) std::memcpy(scales + 32 + lane * 2, &block.scales[2], 2);
    } else {
      scales[lane] = block.scales[0];
      scales[16 + lane] = block.scales[1];
    }
  }
  WriteSuperScales<kType>(src, first, half + kLayout.scales_of(kLayout.group), lane);
}

// A panel of `rows` (up to 32). Group by group, so that what is written stays in the cache while
// all rows meet it.
template <WeightType kType>
void PackIntPanel(std::span<const uint8_t* const> rows, uint32_t inputs, uint8_t* panel) {
  constexpr PackedLayout kLayout = LayoutOf(kType);
  const uint32_t blocks = inputs / kQuantBlock;
  for (uint32_t first = 0; first < blocks; first += kLayout.group) {
    const uint32_t last = std::min(blocks, first + kLayout.group);
    // Lanes without a row, blocks that the last group does not have, padding.
    std::memset(panel, 0, kLayout.group_bytes());
    for (uint32_t lane = 0; lane < rows.size(); lane++) {
      PackGroup<kType>(rows[lane], first, last, panel + lane / kLanes16 * kLayout.half_bytes(),
                       lane % kLanes16);
    }
    panel += kLayout.group_bytes();
  }
}

// `kPair` inputs of a row lie together.
template <typename T, uint32_t kPair>
void PackFloatPanel(std::span<const uint8_t* const> rows, uint32_t inputs, uint8_t* panel) {
  constexpr uint32_t kTile = 16;  // inputs
  for (uint32_t first = 0; first < inputs; first += kTile) {
    const uint32_t last = std::min(inputs, first + kTile);
    const uint32_t padded = (last + 1) / 2 * 2;
    std::memset(panel + size_t{first} * kPanelRows * sizeof(T), 0,
                size_t{padded - first} * kPanelRows * sizeof(T));
    for (uint32_t lane = 0; lane < rows.size(); lane++) {
      for (uint32_t i = first; i < last; i++) {
        const size_t at = (size_t{i / kPair} * kPanelRows + lane) * kPair + i % kPair;
        std::memcpy(panel + at * sizeof(T), rows[lane] + i * sizeof(T), sizeof(T));
      }
    }
  }
}

using PackPanelFn = void (*)(std::span<const uint8_t* const>, uint32_t, uint8_t*);

PackPanelFn PackPanelOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return PackIntPanel<WeightType::kQ4_0>;
    case WeightType::kQ4_1:
      return PackIntPanel<WeightType::kQ4_1>;
    case WeightType::kQ5_0:
      return PackIntPanel<WeightType::kQ5_0>;
    case WeightType::kQ5_1:
      return PackIntPanel<WeightType::kQ5_1>;
    case WeightType::kQ8_0:
      return PackIntPanel<WeightType::kQ8_0>;
    case WeightType::kQ4_K:
      return PackIntPanel<WeightType::kQ4_K>;
    case WeightType::kQ5_K:
      return PackIntPanel<WeightType::kQ5_K>;
    case WeightType::kQ6_K:
      return PackIntPanel<WeightType::kQ6_K>;
    case WeightType::kF16:
      return PackFloatPanel<uint16_t, 1>;
    case WeightType::kBF16:
      return PackFloatPanel<uint16_t, 2>;
    case WeightType::kF32:
      break;
  }
  return PackFloatPanel<uint32_t, 1>;
}

// Calls work(begin, end) for even shares of [0, n).
template <typename Work>
void InParallel(uint32_t n, int threads, const Work& work) {
  const uint32_t parts = std::clamp<uint32_t>(static_cast<uint32_t>(threads), 1, n);
  std::vector<std::jthread> workers;
  for (uint32_t i = 1; i < parts; i++)
    workers.emplace_back(work, static_cast<uint32_t>(uint64_t{n} * i / parts),
                         static_cast<uint32_t>(uint64_t{n} * (i + 1) / parts));
  work(0, n / parts);
}

}  // namespace

uint32_t InputsOfBlock(WeightType type) {
  if (IsFloat(type)) return 1;
  const ScaleKind scales = LayoutOf(type).scales;
  return scales == ScaleKind::kSuper || scales == ScaleKind::kSuperPairs ? 256 : kQuantBlock;
}

size_t BytesOfBlock(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return 18;
    case WeightType::kQ4_1:
      return 20;
    case WeightType::kQ5_0:
      return 22;
    case WeightType::kQ5_1:
      return 24;
    case WeightType::kQ8_0:
      return 34;
    case WeightType::kQ4_K:
      return 144;
    case WeightType::kQ5_K:
      return 176;
    case WeightType::kQ6_K:
      return 210;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 2;
    case WeightType::kF32:
      break;
  }
  return 4;
}

Status PackedMatrix::Plan(uint32_t inputs, std::span<const Source> sources) {
  inputs_ = inputs;
  for (const Source& source : sources) {
    const uint32_t block = InputsOfBlock(source.type);
    if (inputs == 0 || inputs % block != 0) {
      return Status(StatusCode::kInvalidArgument,
                    "packed matrix: inputs must be a positive multiple of " +
                        std::to_string(block) + ", not " + std::to_string(inputs));
    }
    if (source.rows == 0) return Status(StatusCode::kInvalidArgument, "packed matrix: no rows");
    if (!parts_.empty() && FormatOf(source.type) != format_) {
      return Status(StatusCode::kInvalidArgument,
                    "packed matrix: the types of its sources read different formats");
    }
    format_ = FormatOf(source.type);
    if (parts_.empty() || parts_.back().type != source.type)
      parts_.push_back({source.type, rows_, 0, 0, 0, PanelBytes(source.type, inputs), nullptr});
    parts_.back().rows += source.rows;
    if (source.bias != nullptr) {
      bias_.resize(rows_);
      bias_.insert(bias_.end(), source.bias, source.bias + source.rows);
    }
    rows_ += source.rows;
  }
  if (parts_.empty()) return Status(StatusCode::kInvalidArgument, "packed matrix: no rows");
  if (!bias_.empty()) bias_.resize(rows_);
  for (Part& part : parts_) {
    part.first_panel = panels_;
    part.panels = (part.rows + kPanelRows - 1) / kPanelRows;
    panels_ += part.panels;
    bytes_ += part.panels * part.panel_bytes;
  }
  return Status::Ok();
}

Status PackedMatrix::Allocate(WeightMemory& memory) {
  data_ = memory.Allocate(bytes_);
  if (data_ == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  "packed matrix: no memory for " + std::to_string(bytes_) + " bytes of weights");
  }
  std::byte* next = data_.get();
  for (Part& part : parts_) {
    part.data = next;
    next += part.panels * part.panel_bytes;
  }
  return Status::Ok();
}

Result<PackedMatrix> PackedMatrix::Pack(uint32_t inputs, std::span<const Source> sources,
                                        int threads, WeightMemory* memory) {
  PackedMatrix w;
  WeightMemory own;
  if (Status status = w.Plan(inputs, sources); !status.ok()) return status;
  if (Status status = w.Allocate(memory == nullptr ? own : *memory); !status.ok()) return status;
  std::vector<const uint8_t*> rows;
  for (const Source& s : sources)
    for (uint32_t r = 0; r < s.rows; r++)
      rows.push_back(reinterpret_cast<const uint8_t*>(s.data) +
                     r * (inputs / InputsOfBlock(s.type) * BytesOfBlock(s.type)));
  InParallel(w.panels_, threads, [&](uint32_t begin, uint32_t end) {
    for (const Part& part : w.parts_) {
      const PackPanelFn pack_panel = PackPanelOf(part.type);
      const uint32_t last = std::min(end, part.first_panel + part.panels);
      for (uint32_t p = std::max(begin, part.first_panel); p < last; p++) {
        const size_t at = static_cast<size_t>(part.data - w.data_.get()) +
                          (p - part.first_panel) * part.panel_bytes;
        auto* panel = reinterpret_cast<uint8_t*>(w.data_.get() + at);
        const uint32_t first = (p - part.first_panel) * kPanelRows;
        const uint32_t lanes = std::min(kPanelRows, part.rows - first);
        pack_panel(std::span(rows).subspan(part.first_row + first, lanes), inputs, panel);
      }
    }
  });
  return w;
}

}  // namespace kvlink::kernel
