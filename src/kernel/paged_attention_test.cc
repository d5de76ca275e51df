// PagedAttention against the formula in double precision, and what it refuses.
#include "kernel/paged_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernel/attention_world.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {
namespace {

using testing::HasSubstr;

// The formula reads K and V as they are stored; what is left is the rounding of queries and
// weights, in F16 that of elements at the edge of two values only.
double Tolerance(KvType type) {
  return type == KvType::kF16 ? 2e-3 : type == KvType::kBF16 ? 2e-2 : 3e-2;
}

void ExpectFormula(const AttentionWorld& world, const std::vector<Step>& steps,
                   const Outputs& outputs) {
  ASSERT_EQ(outputs.size(), world.shape().kv.num_layers);
  for (uint32_t layer = 0; layer < outputs.size(); layer++) {
    for (size_t row = 0; row < steps.size(); row++) {
      const std::vector<double> expected = world.Expected(steps[row], layer);
      for (size_t i = 0; i < expected.size(); i++) {
        ASSERT_NEAR(outputs[layer][row][i], expected[i], Tolerance(world.shape().kv.type))
            << "layer " << layer << ", position " << steps[row].position << ", element " << i;
      }
    }
  }
}

std::vector<Step> Steps(const WorldSequence& sequence, uint32_t begin, uint32_t end) {
  std::vector<Step> steps;
  for (uint32_t p = begin; p < end; p++) steps.push_back({&sequence, p});
  return steps;
}

TEST(PagedAttention, PrefillOfOneSequenceMatchesTheFormula) {
  AttentionWorld world(SmallShape());
  const WorldSequence sequence = world.NewSequence(300, 1000);
  const auto attention = world.Attention();
  const std::vector<Step> steps = Steps(sequence, 0, 300);
  ExpectFormula(world, steps, world.Run(*attention, steps));
}

TEST(PagedAttention, EveryShapeMatchesTheFormula) {
  const auto attend = [](const WorldShape& shape) {
    SCOPED_TRACE(
        std::string(KvTypeName(shape.kv.type)) + ", head_dim " + std::to_string(shape.kv.head_dim) +
        ", block " + std::to_string(shape.kv.tokens_per_block) + ", heads " +
        std::to_string(shape.heads_per_kv) + ", rot " + std::to_string(shape.rope.num_rot));
    AttentionWorld world(shape);
    const WorldSequence sequence = world.NewSequence(37, 7);
    const std::vector<Step> steps = Steps(sequence, 0, 37);
    ExpectFormula(world, steps, world.Run(*world.Attention(), steps, 2));
  };
  for (KvType type : kKvTypes) {
    for (uint32_t head_dim : {8u, 40u, 64u, 72u, 80u, 96u, 128u, 256u}) {
      for (uint32_t block : {8u, 32u, 128u}) attend(SmallShape(head_dim, block, 2, type));
    }
    for (uint32_t heads : {1u, 4u, 7u, 13u, 60u}) attend(SmallShape(64, 16, heads, type));
  }
  for (uint32_t num_rot : {0u, 20u, 32u, 64u}) {
    for (bool neox : {false, true}) {
      WorldShape shape = SmallShape(64, 64, 2);
      shape.rope.num_rot = num_rot;
      shape.rope.neox = neox;
      shape.rope.freq_scale = 0.5f;
      attend(shape);
    }
  }
}

TEST(PagedAttention, WindowsAndCapsOfEachLayerMatchTheFormula) {
  for (uint32_t window : {1u, 15u, 100u, 256u, 300u, 5000u}) {
    SCOPED_TRACE("window " + std::to_string(window));
    AttentionWorld world(
        WindowedShape(window, window / 2, window % 2 == 0 ? 3.0f : 0.0f, kKvTypes[window % 3]));
    const WorldSequence sequence = world.NewSequence(620, 1000);
    const auto attention = world.Attention();
    world.Prefill(*attention, sequence, 0, 500, 125);
    Outputs outputs = world.Run(*attention, Steps(sequence, 500, 620), 3), some(2);
    std::vector<Step> asked;
    for (uint32_t i = 0; i < 120; i += 17) {
      asked.push_back({&sequence, 500 + i});
      for (size_t layer = 0; layer < 2; layer++) some[layer].push_back(outputs[layer][i]);
    }
    ExpectFormula(world, asked, some);
  }
}

TEST(PagedAttention, RowsBeforeAWindowAreNotRead) {
  for (KvType type : kKvTypes) {
    AttentionWorld world(WindowedShape(100, 91, 0, type));
    const WorldSequence sequence = world.NewSequence(700, 1);
    const auto attention = world.Attention();
    // Positions 0 to 399 stay NaN.
    world.Prefill(*attention, sequence, 400, 500, 100);
    const std::vector<Step> steps = Steps(sequence, 500, 530);
    ExpectFormula(world, steps, world.Run(*attention, steps, 2));
  }
}

// Donors are computed, then a sequence is laid together from runs of their rows at any place and
// with any shift, from difference blocks and from rows of its own, and a few rows are asked for.
class RandomTables {
 public:
  RandomTables(AttentionWorld* world, uint32_t seed) : world_(*world), rng_(seed) {
    const auto attention = world_.Attention();
    for (int i = 0; i < 3; i++) {
      const uint32_t n = Up(40, 300);
      donors_.push_back(world_.NewSequence(n, 10000u * static_cast<uint32_t>(i + 1)));
      world_.Prefill(*attention, donors_.back(), 0, n, 100);
    }
  }

