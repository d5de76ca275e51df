#include "tier/block_codec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/endian.h"
#include "tier/compression.h"
#include "tier/tier_files.h"

namespace kvlink::tier {
namespace {

constexpr std::string_view kMagic = "KVLB";
constexpr uint16_t kVersion = 1;

void PutKey(std::string& out, const BlockKey& key) {
  base::PutLe(out, key.lo);
  base::PutLe(out, key.hi);
}

// Requires: enough bytes are left.
template <typename T>
T Take(std::string_view& bytes) {
  T value{};
  KVLINK_CHECK(base::TakeLe(bytes, value)) << bytes.size() << " bytes left";
  return value;
}

BlockKey TakeKey(std::string_view& bytes) {
  BlockKey key;
  key.lo = Take<uint64_t>(bytes);
  key.hi = Take<uint64_t>(bytes);
  return key;
}

bool Fail(DecodeError* error, ErrorReason reason, std::string message) {
  *error = {reason, std::move(message)};
  return false;
}

bool Corrupt(DecodeError* error, std::string message) {
  return Fail(error, ErrorReason::kCorrupt, std::move(message));
}

std::string Differs(const char* field, const std::string& there, const std::string& wanted) {
  return std::string(field) + " is " + there + ", wanted " + wanted;
}

bool KnownKind(uint8_t kind) { return kind >= 1 && kind <= 3; }
bool KnownCompression(uint8_t compression) { return compression <= 3; }

// The fields between the magic and the tokens, of at least kHeaderBytes bytes.
struct Fields {
  uint16_t version;
  uint8_t kind, compression;
  uint32_t header_bytes, num_tokens, valid_rows, cost_us;
  uint64_t payload_bytes, stored_bytes;
};

Fields TakeFields(std::string_view& bytes) {
  Fields fields{};
  fields.version = Take<uint16_t>(bytes);
  fields.kind = Take<uint8_t>(bytes);
  fields.compression = Take<uint8_t>(bytes);
  fields.header_bytes = Take<uint32_t>(bytes);
  fields.num_tokens = Take<uint32_t>(bytes);
  fields.valid_rows = Take<uint32_t>(bytes);
  fields.cost_us = Take<uint32_t>(bytes);
  fields.payload_bytes = Take<uint64_t>(bytes);
  fields.stored_bytes = Take<uint64_t>(bytes);
  return fields;
}

// Whether the lengths agree with the bytes there are.
bool CheckLengths(const Fields& fields, size_t size, DecodeError* error) {
  if (fields.num_tokens > kMaxCodecTokens) {
    return Corrupt(error, "num_tokens is " + std::to_string(fields.num_tokens));
  }
  const uint64_t head = kHeaderBytes + uint64_t{4} * fields.num_tokens;
  if (fields.header_bytes != head) {
    return Corrupt(
        error, Differs("header_bytes", std::to_string(fields.header_bytes), std::to_string(head)));
  }
  if (fields.payload_bytes > kMaxPayloadBytes || fields.stored_bytes > kMaxPayloadBytes) {
    return Corrupt(error, "payload_bytes is " + std::to_string(fields.payload_bytes) +
                              ", stored_bytes is " + std::to_string(fields.stored_bytes));
  }
  const uint64_t wanted = head + fields.stored_bytes + kChecksumBytes;
  if (size != wanted) {
    return Corrupt(error, Differs("the block's size", std::to_string(size) + " bytes",
                                  std::to_string(wanted)));
  }
  return true;
}

bool CheckFields(const Fields& fields, DecodeError* error) {
  if (!KnownKind(fields.kind)) return Corrupt(error, "kind is " + std::to_string(fields.kind));
  if (!KnownCompression(fields.compression)) {
    return Corrupt(error, "compression is " + std::to_string(fields.compression));
  }
  if (static_cast<Compression>(fields.compression) == Compression::kNone &&
      fields.stored_bytes != fields.payload_bytes) {
    return Corrupt(error, Differs("stored_bytes", std::to_string(fields.stored_bytes),
                                  std::to_string(fields.payload_bytes)));
  }
  return true;
}

bool CheckSum(std::string_view bytes, DecodeError* error) {
  std::string_view end = bytes.substr(bytes.size() - kChecksumBytes);
  const BlockKey there = TakeKey(end);
  const BlockKey computed = base::Hash128(bytes.substr(0, bytes.size() - kChecksumBytes));
  if (there == computed) return true;
  return Corrupt(error, Differs("checksum", HexOfKey(there), HexOfKey(computed)));
}

std::string HexOf(const Identity& identity) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : identity) {
    text.push_back(kDigits[std::to_integer<uint8_t>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<uint8_t>(byte) & 15]);
  }
  return text;
}

