// Attention received: what the observer says rows attend to, against the naive softmax.
#include "kernel/attention_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kernel/attention_world.h"

namespace kvlink::kernel {
namespace {

using ::testing::HasSubstr;

// The last `observed` rows of the sequence, run as one batch behind all others.
std::vector<float> Received(const AttentionWorld& world, PagedAttention& attention,
                            const WorldSequence& sequence, uint32_t observed, int threads,
                            Outputs* outputs = nullptr) {
  const auto size = static_cast<uint32_t>(sequence.tokens.size());
  std::vector<Step> steps;
  for (uint32_t p = size - observed; p < size; p++) steps.push_back({&sequence, p});
  std::vector<float> received(size, 0.0f);
  const ObservedRows rows = {0, observed, received.data()};
  Outputs out = world.Run(attention, steps, threads, {&rows, 1});
  if (outputs != nullptr) *outputs = std::move(out);
  return received;
}

std::vector<double> Naive(const AttentionWorld& world, const WorldSequence& sequence,
                          uint32_t observed) {
  const auto size = static_cast<uint32_t>(sequence.tokens.size());
  const WorldShape& shape = world.shape();
  std::vector<double> received(size, 0.0);
  for (uint32_t layer = 0; layer < shape.kv.num_layers; layer++) {
    for (uint32_t p = size - observed; p < size; p++) {
      for (const auto& weights : world.ExpectedWeights({&sequence, p}, layer)) {
        for (size_t i = 0; i < weights.size(); i++) {
          received[i] += weights[i] / (shape.num_heads() * shape.kv.num_layers);
        }
      }
    }
  }
  return received;
}

class AttentionObserverTest : public ::testing::TestWithParam<KvType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionObserverTest, ::testing::ValuesIn(kKvTypes),
                         [](const auto& test) { return std::string(KvTypeName(test.param)); });

TEST_P(AttentionObserverTest, MeasuresTheSoftmaxOfTheObservedRows) {
  for (const uint32_t size : {9u, 40u, 256u, 300u, 700u}) {
    AttentionWorld world(SmallShape(64, 32, 3, GetParam()));
    const auto attention = world.Attention();
    const WorldSequence sequence = world.NewSequence(size, 1);
    world.Prefill(*attention, sequence, 0, size, 128);
    const std::vector<float> received = Received(world, *attention, sequence, 8, 1);
    const std::vector<double> expected = Naive(world, sequence, 8);
    const double tolerance = GetParam() == KvType::kF16 ? 2e-3 : 3e-2;
    for (uint32_t p = 0; p < size; p++) {
      ASSERT_NEAR(received[p], expected[p], tolerance) << "position " << p << " of " << size;
    }
    EXPECT_NEAR(std::accumulate(received.begin(), received.end(), 0.0), 8.0, 1e-3);
  }
}

TEST(AttentionObserver, SeesShiftedSpansWindowsAndCaps) {
  for (const uint32_t cap : {0u, 3u}) {
    AttentionWorld world(WindowedShape(100, 0, static_cast<float>(cap)));
    const auto attention = world.Attention();
    WorldSequence sequence = world.NewSequence(400, 1);
    // Rows 100 to 199 stand 7 positions further on than they were computed for.
    sequence.table.spans = {{0, 0, 100, 0, 0}, {3, 4, 100, 100, 7}, {6, 8, 200, 200, 0}};
    world.Prefill(*attention, sequence, 0, 400, 64);
    const std::vector<float> received = Received(world, *attention, sequence, 8, 1);
    const std::vector<double> expected = Naive(world, sequence, 8);
    for (uint32_t p = 0; p < 400; p++) ASSERT_NEAR(received[p], expected[p], 3e-3) << p;
  }
}

TEST(AttentionObserver, ChangesNeitherTheResultsNorWithTheThreads) {
  AttentionWorld world(SmallShape());
  const auto attention = world.Attention();
  const WorldSequence sequence = world.NewSequence(600, 1);
  world.Prefill(*attention, sequence, 0, 600, 128);
  std::vector<Step> steps;
  for (uint32_t p = 580; p < 600; p++) steps.push_back({&sequence, p});
  const Outputs expected = world.Run(*attention, steps);
  Outputs one, four;
  const std::vector<float> alone = Received(world, *attention, sequence, 20, 1, &one);
  const std::vector<float> together = Received(world, *attention, sequence, 20, 4, &four);
  ExpectSameBits(one, expected);
  ExpectSameBits(four, expected);
  ExpectSameBits(alone, together);
  // The batch after it observes nothing.
  ExpectSameBits(world.Run(*attention, steps), expected);
}

TEST(AttentionObserver, RefusesRowsThatAreNoRunOfOneSequence) {
  AttentionWorld world(SmallShape());
  const auto attention = world.Attention();
  const WorldSequence a = world.NewSequence(20, 1), b = world.NewSequence(20, 1);
  const SpanTable* tables[] = {&a.table, &b.table};
  const BatchRow rows[] = {{0, 1, true}, {0, 0, true}, {1, 0, true}};
  ASSERT_TRUE(attention->Prepare(tables, rows, 1).ok());
  std::vector<float> received(20);
  const auto refused = [&](ObservedRows observed) {
    return attention->Observe({&observed, 1}).message();
  };
  EXPECT_THAT(refused({0, 2, received.data()}), HasSubstr("not in order of position"));
  EXPECT_THAT(refused({1, 2, received.data()}), HasSubstr("several sequences"));
  EXPECT_THAT(refused({2, 2, received.data()}), HasSubstr("the batch has 3 rows"));
  EXPECT_THAT(refused({2, 0, received.data()}), HasSubstr("nothing to observe"));
  EXPECT_EQ(refused({2, 1, received.data()}), "");
}

}  // namespace
}  // namespace kvlink::kernel
