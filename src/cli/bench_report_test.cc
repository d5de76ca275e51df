#include "cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

namespace kvlink::cli {
namespace {

TurnOutcome Answered(double latency, std::vector<TokenId> tokens = {1, 2}) {
  TurnOutcome outcome;
  outcome.answer = "answer";
  outcome.tokens = {std::move(tokens)};
  outcome.prompt_tokens = 100;
  outcome.cached_tokens = 25;
  outcome.computed_tokens = 75;
  outcome.generated_tokens = 2;
  outcome.ttft_s = latency / 2;
  outcome.latency_s = latency;
  outcome.itl_s = {latency / 4};
  return outcome;
}

TurnOutcome Failed() {
  TurnOutcome outcome;
  outcome.error = "no";
  return outcome;
}

WorkloadRun RunOf(std::vector<std::vector<TurnOutcome>> outcomes) {
  WorkloadRun run;
  run.outcomes = std::move(outcomes);
  run.wall_s = 2;
  run.cpu_s = 3;
  return run;
}

TEST(BenchReport, PercentilesInterpolate) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({3}, 0.95), 3);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({0, 10}, 0.95), 9.5);
}

TEST(BenchReport, ModeSimilarSaysWhatWasLentAndHowFarItsAnswersAre) {
  ModeFigures exact = Summarise("exact", RunOf({{Answered(1)}}));
  ModeFigures similar = Summarise("similar", RunOf({{Answered(1)}}));
  similar.similar.emplace();
  similar.similar->accepted = 7;
  similar.similar->similar_tokens = 700;
  similar.similar->rejected = {{"no_donor", 2}, {"few_rows", 1}};
  similar.similar->fallbacks = {{"diverged", 1}};
  const auto json = ReportJson("m", {}, {exact, similar}, std::nullopt)["modes"];
  EXPECT_FALSE(json["exact"].contains("accepted"));
  EXPECT_EQ(json["similar"]["accepted"], 7);
  EXPECT_EQ(json["similar"]["rejected"]["no_donor"], 2);
  EXPECT_EQ(json["similar"]["fallbacks"]["diverged"], 1);
  EXPECT_TRUE(json["similar"]["mean_kl"].is_null()) << "nothing was compared";
  EXPECT_FALSE(json["similar"].contains("foreign_calibration"));

  similar.similar->compared = 5;
  similar.similar->mean_kl = 0.002;
  EXPECT_EQ(ReportJson("m", {}, {similar}, std::nullopt)["modes"]["similar"]["mean_kl"], 0.002);
  const std::string table = ReportTable({exact, similar});
  EXPECT_THAT(table, testing::HasSubstr("2.00e-03"));
  EXPECT_THAT(table, testing::ContainsRegex("rejected +- +3"));
  EXPECT_THAT(ReportTable({exact}), testing::Not(testing::HasSubstr("accepted")));
}

TEST(BenchReport, FailedTurnsCountAsErrorsAndInNoFigure) {
  const ModeFigures figures = Summarise("off", RunOf({{Answered(1), Failed()}, {Answered(3)}}));
  EXPECT_EQ(figures.requests, 3u);
  EXPECT_EQ(figures.errors, 1u);
  EXPECT_EQ(figures.req_per_s, 1.0);
  EXPECT_EQ(figures.gen_tok_per_s, 2.0);
  EXPECT_EQ(figures.prompt_tokens, 200u);
  EXPECT_EQ(figures.cached_tokens, 50u);
  EXPECT_EQ(figures.computed_tokens, 150u);
  EXPECT_EQ(figures.hit_rate, 0.25);
  EXPECT_EQ(figures.latency_mean, 2.0);
  EXPECT_EQ(figures.ttft_p50, 1.0);
  EXPECT_EQ(figures.itl_p50, 0.5);
}

TEST(BenchReport, LateTurnsAndFailedOnesMissTheDeadline) {
  const WorkloadRun run = RunOf({{Answered(1), Answered(5), Failed()}});
  EXPECT_EQ(CountLate(run, 5.0), 1u);
  EXPECT_EQ(CountLate(run, 4.9), 2u);
}

TEST(BenchReport, OutputsAreTheSameOnlyIfEveryBranchOfEveryTurnIs) {
  const WorkloadRun base = RunOf({{Answered(1, {1, 2}), Answered(1, {3})}});
  EXPECT_TRUE(SameOutputs(base, RunOf({{Answered(9, {1, 2}), Answered(9, {3})}})));
  EXPECT_FALSE(SameOutputs(base, RunOf({{Answered(1, {1, 2}), Answered(1, {4})}})));
  EXPECT_FALSE(SameOutputs(base, RunOf({{Answered(1, {1, 2})}})));
  WorkloadRun more_branches = base;
  more_branches.outcomes[0][1].tokens.push_back({7});
  EXPECT_FALSE(SameOutputs(base, more_branches));
}

TEST(BenchReport, TwoFailedTurnsAreNotEqualOutputs) {
  EXPECT_FALSE(SameOutputs(RunOf({{Failed()}}), RunOf({{Failed()}})));
}

