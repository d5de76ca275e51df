// KvShape: the bytes of one page.
//
// A page holds the K and V of `tokens_per_block` consecutive tokens for *all* layers, contiguous,
// so that a tier moves it with one read or write. Inside, layer-major then KV head, lies one tile
// per (layer, KV head), aligned to 64 bytes:
//     tile = { K [head_dim / g][tokens_per_block][g], K scales [tokens_per_block],
//              V [tokens_per_block][head_dim],        V scales [tokens_per_block] }
// K is stored dimension-major: scores then come out as vectors over tokens, without horizontal
// sums. g dimensions of a token lie together, as many as one multiply-add of the type takes.
//     type   element  g  scales
//     F16    2 bytes  1  none
//     BF16   2 bytes  2  none
//     Q8_0   int8     4  F16, one a token, head, and K or V: the value is element * scale
// Behind the tiles lie the rows' checkpoints, `checkpoint_bytes` each, where a mode of similar
// reuse needs them: the residual stream at some layers, as F16. No scale covers two tokens, so that
// appending changes no older row. K is rotated (RoPE applied) for the position at which it was
// computed; V has no position.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlink {

using TokenId = int32_t;

enum class KvType : uint8_t { kF16 = 0, kBF16 = 1, kQ8_0 = 2 };
constexpr KvType kKvTypes[] = {KvType::kF16, KvType::kBF16, KvType::kQ8_0};

constexpr const char* KvTypeName(KvType type) {
  return type == KvType::kF16 ? "f16" : type == KvType::kBF16 ? "bf16" : "q8_0";
}

constexpr size_t kTileAlignment = 64;
constexpr uint32_t kMinTokensPerBlock = 8;
constexpr uint32_t kMaxTokensPerBlock = 128;

struct KvShape {
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;           // of K and of V; a multiple of 8
  uint32_t tokens_per_block = 32;  // power of two, 8 to 128
  KvType type = KvType::kF16;
  uint32_t checkpoint_bytes = 0;  // of one row

  constexpr size_t element_bytes() const { return type == KvType::kQ8_0 ? 1 : 2; }
  constexpr size_t scale_bytes() const { return type == KvType::kQ8_0 ? 2 : 0; }
  constexpr uint32_t k_group() const {  // g above
    return type == KvType::kF16 ? 1 : type == KvType::kBF16 ? 2 : 4;
  }

  // Of one token's K or V in one head: without its scale, and with it.
  constexpr size_t vector_bytes() const { return size_t{head_dim} * element_bytes(); }
  constexpr size_t row_bytes() const { return vector_bytes() + scale_bytes(); }

  // Inside a tile.
  constexpr size_t k_scales_offset() const { return vector_bytes() * tokens_per_block; }
  constexpr size_t v_offset() const { return row_bytes() * tokens_per_block; }
  constexpr size_t v_scales_offset() const { return v_offset() + k_scales_offset(); }
  constexpr size_t tile_bytes() const {
    return (2 * v_offset() + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  }

  constexpr size_t layer_bytes() const { return tile_bytes() * num_kv_heads; }
  constexpr size_t checkpoints_offset() const { return layer_bytes() * num_layers; }
  constexpr size_t page_bytes() const {
    const size_t checkpoints = size_t{checkpoint_bytes} * tokens_per_block;
    return checkpoints_offset() +
           (checkpoints + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  }
  constexpr size_t token_bytes() const { return page_bytes() / tokens_per_block; }
  constexpr size_t TileOffset(uint32_t layer, uint32_t kv_head) const {
    return layer * layer_bytes() + kv_head * tile_bytes();
  }
  // The same K and V, whatever lies beside them.
  constexpr bool SameKv(KvShape other) const {
    other.checkpoint_bytes = checkpoint_bytes;
    return *this == other;
  }
  bool operator==(const KvShape&) const = default;
};

}  // namespace kvlink
