#include "tier/load_ticket.h"

#include <gtest/gtest.h>

#include <thread>

#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

const BlockKey kModel = base::Hash128("model");

struct Ticket {
  explicit Ticket(size_t count, bool with_targets = true) {
    std::vector<Want> wants;
    for (size_t n = 0; n < count; ++n) {
      blocks.push_back(std::make_unique<NumberedBlock>(n));
      targets.emplace_back(1000, std::byte{0xee});
    }
    for (size_t n = 0; n < count; ++n) {
      wants.push_back({blocks[n]->put.name,
                       with_targets ? std::span<std::byte>(targets[n]) : std::span<std::byte>()});
    }
    ticket = std::make_shared<LoadTicket>(wants, Soon(), [this] { ++callbacks; });
  }
  bool Accept(size_t i, const std::string& bytes) {
    BlockHeader header;
    if (!ticket->Fill(i, bytes, kModel, &header, &error)) return false;
    ticket->Succeed(i, 1, header.valid_rows);
    return true;
  }
  bool TargetHolds(size_t i) const {
    return std::ranges::equal(targets[i], std::as_bytes(std::span(blocks[i]->payload)));
  }
  std::vector<std::unique_ptr<NumberedBlock>> blocks;
  std::vector<std::vector<std::byte>> targets;
  std::atomic<int> callbacks{0};
  std::shared_ptr<LoadTicket> ticket;
  DecodeError error;
};

TEST(LoadTicket, EndsWhenEveryWantHasEnded) {
  Ticket t(3);
  EXPECT_TRUE(t.Accept(1, t.blocks[1]->Encoded()));
  EXPECT_EQ(t.ticket->num_leading(), 0u);
  EXPECT_TRUE(t.Accept(0, t.blocks[0]->Encoded()));
  EXPECT_EQ(t.ticket->num_leading(), 2u);
  EXPECT_FALSE(t.ticket->Done());
  EXPECT_EQ(t.callbacks, 0);
  t.ticket->Fail(2, 0, Outcome::kMiss, ErrorReason::kNone);
  EXPECT_TRUE(t.ticket->Done());
  EXPECT_TRUE(t.ticket->WaitUntil(In(std::chrono::milliseconds(0))));
  EXPECT_EQ(t.callbacks, 1);
  EXPECT_TRUE(t.TargetHolds(0));
  EXPECT_TRUE(t.TargetHolds(1));
  EXPECT_EQ(t.ticket->result(1).tier, 1u);
  EXPECT_EQ(t.ticket->result(1).valid_rows, 3u);
  EXPECT_EQ(t.ticket->result(2).outcome, Outcome::kMiss);
}

TEST(LoadTicket, GivesThePayloadWhereThereIsNoTarget) {
  Ticket t(1, /*with_targets=*/false);
  EXPECT_TRUE(t.Accept(0, t.blocks[0]->Encoded()));
  EXPECT_EQ(t.ticket->TakeResult(0).payload, t.blocks[0]->payload);
}

TEST(LoadTicket, AnErrorOfOneTierIsReportedWhenTheNextMisses) {
  Ticket t(1);
  t.ticket->NoteError(0, 0, ErrorReason::kCorrupt);
  EXPECT_TRUE(t.ticket->result(0).pending);
  t.ticket->Fail(0, 1, Outcome::kMiss, ErrorReason::kNone);
  EXPECT_EQ(t.ticket->result(0).outcome, Outcome::kError);
  EXPECT_EQ(t.ticket->result(0).reason, ErrorReason::kCorrupt);
  EXPECT_EQ(t.ticket->result(0).tier, 0u);
}

TEST(LoadTicket, RefusesAnotherBlockAndAnotherSize) {
  Ticket t(2);
  EXPECT_FALSE(t.Accept(0, t.blocks[1]->Encoded()));
  EXPECT_EQ(t.error.reason, ErrorReason::kForeign);
  EXPECT_FALSE(t.Accept(0, NumberedBlock(0, 999).Encoded()));
  EXPECT_EQ(t.error.reason, ErrorReason::kForeign);
  EXPECT_TRUE(t.ticket->result(0).pending);
  EXPECT_EQ(t.targets[0][0], std::byte{0xee});
}

TEST(LoadTicket, NothingIsWrittenAfterCancel) {
  Ticket t(2);
  EXPECT_TRUE(t.Accept(0, t.blocks[0]->Encoded()));
  t.ticket->Cancel();
  EXPECT_TRUE(t.ticket->Done());
  EXPECT_TRUE(t.Accept(1, t.blocks[1]->Encoded()));
  EXPECT_EQ(t.targets[1][0], std::byte{0xee});
  t.ticket->Fail(1, 0, Outcome::kError, ErrorReason::kIo);
  EXPECT_EQ(t.callbacks, 0);
  EXPECT_TRUE(t.ticket->result(0).loaded());
  EXPECT_EQ(t.ticket->result(1).outcome, Outcome::kMiss);
}

// A thread accepts while another cancels and takes the targets back: ThreadSanitizer watches.
TEST(LoadTicket, CancelGivesTheTargetsBack) {
  for (int round = 0; round < 200; ++round) {
    Ticket t(4);
    std::thread loader([&t] {
      for (size_t i = 0; i < 4; ++i) t.Accept(i, t.blocks[i]->Encoded());
    });
    if (round % 3 != 0) t.ticket->WaitUntil(In(std::chrono::milliseconds(round % 2)));
    t.ticket->Cancel();
    for (auto& target : t.targets) std::ranges::fill(target, std::byte{1});
    loader.join();
    for (const auto& target : t.targets) EXPECT_EQ(target[0], std::byte{1});
    EXPECT_LE(t.callbacks, 1);
  }
}

}  // namespace
}  // namespace kvlink::tier
