// AttentionWorld: sequences over pages for the tests of paged attention, and the naive answer.
//
// A token is a number; its q, k and v are made from that number, so that sequences with equal
// tokens at equal positions have equal K and V. Pages are filled with NaN until a row is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernel/attention_tuning.h"
#include "kernel/f16.h"

namespace kvlink::kernel {

struct WorldShape {
  KvShape kv;
  uint32_t heads_per_kv = 1;
  RopeParams rope;
  std::vector<LayerParams> layers;  // empty: the rope above, no window and no cap

  uint32_t num_heads() const { return kv.num_kv_heads * heads_per_kv; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(kv.head_dim)); }
  AttentionParams Params(int max_threads = 4) const {
    if (!layers.empty()) return {kv, num_heads(), layers, max_threads};
    return {kv, num_heads(), {{.scale = scale(), .rope = rope}}, max_threads};
  }
};

inline WorldShape SmallShape(uint32_t head_dim = 64, uint32_t tokens_per_block = 32,
                             uint32_t heads_per_kv = 3, KvType type = KvType::kF16) {
  WorldShape shape;
  shape.kv = {2, 2, head_dim, tokens_per_block, type};
  shape.heads_per_kv = heads_per_kv;
  shape.rope.num_rot = head_dim;
  return shape;
}

// Layer 0 as Gemma's local ones, layer 1 as its global ones: another window, rope and cap each.
inline WorldShape WindowedShape(uint32_t local_window, uint32_t global_window, float softcap,
                                KvType type = KvType::kF16) {
  WorldShape shape = SmallShape(64, 32, 3, type);
  LayerParams local = {shape.scale(), shape.rope, local_window, softcap};
  LayerParams global = {1.3f * shape.scale(), shape.rope, global_window, 2 * softcap};
  global.rope.freq_base = 1e6f;
  global.rope.freq_scale = 0.125f;
  global.rope.neox = true;
  shape.layers = {local, global};
  return shape;
}

using Token = uint32_t;

struct WorldSequence {
  SpanTable table;
  std::vector<Token> tokens;  // by position
};

// A row to run.
struct Step {
  const WorldSequence* sequence = nullptr;
  uint32_t position = 0;
  bool write = true;
};

// Results: [layer][row in the order of the steps][num_heads * head_dim]
using Outputs = std::vector<std::vector<std::vector<float>>>;

class AttentionWorld {
 public:
  explicit AttentionWorld(const WorldShape& shape) : shape_(shape) {}
  const WorldShape& shape() const { return shape_; }

  // ---- memory
  std::byte* NewPage() {
    pages_.emplace_back(shape_.kv.page_bytes() + kTileAlignment);
    auto address = reinterpret_cast<uintptr_t>(pages_.back().data());
    auto* page = reinterpret_cast<std::byte*>((address + kTileAlignment - 1) / kTileAlignment *
                                              kTileAlignment);
    Poison(page, shape_.kv.page_bytes());
    return page;
  }
  std::byte* CopyPage(const std::byte* page) {
    std::byte* copy = NewPage();
    std::memcpy(copy, page, shape_.kv.page_bytes());
    return copy;
  }
  // A difference block whose cells replace `rows`; each layer with a map of its own when per_layer.
  const DifferenceView* NewDifference(const std::vector<uint32_t>& rows, bool per_layer) {
    const uint32_t block = shape_.kv.tokens_per_block;
    auto& slots = slots_.emplace_back(block * (per_layer ? shape_.kv.num_layers : 1), int8_t{-1});
    for (size_t map = 0; map < slots.size(); map += block) {
      // Other layers, other cells, so that a wrong map shows.
      for (size_t i = 0; i < rows.size(); i++)
        slots[map + rows[i]] = static_cast<int8_t>((i + map / block) % rows.size());
    }
    const uint32_t capacity = static_cast<uint32_t>(rows.size());
    auto& cells = pages_.emplace_back(DifferenceView::CellsBytes(shape_.kv, capacity));
    Poison(cells.data(), cells.size());
    return &differences_.emplace_back(
        DifferenceView{cells.data(), slots.data(), per_layer ? block : 0, capacity});
  }

  // ---- sequences
  // One span over new pages.
  WorldSequence NewSequence(uint32_t num_tokens, Token first_token) {
    WorldSequence sequence;
    for (uint32_t i = 0; i < num_tokens; i++) sequence.tokens.push_back(first_token + i);
    for (uint32_t i = 0; i < Blocks(num_tokens); i++)
      sequence.table.blocks.push_back({NewPage(), nullptr});
    sequence.table.spans = {{0, 0, Blocks(num_tokens) * shape_.kv.tokens_per_block, 0, 0}};
    return sequence;
  }
  // The same first blocks, then pages and tokens of its own.
  WorldSequence Fork(const WorldSequence& base, uint32_t num_shared, uint32_t num_tokens,
                     Token first_token) {
    WorldSequence sequence = NewSequence(num_tokens, first_token);
    for (uint32_t i = 0; i < num_shared; i++) sequence.tokens[i] = base.tokens[i];
    for (uint32_t b = 0; b < num_shared / shape_.kv.tokens_per_block; b++)
      sequence.table.blocks[b] = base.table.blocks[b];
    return sequence;
  }
  uint32_t Blocks(uint32_t num_tokens) const {
    return (num_tokens + shape_.kv.tokens_per_block - 1) / shape_.kv.tokens_per_block;
  }

