// What the server refuses, whom it cuts off, and who makes room: connections, tenants, memory.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/reload_keys.h"
#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class LimitsServerTest : public ServerHarness {
 protected:
  // "key-acme" and "key-other" of the tenants acme and other, and `settings`.
  void WriteKeys(const std::string& settings) {
    const std::string rights = Json(rights_).dump();
    WriteKeyFile(KeyLine("key-acme", "acme", rights) + KeyLine("key-other", "other", rights) +
                 settings + "\n");
  }
  HttpReply Chat(const std::string& key = "") { return Post(kChat, ChatBody("hi"), key); }

  std::vector<std::string> rights_ = {"inference", "metrics"};
};

// --- connections ---

TEST_F(LimitsServerTest, WhenAllConnectionsAreTakenTheLongestIdleOneMakesRoom) {
  options_.limits.max_connections = 3;
  options_.threads = 1;  // whose answer was read first is idle first
  Start();
  engine_->Hold();
  HttpClient busy(port()), first(port()), second(port());
  busy.Send(ChatText("hi"));
  ASSERT_TRUE(EventuallyWaiting(1));
  EXPECT_EQ(first.Get("/health").status, 200);
  EXPECT_EQ(second.Get("/health").status, 200);
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_TRUE(first.AtEnd());
  EXPECT_EQ(second.Get("/health").status, 200);
  engine_->Release();
  EXPECT_EQ(busy.Read().status, 200);
  EXPECT_GE(Metric("kvlink_http_connections_made_room_total"), 1);
  EXPECT_EQ(Metric("kvlink_http_connections_refused_total"), 0);
}

TEST_F(LimitsServerTest, SilentConnectionsKeepNobodyOut) {
  options_.limits.max_connections = 20;
  options_.threads = 1;
  Start();
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<HttpClient>(port()));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Eventually([&] { return Chat().status == 200; })) << i;
  EXPECT_GT(Metric("kvlink_http_connections_made_room_total"), 50);
}

TEST_F(LimitsServerTest, AReaderThatTakesTooLittleIsCutOffAlthoughItNeverStops) {
  options_.limits.write_timeout = milliseconds(500);
  options_.limits.min_write_bytes = size_t{64} << 20;  // more than there is
  Start();
  constexpr size_t kTokens = 2 << 20;  // each at least two bytes of the answer
  HttpClient slow(port());
  slow.ShrinkReceiveBuffer();
  slow.Send(
      HttpClient::PostText("/tokenize", Json({{"prompt", std::string(kTokens, 'X')}}).dump()));
  size_t taken = 0;
  while (const size_t more = slow.Skip(1024)) {
    taken += more;
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_GT(taken, 0u);
  EXPECT_LT(taken, 2 * kTokens);
}

TEST_F(LimitsServerTest, BodiesOnTheirWayHoldNoMoreThanTheirLimitTogether) {
  options_.limits.max_incoming_bytes = 3 * kMiB;
  Start();
  const auto head = [](size_t bytes) {
    return "POST " + std::string(kChat) +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  };
  HttpClient one(port()), two(port());
  for (HttpClient* client : {&one, &two}) {
    client->Send(head(2 * kMiB) + std::string(2 * kMiB - 1, ' '));
  }
  // Whichever is read first has room; the other has not.
  std::atomic<int> refused{0};
  std::thread first([&] { refused += one.Read().status == 503; });
  std::thread second([&] { refused += two.Read().status == 503; });
  EXPECT_TRUE(Eventually([&] { return refused == 1; }));
  EXPECT_EQ(Chat().status, 200);  // small ones still pass
  server_->Stop();
  server_->Stop();
  first.join();
  second.join();
  EXPECT_EQ(refused, 1);
}

TEST_F(LimitsServerTest, ASlowSenderIsCounted) {
  options_.limits.request_timeout = milliseconds(50);
  Start();
  HttpClient client(port());
  client.Send("POST /v1/chat/completions HTTP/1.1\r\n");
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_EQ(Metric("kvlink_http_slow_senders_total"), 1);
}

TEST_F(LimitsServerTest, LargeRequestsLeaveAThreadForSmallOnes) {
  options_.threads = 2;
  std::mutex mutex;
  std::condition_variable opened;
  int inside = 0;
  bool open = false;
  model_.fake_tokenizer().set_on_encode([&](std::string_view text) {
    if (text.size() < (64u << 10)) return;
    std::unique_lock lock(mutex);
    ++inside;
    opened.wait(lock, [&] { return open; });
  });
  const auto num_inside = [&] {
    const std::lock_guard lock(mutex);
    return inside;
  };
  Start();
  const std::string large =
      HttpClient::PostText("/tokenize", Json({{"prompt", std::string(100000, 'X')}}).dump());
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->Send(large);
  }
  clients.push_back(std::make_unique<HttpClient>(port()));  // goes while it waits
  clients.back()->Send(large);
  EXPECT_TRUE(Eventually([&] { return num_inside() == 1; }));
  clients.back()->Reset();
  clients.pop_back();
  // Would wait for ever if a second large one had the other thread.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(num_inside(), 1);
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  opened.notify_all();
  for (const auto& client : clients) EXPECT_EQ(client->Read().status, 200);
}

