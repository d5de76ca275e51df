// A row's bits depend on its query, its context and its position, and on nothing else.
#include <gtest/gtest.h>

#include "kernel/attention_world.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {
namespace {

constexpr uint32_t kTokens = 600;  // three chunks of softmax, the last one partial

struct Kind {
  const char* name;
  WorldShape shape;
};

class PagedAttentionBits : public testing::TestWithParam<Kind> {
 protected:
  PagedAttentionBits() : world_(GetParam().shape) {}

  WorldSequence Prefilled(uint32_t num_tokens, Token first_token) {
    WorldSequence sequence = world_.NewSequence(num_tokens, first_token);
    world_.Prefill(*world_.Attention(), sequence, 0, num_tokens, 200);
    return sequence;
  }
  static Outputs Row(const Outputs& outputs, size_t row) {
    Outputs one;
    for (const auto& layer : outputs) one.push_back({layer[row]});
    return one;
  }
  // What each step gives alone, on one thread, in a batch of its own.
  void ExpectBitsOfEachAlone(const std::vector<Step>& steps, const Outputs& outputs) {
    AttentionTuning plain;
    plain.cascade = false;
    const auto attention = world_.Attention(plain);
    for (size_t i = 0; i < steps.size(); i++) {
      SCOPED_TRACE("step " + std::to_string(i));
      ExpectSameBits(Row(outputs, i), world_.Run(*attention, {steps[i]}));
      if (HasFatalFailure()) return;
    }
  }

  // Each layer's cells of `rows`, where its map says, hold what the page holds.
  void ExpectCells(const DifferenceView& view, const std::vector<uint32_t>& rows, std::byte* page) {
    const KvShape& kv = world_.shape().kv;
    const size_t group_bytes = kv.k_group() * kv.element_bytes();
    const BlockView plain = {page, nullptr}, block = {page, &view};
    for (uint32_t layer = 0; layer < kv.num_layers; layer++) {
      for (uint32_t head = 0; head < kv.num_kv_heads; head++) {
        for (uint32_t row : rows) {
          const auto a = KvRowOf(kv, plain, layer, head, row);
          const auto b = KvRowOf(kv, block, layer, head, row);
          ASSERT_NE(a.k, b.k);
          for (size_t g = 0; g < kv.head_dim / kv.k_group(); g++)
            ASSERT_EQ(std::memcmp(a.k + g * a.k_stride, b.k + g * b.k_stride, group_bytes), 0);
          ASSERT_EQ(std::memcmp(a.v, b.v, kv.vector_bytes()), 0);
          if (kv.scale_bytes() == 0) continue;
          ASSERT_EQ(std::memcmp(a.k_scale, b.k_scale, kv.scale_bytes()), 0);
          ASSERT_EQ(std::memcmp(a.v_scale, b.v_scale, kv.scale_bytes()), 0);
        }
      }
    }
  }

