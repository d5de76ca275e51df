#include "cli/bench_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/machine.h"
#include "server/testing/fakes.h"

namespace kvlink::cli {
namespace {

using testing::HasSubstr;

constexpr uint32_t kRows = 32;

NamedShape Shape(std::string_view text) { return *FindShape(text, KvType::kF16, kRows); }

Turn Ask(const std::string& system, const std::string& user, uint32_t max_tokens, uint32_t n = 1) {
  Turn turn;
  if (!system.empty()) turn.messages.push_back({"system", system, ""});
  turn.messages.push_back({"user", user, ""});
  turn.max_tokens = max_tokens;
  turn.n = n;
  return turn;
}

ShapeFigures Replay(const Workload& workload, Sharing sharing, uint32_t users,
                    std::string_view shape = "2x1x64") {
  const server::FakeTokenizer tokenizer;
  auto figures = ReplayShape(workload, tokenizer, Shape(shape).shape, sharing, users);
  EXPECT_TRUE(figures.ok()) << figures.status().message();
  return *figures;
}

TEST(Shape, KnownModelsHaveTheirBytesPerToken) {
  EXPECT_EQ(Shape("llama2-7b").shape.token_bytes(), 512u << 10);
  EXPECT_EQ(Shape("llama2-13b").shape.token_bytes(), 800u << 10);
  EXPECT_EQ(Shape("llama3-8b").shape.token_bytes(), 128u << 10);
  EXPECT_EQ(Shape("32x8x128").shape, Shape("llama3-8b").shape);
}

TEST(Shape, WhatIsNoShapeIsNamedWithTheKnownOnes) {
  for (const char* text : {"", "llama9", "32x8", "32x8x128x2", "0x8x128", "32x8x12", "9999x1x64",
                           "-1x8x128", "32x8x128 "}) {
    const Status status = FindShape(text, KvType::kF16, kRows).status();
    EXPECT_THAT(status.message(), HasSubstr("'" + std::string(text) + "'"));
    EXPECT_THAT(status.message(), HasSubstr("llama2-13b"));
  }
}

TEST(ShapeReplay, WithoutSharingEveryUserHoldsAllOfItsTokens) {
  Workload workload;
  for (int i = 0; i < 3; ++i) {
    workload.conversations.push_back(
        {std::to_string(i), "t", {Ask(std::string(400, 'a'), "q", 8)}});
  }
  const ShapeFigures figures = Replay(workload, Sharing::kOff, 3);
  const uint64_t page_bytes = Shape("2x1x64").shape.page_bytes();
  const uint64_t rows = figures.prompt_tokens / 3 + 8;
  EXPECT_EQ(figures.requests, 3u);
  EXPECT_EQ(figures.cached_tokens, 0u);
  EXPECT_EQ(figures.branches_at_peak, 3u);
  EXPECT_EQ(figures.kept_bytes, 0u);
  const uint64_t pages = figures.peak_kv_bytes / page_bytes;
  EXPECT_GE(pages, 3 * ((rows + kRows - 1) / kRows));
  EXPECT_LE(pages, 3 * ((rows + kRows - 1) / kRows + 1));
}

TEST(ShapeReplay, AnEqualPrefixIsHeldOnceHoweverManyUse) {
  Workload one, ten;
  for (int i = 0; i < 10; ++i) {
    Conversation conversation{
        std::to_string(i), "t", {Ask(std::string(3200, 'x'), "question " + std::to_string(i), 8)}};
    if (i == 0) one.conversations.push_back(conversation);
    ten.conversations.push_back(std::move(conversation));
  }
  const ShapeFigures alone = Replay(one, Sharing::kExact, 10);
  const ShapeFigures shared = Replay(ten, Sharing::kExact, 10);
  const ShapeFigures apart = Replay(ten, Sharing::kOff, 10);
  EXPECT_EQ(shared.branches_at_peak, 10u);
  EXPECT_GT(shared.cached_tokens, shared.prompt_tokens * 8 / 10);
  // Nine further users add a tail each.
  EXPECT_LE(shared.peak_kv_bytes, alone.peak_kv_bytes + 9 * 3 * Shape("2x1x64").shape.page_bytes());
  EXPECT_GE(apart.peak_kv_bytes, 9 * alone.peak_kv_bytes);
}

TEST(ShapeReplay, BranchesShareTheirPromptAndTurnsTheirHistory) {
  Workload branches;
  branches.conversations = {{"b", "t", {Ask(std::string(3200, 'x'), "q", 8, 4)}}};
  EXPECT_LE(2 * Replay(branches, Sharing::kExact, 1).peak_kv_bytes,
            Replay(branches, Sharing::kOff, 1).peak_kv_bytes);
  Workload turns;
  turns.conversations = {{"c", "t", {Ask(std::string(640, 'x'), "q", 64), Ask("", "r", 64)}}};
  const ShapeFigures figures = Replay(turns, Sharing::kExact, 1);
  // The second prompt finds the first one and its answer, as the very tokens that were generated.
  EXPECT_GT(figures.cached_tokens, 320u + 64u);
}

TEST(ShapeReplay, UsersOfTwoTenantsShareNothing) {
  Workload workload;
  for (const char* tenant : {"a", "b"}) {
    workload.conversations.push_back({tenant, tenant, {Ask(std::string(3200, 'x'), "q", 8)}});
  }
  EXPECT_EQ(Replay(workload, Sharing::kExact, 2).cached_tokens, 0u);
}

TEST(ShapeReplay, GigabytesOfPagesNeedLittleMemory) {
  Workload workload;
  for (int i = 0; i < 10; ++i) {
    workload.conversations.push_back(
        {std::to_string(i),
         "t",
         {Ask(std::string(3200, 'x'), "question " + std::to_string(i), 8, 4)}});
  }
  ResetPeakResident();
  const uint64_t before = PeakResidentBytes();
  const ShapeFigures figures = Replay(workload, Sharing::kOff, 10, "llama2-13b");
  EXPECT_GT(figures.peak_kv_bytes, uint64_t{40} << 30);
  Replay(workload, Sharing::kExact, 10, "llama2-13b");
  EXPECT_LT(PeakResidentBytes(), before + (uint64_t{1} << 30));
}

TEST(ShapeReport, TheTableAndTheJsonShowWhatSharingSaves) {
  ShapeFigures off, exact;
  off.mode = "off";
  off.peak_kv_bytes = uint64_t{10} << 30;
  exact.mode = "exact";
  exact.peak_kv_bytes = uint64_t{2} << 30;
  const std::vector<ScenarioFigures> scenarios{{"customer_service", {off, exact}}};
  const std::string table = ShapeTable(Shape("llama2-7b"), scenarios);
  EXPECT_THAT(table, HasSubstr("512 KiB a token"));
  EXPECT_THAT(table, testing::ContainsRegex("customer_service.* 10.0 GiB +2.00 GiB +-80.0 %"));
  const auto json = ShapeJson(Shape("llama2-7b"), scenarios);
  EXPECT_EQ(json["scenarios"]["customer_service"]["exact"]["peak_kv_bytes"], uint64_t{2} << 30);
}

TEST(ShapeScenarios, ThreeOfTheLengthsTheyAreNamedFor) {
  const std::vector<Scenario> scenarios = BuiltInScenarios();
  ASSERT_EQ(scenarios.size(), 3u);
  EXPECT_EQ(scenarios[0].workload.num_turns(), 80u);
  EXPECT_EQ(scenarios[1].workload.num_turns(), 10u);
  EXPECT_EQ(scenarios[2].workload.max_n(), 4u);
}

}  // namespace
}  // namespace kvlink::cli