TEST_F(LimitsServerTest, WhatMustBeTooLongIsRefusedBeforeItIsTokenised) {
  std::atomic<size_t> most{0};
  model_.fake_tokenizer().set_on_encode([&](std::string_view text) {
    if (text.size() > most) most = text.size();
  });
  Start();
  const std::string text(kMiB, 'X');
  const Json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  const std::vector<std::pair<std::string, Json>> requests = {
      {"/v1/completions", {{"prompt", text}}},
      {kChat, chat},
      {"/v1/responses", {{"input", text}}},
      {"/kvlink/warm", {{"prompt", {"short", text}}}}};
  for (const auto& [path, body] : requests) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded") << path;
    EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr("has at least "));
  }
  EXPECT_LT(most, 1000u);
  // What templates may trim or leave out says nothing: here nothing is trimmed, and it is counted.
  const Json padded = {{"messages", {{{"role", "user"}, {"content", std::string(kMiB, ' ')}}}}};
  const HttpReply counted = Post(kChat, padded);
  EXPECT_EQ(counted.status, 400);
  EXPECT_THAT(counted.json()["error"]["message"].get<std::string>(),
              ::testing::Not(HasSubstr("has at least ")));
  EXPECT_GT(most, kMiB);
}

// --- tenants ---

TEST_F(LimitsServerTest, ATenantThatSharesNothingIsToldThatNothingStays) {
  rights_ = {"inference", "admin"};
  WriteKeys(R"({"tenant": "acme", "sharing": "none"})");
  Start();
  for (const char* path : {"/kvlink/warm", "/kvlink/pin"}) {
    HttpClient client(port());
    const HttpReply refused = client.Post(path, ChatBody("hi"), "key-acme");
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_THAT(refused.body, HasSubstr("tenant_shares_nothing")) << path;
  }
  HttpClient client(port());
  EXPECT_EQ(client.Post("/kvlink/warm", ChatBody("hi"), "key-other").status, 200);
}

TEST_F(LimitsServerTest, ATenantThatUsedUpItsMinuteIsToldWhenToComeBack) {
  WriteKeys(R"({"tenant": "acme", "requests_per_minute": 2})");
  Start();
  EXPECT_EQ(Chat("key-acme").status, 200);
  EXPECT_EQ(Chat("key-acme").status, 200);
  const HttpReply reply = Chat("key-acme");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.json()["error"]["code"], "tenant_requests_per_minute");
  const int wait = std::stoi(reply.headers.at("retry-after"));
  EXPECT_GT(wait, 1);
  EXPECT_LE(wait, 30);
  EXPECT_EQ(Chat("key-other").status, 200);
}

