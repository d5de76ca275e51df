// Blocks outside RAM. Any bytes are a sound block or an error, also where the checksum is right
// (whoever writes into our Redis can compute one); a block comes back as it went in; and one
// changed byte is found.
#include <cstring>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "tier/block_codec.h"

namespace kvlink::tier {
namespace {

constexpr uint64_t kMostPayload = uint64_t{1} << 20;  // that is unpacked here

BlockName NameOf(const BlockHeader& header) {
  return {header.kind, header.key, header.parent, header.identity, header.tokens};
}

// What stands in a header that was believed, and its payload.
void CheckSound(std::string_view bytes, const BlockHeader& header) {
  KVLINK_CHECK(header.tokens.size() <= kMaxCodecTokens && header.payload_bytes <= kMaxPayloadBytes);
  KVLINK_CHECK(kHeaderBytes + 4 * header.tokens.size() + header.stored_bytes + kChecksumBytes ==
               bytes.size())
      << bytes.size();
  DecodeError error;
  BlockHeader again;
  KVLINK_CHECK(ReadWantedBlock(bytes, NameOf(header), header.model, &again, &error))
      << error.message;
  BlockName other = NameOf(header);
  other.key.lo ^= 1;
  KVLINK_CHECK(!ReadWantedBlock(bytes, other, header.model, &again, &error) &&
               error.reason == ErrorReason::kForeign)
      << "another block's key was taken";
  if (header.payload_bytes > kMostPayload) return;
  std::vector<std::byte> payload(header.payload_bytes);
  if (!ReadPayload(bytes, header, payload, &error)) {
    KVLINK_CHECK(error.reason == ErrorReason::kCorrupt && !error.message.empty());
    return;
  }
  // It is what we would have written, whatever they compressed it with.
  const PutBlock block{NameOf(header), header.valid_rows, payload,
                       static_cast<double>(header.cost_us)};
  const std::string written = EncodeBlock(block, header.model, Compression::kNone);
  BlockHeader ours;
  std::vector<std::byte> ours_payload(payload.size());
  KVLINK_CHECK(ReadBlock(written, &ours, &error) &&
               ReadPayload(written, ours, ours_payload, &error))
      << error.message;
  KVLINK_CHECK(ours_payload == payload && ours.tokens == header.tokens && ours.key == header.key &&
               ours.valid_rows == header.valid_rows && ours.cost_us <= 4'000'000'000u);
}

void ReadAny(std::string_view bytes) {
  BlockHeader header;
  DecodeError error;
  if (ReadBlock(bytes, &header, &error)) return CheckSound(bytes, header);
  KVLINK_CHECK(error.reason == ErrorReason::kCorrupt || error.reason == ErrorReason::kForeign);
  KVLINK_CHECK(!error.message.empty());
}

template <typename T>
T Number(fuzz::FuzzInput& input) {
  T value{};
  const std::string_view bytes = input.Take(sizeof(value));
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

void WriteAndRead(fuzz::FuzzInput& input) {
  constexpr Compression kAll[] = {Compression::kNone, Compression::kLz4, Compression::kZstd,
                                  Compression::kZstdPlanes};
  const Compression compression = kAll[input.Below(4)];
  std::vector<TokenId> tokens(input.Below(70));
  for (TokenId& token : tokens) token = Number<TokenId>(input);
  PutBlock block;
  block.name.kind = input.Below(2) == 0 ? PayloadKind::kPage : PayloadKind::kOpaque;
  block.name.key = {Number<uint64_t>(input), Number<uint64_t>(input)};
  block.name.parent = {input.Byte(), input.Byte()};
  block.name.identity[input.Below(32)] = std::byte{input.Byte()};
  block.name.tokens = tokens;
  block.valid_rows = Number<uint32_t>(input);
  const BlockKey model{input.Byte(), 7};
  const size_t flip = input.Below(65536);
  const size_t times = 1 + input.Below(64);  // so that something can be compressed
  const std::string_view piece = input.Rest();
  std::string payload;
  for (size_t i = 0; i < times && payload.size() < kMostPayload / 4; ++i) payload += piece;
  block.payload = std::as_bytes(std::span(payload));

  const std::string bytes = EncodeBlock(block, model, compression);
  BlockHeader header;
  DecodeError error;
  KVLINK_CHECK(ReadWantedBlock(bytes, block.name, model, &header, &error)) << error.message;
  std::vector<std::byte> back(payload.size());
  KVLINK_CHECK(header.payload_bytes == back.size()) << header.payload_bytes;
  KVLINK_CHECK(ReadPayload(bytes, header, back, &error)) << error.message;
  KVLINK_CHECK(payload.empty() || std::memcmp(back.data(), payload.data(), back.size()) == 0)
      << CompressionName(compression);
  std::string damaged = bytes;
  damaged[flip % damaged.size()] ^= 0x10;
  KVLINK_CHECK(!ReadBlock(damaged, &header, &error)) << "byte " << flip % damaged.size();
  KVLINK_CHECK(!ReadBlock(std::string_view(bytes).substr(0, flip % bytes.size()), &header, &error));
}

}  // namespace
}  // namespace kvlink::tier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  kvlink::fuzz::FuzzInput input(bytes, size);
  switch (input.Below(3)) {
    case 0:
      kvlink::tier::ReadAny(input.Rest());
      break;
    case 1: {
      std::string block(input.Rest());
      kvlink::tier::AppendChecksum(block);
      kvlink::tier::ReadAny(block);
      break;
    }
    default:
      kvlink::tier::WriteAndRead(input);
  }
  return 0;
}