  uint32_t Up(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(rng_);
  }

  // Its last rows are its own and not yet written; returns their number.
  uint32_t Compose(WorldSequence* sequence) {
    for (uint32_t spans = Up(0, 4); spans > 0; spans--) AddDonorRun(sequence);
    const uint32_t position = static_cast<uint32_t>(sequence->tokens.size());
    const uint32_t own = Up(1, 60);
    WorldSequence tail = world_.NewSequence(own, 90000 + Up(0, 5000));
    const uint32_t first_row = Up(0, world_.shape().kv.tokens_per_block - 1);
    AddBlocks(sequence, tail.table.blocks);
    // One more page, since the run starts inside the first.
    sequence->table.blocks.push_back({world_.NewPage(), nullptr});
    MaybeDiffer(&sequence->table.blocks[first_block_]);
    // Rows of a shifted span are written for the frame that they lie in.
    const bool shifted = position > 0 && Up(0, 1) == 1;
    AddSpan(sequence, first_row, own, position,
            shifted ? static_cast<int32_t>(Up(1, position)) : 0);
    sequence->tokens.insert(sequence->tokens.end(), tail.tokens.begin(), tail.tokens.end());
    return own;
  }

 private:
  void AddDonorRun(WorldSequence* sequence) {
    const WorldSequence& donor = donors_[Up(0, 2)];
    const uint32_t size = static_cast<uint32_t>(donor.tokens.size());
    const uint32_t begin = Up(0, size - 1), num = Up(1, size - begin);
    const uint32_t position = static_cast<uint32_t>(sequence->tokens.size());
    AddBlocks(sequence, donor.table.blocks);
    AddSpan(sequence, begin, num, position,
            static_cast<int32_t>(position) - static_cast<int32_t>(begin));
    sequence->tokens.insert(sequence->tokens.end(), donor.tokens.begin() + begin,
                            donor.tokens.begin() + begin + num);
  }
  void AddBlocks(WorldSequence* sequence, const std::vector<BlockView>& blocks) {
    first_block_ = static_cast<uint32_t>(sequence->table.blocks.size());
    sequence->table.blocks.insert(sequence->table.blocks.end(), blocks.begin(), blocks.end());
  }
  void AddSpan(WorldSequence* sequence, uint32_t first_row, uint32_t num, uint32_t position,
               int32_t shift) {
    sequence->table.spans.push_back({first_block_, first_row, num, position, shift});
  }
  void MaybeDiffer(BlockView* block) {
    if (Up(0, 1) == 0) return;
    std::vector<uint32_t> rows;
    for (uint32_t r = 0; r < world_.shape().kv.tokens_per_block; r += Up(1, 4)) rows.push_back(r);
    block->difference = world_.NewDifference(rows, Up(0, 1) == 1);
  }

