#include "tier/cold_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ColdModels, TheOthersAreToldTheLastServedFirst) {
  const TempDirectory directory;
  const std::string folder = directory / "store";
  std::filesystem::create_directories(folder);
  EXPECT_THAT(NoteColdModel(folder, "f16"), IsEmpty());
  EXPECT_THAT(NoteColdModel(folder, "f16"), IsEmpty());
  EXPECT_THAT(NoteColdModel(folder, "q8_0"), ElementsAre("f16"));
  EXPECT_THAT(NoteColdModel(folder, "bf16"), ElementsAre("q8_0", "f16"));
  EXPECT_THAT(NoteColdModel(folder, "f16"), ElementsAre("bf16", "q8_0"));
}

TEST(ColdModels, AnyBytesComeBackAsTheyWere) {
  const TempDirectory directory;
  const std::string odd("s\0\n\xff", 4);
  NoteColdModel(directory.path(), odd);
  EXPECT_THAT(NoteColdModel(directory.path(), "other"), ElementsAre(odd));
}

TEST(ColdModels, TheListStaysShort) {
  const TempDirectory directory;
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(NoteColdModel(directory.path(), "model " + std::to_string(i)).size(),
              kMostOtherModels);
  }
  EXPECT_THAT(NoteColdModel(directory.path(), "last"),
              ElementsAre("model 19", "model 18", "model 17"));
}

TEST(ColdModels, WhatCannotBeReadCountsAsAbsent) {
  const TempDirectory directory;
  std::ofstream(directory / "MODELS") << "6f6e65\nno hex\n6f\n6f6\n\n6f6e65\n";
  EXPECT_THAT(NoteColdModel(directory.path(), "new"), ElementsAre("one", "o"));
  EXPECT_EQ(TextOf(directory / "MODELS"), "6e6577\n6f6e65\n6f\n");
  std::ofstream(directory / "MODELS") << std::string(1 << 20, 'a');
  EXPECT_THAT(NoteColdModel(directory.path(), "new"), IsEmpty());
  EXPECT_THAT(NoteColdModel("/no/such/folder", "new"), IsEmpty());
}

}  // namespace
}  // namespace kvlink::tier
