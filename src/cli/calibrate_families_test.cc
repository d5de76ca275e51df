// `kvlink calibrate` from its command line on small made-up models of several families: that it
// runs through, refuses for the right reason, and writes what can be read again. What such models
// say means nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/similar_setup.h"
#include "kvlink/cache.h"
#include "model/testing/model_files.h"

namespace kvlink::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Models of a family lie in a folder of this process, since tests run beside each other.
class CalibrateCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("calibrate-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    // Prompts of about 1,500 tokens of this vocabulary, which is bytes.
    std::ofstream prompts(In("prompts.jsonl"));
    for (int i = 0; i < 4; ++i) {
      prompts << R"({"id": "p)" << i << R"(", "turns": [{"max_tokens": 4, "messages": [{"role": )"
              << R"("user", "content": ")";
      for (int rule = 0; rule < 22; ++rule) {
        prompts << "Rule " << rule << ": parcels for town " << (rule * 7 + i) % 23 << " leave at "
                << (rule * 5 + i) % 12 << " and cost " << rule + i << ". ";
      }
      prompts << R"("}]}]})"
              << "\n";
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string In(const std::string& name) const { return (folder_ / name).string(); }

  std::string Write(const std::string& name, model::TinyModel tiny) {
    const auto of_family = tiny.edit_keys;
    const std::string context = tiny.architecture + ".context_length";
    tiny.edit_keys = [=](gguf_context* keys) {
      if (of_family) of_family(keys);
      gguf_set_val_str(keys, "tokenizer.chat_template", kTemplate);
      gguf_set_val_u32(keys, context.c_str(), 16384);
    };
    const std::string path = In(name + ".gguf");
    EXPECT_TRUE(model::WriteTinyModel(tiny, path));
    return path;
  }

  // One accepted pair of changed values is enough; classes stay closed by the lack of trials.
  int Calibrate(const std::string& model, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"kvlink",   "calibrate", "--model",   model,
                                      "--quick",  "--pairs",   "1",         "--ctx",
                                      "4096",     "--classes", "values",    "--threads",
                                      "1",        "--quiet",   "--out",     In("c.json"),
                                      "--report", In("c.md"),  "--prompts", In("prompts.jsonl")};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    const int code = RunCommandLine(static_cast<int>(arguments.size()), arguments.data());
    printed_ = ::testing::internal::GetCapturedStdout();
    return code;
  }

  static std::unique_ptr<model::Model> Load(const std::string& path) {
    model::LoadOptions options;
    options.path = path;
    auto loaded = model::Model::Load(options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return *std::move(loaded);
  }

  std::filesystem::path folder_;
  mutable std::string printed_;
};

class CalibrateFamily : public CalibrateCommand,
                        public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, CalibrateFamily,
                         ::testing::Values("llama", "qwen2", "qwen3", "phi3", "granite"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(CalibrateFamily, IsTriedOnDonorsRowsAndItsFileIsReadAgain) {
  const std::string path = Write(GetParam(), model::TinyModelOf(GetParam()));
  ASSERT_EQ(Calibrate(path), 0);
  EXPECT_THAT(printed_, HasSubstr("open: none"));
  EXPECT_THAT(TextOf(In("c.md")), ContainsRegex("\\| thin \\| values \\| [1-9]"));
  const auto model = Load(path);
  CacheOptions options;
  const Status status = SetUpSimilar(SimilarPolicy::kOn, In("c.json"), *model, &options);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(options.similar.policy, SimilarPolicy::kOn);
  EXPECT_GT(options.similar_model.prefill_us_per_row, 0);
  options.shape = model->kv_shape();
  options.budget_bytes = 64 * options.shape.page_bytes();
  EXPECT_TRUE(CreateCache(options).ok());
}

class CalibrateMode : public CalibrateCommand, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, CalibrateMode,
                         ::testing::Values("seam", "layered", "blend", "anchored"),
                         [](const auto& test) { return std::string(test.param); });

// Of more layers than may keep the donor's K and V in a row.
model::TinyModel DeepModel() {
  model::TinyModel tiny;
  tiny.num_layers = 9;
  tiny.num_heads = 2;
  tiny.num_kv_heads = 1;
  tiny.head_dim = 32;
  tiny.embedding = 64;
  tiny.feed_forward = 128;
  return tiny;
}

TEST_P(CalibrateMode, IsMeasuredAndWritten) {
  ASSERT_EQ(Calibrate(Write("modes", DeepModel()), {"--similar-mode", GetParam()}), 0);
  EXPECT_THAT(TextOf(In("c.json")), HasSubstr("\"mode\": \"" + std::string(GetParam()) + "\""));
  EXPECT_THAT(TextOf(In("c.md")), ContainsRegex("\\| thin \\| values \\| [1-9]"));
}

TEST_F(CalibrateCommand, ExperimentsAloneCompareModesAndWriteNoCalibration) {
  ASSERT_EQ(Calibrate(Write("modes", DeepModel()), {"--experiments-only"}), 0);
  const std::string report = TextOf(In("c.md"));
  EXPECT_THAT(report, HasSubstr("--experiments-only"));
  EXPECT_THAT(report, HasSubstr("](c-memory.png)"));
  for (const char* mode : {"seam", "layered", "blend", "anchored"}) {
    EXPECT_THAT(report, ContainsRegex("\\| " + std::string(mode) + " \\| [0-9]+ \\| [1-9]"))
        << mode;
  }
  EXPECT_TRUE(TextOf(In("c-memory.png")).starts_with("\x89PNG"));
  EXPECT_FALSE(std::filesystem::exists(In("c.json")));
}

TEST_F(CalibrateCommand, RefusesWindowsBeforeItMeasuresAnything) {
  for (const char* family : {"gemma2", "gemma3"}) {
    const std::string path = Write(family, model::TinyModelOf(family));
    ::testing::internal::CaptureStderr();
    const int code = Calibrate(path);
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(code, 0) << family;
    EXPECT_THAT(error, HasSubstr("a sliding window ends at a distance")) << family;
    EXPECT_FALSE(std::filesystem::exists(In("c.json"))) << family;
    // Nor does a server advise to calibrate what cannot be.
    CacheOptions options;
    const Status refused = SetUpSimilar(SimilarPolicy::kOn, "", *Load(path), &options);
    EXPECT_THAT(refused.message(), HasSubstr("has sliding windows")) << family;
  }
}

TEST_F(CalibrateCommand, AnotherModelsFileIsTakenToMeasureOnly) {
  const std::string first = Write("first", model::TinyModelOf("llama"));
  model::TinyModel other = model::TinyModelOf("llama");
  other.seed = 7;
  const std::string second = Write("second", other);
  ASSERT_EQ(Calibrate(first), 0);
  const auto model = Load(second);
  CacheOptions options;
  const Status refused = SetUpSimilar(SimilarPolicy::kOn, In("c.json"), *model, &options);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("is of model "));
  EXPECT_TRUE(SetUpSimilar(SimilarPolicy::kOn, In("c.json"), *model, &options, true).ok());
  EXPECT_EQ(options.similar.policy, SimilarPolicy::kOn);
}

}  // namespace
}  // namespace kvlink::cli
