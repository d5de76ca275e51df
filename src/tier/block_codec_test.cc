#include "tier/block_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "tier/chain_digest.h"
#include "tier/pending_block.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

using ::testing::HasSubstr;

const BlockKey kModel = base::Hash128("model");

bool Reads(std::string_view bytes, const BlockName& wanted, DecodeError* error) {
  BlockHeader header;
  if (!ReadWantedBlock(bytes, wanted, kModel, &header, error)) return false;
  std::vector<std::byte> payload(header.payload_bytes);
  return ReadPayload(bytes, header, payload, error);
}

// A page whose high bytes resemble each other, as those of F16 numbers of one size do.
std::string SmoothPayload(size_t size) {
  base::Random random(3);
  std::string payload(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    payload[i] = static_cast<char>(i % 2 == 0 ? random.Next() : 0x38 + random.Below(2));
  }
  return payload;
}

TEST(BlockCodec, GivesBackWhatWasEncoded) {
  for (const Compression compression :
       {Compression::kNone, Compression::kLz4, Compression::kZstd, Compression::kZstdPlanes}) {
    for (const size_t size : {0, 1, 2, 3, 100, 4097, 100000}) {
      for (const bool smooth : {false, true}) {
        NumberedBlock block(5, size);
        if (smooth) block.payload = SmoothPayload(size);
        block.put.payload = std::as_bytes(std::span(block.payload));
        const std::string bytes = EncodeBlock(block.put, kModel, compression);
        BlockHeader header;
        DecodeError error;
        ASSERT_TRUE(ReadWantedBlock(bytes, block.put.name, kModel, &header, &error))
            << error.message;
        EXPECT_EQ(header.valid_rows, 3u);
        EXPECT_EQ(header.cost_us, 1000u);
        EXPECT_EQ(header.tokens, block.tokens);
        std::string payload(header.payload_bytes, '\0');
        ASSERT_TRUE(ReadPayload(bytes, header, std::as_writable_bytes(std::span(payload)), &error));
        EXPECT_EQ(payload, block.payload);
      }
    }
  }
}

TEST(BlockCodec, StoresCompressedOnlyWhatGetsSmallerByAnEighth) {
  NumberedBlock block(1, 50000);
  const auto compression_of = [&block] {
    BlockHeader header;
    DecodeError error;
    const std::string bytes = EncodeBlock(block.put, kModel, Compression::kZstdPlanes);
    EXPECT_TRUE(ReadBlock(bytes, &header, &error)) << error.message;
    EXPECT_LE(header.stored_bytes, header.payload_bytes);
    return header.compression;
  };
  EXPECT_EQ(compression_of(), Compression::kNone);
  block.payload = SmoothPayload(50000);
  block.put.payload = std::as_bytes(std::span(block.payload));
  EXPECT_EQ(compression_of(), Compression::kZstdPlanes);
}

TEST(BlockCodec, NoFlippedBitIsRead) {
  for (const Compression compression : {Compression::kNone, Compression::kZstd}) {
    NumberedBlock block(9, 300);
    if (compression != Compression::kNone) block.payload.assign(300, 'x');
    block.put.payload = std::as_bytes(std::span(block.payload));
    const std::string sound = EncodeBlock(block.put, kModel, compression);
    DecodeError error;
    ASSERT_TRUE(Reads(sound, block.put.name, &error));
    for (size_t i = 0; i < sound.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string bytes = sound;
        bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
        ASSERT_FALSE(Reads(bytes, block.put.name, &error)) << "byte " << i << ", bit " << bit;
        ASSERT_NE(error.reason, ErrorReason::kNone);
      }
    }
  }
}

TEST(BlockCodec, NoPartAndNothingLongerIsRead) {
  const NumberedBlock block(9, 200);
  const std::string sound = block.Encoded();
  DecodeError error;
  for (size_t size = 0; size < sound.size(); ++size) {
    ASSERT_FALSE(Reads(sound.substr(0, size), block.put.name, &error)) << size << " bytes";
    ASSERT_EQ(error.reason, ErrorReason::kCorrupt);
  }
  EXPECT_FALSE(Reads(sound + '\0', block.put.name, &error));
  EXPECT_FALSE(Reads(sound + sound, block.put.name, &error));
}

// With a right checksum, as somebody who means harm would write it.
TEST(BlockCodec, LengthsThatDoNotFitAreNotBelieved) {
  const NumberedBlock block(9, 200);
  const std::string sound = block.Encoded();
  for (const size_t at : {8, 12, 24, 28, 32, 36}) {
    for (const char value : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string bytes = sound.substr(0, sound.size() - kChecksumBytes);
      if (bytes[at + 3] == value) continue;
      bytes[at + 3] = value;
      const BlockKey sum = base::Hash128(bytes);
      bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
      DecodeError error;
      EXPECT_FALSE(Reads(bytes, block.put.name, &error)) << "byte " << at + 3;
      EXPECT_EQ(error.reason, ErrorReason::kCorrupt) << error.message;
    }
  }
}