  AttentionWorld world_;
};

TEST_P(PagedAttentionBits, AreTheSameInEveryPrefillChunk) {
  const auto attention = world_.Attention();
  const WorldSequence whole = world_.NewSequence(kTokens, 1);
  const Outputs expected = world_.Prefill(*attention, whole, 0, kTokens, kTokens);
  for (uint32_t chunk : {1u, 7u, 64u, 512u}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    const WorldSequence sequence = world_.NewSequence(kTokens, 1);
    ExpectSameBits(world_.Prefill(*attention, sequence, 0, kTokens, chunk), expected);
  }
}

TEST_P(PagedAttentionBits, AreTheSameOnAnyNumberOfThreads) {
  const auto attention = world_.Attention();
  const WorldSequence base = world_.NewSequence(kTokens, 1);
  const Outputs expected = world_.Prefill(*attention, base, 0, kTokens, 64);
  for (int threads : {2, 3, 4}) {
    for (uint32_t chunk : {1u, 64u, kTokens}) {
      SCOPED_TRACE(std::to_string(threads) + " threads, chunk " + std::to_string(chunk));
      const WorldSequence sequence = world_.NewSequence(kTokens, 1);
      ExpectSameBits(world_.Prefill(*attention, sequence, 0, kTokens, chunk, threads), expected);
    }
  }
}

TEST_P(PagedAttentionBits, AreTheSameAtEveryTileHeight) {
  const WorldSequence sequence = Prefilled(kTokens, 1);
  std::vector<Step> steps;
  for (uint32_t p = 230; p < 280; p++) steps.push_back({&sequence, p});
  const Outputs expected = world_.Run(*world_.Attention(), steps);
  for (uint32_t rows : {1u, 6u, 9u, 15u, 21u, 39u, 120u}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    AttentionTuning tuning;
    tuning.max_tile_rows = rows;
    ExpectSameBits(world_.Run(*world_.Attention(tuning), steps), expected);
  }
}

TEST_P(PagedAttentionBits, AreTheSameAloneAndInABatchOf16) {
  const WorldSequence base = Prefilled(kTokens, 1);
  std::deque<WorldSequence> sequences;
  std::vector<Step> steps;
  for (uint32_t i = 0; i < 16; i++) {
    // Forks at several depths, some nested, some of no relation, of different lengths.
    const uint32_t shared = i % 4 == 3 ? 0 : 128 * (1 + i % 4);
    sequences.push_back(world_.Fork(i % 4 == 2 ? sequences[0] : base, i % 4 == 2 ? 128 : shared,
                                    480 + 10 * i, 5000 + 1000 * i));
    WorldSequence& s = sequences.back();
    world_.Prefill(*world_.Attention(), s, i % 4 == 2 ? 128 : shared, 480 + 10 * i - 1, 100);
    steps.push_back({&s, 480 + 10 * i - 1});
  }
  const Outputs outputs = world_.Run(*world_.Attention(), steps);
  ExpectBitsOfEachAlone(steps, outputs);
}

TEST_P(PagedAttentionBits, AreTheSameWithAndWithoutCascade) {
  const WorldSequence base = Prefilled(kTokens, 1);
  std::deque<WorldSequence> forks;
  std::vector<Step> steps;
  for (uint32_t i = 0; i < 20; i++) {
    const uint32_t shared = 32 * (10 + i % 5);
    forks.push_back(world_.Fork(base, shared, 500 + i, 5000 + 1000 * i));
    world_.Prefill(*world_.Attention(), forks.back(), shared, 500 + i - 3, 200);
    // Several rows a sequence, not in order.
    for (uint32_t back : {1u, 3u, 2u}) steps.push_back({&forks.back(), 500 + i - back});
  }
  AttentionTuning plain;
  plain.cascade = false;
  const Outputs expected = world_.Run(*world_.Attention(plain), steps);
  const auto cascade = world_.Attention();
  for (int threads : {1, 2, 4}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    ExpectSameBits(world_.Run(*cascade, steps, threads), expected);
  }
  ExpectBitsOfEachAlone(steps, expected);
}

TEST_P(PagedAttentionBits, AreTheSameOnSharedAndPrivatePages) {
  const WorldSequence base = Prefilled(512, 1);
  WorldSequence shared = world_.Fork(base, 512, 530, 5000);
  WorldSequence own = shared;
  for (BlockView& block : own.table.blocks) block.page = world_.CopyPage(block.page);
  const auto attention = world_.Attention();
  // Beside others that share the first pages, and alone.
  WorldSequence neighbour = world_.Fork(base, 512, 520, 9000);
  std::vector<Step> together, alone;
  for (uint32_t p = 512; p < 520; p++) {
    together.push_back({&neighbour, p});
    together.push_back({&shared, p});
    alone.push_back({&own, p});
  }
  const Outputs a = world_.Run(*attention, together), b = world_.Run(*attention, alone);
  for (size_t i = 0; i < alone.size(); i++) ExpectSameBits(Row(a, 2 * i + 1), Row(b, i));
}

TEST_P(PagedAttentionBits, AreTheSameOnADifferenceBlockAndAFullPage) {
  const WorldSequence base = Prefilled(300, 1);
  for (bool per_layer : {false, true}) {
    for (uint32_t kept : {0u, 1u, 13u, 31u}) {
      SCOPED_TRACE("rows kept " + std::to_string(kept));
      // Rows [kept, 32) of block 8 get other tokens.
      const uint32_t begin = 256 + kept;
      WorldSequence full = base, difference = base;
      for (uint32_t p = begin; p < 300; p++) full.tokens[p] = difference.tokens[p] = 7000 + p;
      full.table.blocks[8].page = world_.CopyPage(base.table.blocks[8].page);
      full.table.blocks[9].page = world_.NewPage();
      std::vector<uint32_t> rows;
      for (uint32_t r = kept; r < 32; r++) rows.push_back(r);
      difference.table.blocks[8].difference = world_.NewDifference(rows, per_layer);
      difference.table.blocks[9].page = world_.NewPage();

      const std::byte* page = base.table.blocks[8].page;
      const std::vector<std::byte> before(page, page + world_.shape().kv.page_bytes());
      const auto attention = world_.Attention();
      ExpectSameBits(world_.Prefill(*attention, difference, begin, 300, 9),
                     world_.Prefill(*attention, full, begin, 300, 9));
      EXPECT_EQ(std::memcmp(before.data(), page, before.size()), 0) << "the base page was written";
      ExpectCells(*difference.table.blocks[8].difference, rows, full.table.blocks[8].page);
    }
  }
}

TEST_P(PagedAttentionBits, DoNotDependOnHowSpansAreCut) {
  const WorldSequence whole = Prefilled(kTokens, 1);
  WorldSequence cut = whole;
  cut.table.spans = {{0, 0, 5, 0, 0},
                     {0, 5, 100, 5, 0},
                     {3, 9, 0, 105, 0},
                     {3, 9, 300, 105, 0},
                     {12, 405 - 384, 250, 405, 0}};
  std::vector<Step> a, b;
  for (uint32_t p = 0; p < kTokens; p += 13) {
    a.push_back({&whole, p, false});
    b.push_back({&cut, p, false});
  }
  const auto attention = world_.Attention();
  ExpectSameBits(world_.Run(*attention, a), world_.Run(*attention, b));
}

TEST_P(PagedAttentionBits, OfShiftedSpansAreTheSameAloneAndInABatch) {
  const WorldSequence donor = Prefilled(400, 1);
  std::deque<WorldSequence> sequences;
  std::vector<Step> steps;
  for (uint32_t i = 0; i < 6; i++) {
    // 20 rows of its own, 380 of the donor's moved by 20 - (10 or 0), then more of its own.
    WorldSequence s = world_.NewSequence(20, 3000);
    const uint32_t skipped = i < 3 ? 10 : 0;
    s.table.spans = {{0, 0, 20, 0, 0}, {1, skipped, 380, 20, 20 - static_cast<int32_t>(skipped)}};
    s.table.blocks.insert(s.table.blocks.end(), donor.table.blocks.begin(),
                          donor.table.blocks.end());
    s.tokens.insert(s.tokens.end(), donor.tokens.begin() + skipped,
                    donor.tokens.begin() + skipped + 380);
    const uint32_t block = static_cast<uint32_t>(s.table.blocks.size());
    s.table.blocks.push_back({world_.NewPage(), nullptr});
    s.table.spans.push_back({block, i, 5, 400, 0});
    for (uint32_t k = 0; k < 5; k++) s.tokens.push_back(8000 + 10 * i + k);
    if (i > 0) s.table.blocks[0] = sequences[0].table.blocks[0];
    sequences.push_back(std::move(s));
    if (i == 0) world_.Prefill(*world_.Attention(), sequences[0], 0, 20, 20);
    for (uint32_t k = 0; k < 5; k++) steps.push_back({&sequences.back(), 400 + k});
  }
  const Outputs outputs = world_.Run(*world_.Attention(), steps, 2);
  ExpectBitsOfEachAlone(steps, outputs);
}

TEST_P(PagedAttentionBits, OfARowSurviveAnyChangeOfLaterRows) {
  const WorldSequence sequence = world_.NewSequence(kTokens, 1);
  const auto attention = world_.Attention();
  const Outputs before = world_.Prefill(*attention, sequence, 0, kTokens, kTokens);
  WorldSequence changed = world_.NewSequence(kTokens, 1);
  for (uint32_t p = 400; p < kTokens; p++) changed.tokens[p] += 9999;
  const Outputs after = world_.Prefill(*attention, changed, 0, kTokens, kTokens);
  for (size_t layer = 0; layer < before.size(); layer++) {
    for (size_t p = 0; p < 400; p++) ExpectSameBits(before[layer][p], after[layer][p]);
    for (size_t p = 400; p < kTokens; p++) EXPECT_NE(before[layer][p], after[layer][p]);
  }
}

TEST_P(PagedAttentionBits, DoNotDependOnTheOrderOfRows) {
  const WorldSequence sequence = Prefilled(kTokens, 1);
  std::vector<Step> steps;
  for (uint32_t p = 0; p < kTokens; p += 17) steps.push_back({&sequence, p});
  const auto attention = world_.Attention();
  const Outputs expected = world_.Run(*attention, steps);
  std::vector<Step> reversed(steps.rbegin(), steps.rend());
  const Outputs outputs = world_.Run(*attention, reversed, 2);
  for (size_t i = 0; i < steps.size(); i++)
    ExpectSameBits(Row(outputs, steps.size() - 1 - i), Row(expected, i));
}

// Stronger than promised (the numeric path is part of every block's key), but true of attention,
// where BF16 has no dot products of its own.
TEST_P(PagedAttentionBits, AreTheSameOnEveryInstructionSet) {
  const KvType type = GetParam().shape.kv.type;
  for (uint32_t head_dim : {40u, 64u, 72u, 128u}) {
    for (uint32_t block : {8u, 32u}) {
      WorldShape shape = world_.shape();
      shape.kv.head_dim = head_dim;
      shape.kv.tokens_per_block = block;
      shape.rope.num_rot = std::min(head_dim, shape.rope.num_rot);
      for (LayerParams& layer : shape.layers) layer.rope.num_rot = shape.rope.num_rot;
      AttentionWorld world(shape);
      const auto prefill = [&](Isa isa, const WorldSequence& sequence) {
        AttentionTuning tuning;
        tuning.isa = isa;
        return world.Prefill(*world.Attention(tuning), sequence, 0, 300, 33);
      };
      const WorldSequence base = world.NewSequence(300, 1);
      const Outputs expected = prefill(Isa::kBaseline, base);
      for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
        if (!IsaAvailable(isa) || (type == KvType::kBF16 && HasBf16Dot(isa))) continue;
        SCOPED_TRACE(std::string(IsaName(isa)) + ", head_dim " + std::to_string(head_dim));
        const WorldSequence sequence = world.NewSequence(300, 1);
        ExpectSameBits(prefill(isa, sequence), expected);
        for (size_t i = 0; i + 1 < base.table.blocks.size(); i++) {  // the last has poison left
          EXPECT_EQ(std::memcmp(base.table.blocks[i].page, sequence.table.blocks[i].page,
                                world.shape().kv.page_bytes()),
                    0);
        }
      }
    }
  }
}

const Kind kKinds[] = {
    {"Plain", SmallShape()},
    {"Windowed", WindowedShape(100, 0, 0)},
    {"WindowedAndCapped", WindowedShape(256, 321, 5)},
    {"Bf16", SmallShape(64, 32, 3, KvType::kBF16)},
    {"Bf16Windowed", WindowedShape(101, 256, 5, KvType::kBF16)},
    {"Q8", SmallShape(64, 32, 3, KvType::kQ8_0)},
    {"Q8Windowed", WindowedShape(101, 256, 5, KvType::kQ8_0)},
};
INSTANTIATE_TEST_SUITE_P(Kinds, PagedAttentionBits, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvlink::kernel
