#include "server/event_inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvlink::server {
namespace {

engine::Event Token(TokenId token) {
  engine::Event event;
  event.kind = engine::Event::Kind::kToken;
  event.token.token = token;
  return event;
}

engine::Event Finished() {
  engine::Event event;
  event.kind = engine::Event::Kind::kFinished;
  return event;
}

TEST(EventInbox, WakesOnceUntilTaken) {
  int wakes = 0;
  EventInbox inbox(10, [&] { ++wakes; });
  inbox.Push(0, Token(1));
  inbox.Push(1, Token(2));
  EXPECT_EQ(wakes, 1);
  const auto items = inbox.Take();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].prompt, 1u);
  EXPECT_EQ(items[1].event.token.token, 2);
  inbox.Push(0, Token(3));
  EXPECT_EQ(wakes, 2);
}

TEST(EventInbox, DropsTokensBeyondItsCapacityButNeverAnEnd) {
  EventInbox inbox(2, [] {});
  for (TokenId i = 0; i < 5; ++i) inbox.Push(0, Token(i));
  EXPECT_TRUE(inbox.overflowed());
  inbox.Push(0, Finished());
  EXPECT_EQ(inbox.Take().size(), 3u);
}

TEST(EventInbox, IsSilentAfterClose) {
  int wakes = 0;
  EventInbox inbox(2, [&] { ++wakes; });
  inbox.Close();
  inbox.Push(0, Finished());
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(inbox.Take().empty());
}

TEST(EventInbox, LosesNothingBetweenThreads) {
  std::atomic<int> wakes{0};
  EventInbox inbox(1 << 20, [&] { ++wakes; });
  std::thread pusher([&] {
    for (TokenId i = 0; i < 20000; ++i) inbox.Push(0, Token(i));
    inbox.Push(0, Finished());
  });
  TokenId next = 0;
  for (bool ended = false; !ended;) {
    for (const auto& item : inbox.Take()) {
      if (item.event.kind == engine::Event::Kind::kFinished) {
        ended = true;
      } else {
        EXPECT_EQ(item.event.token.token, next++);
      }
    }
  }
  pusher.join();
  EXPECT_EQ(next, 20000);
  EXPECT_GT(wakes, 0);
}

}  // namespace
}  // namespace kvlink::server