TEST(BenchReport, TheJsonHasEveryFigureOfTheFormat) {
  ModeFigures off = Summarise("off", RunOf({{Answered(1)}}));
  off.engine = EngineFigures{};
  const auto json = ReportJson("m", "here", {off}, true);
  for (const char* key : {"model", "machine", "modes", "outputs_equal"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key :
       {"requests",      "errors",        "wall_s",       "req_per_s",      "gen_tok_per_s",
        "prompt_tokens", "cached_tokens", "ttft_mean",    "ttft_p50",       "computed_tokens",
        "ttft_p95",      "itl_p50",       "itl_p95",      "latency_mean",   "latency_p50",
        "latency_p95",   "peak_kv_bytes", "cached_bytes", "rss_bytes",      "running_at_peak",
        "hit_rate",      "match_share",   "cpu_s",        "tracking_share", "deadline_missed"}) {
    EXPECT_TRUE(json["modes"]["off"].contains(key)) << key;
  }
  EXPECT_EQ(json["outputs_equal"], true);
  EXPECT_TRUE(ReportJson("m", "here", {off}, std::nullopt)["outputs_equal"].is_null());
}

TEST(BenchReport, TheTableShowsTheRatioOfTheLastModeToTheFirst) {
  const ModeFigures off = Summarise("off", RunOf({{Answered(4)}}));
  const ModeFigures exact = Summarise("exact", RunOf({{Answered(1)}}));
  const std::string table = ReportTable({off, exact});
  EXPECT_THAT(table, testing::HasSubstr("exact/off"));
  EXPECT_THAT(table, testing::ContainsRegex("latency mean +4.000 s +1.000 s +0.250\n"));
  EXPECT_THAT(table, testing::Not(testing::HasSubstr("peak KV")));
}

// Answers with the number of messages it was shown, and notes what was asked.
class EchoTarget : public BenchTarget {
 public:
  TurnOutcome Answer(const TurnRequest& request) override {
    const int now = ++running_;
    {
      const std::lock_guard lock(mutex_);
      most_running_ = std::max(most_running_, now);
      requests_.push_back(request);
    }
    TurnOutcome outcome;
    if (request.messages.back().content == "fail") outcome.error = "asked to";
    outcome.answer = "seen " + std::to_string(request.messages.size());
    --running_;
    return outcome;
  }
  std::atomic<int> running_{0};
  std::mutex mutex_;
  int most_running_ = 0;
  std::vector<TurnRequest> requests_;
};

Turn Say(const std::string& text, uint32_t n = 1) {
  Turn turn;
  turn.messages = {{"user", text, ""}};
  turn.max_tokens = 4;
  turn.n = n;
  return turn;
}

TEST(BenchRun, TheHistoryGrowsByTheAnswerOrTheGivenOne) {
  Workload workload;
  workload.conversations = {{"c", "t", {Say("one"), Say("two"), Say("three")}}};
  workload.conversations[0].turns[1].assistant = "given";
  EchoTarget target;
  RunWorkload(workload, target, 1, [](size_t) {});
  ASSERT_EQ(target.requests_.size(), 3u);
  std::vector<std::string> history;
  for (const auto& message : target.requests_[2].messages) history.push_back(message.content);
  EXPECT_EQ(history, (std::vector<std::string>{"one", "seen 1", "two", "given", "three"}));
  EXPECT_EQ(target.requests_[2].messages[1].role, "assistant");
  EXPECT_EQ(target.requests_[2].tenant, "t");
}

TEST(BenchRun, OnlySampledTurnsGetSeedsOneABranch) {
  Workload workload;
  workload.conversations = {{"c", "", {Say("one"), Say("two", 4)}}};
  EchoTarget target;
  RunWorkload(workload, target, 1, [](size_t) {});
  EXPECT_TRUE(target.requests_[0].seeds.empty());
  ASSERT_EQ(target.requests_[1].seeds.size(), 4u);
  EXPECT_EQ(target.requests_[1].seeds[2], BranchSeed("c", 1, 2));
}

TEST(BenchRun, EveryTurnIsDoneOnceByAtMostSoManyUsers) {
  Workload workload;
  for (int i = 0; i < 50; ++i) {
    workload.conversations.push_back({std::to_string(i), "", {Say("a"), Say("b")}});
  }
  EchoTarget target;
  std::mutex mutex;
  std::set<size_t> done;
  const WorkloadRun run = RunWorkload(workload, target, 3, [&](size_t count) {
    const std::lock_guard lock(mutex);
    done.insert(count);
  });
  EXPECT_EQ(target.requests_.size(), 100u);
  EXPECT_LE(target.most_running_, 3);
  EXPECT_EQ(done.size(), 100u);
  EXPECT_EQ(*done.rbegin(), 100u);
  EXPECT_EQ(run.outcomes.size(), 50u);
}

TEST(BenchRun, AFailedTurnEndsItsConversation) {
  Workload workload;
  workload.conversations = {{"c", "", {Say("fail"), Say("never sent")}}, {"d", "", {Say("fine")}}};
  EchoTarget target;
  const WorkloadRun run = RunWorkload(workload, target, 1, [](size_t) {});
  EXPECT_EQ(target.requests_.size(), 2u);
  EXPECT_EQ(Summarise("off", run).errors, 2u);
  EXPECT_THAT(run.outcomes[0][1].error, testing::HasSubstr("'c'"));
}

}  // namespace
}  // namespace kvlink::cli
