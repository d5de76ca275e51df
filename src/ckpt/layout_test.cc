#include "ckpt/layout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/endian.h"
#include "base/random.h"
#include "ckpt/testing/checkpoint_files.h"

namespace kvlink::ckpt {
namespace {

Layout LayoutOf(const std::string& bytes) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("kvlink_layout_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary) << bytes;
  const auto file = OpenForReading(path);
  auto layout = ReadLayout(file.value(), path, bytes.size());
  std::filesystem::remove(path);
  return layout.value();
}

void ExpectCovers(const Layout& layout, uint64_t size) {
  uint64_t end = 0;
  for (const Part& part : layout.parts) {
    EXPECT_EQ(part.offset, end);
    EXPECT_GT(part.size, 0u);
    end += part.size;
  }
  EXPECT_EQ(end, size);
}

TEST(Layout, OfSafetensorsHasTheHeaderAndTheTensorsAsTheyLie) {
  const std::string bytes =
      Safetensors({{"b", "BF16", "22"}, {"a", "F32", "4444"}, {"empty", "F32", ""}});
  const Layout layout = LayoutOf(bytes);
  EXPECT_EQ(layout.format, "safetensors");
  ASSERT_EQ(layout.parts.size(), 3u);
  EXPECT_EQ(layout.parts[0].name, "(header)");
  EXPECT_EQ(layout.parts[1].name, "b");
  EXPECT_EQ(layout.parts[1].element_bytes, 2u);
  EXPECT_EQ(layout.parts[2].name, "a");
  EXPECT_EQ(layout.parts[2].element_bytes, 4u);
  ExpectCovers(layout, bytes.size());
}

TEST(Layout, OfGgufHasTheTensorsWithWhatFillsTheirAlignment) {
  const std::string bytes = Gguf({{"blk.0.attn.weight", 1, "0123456789"}, {"output", 0, "abcd"}});
  const Layout layout = LayoutOf(bytes);
  EXPECT_EQ(layout.format, "gguf");
  ASSERT_EQ(layout.parts.size(), 3u);
  EXPECT_EQ(layout.parts[1].name, "blk.0.attn.weight");
  EXPECT_EQ(layout.parts[1].size, 32u);
  EXPECT_EQ(layout.parts[1].element_bytes, 2u);
  EXPECT_EQ(layout.parts[2].name, "output");
  EXPECT_EQ(layout.parts[2].offset % 32, 0u);
  ExpectCovers(layout, bytes.size());
}

TEST(Layout, OfAnythingElseIsOnePart) {
  for (const std::string& bytes :
       {std::string("x"), std::string("GGUF"), std::string(100, '\xff'), std::string(9, '\0')}) {
    const Layout layout = LayoutOf(bytes);
    EXPECT_EQ(layout.format, "raw");
    EXPECT_EQ(layout.parts.size(), 1u);
    ExpectCovers(layout, bytes.size());
  }
  EXPECT_TRUE(LayoutOf("").parts.empty());
}

TEST(Layout, TensorsThatOverlapOrLieOutsideMakeTheFileRaw) {
  EXPECT_TRUE(CoverFile({{"a", 8, 4, 1}, {"b", 10, 4, 1}}, 20).empty());
  EXPECT_TRUE(CoverFile({{"a", 8, 4, 1}, {"b", 18, 4, 1}}, 20).empty());
  EXPECT_TRUE(CoverFile({{"a", 8, ~uint64_t{0}, 1}}, 20).empty());
  EXPECT_EQ(CoverFile({{"b", 14, 4, 1}, {"a", 8, 4, 1}}, 20).size(), 5u);
}

TEST(Layout, OfACutOrGarbledFileStillCoversIt) {
  base::Random random(4);
  for (const std::string& whole :
       {Safetensors({{"a", "BF16", std::string(100, 'a')}, {"b", "I8", std::string(30, 'b')}}),
        Gguf({{"a", 30, std::string(100, 'a')}, {"b", 2, std::string(30, 'b')}})}) {
    for (size_t size = 0; size < whole.size(); ++size) {
      ExpectCovers(LayoutOf(whole.substr(0, size)), size);
    }
    for (int i = 0; i < 2000; ++i) {
      std::string garbled = whole;
      for (int j = 0; j < 3; ++j) {
        garbled[random.Below(garbled.size())] = static_cast<char>(random.Below(256));
      }
      ExpectCovers(LayoutOf(garbled), garbled.size());
    }
  }
}

}  // namespace
}  // namespace kvlink::ckpt