TEST_F(LimitsServerTest, RetryAfterFollowsHowFastRequestsAreServed) {
  // A clock that stands unless it is told to move: each answer takes half a minute.
  const auto now = std::make_shared<std::atomic<int64_t>>(1000);
  engine_options_.clock = [now] {
    return std::chrono::steady_clock::time_point(std::chrono::seconds(now->load()));
  };
  engine_options_.max_queue = 1;
  Start();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Chat().status, 200);
    *now += 30;
  }
  engine_->set_refusal({StatusCode::kResourceExhausted, "the queue is full"});
  const HttpReply reply = Chat();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.json()["error"]["code"], "queue_full");
  EXPECT_NEAR(std::stoi(reply.headers.at("retry-after")), 34, 6);
  EXPECT_NEAR(std::stoi(Chat().headers.at("retry-after")), 67, 12);  // behind the first
}

TEST_F(LimitsServerTest, TheCacheIsToldTheQuotasOfTheFileAndOfTheNextOne) {
  WriteKeys(R"({"tenant": "acme", "cache_bytes": 1000000})"
            "\n"
            R"({"tenant": "other", "sharing": "group", "group": "g", "cache_bytes": 7000000})");
  Start();
  EXPECT_THAT(engine_->fake_cache().quotas(),
              ElementsAre(Pair("acme", 1000000), Pair("group:g", 7000000)));
  WriteKeys(R"({"tenant": "acme", "cache_bytes": 2000000})");
  ASSERT_TRUE(ReloadKeys(*server_).ok());
  EXPECT_THAT(engine_->fake_cache().quotas(),
              ElementsAre(Pair("acme", 2000000), Pair("group:g", 0)));
}

TEST_F(LimitsServerTest, APromptBeyondTheQuotaOfItsTenantHasTheCodeOfThat) {
  WriteKeys(R"({"tenant": "acme", "cache_bytes": 1})");
  Start();
  engine_->set_refusal({StatusCode::kInvalidArgument, "the quota of its tenant holds 1 token"});
  const HttpReply reply = Chat("key-acme");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "kv_memory_exceeded");
}

TEST_F(LimitsServerTest, RequestsCarryTheWeightAndTheQuotaOfTheirTenant) {
  WriteKeys(R"({"tenant": "acme", "weight": 5, "cache_bytes": 1000000000})");
  Start();
  std::atomic<uint32_t> weight{0}, tokens{0};
  engine_->set_script([&](const engine::GenerationRequest& request, uint32_t) {
    weight = request.weight;
    tokens = request.max_kv_tokens;
    return std::string("ok");
  });
  EXPECT_EQ(Chat("key-acme").status, 200);
  EXPECT_EQ(weight, 5u);
  const KvShape& shape = engine_->cache().shape();
  EXPECT_EQ(tokens, 1000000000 / shape.page_bytes() * shape.tokens_per_block);
  EXPECT_EQ(Chat("key-other").status, 200);
  EXPECT_EQ(weight, 1u);
  EXPECT_EQ(tokens, 0u);
}

// --- memory ---

TEST_F(LimitsServerTest, ShortOfMemoryNewRequestsAreRefusedUntilThereIsMore) {
  const auto available = std::make_shared<std::atomic<uint64_t>>(1000 * kMiB);
  options_.memory = {.reserve_bytes = 100 * kMiB,
                     .step_bytes = kMiB,
                     .period = milliseconds(1),
                     .available = [available] { return available->load(); }};
  Start();
  EXPECT_EQ(Chat().status, 200);
  *available = 40 * kMiB;
  ASSERT_TRUE(Eventually([&] { return Chat().status == 503; }));
  const HttpReply reply = Chat();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["error"]["code"], "memory_pressure");
  EXPECT_GE(std::stoi(reply.headers.at("retry-after")), 1);
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(),
              HasSubstr(std::to_string(40 * kMiB) + " bytes are available"));
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_GE(Metric("kvlink_memory_refusals_total"), 2);
  EXPECT_GE(Metric("kvlink_memory_shortages_total"), 1);
  EXPECT_EQ(Metric("kvlink_memory_available_bytes"), static_cast<double>(40 * kMiB));
  *available = 1000 * kMiB;
  EXPECT_TRUE(Eventually([&] { return Chat().status == 200; }));
}

}  // namespace
}  // namespace kvlink::server
