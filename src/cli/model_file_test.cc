#include "cli/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvlink::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelFileTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("kvlink_model_file_" + std::to_string(getpid()));
    fs::create_directories(root_ / "build" / "release");
    fs::create_directories(root_ / ".deps" / "models");
    default_ = root_ / ".deps" / "models" / kDefaultModelFile;
    folder_ = (root_ / "build" / "release").string();
  }
  void TearDown() override { fs::remove_all(root_); }
  static void Touch(const fs::path& path) { std::ofstream(path) << "x"; }

  fs::path root_, default_;
  std::string folder_;
};

TEST_F(ModelFileTest, TheDefaultIsFoundAboveTheExecutable) {
  Touch(default_);
  EXPECT_EQ(*FindModelFile("", nullptr, folder_), default_.string());
  EXPECT_EQ(*FindModelFile("", "", folder_), default_.string());
}

TEST_F(ModelFileTest, TheOptionGoesBeforeTheEnvironmentAndThatBeforeTheDefault) {
  Touch(default_);
  const std::string given = (root_ / "given.gguf").string();
  const std::string environment = (root_ / "environment.gguf").string();
  Touch(given);
  Touch(environment);
  EXPECT_EQ(*FindModelFile(given, environment.c_str(), folder_), given);
  EXPECT_EQ(*FindModelFile("", environment.c_str(), folder_), environment);
}

TEST_F(ModelFileTest, ANamedFileThatIsMissingIsAnErrorEvenWithADefault) {
  Touch(default_);
  EXPECT_THAT(FindModelFile("/no/such.gguf", nullptr, folder_).status().message(),
              HasSubstr("--model: no file '/no/such.gguf'"));
  EXPECT_THAT(FindModelFile("", "/no/such.gguf", folder_).status().message(),
              HasSubstr("KVLINK_MODEL: no file '/no/such.gguf'"));
  EXPECT_THAT(FindModelFile(folder_, nullptr, folder_).status().message(),
              HasSubstr("is not a file"));
}

TEST_F(ModelFileTest, WithoutAnyTheErrorSaysWhatToDo) {
  const Status status = FindModelFile("", nullptr, folder_).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("scripts/setup.sh fetches"));
}

}  // namespace
}  // namespace kvlink::cli
