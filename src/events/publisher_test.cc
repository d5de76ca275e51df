#include "events/publisher.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"

namespace kvlink::events {
namespace {

using Json = nlohmann::json;

uint64_t NumberOf(const std::string& bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

PublisherOptions OnAnyPort() {
  return {.endpoint = "tcp://127.0.0.1:*",
          .replay_endpoint = "tcp://127.0.0.1:*",
          .unix_time_s = [] { return 1000.0; }};
}

std::unique_ptr<Publisher> StartOne(PublisherOptions options = OnAnyPort()) {
  auto publisher = Publisher::Start(std::move(options));
  EXPECT_TRUE(publisher.ok()) << publisher.status().message();
  return std::move(publisher).value();
}

// A client's socket; receives whole messages, with the patience of a slow machine.
class Client {
 public:
  Client(int type, const std::string& endpoint)
      : context_(MakeZmqContext()), socket_(zmq_socket(context_.get(), type)) {
    const int linger_ms = 0;
    zmq_setsockopt(socket_.get(), ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_.get(), ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_.get(), endpoint.c_str()), 0);
  }
  bool HasMessage(std::chrono::milliseconds patience) {
    zmq_pollitem_t item{socket_.get(), 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, static_cast<long>(patience.count())) == 1;
  }
  std::vector<std::string> Receive() {
    EXPECT_TRUE(HasMessage(std::chrono::seconds(20)));
    return ReceiveFrames(socket_.get());
  }
  void Send(const std::vector<std::string_view>& frames) {
    EXPECT_TRUE(SendFrames(socket_.get(), frames));
  }

 private:
  ZmqContext context_;
  ZmqSocket socket_;
};

// All batches that the publisher still has from `first` on, by number.
std::map<uint64_t, Json> Replay(const Publisher& publisher, uint64_t first) {
  Client client(ZMQ_DEALER, publisher.replay_endpoint());
  std::string number(8, '\0');
  for (size_t i = 0; i < 8; ++i) number[i] = static_cast<char>(first >> (56 - 8 * i));
  client.Send({"", number});
  std::map<uint64_t, Json> batches;
  while (true) {
    const auto frames = client.Receive();
    EXPECT_EQ(frames.size(), 4u);
    if (frames.size() != 4 || NumberOf(frames[2]) == ~uint64_t{0}) return batches;
    batches[NumberOf(frames[2])] = Json::from_msgpack(frames[3]);
  }
}

void WaitForEvents(const Publisher& publisher, uint64_t events) {
  while (publisher.counts().events + publisher.counts().dropped < events) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

StoredBlock Block(uint64_t hash, const std::vector<TokenId>& tokens) {
  return {.hash = {hash, 0}, .tokens = tokens};
}

TEST(Publisher, StartsWithAllBlocksCleared) {
  const auto publisher = StartOne();
  WaitForEvents(*publisher, 1);
  const auto batches = Replay(*publisher, 0);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches.at(0)[1], Json::parse(R"([{"type": "AllBlocksCleared"}])"));
}

TEST(Publisher, TellsItsEndpointAsItWasGivenWithTheRealPort) {
  const auto publisher = StartOne();
  for (const std::string& endpoint : {publisher->endpoint(), publisher->replay_endpoint()}) {
    EXPECT_TRUE(endpoint.starts_with("tcp://127.0.0.1:")) << endpoint;
    EXPECT_GT(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)), 0) << endpoint;
  }
  EXPECT_NE(publisher->endpoint(), publisher->replay_endpoint());
  const std::string path = "ipc://" + ::testing::TempDir() + "kvlink-publisher-test";
  const auto local = Publisher::Start({.endpoint = path, .unix_time_s = [] { return 0.0; }});
  ASSERT_TRUE(local.ok());
  EXPECT_EQ((*local)->endpoint(), path);
}

TEST(Publisher, SendsWhatItHearsWithRisingNumbers) {
  const auto publisher = StartOne();
  Client client(ZMQ_SUB, publisher->endpoint());
  const std::vector<TokenId> tokens = {5, 6};
  // A subscription takes effect some time after it is made: say something until it is heard.
  while (!client.HasMessage(std::chrono::milliseconds(20))) publisher->Removed({1, 0});
  const auto first = client.Receive();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], "");
  publisher->Stored(Block(77, tokens));
  uint64_t last = NumberOf(first[1]);
  while (true) {
    const auto frames = client.Receive();
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(NumberOf(frames[1]), last + 1);
    last = NumberOf(frames[1]);
    const Json events = Json::from_msgpack(frames[2])[1];
    if (events.back()["type"] != "BlockStored") continue;
    EXPECT_EQ(events.back()["block_hashes"], Json::array({77}));
    EXPECT_EQ(events.back()["token_ids"], (Json{5, 6}));
    break;
  }
}