  // ---- running
  std::unique_ptr<PagedAttention> Attention(const AttentionTuning& tuning = {}) const {
    auto result = CreatePagedAttention(shape_.Params(), tuning);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return std::move(result).value();
  }

  Outputs Run(PagedAttention& attention, const std::vector<Step>& steps, int threads = 1,
              std::span<const ObservedRows> observed = {}) const {
    std::vector<const WorldSequence*> sequences;
    std::vector<const SpanTable*> tables;
    std::vector<BatchRow> rows;
    for (const Step& step : steps) {
      size_t s = 0;
      while (s < sequences.size() && sequences[s] != step.sequence) s++;
      if (s == sequences.size()) {
        sequences.push_back(step.sequence);
        tables.push_back(&step.sequence->table);
      }
      rows.push_back({static_cast<uint32_t>(s), step.position, step.write});
    }
    const Status status = attention.Prepare(tables, rows, threads);
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (!observed.empty()) {
      const Status observing = attention.Observe(observed);
      EXPECT_TRUE(observing.ok()) << observing.ToString();
    }
    Outputs outputs;
    for (uint32_t layer = 0; status.ok() && layer < shape_.kv.num_layers; layer++)
      outputs.push_back(RunLayer(attention, layer, steps, threads));
    if (!observed.empty()) attention.TakeObserved();
    return outputs;
  }
  // Positions [begin, end) of one sequence, in batches of `chunk` rows.
  Outputs Prefill(PagedAttention& attention, const WorldSequence& sequence, uint32_t begin,
                  uint32_t end, uint32_t chunk, int threads = 1) const {
    Outputs all(shape_.kv.num_layers);
    for (uint32_t p = begin; p < end; p += chunk) {
      std::vector<Step> steps;
      for (uint32_t i = p; i < std::min(end, p + chunk); i++) steps.push_back({&sequence, i});
      Outputs part = Run(attention, steps, threads);
      for (size_t layer = 0; layer < part.size(); layer++)
        for (auto& row : part[layer]) all[layer].push_back(std::move(row));
    }
    return all;
  }

