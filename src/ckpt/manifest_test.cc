#include "ckpt/manifest.h"

#include <gtest/gtest.h>

namespace kvlink::ckpt {
namespace {

Manifest Sample() {
  return {.name = "step-100",
          .base = "step-0",
          .is_folder = true,
          .chunk_bytes = 4096,
          .files = {{.path = "a/model.safetensors",
                     .format = "safetensors",
                     .parts = {{"(header)", 10, {Sha256("h")}},
                               {"layer%0\xff\n\"", 5000, {Sha256("x"), Sha256("y")}}}},
                    {.path = "empty", .format = "raw", .parts = {}}}};
}

TEST(Manifest, ComesBackAsItWasWhateverBytesANameHas) {
  const auto read = ParseManifest(ToText(Sample()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, Sample());
  EXPECT_EQ(read->size(), 5010u);
}

TEST(Manifest, WithAnyByteChangedOrMissingIsRefused) {
  const std::string text = ToText(Sample());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_EQ(ParseManifest(changed).status().code(), StatusCode::kDataLoss) << at;
    EXPECT_FALSE(ParseManifest(text.substr(0, at)).ok()) << at;
  }
}

TEST(Manifest, WhosePathsLeadOutsideIsRefusedThoughItsDigestFits) {
  for (const char* path : {"../x", "/etc/x", "a/../../x", "a//b", "", ".", "a/"}) {
    Manifest manifest = Sample();
    manifest.files[0].path = path;
    EXPECT_FALSE(ParseManifest(ToText(manifest)).ok()) << path;
  }
}

TEST(Manifest, WithTooFewChunksForAPartIsRefused) {
  Manifest manifest = Sample();
  manifest.files[0].parts[1].chunks.pop_back();
  EXPECT_FALSE(ParseManifest(ToText(manifest)).ok());
}

TEST(CheckpointName, IsALetterOrDigitWord) {
  for (const char* good : {"a", "step-100", "v1.2_x"}) EXPECT_TRUE(IsCheckpointName(good)) << good;
  for (const char* bad : {"", ".", "..", "a/b", ".tmp", "a b", "\xff"}) {
    EXPECT_FALSE(IsCheckpointName(bad)) << bad;
  }
  EXPECT_FALSE(IsCheckpointName(std::string(129, 'a')));
}

}  // namespace
}  // namespace kvlink::ckpt
