// The bytes of a block outside RAM: one versioned, checksummed format for every tier.
//
//   header (120 bytes) | tokens (4 each) | payload, maybe compressed | XXH3-128 of all before
//
// docs/formats/block.md has the table and a worked example. Integers are little-endian.
//
// Invariants
//   1. Decode gives the block that Encode was given, or an error: the checksum covers every byte,
//      and no length is believed before it was compared with the bytes there are.
//   2. Decode takes a block only when key, parent, model, identity, kind and tokens are the wanted
//      ones (the parent may be left out where the identity, which covers it, is given): a key says
//      where to look, never that something was found.
// Threads: pure functions. Cost: one pass over the payload (XXH3, tens of GB/s) and one copy; with
// compression see docs/adr.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kvlink/kv_shape.h"
#include "kvlink/status.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

enum class PayloadKind : uint8_t {
  kPage = 1,    // a page as include/kvlink/kv_shape.h lays it out
  kOpaque = 2,  // bytes that only their owner understands (another engine's block)
  kText = 3,    // token ids, u32 each, that a text was generated as; `identity` names the text
};

enum class Compression : uint8_t { kNone = 0, kLz4 = 1, kZstd = 2, kZstdPlanes = 3 };
const char* CompressionName(Compression compression);

// Full-strength name of a block in its context (chain_digest.h), or zeros where the caller has
// none. Two blocks whose 128-bit keys collide differ in it.
using Identity = std::array<std::byte, 32>;

// What a block is, apart from its payload. `tokens` must outlive the call only.
struct BlockName {
  PayloadKind kind = PayloadKind::kPage;
  BlockKey key;
  BlockKey parent;  // {0, 0}: none
  Identity identity{};
  std::span<const TokenId> tokens;  // may be empty; at most kMaxCodecTokens
};

// A block to store. Spans must outlive the call only.
struct PutBlock {
  BlockName name;
  uint32_t valid_rows = 0;  // leading rows of a page that hold K and V
  std::span<const std::byte> payload;
  double cost_us = 0;  // what computing it again would take
  // What follows `payload`, for who has it in pieces: the one copy that is made puts them together.
  std::span<const std::span<const std::byte>> pieces = {};

  size_t payload_bytes() const {
    size_t bytes = payload.size();
    for (const std::span<const std::byte> piece : pieces) bytes += piece.size();
    return bytes;
  }
};

inline constexpr uint32_t kMaxCodecTokens = 1u << 20;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 31;
inline constexpr size_t kHeaderBytes = 120, kChecksumBytes = 16;

// Everything in the header.
struct BlockHeader {
  uint16_t version = 0;
  PayloadKind kind = PayloadKind::kPage;
  Compression compression = Compression::kNone;
  uint32_t valid_rows = 0;
  uint32_t cost_us = 0;
  uint64_t payload_bytes = 0, stored_bytes = 0;
  BlockKey key, parent, model;  // model: Hash128 of the model fingerprint
  Identity identity{};
  std::vector<TokenId> tokens;
};

// Requires: at most kMaxCodecTokens tokens and kMaxPayloadBytes bytes. `model` is Hash128 of the
// model fingerprint. A payload that compression does not make smaller by at least an eighth is
// stored as it is.
std::string EncodeBlock(const PutBlock& block, const BlockKey& model, Compression compression);
// The same in two steps, for whoever copies in one thread and computes in another: first without
// the checksum, for which there is room. `buffer`: memory to do it in.
std::string EncodeUnsummed(const PutBlock& block, const BlockKey& model, Compression compression,
                           std::string buffer = {});
void AppendChecksum(std::string& bytes);

struct DecodeError {
  ErrorReason reason = ErrorReason::kNone;  // kCorrupt or kForeign
  std::string message;                      // what, where, value
};

// Checks everything, the checksum included, but nothing about who wants it. For listings and fsck.
// False: `error` says why.
bool ReadBlock(std::string_view bytes, BlockHeader* header, DecodeError* error);

// The payload of sound bytes that ReadBlock took, into `target` [header.payload_bytes].
bool ReadPayload(std::string_view bytes, const BlockHeader& header, std::span<std::byte> target,
                 DecodeError* error);

// ReadBlock, and the block is `wanted` of `model`.
bool ReadWantedBlock(std::string_view bytes, const BlockName& wanted, const BlockKey& model,
                     BlockHeader* header, DecodeError* error);

}  // namespace kvlink::tier