TEST(Publisher, ReplaysFromTheNumberThatIsAskedFor) {
  const auto publisher = StartOne();
  WaitForEvents(*publisher, 1);
  for (uint64_t i = 1; i <= 5; ++i) {
    publisher->Removed({i, 0});
    WaitForEvents(*publisher, i + 1);
  }
  const auto all = Replay(*publisher, 0);
  EXPECT_EQ(all.size(), 6u);
  const auto some = Replay(*publisher, 4);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some.begin()->first, 4u);
  EXPECT_EQ(some.at(5)[1][0]["block_hashes"], Json::array({5}));
  EXPECT_TRUE(Replay(*publisher, 6).empty());
  EXPECT_EQ(publisher->counts().replays, 3u);
}

TEST(Publisher, KeepsOnlySoManyBatchesForReplay) {
  PublisherOptions options = OnAnyPort();
  options.replay_batches = 3;
  const auto publisher = StartOne(std::move(options));
  for (uint64_t i = 1; i <= 10; ++i) {
    publisher->Removed({i, 0});
    WaitForEvents(*publisher, i + 1);
  }
  EXPECT_EQ(Replay(*publisher, 0).size(), 3u);
}

TEST(Publisher, IgnoresWhatIsNoReplayRequest) {
  const auto publisher = StartOne();
  Client client(ZMQ_DEALER, publisher->replay_endpoint());
  client.Send({"x"});
  client.Send({"", "123"});
  client.Send({"", "12345678", "more"});
  EXPECT_EQ(Replay(*publisher, ~uint64_t{0} - 1).size(), 0u);
}

// Many events through a small queue: what comes through is in order, and whatever was dropped
// shows as a number that is left out, which the replay does not have either.
TEST(Publisher, WhatIsDroppedIsAGapInTheNumbers) {
  PublisherOptions options = OnAnyPort();
  options.queue_events = 4;
  options.batch_events = 3;
  options.replay_batches = 1000000;
  const auto publisher = StartOne(std::move(options));
  constexpr uint64_t kEvents = 20000;
  for (uint64_t i = 1; i <= kEvents; ++i) publisher->Removed({i, 0});
  WaitForEvents(*publisher, kEvents + 1);
  publisher->Removed({kEvents + 1, 0});
  WaitForEvents(*publisher, kEvents + 2);
  uint64_t last_number = 0, last_event = 0, events = 0, lost = 0;
  for (const auto& [number, batch] : Replay(*publisher, 0)) {
    const bool is_gap = number > 0 && number != last_number + 1;
    bool is_first = true;
    for (const Json& event : batch[1]) {
      if (event["type"] == "AllBlocksCleared") {
        ++events;
        continue;
      }
      for (const Json& hash : event["block_hashes"]) {
        ++events;
        const bool is_lost = hash.get<uint64_t>() != last_event + 1;
        EXPECT_TRUE(!is_lost || (is_first && is_gap)) << hash;
        lost += hash.get<uint64_t>() - last_event - 1;
        last_event = hash.get<uint64_t>();
        is_first = false;
      }
    }
    last_number = number;
  }
  EXPECT_EQ(events, publisher->counts().events);
  EXPECT_EQ(lost, publisher->counts().dropped);
  EXPECT_GT(lost, 0u);
}

TEST(Publisher, SendsWhatIsQueuedBeforeItGoes) {
  auto publisher = StartOne();
  Client client(ZMQ_SUB, publisher->endpoint());
  while (!client.HasMessage(std::chrono::milliseconds(20))) publisher->Removed({1, 0});
  for (uint64_t i = 100; i < 1100; ++i) publisher->Removed({i, 0});
  publisher.reset();
  bool is_there = false;
  while (!is_there) {
    const auto frames = client.Receive();
    ASSERT_EQ(frames.size(), 3u);
    const Json last = Json::from_msgpack(frames[2])[1].back();
    is_there = last["type"] == "BlockRemoved" && last["block_hashes"].back() == 1099;
  }
}

TEST(Publisher, SaysWhichEndpointCannotBeBound) {
  const auto first = StartOne();
  PublisherOptions options = OnAnyPort();
  options.endpoint = first->endpoint();
  const auto taken = Publisher::Start(options);
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(first->endpoint()), std::string::npos);
  options.endpoint = "carrier-pigeon";
  EXPECT_EQ(Publisher::Start(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlink::events
