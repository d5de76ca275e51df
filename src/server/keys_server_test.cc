// Who may ask, and who shares with whom.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "server/reload_keys.h"
#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

using ::testing::ElementsAre;

class KeysServerTest : public ServerHarness {
 protected:
  KeysServerTest() { WriteKeys(); }
  void WriteKeys(const std::string& more = "") {
    WriteKeyFile("# made by the test\n" + KeyLine("key-a", "acme", R"(["inference"])") +
                 KeyLine("key-b", "acme", R"(["inference"])") +
                 KeyLine("key-c", "other", R"(["inference", "metrics"])") +
                 KeyLine("key-m", "ops", R"(["metrics"])") + more);
  }
  int Cached(const std::string& key, const std::string& salt = "") {
    const HttpReply reply =
        Post(kChat, ChatBody("a long shared prompt", {{"cache_salt", salt}}), key);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
};

TEST_F(KeysServerTest, WhoHasNoKeyLearnsNothing) {
  Start();
  for (const std::string key : {"", "key-z", "key-aa", "key"}) {
    const HttpReply reply = Post(kChat, ChatBody("hi"), key);
    EXPECT_EQ(reply.status, 401) << key;
    EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(Get("/v1/models").status, 401);
  EXPECT_EQ(Get("/no/such/path").status, 401);
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/v1/models", "key-a").status, 200);
}

TEST_F(KeysServerTest, ATenantHitsItsOwnBlocksAndNoOthers) {
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-b"), 0);  // the same tenant
  EXPECT_EQ(Cached("key-c"), 0);  // another
  EXPECT_GT(Cached("key-c"), 0);
}

TEST_F(KeysServerTest, ATenantSeesItsOwnRecentRequestsAndNoOthers) {
  Start();
  Post(kChat, ChatBody("HELLO"), "key-a");
  EXPECT_EQ(Get("/kvlink/requests").status, 401);
  EXPECT_EQ(Get("/kvlink/requests", "key-b").json()["data"].size(), 1u);
  EXPECT_EQ(Get("/kvlink/requests", "key-c").json()["data"].size(), 0u);
}

TEST_F(KeysServerTest, AClientsSaltOnlyNarrows) {
  Start();
  EXPECT_EQ(Cached("key-a", "s"), 0);
  EXPECT_GT(Cached("key-a", "s"), 0);
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-c", "s"), 0);  // the other tenant cannot name its way in
  EXPECT_EQ(Cached("key-c", "acme"), 0);
}

// What a miss may be told of: the tenant's own scopes, and never a group's that it has left.
TEST_F(KeysServerTest, ARequestNamesTheOtherScopesOfItsTenantAlone) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::vector<std::string>>> seen;
  const auto ask = [&](const std::string& settings) {
    WriteKeys(settings);
    Start();
    engine_->set_script([&](const engine::GenerationRequest& request, uint32_t) {
      const std::lock_guard lock(mutex);
      seen.emplace_back(request.ns.tenant, request.own_scopes);
      return "HELLO";
    });
    EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-a").status, 200);
    StopServer();
    const std::lock_guard lock(mutex);
    return seen.back();
  };
  using ::testing::Pair;
  EXPECT_THAT(ask(""), Pair("acme", ElementsAre("sensitive:acme")));
  EXPECT_THAT(ask(R"({"tenant": "acme", "sharing": "group", "group": "g"})"),
              Pair("group:g", ElementsAre("acme", "sensitive:acme")));
  EXPECT_THAT(ask(R"({"tenant": "acme", "sensitive": true})"),
              Pair("sensitive:acme", ElementsAre("acme")));
}

TEST_F(KeysServerTest, ARouteIsOpenToKeysWithItsRight) {
  Start();
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(Get("/metrics", "key-m").status, 200);
  const HttpReply reply = Get("/metrics", "key-a");
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(reply.json()["error"]["code"], "missing_right");
  EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find("\"metrics\""),
            std::string::npos);
  EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-m").status, 403);
}

TEST_F(KeysServerTest, TenantsOfAGroupShareBlocksAndSeeTheirOwnRequestsAlone) {
  WriteKeys(R"({"tenant": "acme", "sharing": "group", "group": "g"})"
            "\n"
            R"({"tenant": "other", "sharing": "group", "group": "g"})"
            "\n");
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-c"), 0);
  EXPECT_EQ(Get("/kvlink/requests", "key-c").json()["data"].size(), 1u);
}

TEST_F(KeysServerTest, ATenantThatSharesNothingHitsNothing) {
  WriteKeys(R"({"tenant": "acme", "sharing": "none"})"
            "\n");
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-c"), 0);
  EXPECT_GT(Cached("key-c"), 0);
}

TEST_F(KeysServerTest, KeysAreReadAgainAndABrokenFileKeepsTheOldOnes) {
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  WriteKeyFile("{\"name\": 1}\n");
  EXPECT_EQ(ReloadKeys(*server_).code(), StatusCode::kInvalidArgument);
  EXPECT_GT(Cached("key-a"), 0);
  WriteKeys(R"({"tenant": "acme", "sensitive": true})"
            "\n");
  EXPECT_TRUE(ReloadKeys(*server_).ok());
  EXPECT_EQ(Cached("key-a"), 0);  // a scope of its own
  EXPECT_GT(Cached("key-a"), 0);
}

TEST_F(KeysServerTest, ATenantBeyondItsLimitIsToldSoAndComesBackLater) {
  WriteKeys(R"({"tenant": "acme", "max_requests": 1})"
            "\n");
  Start();
  const HttpReply both = Post(kCompletions, {{"prompt", {"a", "b"}}, {"max_tokens", 1}}, "key-a");
  EXPECT_EQ(both.status, 400) << both.body;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-a").status, 200) << i;
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kChat, ChatBody("hi").dump(), "key-a"));
  ASSERT_TRUE(EventuallyWaiting(1));
  const HttpReply reply = Post(kChat, ChatBody("hi"), "key-b");
  EXPECT_EQ(reply.status, 429);
  EXPECT_GE(std::stoi(reply.headers.at("retry-after")), 1);
  EXPECT_EQ(reply.json()["error"]["code"], "tenant_max_requests");
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  engine_->Release();
}

}  // namespace
}  // namespace kvlink::server
