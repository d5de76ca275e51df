// Logs of prompts, each with what must be found in it, replayed on the real cache.
#include "cli/doctor_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "cli/doctor_diagnose.h"
#include "cli/similar_setup.h"
#include "server/testing/fakes.h"

namespace kvlink::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SmallModel : public server::FakeModel {
 public:
  SmallModel() {
    shape_.num_layers = 2;
    shape_.num_kv_heads = 2;
    shape_.head_dim = 16;
  }
  const KvShape& kv_shape() const override { return shape_; }

 private:
  KvShape shape_;
};

// Digits are a token each with the fake vocabulary; so are capitals.
std::string Words(uint64_t seed, size_t tokens) {
  base::Random random(seed);
  std::string text;
  while (text.size() < tokens) text += static_cast<char>('A' + random.Below(26));
  return text;
}

class DoctorPromptsTest : public ::testing::Test {
 protected:
  DoctorPromptsTest() {
    options_.similar_model = DescribeForSimilar(model_);
    options_.similar_model.prefill_us_per_row = 500;
    options_.kv_bytes = 4096 * model_.kv_shape().token_bytes();
  }

  void Ask(const std::string& system, const std::string& question, const std::string& tenant = "") {
    Turn turn;
    turn.messages = {{"system", system, ""}, {"user", question, ""}};
    turn.max_tokens = 8;
    workload_.conversations.push_back(
        {"c" + std::to_string(workload_.conversations.size()), tenant, {turn}});
  }

  DoctorFacts Replay() {
    auto facts = ReplayPrompts(model_, workload_, options_, [](double) {});
    EXPECT_TRUE(facts.ok()) << facts.status().message();
    return facts.ok() ? *facts : DoctorFacts{};
  }
  // How long lookups take here is the machine's business.
  static Diagnosis Judge(const DoctorFacts& facts) {
    DoctorLimits limits;
    limits.match_ms = 1e9;
    return Diagnose(facts, limits);
  }
  std::vector<Finding> Findings() { return Judge(Replay()).findings; }
  std::vector<std::string> Ids() {
    std::vector<std::string> ids;
    for (const Finding& finding : Findings()) ids.push_back(finding.id);
    return ids;
  }

  SmallModel model_;
  ReplayOptions options_;
  Workload workload_;
};

TEST_F(DoctorPromptsTest, QuestionsBehindOnePolicyAreHealthy) {
  const std::string policy = Words(1, 600);
  for (uint64_t i = 0; i < 12; ++i) Ask(policy, Words(100 + i, 20));
  const DoctorFacts facts = Replay();
  const Diagnosis diagnosis = Judge(facts);
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_GT(diagnosis.hit_rate, 0.8);
}

TEST_F(DoctorPromptsTest, AClockInFrontOfThePolicyIsFoundWithItsTokenAndMessage) {
  const std::string policy = Words(1, 600);
  for (int i = 10; i < 22; ++i) {
    Ask("TIME 10:" + std::to_string(i) + ":00 " + policy, Words(100 + i, 20));
  }
  const DoctorFacts facts = Replay();
  const std::vector<Finding> findings = Judge(facts).findings;
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].id, "mutating_head");
  EXPECT_THAT(findings[0].what, HasSubstr("in message 0"));
  EXPECT_THAT(findings[0].what, HasSubstr("IME 10:1"));
  EXPECT_THAT(findings[0].setting, HasSubstr("would lend"));
  ASSERT_TRUE(facts.lendable_rows.has_value());
  EXPECT_GT(*facts.lendable_rows, 11u * 400);
}

TEST_F(DoctorPromptsTest, WithSimilarReuseOnTheClockIsHealthy) {
  options_.similar_is_on = true;
  for (SimilarTrials& trials : options_.similar_model.calibrated) trials = {1000, 0};
  const std::string policy = Words(1, 600);
  for (int i = 10; i < 22; ++i) {
    Ask("TIME 10:" + std::to_string(i) + ":00 " + policy, Words(100 + i, 20));
  }
  const Diagnosis diagnosis = Judge(Replay());
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_GT(diagnosis.similar_rate, 0.6);
}

TEST_F(DoctorPromptsTest, StrangersAreHealthyAndShareNothing) {
  for (uint64_t i = 0; i < 12; ++i) Ask(Words(200 + i, 400), Words(100 + i, 20));
  const Diagnosis diagnosis = Judge(Replay());
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_THAT(diagnosis.notes, ElementsAre(HasSubstr("no fault of the cache")));
}

TEST_F(DoctorPromptsTest, PromptsThatPushEachOtherOutAreFound) {
  options_.kv_bytes = 900 * model_.kv_shape().token_bytes();
  for (uint64_t i = 0; i < 12; ++i) Ask(Words(1 + i % 3, 600), Words(100 + i, 20));
  EXPECT_THAT(Ids(), ElementsAre("evictions"));
  options_.kv_bytes *= 10;
  EXPECT_THAT(Ids(), IsEmpty());
}

TEST_F(DoctorPromptsTest, PromptsLargerThanTheMemoryAreFound) {
  options_.kv_bytes = 300 * model_.kv_shape().token_bytes();
  for (uint64_t i = 0; i < 6; ++i) Ask(Words(1, i < 2 ? 600 : 100), Words(100 + i, 20));
  EXPECT_THAT(Ids(), ElementsAre("small_budget"));
}

TEST_F(DoctorPromptsTest, TenantsWithOnePolicyAreFound) {
  const std::string policy = Words(1, 600);
  for (uint64_t i = 0; i < 12; ++i) {
    Ask(policy, Words(100 + i, 20), "tenant " + std::to_string(i));
  }
  EXPECT_THAT(Ids(), ElementsAre("tenants"));
}

TEST_F(DoctorPromptsTest, AWindowWiderThanTheRunsIsFoundAndANarrowOneIsNot) {
  const std::string text = Words(1, 260);
  for (uint64_t i = 0; i < 12; ++i) {
    std::string edited = text;  // a few tokens at the head, and one in the middle
    for (const size_t at : {2, 3, 130}) {
      edited[at] = static_cast<char>('A' + (edited[at] - 'A' + 1 + i) % 26);
    }
    Ask(edited, "Q");
  }
  options_.similar.fingerprint_window = 512;  // an anchor a prompt
  EXPECT_THAT(Ids(), ElementsAre("mutating_head", "window"));
  options_.similar.fingerprint_window = 8;
  EXPECT_THAT(Ids(), ElementsAre("mutating_head"));
}

}  // namespace
}  // namespace kvlink::cli
