// KvShape: the bytes of one page.
//
// A page holds the K and V of `tokens_per_block` consecutive tokens for *all* layers, contiguous,
// so that a tier moves it with one read or write. Inside, layer-major then KV head, lies one tile
// per (layer, KV head):
//     tile = { K [head_dim][tokens_per_block], V [tokens_per_block][head_dim] }      in the KV type
// K is stored dimension-major: scores then come out as vectors over tokens, without horizontal
// sums. K is rotated (RoPE applied) for the position at which it was computed; V has no position.
// Tiles are aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlink {

using TokenId = int32_t;

enum class KvType : uint8_t { kF16 = 0, kBF16 = 1, kQ8_0 = 2 };

constexpr size_t kTileAlignment = 64;
constexpr uint32_t kMinTokensPerBlock = 8;
constexpr uint32_t kMaxTokensPerBlock = 128;

struct KvShape {
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;           // of K and of V
  uint32_t tokens_per_block = 32;  // power of two, 8 to 128
  KvType type = KvType::kF16;

  size_t element_bytes() const { return 2; }
  size_t row_bytes() const {
    return size_t{head_dim} * element_bytes();
  }  // one token's K or V in one head
  size_t v_offset() const { return row_bytes() * tokens_per_block; }  // of V inside a tile
  size_t tile_bytes() const {
    return (2 * v_offset() + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  }
  size_t layer_bytes() const { return tile_bytes() * num_kv_heads; }
  size_t page_bytes() const { return layer_bytes() * num_layers; }
  size_t token_bytes() const { return page_bytes() / tokens_per_block; }
  size_t TileOffset(uint32_t layer, uint32_t kv_head) const {
    return layer * layer_bytes() + kv_head * tile_bytes();
  }
  bool operator==(const KvShape&) const = default;
};

}  // namespace kvlink
