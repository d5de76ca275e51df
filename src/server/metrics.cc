#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "server/answer.h"
#include "server/engine_metrics.h"
#include "server/server_metrics.h"
#include "server/tier_metrics.h"

namespace kvlink::server {
namespace {

using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;

const Histogram::BucketBoundaries kFirstTokenBuckets = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const Histogram::BucketBoundaries kInterTokenBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
    0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0};
const Histogram::BucketBoundaries kEndToEndBuckets = {
    0.05, 0.1,  0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,
    15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0};

constexpr auto kNumMissReasons = static_cast<size_t>(MissReason::kCount);

class PrometheusMetrics : public Metrics {
 public:
  explicit PrometheusMetrics(const std::string& model)
      : labels_{{"model_name", model}},
        queries_(Add("vllm:prefix_cache_queries_total",
                     "Prompt tokens that were looked up in the cache.")),
        hits_(Add("vllm:prefix_cache_hits_total", "Prompt tokens that were found in the cache.")),
        external_queries_(Add("vllm:external_prefix_cache_queries_total",
                              "Prompt tokens looked up in other tiers.")),
        external_hits_(
            Add("vllm:external_prefix_cache_hits_total", "Prompt tokens found in other tiers.")),
        prompt_tokens_(Add("vllm:prompt_tokens_total", "Prompt tokens, cached ones included.")),
        cached_tokens_(
            Add("vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed.")),
        generated_tokens_(Add("vllm:generation_tokens_total", "Generated tokens.")),
        first_token_(AddHistogram("vllm:time_to_first_token_seconds",
                                  "From arrival to the first token.", kFirstTokenBuckets)),
        inter_token_(AddHistogram("vllm:inter_token_latency_seconds",
                                  "Between tokens of one branch.", kInterTokenBuckets)),
        end_to_end_(AddHistogram("vllm:e2e_request_latency_seconds",
                                 "From arrival to the end of the request.", kEndToEndBuckets)),
        success_(Family("vllm:request_success_total", "Finished requests by reason.")),
        reuse_(Family("kvlink_reuse_tokens_total",
                      "Prompt tokens served from the cache, by class and tier.")),
        reuse_exact_(reuse_.Add({{"class", "exact"}, {"tier", "ram"}})),
        reuse_partial_(reuse_.Add({{"class", "partial"}, {"tier", "ram"}})),
        reuse_cold_(reuse_.Add({{"class", "exact"}, {"tier", "cold"}})),
        reuse_remote_(reuse_.Add({{"class", "exact"}, {"tier", "remote"}})),
        reuse_similar_(reuse_.Add({{"class", "similar"}, {"tier", "ram"}})),
        miss_family_(
            Family("kvlink_miss_total", "Requests by why not all of the prompt was reused.")),
        preemptions_(Add("kvlink_preemptions_total",
                         "Requests that had to give their pages back for a while.")),
        http_(Family("kvlink_http_requests_total", "HTTP requests by route and status.")),
        disconnects_(Family("kvlink_disconnects_total", "Answers that were cut off, by reason.")) {
    for (size_t i = 0; i < kNumMissReasons; ++i) {
      misses_[i] = &miss_family_.Add({{"reason", MissReasonName(static_cast<MissReason>(i))}});
    }
    for (const auto reason : {engine::FinishReason::kStop, engine::FinishReason::kLength,
                              engine::FinishReason::kCancelled, engine::FinishReason::kDeadline,
                              engine::FinishReason::kError}) {
      finished_[static_cast<size_t>(reason)] =
          &success_.Add({{"finished_reason", FinishReasonName(reason)}});
    }
    for (const auto reason : {DisconnectReason::kPeerClosed, DisconnectReason::kSlowReader,
                              DisconnectReason::kTimeout, DisconnectReason::kShutdown}) {
      cut_off_[static_cast<size_t>(reason)] =
          &disconnects_.Add({{"reason", DisconnectReasonName(reason)}});
    }
  }

  void RecordReport(const engine::RequestReport& report, bool started,
                    uint32_t hidden_tokens) override {
    const engine::FinishReason reason =
        report.branches.empty() ? engine::FinishReason::kError : report.branches.front().reason;
    finished_[static_cast<size_t>(report.status.ok() ? reason : engine::FinishReason::kError)]
        ->Increment();
    if (!started) return;
    const uint32_t loaded = std::min(report.loaded_tokens(), report.cached_tokens);
    queries_.Increment(report.prompt_tokens);
    prompt_tokens_.Increment(report.prompt_tokens);
    // As vLLM counts: what a connector brought is no hit of the own cache, and only what is not in
    // there is looked for elsewhere.
    hits_.Increment(report.cached_tokens - loaded);
    if (report.tiers_asked) {
      external_queries_.Increment(report.prompt_tokens - (report.cached_tokens - loaded));
    }
    external_hits_.Increment(loaded);
    cached_tokens_.Increment(report.cached_tokens);
    generated_tokens_.Increment(report.generated_tokens -
                                std::min(hidden_tokens, report.generated_tokens));
    reuse_exact_.Increment(report.cached_tokens - loaded -
                           std::min(report.partial_tokens, report.cached_tokens - loaded));
    for (const auto& of_tier : report.loaded) ReuseOf(of_tier.tier).Increment(of_tier.tokens);
    reuse_partial_.Increment(std::min(report.partial_tokens, report.cached_tokens));
    reuse_similar_.Increment(report.similar_tokens);
    preemptions_.Increment(report.preemptions);
    if (report.miss_reason != MissReason::kNone &&
        static_cast<size_t>(report.miss_reason) < kNumMissReasons) {
      misses_[static_cast<size_t>(report.miss_reason)]->Increment();
    }
  }

