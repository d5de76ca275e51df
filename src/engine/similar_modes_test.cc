// The modes of similar reuse on a real network (small and random): what they must compute exactly,
// what they may not touch, and that what is left is near.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/similar_modes_harness.h"

namespace kvlink::engine {
namespace {

using Action = Verdict::Action;

class SimilarMode : public ::testing::TestWithParam<ReuseMode> {
 protected:
  // Of a cache of its own, in which nothing is lent.
  static Logits ExactLogits(const Tokens& prompt) {
    Bench bench{SimilarOptions()};
    return bench.Exact(prompt).logits;
  }
};
std::string NameOf(const ::testing::TestParamInfo<ReuseMode>& test) {
  constexpr const char* kNames[] = {"seam", "layered", "blend", "anchored"};
  return kNames[static_cast<size_t>(test.param)];
}
INSTANTIATE_TEST_SUITE_P(Modes, SimilarMode,
                         ::testing::Values(ReuseMode::kSeam, ReuseMode::kLayered, ReuseMode::kBlend,
                                           ReuseMode::kAnchored),
                         NameOf);

TEST_P(SimilarMode, WithAllRowsSelectedIsAFullPrefill) {
  for (const uint32_t chunk : {7u, 64u, 512u}) {
    Bench bench(WithAllRows(GetParam()), chunk);
    bench.Exact(Prompt(1));
    auto run = bench.Borrow(Prompt(2));
    ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
    EXPECT_TRUE(BitEqual(run.logits, ExactLogits(Prompt(2)))) << "chunks of " << chunk;
    EXPECT_EQ(run.sequence->CheckFirstToken(run.logits).action, Action::kAccept);
  }
  // Shifted rows are written for the donor's frame: equal but for rounding.
  Bench bench(WithAllRows(GetParam()));
  bench.Exact(Prompt(1));
  const Tokens longer = Prompt(3, kClock + 5);
  const auto run = bench.Borrow(longer);
  ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
  EXPECT_LT(Divergence(ExactLogits(longer), run.logits), 1e-4);
}

TEST_P(SimilarMode, TheDonorsOwnPromptIsExact) {
  Bench bench(With(GetParam()));
  const Logits first = bench.Exact(Prompt(1)).logits;
  const auto again = bench.Borrow(Prompt(1));
  EXPECT_FALSE(again.is_borrowed());
  EXPECT_EQ(again.reason, SimilarReason::kNothingToGain);
  EXPECT_TRUE(BitEqual(again.logits, first));
}

TEST_P(SimilarMode, AnEditOfTheTailAloneIsExact) {
  Bench bench(With(GetParam()));
  bench.Exact(Prompt(1));
  const Tokens other = Prompt(1, kClock, 2);
  const auto run = bench.Borrow(other);
  EXPECT_FALSE(run.is_borrowed());
  EXPECT_TRUE(BitEqual(run.logits, ExactLogits(other)));
}

// Nor do chunks matter.
TEST_P(SimilarMode, NoRowSeesALaterOne) {
  std::vector<Bench> benches;
  std::vector<Bench::Run> runs;
  std::vector<Tokens> prompts = {Prompt(2), Prompt(2), Prompt(2)};
  prompts[1].back() = (prompts[1].back() + 1) % 280;
  benches.reserve(3);
  for (size_t i = 0; i < 3; ++i) {
    benches.emplace_back(With(GetParam()), i == 2 ? 5u : 64u);
    benches.back().Exact(Prompt(1));
    runs.push_back(benches.back().Borrow(prompts[i]));
    ASSERT_TRUE(runs[i].is_borrowed()) << SimilarReasonName(runs[i].reason);
  }
  for (uint32_t p = 0; p + 1 < kPrompt; ++p) {
    ASSERT_EQ(benches[0].ValuesAt(runs[0], p), benches[1].ValuesAt(runs[1], p)) << "row " << p;
  }
  EXPECT_NE(benches[0].ValuesAt(runs[0], kPrompt - 1), benches[1].ValuesAt(runs[1], kPrompt - 1));
  EXPECT_FALSE(BitEqual(runs[0].logits, runs[1].logits));
  EXPECT_TRUE(BitEqual(runs[0].logits, runs[2].logits));
}

// The donor's rows come to no harm, and what comes of them is nobody's.
TEST_P(SimilarMode, WhatItComputesIsNeverFoundAgain) {
  Bench bench(With(GetParam()));
  bench.Exact(Prompt(1));
  const CacheStats before = bench.cache().Stats();
  {
    auto run = bench.Borrow(Prompt(2));
    ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
    EXPECT_EQ(run.sequence->CheckFirstToken(run.logits).action, Action::kAccept);
    for (TokenId token = 5; token < 45; ++token) bench.Generate(run, token);
    EXPECT_EQ(bench.cache().Stats().stored_blocks, before.stored_blocks);
    EXPECT_EQ(bench.cache().Stats().donors, before.donors);
  }
  EXPECT_EQ(bench.cache().Stats().in_use_pages, 0u);
  EXPECT_EQ(bench.cache().Stats().cached_pages, before.cached_pages);
  const auto exact = bench.Exact(Prompt(2));
  EXPECT_TRUE(BitEqual(exact.logits, ExactLogits(Prompt(2))));
  const auto donor = bench.Exact(Prompt(1));
  EXPECT_TRUE(BitEqual(donor.logits, ExactLogits(Prompt(1))));
}

// Near, and nearer than with nothing computed but what no span covers.
TEST_P(SimilarMode, IsNearTheExactAnswerWithAPartOfTheWork) {
  for (const size_t clock_tokens : {kClock, kClock + 3}) {
    Bench bench(With(GetParam()));
    bench.Exact(Prompt(1));
    const uint64_t before = bench.layer_rows();
    const Tokens prompt = Prompt(2, clock_tokens);
    auto run = bench.Borrow(prompt);
    ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
    const uint64_t full = uint64_t{kPrompt - kHead} * kLayers;
    EXPECT_LT(bench.layer_rows() - before, full * 9 / 10);
    const Logits exact = ExactLogits(prompt);
    EXPECT_FALSE(BitEqual(run.logits, exact));
    EXPECT_LT(Divergence(exact, run.logits), 0.05);
    EXPECT_LT(Divergence(exact, run.logits), Divergence(exact, ExactLogits(Prompt(9, 3, 7))) / 5);
    // It goes on from what it has.
    EXPECT_EQ(run.sequence->CheckFirstToken(run.logits).action, Action::kAccept);
    Bench plain{SimilarOptions()};
    auto reference = plain.Exact(prompt);
    for (const TokenId token : {11, 12, 13}) {
      EXPECT_LT(Divergence(plain.Generate(reference, token), bench.Generate(run, token)), 0.05);
    }
  }
}

TEST_P(SimilarMode, RunsMoreRowsWhenItIsInDoubt) {
  SimilarOptions options = With(GetParam());
  options.policy = SimilarPolicy::kStrict;
  options.converged_js = 0.7;
  Bench bench(options);
  bench.Exact(Prompt(1));
  const Tokens prompt = Prompt(2);
  auto run = bench.Borrow(prompt);
  ASSERT_TRUE(run.is_borrowed());
  const auto rows = [&] {
    uint32_t count = 0;
    for (const Selection::Range& range : run.sequence->computed_rows()) count += range.num_rows;
    return count;
  };
  const uint32_t first = rows();
  const Logits before = run.logits;
  ASSERT_EQ(run.sequence->CheckFirstToken(run.logits).action, Action::kEnlarge);
  EXPECT_EQ(run.sequence->num_ready(), kHead);
  EXPECT_GT(rows(), first);
  bench.Compute(run, prompt);
  EXPECT_FALSE(BitEqual(run.logits, before));
  const Verdict verdict = run.sequence->CheckFirstToken(run.logits);
  EXPECT_NE(verdict.action, Action::kEnlarge);
  EXPECT_GT(rows(), first);
}

TEST_P(SimilarMode, BranchesGoOnAsTheirSourceDoes) {
  Bench bench(With(GetParam()));
  bench.Exact(Prompt(1));
  auto run = bench.Borrow(Prompt(2));
  ASSERT_TRUE(run.is_borrowed());
  EXPECT_EQ(run.sequence->CheckFirstToken(run.logits).action, Action::kAccept);
  auto forked = run.sequence->Fork(run.sequence->num_ready(), 40);
  ASSERT_TRUE(forked.ok()) << forked.status().ToString();
  Bench::Run branch{.sequence = *std::move(forked), .reason = run.reason, .logits = {}};
  for (TokenId token = 5; token < 45; ++token) {
    ASSERT_TRUE(BitEqual(bench.Generate(branch, token), bench.Generate(run, token))) << token;
  }
}

RequestReport ReportOf(Engine& engine, const Tokens& prompt, SimilarPolicy policy) {
  const auto report = std::make_shared<std::promise<RequestReport>>();
  GenerationRequest request;
  request.prompt = prompt;
  request.similar = policy;
  request.max_tokens = 6;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  const auto id = engine.Submit(request, [report](const Event& event) {
    if (event.kind == Event::Kind::kFinished) report->set_value(*event.report);
  });
  EXPECT_TRUE(id.ok()) << id.status().ToString();
  return report->get_future().get();
}

std::unique_ptr<Engine> NewEngine(Cache& cache) {
  EngineOptions options;
  options.chunk_tokens = 50;
  auto engine = Engine::Create(TinyModel(), cache, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return *std::move(engine);
}

TEST_P(SimilarMode, IsWhatTheEngineRuns) {
  Bench bench(With(GetParam()));
  const auto engine = NewEngine(bench.cache());
  const RequestReport donor = ReportOf(*engine, Prompt(1), SimilarPolicy::kOn);
  EXPECT_EQ(donor.similar_reason, SimilarReason::kNoDonor);
  EXPECT_EQ(engine->Stats().cache.donor_notes, 1u);
  const RequestReport report = ReportOf(*engine, Prompt(2), SimilarPolicy::kOn);
  EXPECT_EQ(report.similar_reason, SimilarReason::kNone);
  EXPECT_GT(report.similar_tokens, kPrompt / 4);
  EXPECT_LT(report.computed_tokens, kPrompt - kHead);
  EXPECT_EQ(report.generated_tokens, 6u);
  // The same rows, chunk or not.
  Bench other(With(GetParam()), 512);
  other.Exact(Prompt(1));
  const auto run = other.Borrow(Prompt(2));
  const auto likeliest = std::max_element(run.logits.begin(), run.logits.end());
  EXPECT_EQ(report.branches[0].tokens[0], static_cast<TokenId>(likeliest - run.logits.begin()));
}

TEST_P(SimilarMode, FallsBackToTheExactAnswer) {
  SimilarOptions options = With(GetParam());
  options.accept_blast_radius = options.refuse_blast_radius = 0;
  options.wasted_compute_share = 1;
  Bench bench(options);
  const auto engine = NewEngine(bench.cache());
  ReportOf(*engine, Prompt(1), SimilarPolicy::kOn);
  const RequestReport report = ReportOf(*engine, Prompt(2), SimilarPolicy::kOn);
  EXPECT_TRUE(report.fell_back);
  EXPECT_EQ(report.similar_reason, SimilarReason::kBlastRadius);
  Bench plain{SimilarOptions()};
  const auto exact_engine = NewEngine(plain.cache());
  const RequestReport exact = ReportOf(*exact_engine, Prompt(2), SimilarPolicy::kOff);
  EXPECT_EQ(report.branches[0].tokens, exact.branches[0].tokens);
}

// The same on the default model: a short text, behind another clock.
TEST_P(SimilarMode, OnTheDefaultModelIsAFullPrefillOrNearIt) {
  model::LoadOptions load;
  load.path = model::DefaultModelPath();
  ASSERT_NE(load.path, "") << "no default model: run the set-up, or set KVLINK_TEST_MODEL";
  const auto loaded = model::Model::Load(load);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const model::Model& model = **loaded;
  const uint32_t num_layers = model.info().num_layers;
  Tokens donor = model.tokenizer().Encode(model::MakePrompt(3, 260), true, false);
  donor.resize(260);
  Tokens prompt = donor;
  for (size_t i = 20; i < 24; ++i) prompt[i] = prompt[i + 60];
  const Logits exact = Bench(SimilarOptions(), 512, model).Exact(prompt).logits;
  Bench all(WithAllRows(GetParam(), num_layers, 7), 512, model);
  all.Exact(donor);
  const auto whole = all.Borrow(prompt);
  ASSERT_TRUE(whole.is_borrowed()) << SimilarReasonName(whole.reason);
  EXPECT_TRUE(BitEqual(whole.logits, exact));
  Bench some(With(GetParam(), num_layers, 7), 512, model);
  some.Exact(donor);
  const auto part = some.Borrow(prompt);
  ASSERT_TRUE(part.is_borrowed()) << SimilarReasonName(part.reason);
  EXPECT_FALSE(BitEqual(part.logits, exact));
  EXPECT_LT(Divergence(exact, part.logits), 0.05);
}

// In a network of one layer K and V depend on the token and its place alone, so a donor's rows,
// read from where they have moved to, are the prompt's own but for rounding, however its angles are
// scaled.
struct Rotation {
  const char* name;
  void (*set)(model::TinyModel& tiny);
};

void SetYarn(gguf_context* keys, float attn_factor) {
  gguf_set_val_str(keys, "llama.rope.scaling.type", "yarn");
  gguf_set_val_f32(keys, "llama.rope.scaling.factor", 4);
  gguf_set_val_f32(keys, "llama.rope.scaling.attn_factor", attn_factor);
  gguf_set_val_u32(keys, "llama.rope.scaling.original_context_length", 128);
}

class ScaledRotation : public ::testing::TestWithParam<Rotation> {
 protected:
  static std::unique_ptr<model::Model> Load(const Rotation& rotation, uint32_t num_layers) {
    model::TinyModel tiny;
    tiny.num_layers = num_layers;
    tiny.embedding = 128;
    tiny.head_dim = 64;
    tiny.feed_forward = 256;
    rotation.set(tiny);
    const std::string path = model::TestFolder() + "/similar-" + rotation.name + "-" +
                             std::to_string(num_layers) + ".gguf";
    EXPECT_TRUE(model::WriteTinyModel(tiny, path));
    model::LoadOptions options;
    options.path = path;
    options.kv_type = KvType::kF16;
    auto loaded = model::Model::Load(options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return *std::move(loaded);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Kinds, ScaledRotation,
    ::testing::Values(Rotation{"plain", [](model::TinyModel&) {}},
                      Rotation{"linear",
                               [](model::TinyModel& tiny) {
                                 tiny.edit_keys = [](gguf_context* keys) {
                                   gguf_set_val_f32(keys, "llama.rope.scale_linear", 2);
                                 };
                               }},
                      Rotation{"yarn",
                               [](model::TinyModel& tiny) {
                                 tiny.edit_keys = [](gguf_context* keys) { SetYarn(keys, 1); };
                               }},
                      Rotation{"yarn_attn",
                               [](model::TinyModel& tiny) {
                                 tiny.edit_keys = [](gguf_context* keys) { SetYarn(keys, 1.2f); };
                               }},
                      Rotation{"llama3", [](model::TinyModel& tiny) { tiny.rope_factors = 32; }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(ScaledRotation, RowsOfOneLayerAreExactWhereverTheyMoveTo) {
  const auto model = Load(GetParam(), 1);
  for (const size_t clock_tokens : {kClock, kClock + 5, kClock - 3}) {
    Bench bench(With(ReuseMode::kSeam, 1), 64, *model);
    bench.Exact(Prompt(1));
    const Tokens prompt = Prompt(2, clock_tokens);
    const auto run = bench.Borrow(prompt);
    ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
    uint32_t computed = 0;
    for (const Selection::Range& range : run.sequence->computed_rows()) computed += range.num_rows;
    EXPECT_LT(computed, prompt.size() / 2);
    const Logits exact = Bench(SimilarOptions(), 64, *model).Exact(prompt).logits;
    EXPECT_LT(Divergence(exact, run.logits), 1e-6) << clock_tokens << " tokens of clock";
  }
}

// Rows that run in a shifted span are written in the donor's frame and read through its shift.
TEST_P(ScaledRotation, RowsWrittenInADonorsFrameAreThoseOfAFullPrefill) {
  const auto model = Load(GetParam(), 9);
  const Tokens prompt = Prompt(2, kClock + 5);
  const Logits exact = Bench(SimilarOptions(), 64, *model).Exact(prompt).logits;
  for (const ReuseMode mode : {ReuseMode::kLayered, ReuseMode::kBlend, ReuseMode::kAnchored}) {
    Bench bench(WithAllRows(mode, 9), 64, *model);
    bench.Exact(Prompt(1));
    const auto run = bench.Borrow(prompt);
    ASSERT_TRUE(run.is_borrowed()) << SimilarReasonName(run.reason);
    EXPECT_LT(Divergence(exact, run.logits), 1e-4);
  }
}

}  // namespace
}  // namespace kvlink::engine
