// What answers and /metrics say about blocks that came from colder tiers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/answer.h"
#include "server/metrics.h"
#include "server/testing/fakes.h"

namespace kvlink::server {
namespace {

// 100 prompt tokens: 40 from RAM (3 of them in a block that differs), 32 from disk, 16 from Redis.
engine::RequestReport Report() {
  engine::RequestReport report;
  report.prompt_tokens = 100;
  report.cached_tokens = 88;
  report.partial_tokens = 3;
  report.computed_tokens = 12;
  report.loaded = {{"cold", 32}, {"remote", 16}};
  report.tiers_asked = true;
  report.branches.emplace_back();
  return report;
}

double Value(const std::string& text, const std::string& line_start) {
  const size_t at = text.find("\n" + line_start);
  EXPECT_NE(at, std::string::npos) << line_start;
  if (at == std::string::npos) return -1;
  const size_t end = text.find('\n', at + 1);
  return std::stod(text.substr(text.rfind(' ', end) + 1));
}

TEST(TierMetrics, WhatWasLoadedIsAHitOfTheOtherTiersAndAllOfItIsCached) {
  const auto metrics = Metrics::Create("m");
  metrics->RecordReport(Report(), true, 0);
  const std::string text = metrics->Text({}, {});
  EXPECT_EQ(Value(text, "vllm:prefix_cache_queries_total"), 100);
  EXPECT_EQ(Value(text, "vllm:prefix_cache_hits_total"), 40);
  EXPECT_EQ(Value(text, "vllm:external_prefix_cache_queries_total"), 60);
  EXPECT_EQ(Value(text, "vllm:external_prefix_cache_hits_total"), 48);
  EXPECT_EQ(Value(text, "vllm:prompt_tokens_cached_total"), 88);
  for (const auto& [labels, tokens] :
       {std::pair{R"(class="exact",tier="ram")", 37}, std::pair{R"(class="exact",tier="cold")", 32},
        std::pair{R"(class="exact",tier="remote")", 16},
        std::pair{R"(class="partial",tier="ram")", 3}}) {
    EXPECT_EQ(Value(text, R"(kvlink_reuse_tokens_total{model_name="m",)" + std::string(labels)),
              tokens);
  }
}

TEST(TierMetrics, ARequestThatMayNotUseTiersAsksNone) {
  const auto metrics = Metrics::Create("m");
  engine::RequestReport report = Report();
  report.loaded.clear();
  report.tiers_asked = false;
  metrics->RecordReport(report, true, 0);
  EXPECT_EQ(Value(metrics->Text({}, {}), "vllm:external_prefix_cache_queries_total"), 0);
}

TEST(TierMetrics, EachTierHasItsFigures) {
  engine::EngineStats stats;
  TierFigures& cold = stats.tiers.emplace_back();
  cold.name = "cold";
  cold.bytes = 1000;
  cold.budget_bytes = 5000;
  cold.blocks = 10;
  cold.unreachable = 2;
  cold.errors = {{"get", "corrupt", 3}};
  cold.breaker = "closed";
  TierFigures& remote = stats.tiers.emplace_back();
  remote.name = "remote";
  remote.breaker = "open";
  remote.queued_blocks = 7;
  stats.cache.loads = 4;
  const std::string text = Metrics::Create("m")->Text(stats, {});
  const std::string model = R"({model_name="m",)";
  EXPECT_EQ(Value(text, "kvlink_tier_bytes" + model + R"(kind="blocks",tier="cold"})"), 1000);
  EXPECT_EQ(Value(text, "kvlink_tier_bytes" + model + R"(kind="budget",tier="cold"})"), 5000);
  EXPECT_EQ(Value(text, "kvlink_tier_blocks" + model + R"(state="reachable",tier="cold"})"), 8);
  EXPECT_EQ(
      Value(text, "kvlink_tier_errors_total" + model + R"(op="get",reason="corrupt",tier="cold"})"),
      3);
  EXPECT_EQ(Value(text, "kvlink_tier_errors_total" + model +
                            R"(op="get",reason="timeout",tier="remote"})"),
            0);
  EXPECT_EQ(Value(text, "kvlink_tier_breaker_open" + model + R"(tier="cold"})"), 0);
  EXPECT_EQ(Value(text, "kvlink_tier_breaker_open" + model + R"(tier="remote"})"), 1);
  EXPECT_EQ(Value(text, "kvlink_tier_queue_blocks" + model + R"(tier="remote"})"), 7);
  EXPECT_EQ(Value(text, "kvlink_loads_total{"), 4);
}

TEST(TierMetrics, AnAnswerTellsWhereItsRowsWere) {
  PromptOutcome outcome;
  outcome.report = std::make_shared<engine::RequestReport>(Report());
  const FakeTokenizer tokenizer;
  const auto json = nlohmann::json::parse(AnswerFormat({}, tokenizer).Whole({outcome}));
  EXPECT_EQ(json["kvlink"]["tier"], "remote");
  EXPECT_EQ(json["kvlink"]["tier_tokens"],
            (nlohmann::json{{"ram", 40}, {"cold", 32}, {"remote", 16}}));
  EXPECT_EQ(json["kvlink"]["exact"], 85);
}

}  // namespace
}  // namespace kvlink::server
