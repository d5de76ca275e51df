#include "ckpt/chunk_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/random.h"
#include "ckpt/digest.h"

namespace kvlink::ckpt {
namespace {

std::string RandomBytes(size_t size, uint64_t seed) {
  base::Random random(seed);
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(random.Below(256)));
  return bytes;
}

// Float weights of about one size, as BF16.
std::string RandomWeights(size_t count, uint64_t seed) {
  base::Random random(seed);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const auto bits =
        std::bit_cast<uint32_t>(static_cast<float>(random.Unit() + random.Unit() - 1));
    bytes.push_back(static_cast<char>(bits >> 16));
    bytes.push_back(static_cast<char>(bits >> 24));
  }
  return bytes;
}

Encoding EncodingOf(const std::string& file) { return ParseChunkHeader(file).value().encoding; }

TEST(Digest, IsSha256) {
  EXPECT_EQ(ToHex(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ParseHex(ToHex(Sha256("x"))), Sha256("x"));
  EXPECT_EQ(ParseHex("ba78"), std::nullopt);
  EXPECT_EQ(ParseHex(std::string(64, 'g')), std::nullopt);
}

TEST(Chunk, ComesBackAsItWasWhateverItsSizeAndElements) {
  for (const size_t size : {1, 2, 7, 8, 100, 4097}) {
    for (const uint32_t width : {1, 2, 4, 8}) {
      for (const std::string& bytes : {RandomBytes(size, size), std::string(size, 'x')}) {
        const std::string base = RandomBytes(size, 1000 + size);
        const std::string alone = EncodeChunk(bytes, width, std::nullopt, 3);
        EXPECT_EQ(DecodeChunk(alone, "").value(), bytes);
        const std::string over = EncodeChunk(bytes, width, ChunkBase{Sha256(base), base}, 3);
        EXPECT_EQ(DecodeChunk(over, base).value(), bytes);
      }
    }
  }
}

TEST(Chunk, OfNoiseIsStoredAsItIs) {
  const std::string noise = RandomBytes(10000, 3);
  const std::string file = EncodeChunk(noise, 2, std::nullopt, 3);
  EXPECT_EQ(EncodingOf(file), Encoding::kRaw);
  EXPECT_EQ(file.size(), noise.size() + kChunkHeaderBytes);
}

TEST(Chunk, OfWeightsIsSmallerInPlanes) {
  const std::string weights = RandomWeights(50000, 1);
  const std::string planes = EncodeChunk(weights, 2, std::nullopt, 3);
  EXPECT_EQ(EncodingOf(planes), Encoding::kPlanes);
  EXPECT_LT(planes.size(), EncodeChunk(weights, 1, std::nullopt, 3).size());
}

TEST(Chunk, NearItsBaseIsADifferenceThatNamesIt) {
  const std::string base = RandomWeights(50000, 1);
  std::string tuned = base;
  for (size_t i = 0; i < tuned.size(); i += 2)
    tuned[i] = static_cast<char>(tuned[i] ^ (i % 6 == 0));
  const std::string file = EncodeChunk(tuned, 2, ChunkBase{Sha256(base), base}, 3);
  EXPECT_EQ(EncodingOf(file), Encoding::kDifference);
  EXPECT_EQ(ParseChunkHeader(file)->base, Sha256(base));
  EXPECT_LT(file.size(), tuned.size() / 5);
  EXPECT_EQ(DecodeChunk(file, base).value(), tuned);
}

TEST(Chunk, UnlikeItsBaseIsStoredWithoutIt) {
  const std::string base = RandomBytes(50000, 5), weights = RandomWeights(25000, 1);
  const std::string file = EncodeChunk(weights, 2, ChunkBase{Sha256(base), base}, 3);
  EXPECT_EQ(EncodingOf(file), Encoding::kPlanes);
  EXPECT_EQ(ParseChunkHeader(file)->base, std::nullopt);
}

TEST(Chunk, ABaseOfAnotherSizeIsNotUsed) {
  const std::string file = EncodeChunk("abcdefgh", 1, ChunkBase{Sha256("abcd"), "abcd"}, 3);
  EXPECT_EQ(ParseChunkHeader(file)->base, std::nullopt);
}

TEST(Chunk, AHeaderWithAnyBitFlippedOrCutShortIsRefused) {
  const std::string file = EncodeChunk(std::string(1000, 'a'), 1, std::nullopt, 3);
  for (size_t bit = 0; bit < kChunkHeaderBytes * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(ParseChunkHeader(flipped).status().code(), StatusCode::kDataLoss) << bit;
  }
  for (size_t size = 0; size < kChunkHeaderBytes; ++size) {
    EXPECT_FALSE(ParseChunkHeader(file.substr(0, size)).ok());
  }
}

// Which bytes came out is for the digest to say.
TEST(Chunk, ACutPayloadIsRefusedAndAFlippedByteGivesAnErrorOrAsManyBytes) {
  const std::string bytes = RandomWeights(500, 8);
  const std::string file = EncodeChunk(bytes, 2, std::nullopt, 3);
  for (size_t at = kChunkHeaderBytes; at < file.size(); ++at) {
    std::string flipped = file;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const auto decoded = DecodeChunk(flipped, "");
    EXPECT_TRUE(!decoded.ok() || decoded->size() == bytes.size()) << at;
    EXPECT_FALSE(DecodeChunk(file.substr(0, at), "").ok()) << at;
  }
}

}  // namespace
}  // namespace kvlink::ckpt