  void ObserveTimeToFirstToken(double seconds) override { first_token_.Observe(seconds); }
  void ObserveInterTokenLatency(double seconds) override { inter_token_.Observe(seconds); }
  void ObserveEndToEnd(double seconds) override { end_to_end_.Observe(seconds); }
  void CountHttp(const std::string& route, int status) override {
    http_.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
  }
  void CountDisconnect(DisconnectReason reason) override {
    cut_off_[static_cast<size_t>(reason)]->Increment();
  }

  std::string Text(const engine::EngineStats& stats, const ServerFigures& server) const override {
    std::vector<MetricFamily> families = registry_.Collect();
    AppendEngineMetrics(stats, labels_, &families);
    AppendTierMetrics(stats, labels_, &families);
    AppendServerMetrics(stats, server, labels_, &families);
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families);
    return out.str();
  }

 private:
  prometheus::Family<Counter>& Family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels_).Register(registry_);
  }
  Counter& Add(const char* name, const char* help) { return Family(name, help).Add({}); }
  Histogram& AddHistogram(const char* name, const char* help,
                          const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram()
        .Name(name)
        .Help(help)
        .Labels(labels_)
        .Register(registry_)
        .Add({}, buckets);
  }

  // Whole blocks that came from a tier. The usual two are there from the start, at 0.
  Counter& ReuseOf(const std::string& tier) {
    if (tier == "cold") return reuse_cold_;
    if (tier == "remote") return reuse_remote_;
    return reuse_.Add({{"class", "exact"}, {"tier", tier}});
  }

  const prometheus::Labels labels_;
  prometheus::Registry registry_;
  Counter &queries_, &hits_, &external_queries_, &external_hits_;
  Counter &prompt_tokens_, &cached_tokens_, &generated_tokens_;
  Histogram &first_token_, &inter_token_, &end_to_end_;
  prometheus::Family<Counter>&success_, &reuse_;
  Counter &reuse_exact_, &reuse_partial_, &reuse_cold_, &reuse_remote_, &reuse_similar_;
  prometheus::Family<Counter>& miss_family_;
  Counter& preemptions_;
  prometheus::Family<Counter>&http_, &disconnects_;
  std::array<Counter*, kNumMissReasons> misses_{};
  std::array<Counter*, 5> finished_{};
  std::array<Counter*, 4> cut_off_{};
};

}  // namespace

const char* DisconnectReasonName(DisconnectReason reason) {
  switch (reason) {
    case DisconnectReason::kPeerClosed:
      return "peer_closed";
    case DisconnectReason::kSlowReader:
      return "slow_reader";
    case DisconnectReason::kTimeout:
      return "timeout";
    case DisconnectReason::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

std::shared_ptr<Metrics> Metrics::Create(const std::string& model) {
  return std::make_shared<PrometheusMetrics>(model);
}

RequestRecorder::RequestRecorder(std::shared_ptr<Metrics> metrics, engine::Clock clock,
                                 uint32_t num_branches, uint32_t hidden_tokens)
    : metrics_(std::move(metrics)),
      clock_(std::move(clock)),
      arrival_(clock_()),
      last_token_(num_branches),
      hidden_tokens_(hidden_tokens) {}

void RequestRecorder::OnEvent(const engine::Event& event) {
  const TimePoint now = clock_();
  const auto seconds_since = [&](TimePoint then) {
    return std::chrono::duration<double>(now - then).count();
  };
  switch (event.kind) {
    case engine::Event::Kind::kStarted:
      started_ = true;
      break;
    case engine::Event::Kind::kToken: {
      if (event.token.token < 0) break;  // only text
      if (std::exchange(first_, false)) metrics_->ObserveTimeToFirstToken(seconds_since(arrival_));
      if (event.token.branch >= last_token_.size()) break;
      TimePoint& last = last_token_[event.token.branch];
      if (last != TimePoint()) metrics_->ObserveInterTokenLatency(seconds_since(last));
      last = now;
      break;
    }
    case engine::Event::Kind::kFinished:
      metrics_->ObserveEndToEnd(seconds_since(arrival_));
      metrics_->RecordReport(*event.report, started_, hidden_tokens_);
      break;
  }
}

}  // namespace kvlink::server