TEST(BlockCodec, AnotherBlockIsForeignWhateverDiffers) {
  const NumberedBlock block(9), other(10);
  const std::string bytes = block.Encoded();
  const auto message_of = [&bytes](const BlockName& wanted) {
    DecodeError error;
    EXPECT_FALSE(Reads(bytes, wanted, &error));
    EXPECT_EQ(error.reason, ErrorReason::kForeign);
    return error.message;
  };
  BlockName wanted = block.put.name;
  wanted.key.lo ^= 1;
  EXPECT_THAT(message_of(wanted), HasSubstr("key is"));
  wanted = block.put.name;
  wanted.parent.hi ^= 1;
  EXPECT_THAT(message_of(wanted), HasSubstr("parent is"));
  wanted = block.put.name;
  wanted.identity[31] ^= std::byte{1};
  EXPECT_THAT(message_of(wanted), HasSubstr("identity is"));
  wanted = block.put.name;
  wanted.kind = PayloadKind::kOpaque;
  EXPECT_THAT(message_of(wanted), HasSubstr("kind is 1"));
  wanted = block.put.name;
  wanted.tokens = other.put.name.tokens;
  EXPECT_THAT(message_of(wanted), HasSubstr("tokens"));
  wanted.tokens = {};
  EXPECT_THAT(message_of(wanted), HasSubstr("tokens"));
  wanted = block.put.name;
  wanted.parent = {};
  DecodeError error;
  EXPECT_TRUE(Reads(bytes, wanted, &error)) << "its identity says enough: " << error.message;
  BlockHeader header;
  EXPECT_FALSE(
      ReadWantedBlock(bytes, block.put.name, base::Hash128("other model"), &header, &error));
  EXPECT_THAT(error.message, HasSubstr("model is"));
}

// docs/formats/block.md: the lines of its hex dump, "offset: bytes".
std::string WorkedExample() {
  std::ifstream file(KVLINK_BLOCK_FORMAT);
  EXPECT_TRUE(file) << KVLINK_BLOCK_FORMAT;
  std::string bytes, line;
  while (std::getline(file, line)) {
    if (line.size() < 6 || line[4] != ':' || line.find_first_not_of("0123456789abcdef") != 4) {
      continue;
    }
    EXPECT_EQ(std::stoul(line.substr(0, 4), nullptr, 16), bytes.size()) << line;
    for (size_t at = 6; at + 1 < line.size() && line[at] != ' '; at += 3) {
      bytes.push_back(static_cast<char>(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
  }
  return bytes;
}

TEST(BlockCodec, APayloadInPiecesIsWrittenAsInOne) {
  NumberedBlock whole(3);
  whole.payload = SmoothPayload(5000);  // which can be compressed
  whole.put.payload = std::as_bytes(std::span(whole.payload));
  const auto bytes = std::as_bytes(std::span(whole.payload));
  const std::vector<std::span<const std::byte>> pieces = {
      bytes.subspan(1000, 1), bytes.subspan(1001, 0), bytes.subspan(1001)};
  PutBlock block = whole.put;
  block.payload = bytes.first(1000);
  block.pieces = pieces;
  EXPECT_EQ(block.payload_bytes(), 5000u);
  for (const Compression compression :
       {Compression::kNone, Compression::kLz4, Compression::kZstd}) {
    const std::string wanted = EncodeBlock(whole.put, kModel, compression);
    EXPECT_TRUE(EncodeBlock(block, kModel, compression) == wanted) << CompressionName(compression);
    PendingBlock pending(block, kModel, compression, std::make_shared<SpareBuffers>(0));
    EXPECT_TRUE(pending.Encoded() == wanted) << CompressionName(compression);
    EXPECT_EQ(pending.size_bytes(), PendingBlock::SizeOf(whole.put));
  }
}

TEST(BlockCodec, TheWorkedExampleIsWhatIsWritten) {
  const std::vector<TokenId> tokens = {1, 2, 300, -1};
  std::vector<std::byte> payload(16);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  const Identity root = RootDigest("extras");
  PutBlock block;
  block.name.identity = NextDigest(root, tokens);
  block.name.key = AddressOf(block.name.identity);
  block.name.parent = AddressOf(root);
  block.name.tokens = tokens;
  block.valid_rows = 4;
  block.cost_us = 52000;
  block.payload = payload;
  const std::string bytes = EncodeBlock(block, base::Hash128("example model"), Compression::kNone);
  EXPECT_EQ(bytes.size(), 168u);
  std::string dump;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char text[16];
    if (i % 16 == 0) dump.append(text, std::snprintf(text, sizeof(text), "\n%04zx:", i));
    dump.append(text,
                std::snprintf(text, sizeof(text), " %02x", static_cast<unsigned char>(bytes[i])));
  }
  EXPECT_TRUE(WorkedExample() == bytes) << "written is:" << dump;
}

TEST(ChainDigest, IsSha256OfWhatTheHeaderSays) {
  const auto hex = [](const Identity& digest) {
    std::string text;
    for (const std::byte byte : digest) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x", std::to_integer<unsigned>(byte));
      text += two;
    }
    return text;
  };
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(hex(DigestOf("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(RootDigest("x"), DigestOf(std::string_view("kvlink-root\0x", 13)));
  const std::vector<TokenId> tokens = {1, -2};
  const Identity root = RootDigest("x");
  std::string bytes(reinterpret_cast<const char*>(root.data()), root.size());
  bytes.append("\x01\x00\x00\x00\xfe\xff\xff\xff", 8);
  EXPECT_EQ(NextDigest(root, tokens), DigestOf(bytes));
  EXPECT_EQ(AddressOf(DigestOf("abc")).lo, 0xeacf018fbf1678bau);
}

}  // namespace
}  // namespace kvlink::tier