size_t HeadBytes(const PutBlock& block) { return kHeaderBytes + 4 * block.name.tokens.size(); }

void AppendBytes(std::string& out, std::span<const std::byte> bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The payload; `whole` is memory for one that comes in pieces.
std::span<const std::byte> InOnePiece(const PutBlock& block, std::vector<std::byte>* whole) {
  if (block.pieces.empty()) return block.payload;
  whole->reserve(block.payload_bytes());
  whole->assign(block.payload.begin(), block.payload.end());
  for (const std::span<const std::byte> piece : block.pieces) {
    whole->insert(whole->end(), piece.begin(), piece.end());
  }
  return *whole;
}

// All that stands before the payload.
void AppendHead(std::string& out, const PutBlock& block, const BlockKey& model,
                Compression compression, size_t stored_bytes) {
  const BlockName& name = block.name;
  out.append(kMagic);
  base::PutLe(out, kVersion);
  base::PutLe(out, static_cast<uint8_t>(name.kind));
  base::PutLe(out, static_cast<uint8_t>(compression));
  base::PutLe(out, static_cast<uint32_t>(HeadBytes(block)));
  base::PutLe(out, static_cast<uint32_t>(name.tokens.size()));
  base::PutLe(out, block.valid_rows);
  base::PutLe(out, static_cast<uint32_t>(std::clamp(block.cost_us, 0.0, 4e9)));
  base::PutLe(out, uint64_t{block.payload_bytes()});
  base::PutLe(out, uint64_t{stored_bytes});
  PutKey(out, name.key);
  PutKey(out, name.parent);
  PutKey(out, model);
  AppendBytes(out, name.identity);
  for (const TokenId token : name.tokens) base::PutLe(out, static_cast<uint32_t>(token));
  KVLINK_CHECK(out.size() == HeadBytes(block)) << out.size() << " bytes of header";
}

}  // namespace

const char* CompressionName(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kLz4:
      return "lz4";
    case Compression::kZstd:
      return "zstd";
    case Compression::kZstdPlanes:
      return "zstd-planes";
  }
  return "unknown";
}

std::string EncodeUnsummed(const PutBlock& block, const BlockKey& model, Compression compression,
                           std::string buffer) {
  const size_t payload_bytes = block.payload_bytes();
  KVLINK_CHECK(block.name.tokens.size() <= kMaxCodecTokens)
      << block.name.tokens.size() << " tokens";
  KVLINK_CHECK(payload_bytes <= kMaxPayloadBytes) << payload_bytes << " bytes of payload";
  std::optional<std::string> compressed;
  if (compression != Compression::kNone) {
    std::vector<std::byte> whole;
    compressed =
        Compress(InOnePiece(block, &whole), compression, payload_bytes - payload_bytes / 8);
  }
  const size_t stored_bytes = compressed ? compressed->size() : payload_bytes;
  std::string out = std::move(buffer);
  out.clear();
  out.reserve(HeadBytes(block) + stored_bytes + kChecksumBytes);
  AppendHead(out, block, model, compressed ? compression : Compression::kNone, stored_bytes);
  if (compressed) {
    out.append(*compressed);
  } else {
    AppendBytes(out, block.payload);
    for (const std::span<const std::byte> piece : block.pieces) AppendBytes(out, piece);
  }
  return out;
}