  // ---- the naive answer, in double precision
  // What each head pays to each position, [heads][position + 1].
  std::vector<std::vector<double>> ExpectedWeights(const Step& step, uint32_t layer) const {
    const AttentionParams all = shape_.Params();
    const LayerParams& params = all.layer(layer);
    const uint32_t dims = shape_.kv.head_dim;
    uint32_t first = 0;
    while (params.window > 0 && step.position - first >= params.window) first++;
    std::vector<std::vector<double>> weights;
    for (uint32_t head = 0; head < shape_.num_heads(); head++) {
      const uint32_t kv_head = head / shape_.heads_per_kv;
      std::vector<double> scores(step.position + 1, -std::numeric_limits<double>::infinity());
      for (uint32_t p = first; p <= step.position; p++) {
        const int32_t shift = ShiftAt(step.sequence->table, p);
        const auto q = Rotated(Raw(step.sequence->tokens[step.position], 0, layer, head),
                               params.rope, static_cast<double>(step.position) - shift);
        auto k = Rotated(Raw(step.sequence->tokens[p], 1, layer, kv_head), params.rope,
                         static_cast<double>(p) - shift);
        Round(&k);
        double score = 0;
        for (uint32_t d = 0; d < dims; d++) score += q[d] * k[d];
        score *= params.scale;
        if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
        scores[p] = score;
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& s : scores) total += s = std::exp(s - largest);
      for (double& s : scores) s /= total;
      weights.push_back(std::move(scores));
    }
    return weights;
  }
  std::vector<double> Expected(const Step& step, uint32_t layer) const {
    const std::vector<std::vector<double>> weights = ExpectedWeights(step, layer);
    const uint32_t dims = shape_.kv.head_dim;
    std::vector<double> out;
    for (uint32_t head = 0; head < shape_.num_heads(); head++) {
      const uint32_t kv_head = head / shape_.heads_per_kv;
      std::vector<double> sum(dims, 0.0);
      for (uint32_t p = 0; p <= step.position; p++) {
        if (weights[head][p] == 0) continue;
        std::vector<double> v = Rotated(Raw(step.sequence->tokens[p], 2, layer, kv_head), {}, 0);
        Round(&v);
        for (uint32_t d = 0; d < dims; d++) sum[d] += weights[head][p] * v[d];
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
  }

 private:
  static void Poison(std::byte* bytes, size_t size) {
    auto* elements = reinterpret_cast<uint16_t*>(bytes);
    std::fill(elements, elements + size / 2, uint16_t{0x7fff});  // NaN in F16 and in BF16
  }
  // To what the KV type can hold.
  void Round(std::vector<double>* x) const {
    if (shape_.kv.type == KvType::kF16) {
      for (double& e : *x) e = F16ToF32(F32ToF16(static_cast<float>(e)));
    } else if (shape_.kv.type == KvType::kBF16) {
      for (double& e : *x)
        e = std::ldexp(std::nearbyint(std::ldexp(e, 8 - Exponent(e))), Exponent(e) - 8);
    } else {
      double largest = 0;
      for (double e : *x) largest = std::max(largest, std::abs(e));
      const double scale = F16ToF32(F32ToF16(static_cast<float>(largest / 127)));
      for (double& e : *x) e = std::nearbyint(e / scale) * scale;
    }
  }
  static int Exponent(double x) {
    int exponent = 0;
    std::frexp(x, &exponent);
    return exponent;
  }
  static int32_t ShiftAt(const SpanTable& table, uint32_t position) {
    for (const Span& span : table.spans) {
      if (position - span.position < span.num_rows) return span.shift;
    }
    return 0;
  }

  // Unrotated q (what = 0), k (1) or v (2) of a token in a layer and head.
  std::vector<float> Raw(Token token, uint32_t what, uint32_t layer, uint32_t head) const {
    std::seed_seq seed{token, what, layer, head};
    std::minstd_rand rng(seed);
    std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
    std::vector<float> x(shape_.kv.head_dim);
    for (float& value : x) value = uniform(rng);
    return x;
  }
  static std::vector<double> Rotated(const std::vector<float>& x, const RopeParams& rope,
                                     double position) {
    std::vector<double> y(x.begin(), x.end());
    const uint32_t half = rope.num_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
      const double angle = rope.freq_scale * position *
                           std::pow(static_cast<double>(rope.freq_base), -2.0 * i / rope.num_rot);
      const uint32_t a = rope.neox ? i : 2 * i, b = rope.neox ? i + half : 2 * i + 1;
      y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      y[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
    return y;
  }

  template <typename F>
  static void OnThreads(int threads, const F& work) {
    std::vector<std::thread> others;
    for (int t = 1; t < threads; t++) others.emplace_back(work, t);
    work(0);
    for (std::thread& t : others) t.join();
  }

  std::vector<std::vector<float>> RunLayer(PagedAttention& attention, uint32_t layer,
                                           const std::vector<Step>& steps, int threads) const {
    const size_t q_width = size_t{shape_.num_heads()} * shape_.kv.head_dim;
    const size_t kv_width = size_t{shape_.kv.num_kv_heads} * shape_.kv.head_dim;
    std::vector<float> q, k, v;
    for (const Step& step : steps) {
      const Token token = step.sequence->tokens[step.position];
      for (uint32_t h = 0; h < shape_.num_heads(); h++) Append(&q, Raw(token, 0, layer, h));
      for (uint32_t h = 0; h < shape_.kv.num_kv_heads; h++) {
        Append(&k, Raw(token, 1, layer, h));
        Append(&v, Raw(token, 2, layer, h));
      }
    }
    std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
    OnThreads(threads, [&](int t) {
      attention.Write(layer, q.data(), q_width, k.data(), kv_width, v.data(), kv_width, q.data(),
                      q_width, t, threads);
    });
    OnThreads(threads, [&](int t) {
      attention.Attend(layer, q.data(), q_width, out.data(), q_width, t, threads);
    });
    std::vector<std::vector<float>> rows;
    for (size_t r = 0; r < steps.size(); r++) {
      const auto begin = out.begin() + static_cast<ptrdiff_t>(r * q_width);
      rows.emplace_back(begin, begin + static_cast<ptrdiff_t>(q_width));
    }
    return rows;
  }
  static void Append(std::vector<float>* to, const std::vector<float>& x) {
    to->insert(to->end(), x.begin(), x.end());
  }

  const WorldShape shape_;
  std::deque<std::vector<std::byte>> pages_;
  std::deque<std::vector<int8_t>> slots_;
  std::deque<DifferenceView> differences_;
};

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

inline void ExpectSameBits(const Outputs& a, const Outputs& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t layer = 0; layer < a.size(); layer++) {
    ASSERT_EQ(a[layer].size(), b[layer].size());
    for (size_t row = 0; row < a[layer].size(); row++) {
      SCOPED_TRACE("layer " + std::to_string(layer) + ", row " + std::to_string(row));
      ExpectSameBits(a[layer][row], b[layer][row]);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace kvlink::kernel