  AttentionWorld& world_;
  std::mt19937 rng_;
  std::vector<WorldSequence> donors_;
  uint32_t first_block_ = 0;
};

TEST(PagedAttention, RandomTablesWithSharingShiftsAndDifferencesMatchTheFormula) {
  for (uint32_t seed = 1; seed <= 24; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WorldShape shape = SmallShape(std::array{64u, 72u, 128u}[seed % 3], 8u << seed % 5,
                                  std::array{1u, 3u, 4u, 8u}[seed % 4], kKvTypes[seed / 2 % 3]);
    shape.rope.neox = seed % 2 == 0;
    shape.rope.num_rot = seed % 3 == 0 ? 32 : shape.kv.head_dim;
    const LayerParams first = {shape.scale(), shape.rope, seed % 5 == 0 ? 70u : 0u, 0};
    shape.layers = {first, first};
    shape.layers[1].window = seed % 2 == 0 ? 0 : 40 * seed;
    shape.layers[1].softcap = seed % 4 == 0 ? 4 : 0;
    AttentionWorld world(shape);
    RandomTables random(&world, seed);
    std::deque<WorldSequence> sequences(3);
    std::vector<Step> steps, asked;
    for (WorldSequence& sequence : sequences) {
      const uint32_t own = random.Compose(&sequence);
      const uint32_t size = static_cast<uint32_t>(sequence.tokens.size());
      for (uint32_t p = size - own; p < size; p++) steps.push_back({&sequence, p});
    }
    const Outputs outputs = world.Run(*world.Attention(), steps, 1 + seed % 3);
    // The naive answer is slow: every seventh row.
    Outputs some(outputs.size());
    for (size_t r = 0; r < steps.size(); r += 7) {
      asked.push_back(steps[r]);
      for (size_t layer = 0; layer < outputs.size(); layer++)
        some[layer].push_back(outputs[layer][r]);
    }
    ExpectFormula(world, asked, some);
    if (HasFatalFailure()) return;
  }
}

TEST(PagedAttention, RowsThatAreNotToBeWrittenStayAsTheyAre) {
  AttentionWorld world(SmallShape());
  const WorldSequence sequence = world.NewSequence(40, 1);
  const auto attention = world.Attention();
  world.Prefill(*attention, sequence, 0, 40, 40);
  WorldSequence other = sequence;
  other.tokens[20] = 777;  // its K and V would differ
  const std::byte* page = sequence.table.blocks[0].page;
  std::vector<std::byte> before(page, page + world.shape().kv.page_bytes());
  world.Run(*attention, {{&other, 20, false}});
  EXPECT_EQ(std::memcmp(before.data(), page, before.size()), 0);
  world.Run(*attention, {{&other, 20, true}});
  EXPECT_NE(std::memcmp(before.data(), page, before.size()), 0);
}

// One row of 8 dimensions in one layer and head, as it lies in the page.
using Eight = std::array<float, 8>;
struct StoredRow {
  Eight k, v;  // decoded
};
StoredRow WriteOneRow(KvType type, const Eight& x) {
  WorldShape shape = SmallShape(8, 8, 1, type);
  shape.kv.num_layers = shape.kv.num_kv_heads = 1;
  shape.rope.num_rot = 0;
  AttentionWorld world(shape);
  const WorldSequence sequence = world.NewSequence(1, 1);
  const auto attention = world.Attention();
  const SpanTable* table = &sequence.table;
  const BatchRow row;
  EXPECT_TRUE(attention->Prepare({&table, 1}, {&row, 1}, 1).ok());
  const std::vector<float> q(8, 1.0f);
  std::vector<float> q_out(8);
  attention->Write(0, q.data(), 8, x.data(), 8, x.data(), 8, q_out.data(), 8, 0, 1);
  const auto at = KvRowOf(shape.kv, sequence.table.blocks[0], 0, 0, 0);
  const auto decode = [&](const std::byte* element, const std::byte* scale) {
    uint16_t bits = 0;
    std::memcpy(&bits, scale ? scale : element, 2);
    if (type == KvType::kF16) return F16ToF32(bits);
    if (type == KvType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
    return static_cast<float>(static_cast<int8_t>(*element)) * F16ToF32(bits);
  };
  StoredRow stored;
  const uint32_t group = shape.kv.k_group();
  const size_t bytes = shape.kv.element_bytes();
  for (uint32_t d = 0; d < 8; d++) {
    stored.k[d] = decode(at.k + d / group * at.k_stride + d % group * bytes, at.k_scale);
    stored.v[d] = decode(at.v + d * bytes, at.v_scale);
  }
  return stored;
}

TEST(PagedAttention, WritesSaturateAndNeverLeaveNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (KvType type : kKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    const float largest = type == KvType::kBF16 ? 3.3895314e38f : 65504.0f;
    const StoredRow row = WriteOneRow(type, {inf, -inf, nan, 0, 1, -1, 1e38f, -1e38f});
    // Q8_0 holds one value in 127 of the largest.
    EXPECT_NEAR(row.k[0], largest, largest * 1e-3);
    EXPECT_EQ(row.k[1], -row.k[0]);
    EXPECT_EQ(row.k[2], 0);
    EXPECT_EQ(row.k[3], 0);
    EXPECT_EQ(row.k[4], type == KvType::kQ8_0 ? 0 : 1);
    EXPECT_NEAR(row.k[6], std::min(largest, 1e38f), largest * 1e-3);
    EXPECT_EQ(row.v, row.k);
  }
}

TEST(PagedAttention, WritesRoundToTheNearestValueOfTheType) {
  const Eight x = {1.0f, -0.3f, 0.011f, 127.0f, -126.4f, 3.14159f, 1e-3f, 0};
  const double relative[] = {0x1p-11, 0x1p-8, 0};
  for (KvType type : kKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    const StoredRow row = WriteOneRow(type, x);
    for (size_t d = 0; d < x.size(); d++) {
      const double bound =
          type == KvType::kQ8_0 ? 0.5001 : std::abs(x[d]) * relative[static_cast<size_t>(type)];
      EXPECT_NEAR(row.k[d], x[d], bound);
      EXPECT_EQ(row.v[d], row.k[d]);
    }
  }
  EXPECT_EQ(WriteOneRow(KvType::kQ8_0, {}).k, Eight());
}

TEST(PagedAttention, LargestScoresDoNotOverflow) {
  WorldShape shape = SmallShape(64, 32, 1);
  shape.kv.num_layers = shape.kv.num_kv_heads = 1;
  shape.rope.num_rot = 0;
  AttentionWorld world(shape);
  const WorldSequence sequence = world.NewSequence(2, 1);
  const auto attention = world.Attention();
  const SpanTable* table = &sequence.table;
  const BatchRow rows[] = {{0, 0}, {0, 1}};
  ASSERT_TRUE(attention->Prepare({&table, 1}, rows, 1).ok());
  std::vector<float> q(128, 1e4f), k(128, 6e4f), v(128, 2.0f), out(128);
  std::fill(k.begin() + 64, k.end(), -6e4f);
  std::fill(v.begin() + 64, v.end(), 3.0f);
  attention->Write(0, q.data(), 64, k.data(), 64, v.data(), 64, q.data(), 64, 0, 1);
  attention->Attend(0, q.data(), 64, out.data(), 64, 0, 1);
  EXPECT_EQ(out, std::vector<float>(128, 2.0f));
}

// ---- what is refused --------------------------------------------------------------------------

class PrepareRefuses : public testing::Test {
 protected:
  PrepareRefuses() : world_(SmallShape()), sequence_(world_.NewSequence(64, 1)) {
    attention_ = world_.Attention();
  }
  std::string Prepare(std::vector<BatchRow> rows, int threads = 1) {
    const SpanTable* table = &sequence_.table;
    const Status status = attention_->Prepare({&table, 1}, rows, threads);
    if (status.ok()) return "ok";
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  }
  Span& span() { return sequence_.table.spans[0]; }

  AttentionWorld world_;
  WorldSequence sequence_;
  std::unique_ptr<PagedAttention> attention_;
};

TEST_F(PrepareRefuses, RowsThatNothingCovers) {
  EXPECT_EQ(Prepare({{0, 63}}), "ok");
  EXPECT_THAT(Prepare({{0, 64}}), HasSubstr("position 64 is not covered: the spans end at 64"));
  EXPECT_THAT(Prepare({{1, 0}}), HasSubstr("row 0 is of sequence 1 of 1"));
  EXPECT_THAT(Prepare({{0, 0xffffffffu}}), HasSubstr("position 4294967295"));
  EXPECT_THAT(Prepare({{0, 5}, {0, 5}}), HasSubstr("two rows at position 5"));
  const SpanTable* none = nullptr;
  const BatchRow row;
  EXPECT_THAT(attention_->Prepare({&none, 1}, {&row, 1}, 1).message(), HasSubstr("no table"));
}

TEST_F(PrepareRefuses, SpansWithGaps) {
  sequence_.table.spans = {{0, 0, 32, 0, 0}, {1, 0, 32, 33, 0}};
  EXPECT_EQ(Prepare({{0, 31}}), "ok");  // what is not read does not matter
  EXPECT_THAT(Prepare({{0, 40}}), HasSubstr("span 1 starts at position 33 instead of 32"));
  sequence_.table.spans = {{0, 0, 64, 1, 0}};
  EXPECT_THAT(Prepare({{0, 40}}), HasSubstr("span 0 starts at position 1 instead of 0"));
}

TEST_F(PrepareRefuses, RowsOutsideTheirPages) {
  span().first_row = 1;
  EXPECT_EQ(Prepare({{0, 62}}), "ok");
  EXPECT_THAT(Prepare({{0, 63}}), HasSubstr("needs block 2 of 2"));
  span() = {0xffffffffu, 0xffffffffu, 64, 0, 0};
  EXPECT_THAT(Prepare({{0, 0}}), HasSubstr("needs block 4429185022 of 2"));
  span() = {0, 0, 64, 0, 0};
  sequence_.table.blocks[1].page = nullptr;
  EXPECT_EQ(Prepare({{0, 31}}), "ok");
  EXPECT_THAT(Prepare({{0, 32}}), HasSubstr("block 1 has no page"));
}

TEST_F(PrepareRefuses, RowsFromBeforePosition0) {
  span().shift = 1;
  EXPECT_THAT(Prepare({{0, 3}}), HasSubstr("shift 1"));
  span().shift = -1;
  EXPECT_EQ(Prepare({{0, 3}}), "ok");
}

TEST_F(PrepareRefuses, UnsoundDifferenceBlocks) {
  DifferenceView view = *world_.NewDifference({3, 5}, true);
  sequence_.table.blocks[0].difference = &view;
  EXPECT_EQ(Prepare({{0, 3}}), "ok");
  view.capacity = 1;
  EXPECT_THAT(Prepare({{0, 3}}), HasSubstr("slot 1 of layer 0"));
  view.capacity = 2;
  view.slot_stride = 31;
  EXPECT_THAT(Prepare({{0, 3}}), HasSubstr("slot stride 31"));
  view.slot_stride = 0;
  view.cells = nullptr;
  EXPECT_THAT(Prepare({{0, 3}}), HasSubstr("no cells"));
}

TEST_F(PrepareRefuses, MoreThreadsThanItHasScratchFor) {
  EXPECT_THAT(Prepare({{0, 3}}, 5), HasSubstr("1 to 4, not 5"));
  EXPECT_THAT(Prepare({{0, 3}}, 0), HasSubstr("not 0"));
}

std::string CreateError(const AttentionParams& params) {
  const auto result = PagedAttention::Create(params);
  return result.ok() ? "ok" : result.status().message();
}

TEST(PagedAttention, CreateRefusesShapesThatItCannotServe) {
  const AttentionParams good = SmallShape().Params();
  EXPECT_EQ(CreateError(good), "ok");
  AttentionParams bad = good;
  bad.shape.head_dim = 60;
  EXPECT_THAT(CreateError(bad), HasSubstr("not 60"));
  bad = good;
  bad.shape.tokens_per_block = 48;
  EXPECT_THAT(CreateError(bad), HasSubstr("not 48"));
  bad = good;
  bad.num_heads = 7;
  EXPECT_THAT(CreateError(bad), HasSubstr("num_heads = 7"));
  bad = good;
  bad.layers[0].rope.num_rot = 66;
  EXPECT_THAT(CreateError(bad), HasSubstr("not 66"));
  bad = good;
  bad.layers[0].rope.freq_factors.resize(5);
  EXPECT_THAT(CreateError(bad), HasSubstr("5 freq_factors"));
  bad = good;
  bad.layers[0].rope.ext_factor = 1;
  EXPECT_THAT(CreateError(bad), HasSubstr("orig_context"));
  bad = good;
  bad.layers[0].scale = 0;
  EXPECT_THAT(CreateError(bad), HasSubstr("scale"));
  bad = good;
  bad.layers[0].softcap = -1;
  EXPECT_THAT(CreateError(bad), HasSubstr("softcap must be 0 or positive, not -1"));
  bad = good;
  bad.layers.resize(3, bad.layers[0]);
  EXPECT_THAT(CreateError(bad), HasSubstr("parameters of 3 layers for 2"));
  bad = good;
  bad.shape.type = static_cast<KvType>(9);
  EXPECT_THAT(CreateError(bad), HasSubstr("KV type 9"));
}

TEST(PagedAttention, TheEnvironmentLowersTheInstructionSet) {
  const char* set = std::getenv("KVLINK_ISA");
  if (set != nullptr && std::string(set) == "avx2") {
    EXPECT_EQ(NumericPath(), "avx2");
  } else {
    EXPECT_EQ(NumericPath(), IsaName(CurrentIsa()));
    EXPECT_EQ(NumericPath(KvType::kBF16) != NumericPath(), HasBf16Dot(CurrentIsa()));
  }
  const std::string before = set ? set : "";
  setenv("KVLINK_ISA", "mmx", 1);
  EXPECT_THAT(CreateError(SmallShape().Params()), HasSubstr("'mmx' is none of"));
  setenv("KVLINK_ISA", before.c_str(), 1);
}

}  // namespace
}  // namespace kvlink::kernel
