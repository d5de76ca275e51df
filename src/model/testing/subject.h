// Subject: a model with runners for tests of bits: a row's logits are the same whatever else is
// computed with it, and wherever its context lies.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernel/paged_attention.h"
#include "model/model.h"
#include "model/testing/plain_context.h"
#include "model/testing/prompts.h"

namespace kvlink::model {

using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kMaxRows = 512;

// Of finite values, and not of none.
inline bool BitEqual(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
    for (const float logit : a[i]) {
      if (!std::isfinite(logit)) return false;
    }
  }
  return !a.empty();
}

inline std::unique_ptr<Model> LoadOrDie(const std::string& path, KvType kv_type) {
  LoadOptions options;
  options.path = path;
  options.kv_type = kv_type;
  auto model = Model::Load(options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? *std::move(model) : nullptr;
}

// A model with a runner for one and one for two threads.
struct Subject {
  explicit Subject(const std::string& path, uint32_t max_rows = kMaxRows,
                   KvType kv_type = KvType::kF16)
      : model(LoadOrDie(path, kv_type)) {
    if (model == nullptr) return;
    for (const int threads : {1, 2}) {
      auto runner = model->NewRunner(threads, max_rows);
      EXPECT_TRUE(runner.ok()) << runner.status().ToString();
      runners.push_back(*std::move(runner));
    }
  }
  const KvShape& shape() const { return model->kv_shape(); }
  uint32_t vocab() const { return model->info().vocab_size; }
  // One thread unless a test is about threads: two wait for each other at every node when the
  // machine is busy.
  Runner& runner(int threads = 1) { return *runners[static_cast<size_t>(threads - 1)]; }

  std::vector<TokenId> Tokens(uint64_t seed, uint32_t count) const {
    std::vector<TokenId> tokens = model->tokenizer().Encode(MakePrompt(seed, count), true, false);
    EXPECT_GE(tokens.size(), count);
    tokens.resize(count);
    return tokens;
  }
  Logits Prompt(const PlainContext& context, std::span<const TokenId> tokens, uint32_t begin = 0,
                int threads = 1, uint32_t chunk = kMaxRows, uint32_t num_outputs = 1) {
    return RunPrompt(runner(threads), context, tokens, begin, chunk, num_outputs, vocab());
  }

  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<Runner>> runners;
};

// What runs layers [first, end) of all tokens; `stream` is the residual stream [rows, embedding].
inline const float* RunBand(Subject& s, const PlainContext& context,
                            std::span<const TokenId> tokens, uint32_t first, uint32_t end,
                            bool writes_next, std::vector<float>* stream) {
  std::vector<kernel::BatchRow> rows;
  for (uint32_t i = 0; i < tokens.size(); ++i) rows.push_back({0, i, true});
  const SpanTable* table = &context.table();
  const uint32_t last = static_cast<uint32_t>(tokens.size()) - 1;
  const bool ends = end == s.shape().num_layers;
  LayerBatch run;
  run.batch = {tokens, rows, {&table, 1}, std::span(&last, ends ? size_t{1} : size_t{0})};
  run.first_layer = first;
  run.end_layer = end;
  const std::vector<float> input = *stream;
  if (first > 0) run.input = input.data();
  stream->assign(tokens.size() * s.model->info().embedding, 0.0f);
  if (!ends) run.output = stream->data();
  run.writes_next = writes_next;
  const auto logits = s.runner().RunLayers(run);
  EXPECT_TRUE(logits.ok()) << logits.status().ToString();
  return logits.ok() ? *logits : nullptr;
}

}  // namespace kvlink::model