void AppendChecksum(std::string& bytes) { PutKey(bytes, base::Hash128(bytes)); }

std::string EncodeBlock(const PutBlock& block, const BlockKey& model, Compression compression) {
  std::string bytes = EncodeUnsummed(block, model, compression);
  AppendChecksum(bytes);
  return bytes;
}

bool ReadBlock(std::string_view bytes, BlockHeader* header, DecodeError* error) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    return Corrupt(error, "a block of " + std::to_string(bytes.size()) + " bytes");
  }
  if (!bytes.starts_with(kMagic)) return Corrupt(error, "no magic at byte 0");
  std::string_view rest = bytes.substr(kMagic.size());
  const Fields fields = TakeFields(rest);
  if (fields.version != kVersion) {
    return Fail(error, ErrorReason::kForeign,
                Differs("version", std::to_string(fields.version), std::to_string(kVersion)));
  }
  if (!CheckLengths(fields, bytes.size(), error) || !CheckSum(bytes, error) ||
      !CheckFields(fields, error)) {
    return false;
  }
  header->version = fields.version;
  header->kind = static_cast<PayloadKind>(fields.kind);
  header->compression = static_cast<Compression>(fields.compression);
  header->valid_rows = fields.valid_rows;
  header->cost_us = fields.cost_us;
  header->payload_bytes = fields.payload_bytes;
  header->stored_bytes = fields.stored_bytes;
  header->key = TakeKey(rest);
  header->parent = TakeKey(rest);
  header->model = TakeKey(rest);
  std::ranges::copy(std::as_bytes(std::span(rest.substr(0, header->identity.size()))),
                    header->identity.begin());
  rest.remove_prefix(header->identity.size());
  header->tokens.resize(fields.num_tokens);
  for (TokenId& token : header->tokens) token = static_cast<TokenId>(Take<uint32_t>(rest));
  return true;
}

bool ReadPayload(std::string_view bytes, const BlockHeader& header, std::span<std::byte> target,
                 DecodeError* error) {
  KVLINK_CHECK(target.size() == header.payload_bytes) << target.size() << " bytes of target";
  const size_t head = kHeaderBytes + 4 * header.tokens.size();
  const std::span<const std::byte> stored =
      std::as_bytes(std::span(bytes.substr(head, header.stored_bytes)));
  if (Decompress(stored, header.compression, target)) return true;
  return Corrupt(error, std::string("the payload does not decompress as ") +
                            CompressionName(header.compression));
}

bool ReadWantedBlock(std::string_view bytes, const BlockName& wanted, const BlockKey& model,
                     BlockHeader* header, DecodeError* error) {
  if (!ReadBlock(bytes, header, error)) return false;
  const auto foreign = [error](const char* field, const std::string& there,
                               const std::string& expected) {
    return Fail(error, ErrorReason::kForeign, Differs(field, there, expected));
  };
  const auto key_differs = [&](const char* field, const BlockKey& there, const BlockKey& expected) {
    return foreign(field, HexOfKey(there), HexOfKey(expected));
  };
  if (header->key != wanted.key) return key_differs("key", header->key, wanted.key);
  if (header->model != model) return key_differs("model", header->model, model);
  // Who names a block by its identity need not know its parent: the identity covers it.
  const bool any_parent = wanted.parent == BlockKey{} && wanted.identity != Identity{};
  if (!any_parent && header->parent != wanted.parent)
    return key_differs("parent", header->parent, wanted.parent);
  if (header->identity != wanted.identity) {
    return foreign("identity", HexOf(header->identity), HexOf(wanted.identity));
  }
  if (header->kind != wanted.kind) {
    return foreign("kind", std::to_string(static_cast<int>(header->kind)),
                   std::to_string(static_cast<int>(wanted.kind)));
  }
  if (!std::ranges::equal(header->tokens, wanted.tokens)) {
    return Fail(error, ErrorReason::kForeign, "the tokens are not the wanted ones");
  }
  return true;
}

}  // namespace kvlink::tier
