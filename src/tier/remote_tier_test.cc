// The remote tier on a real Redis that is well. See remote_fault_test.cc for one that is not.
#include "tier/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tier/cold_tier.h"
#include "tier/testing/redis_process.h"
#include "tier/tier_files.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<BlockTier> Open(const RemoteTierOptions& options) {
  Result<std::unique_ptr<BlockTier>> tier = OpenRemoteTier(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return std::move(*tier);
}

TEST(RemoteTier, AgreesWithANaiveMapOverRandomOperations) {
  const RedisProcess redis;
  std::unique_ptr<BlockTier> tier = Open(redis.options());
  CompareWithNaiveMap(tier, 1, 400, 100000, [&] { tier = Open(redis.options()); });
}

TEST(RemoteTier, MovesBatchesOfLargeBlocks) {
  const RedisProcess redis;
  const std::unique_ptr<BlockTier> tier = Open(redis.options());
  std::vector<std::string> values;
  std::vector<TierPut> puts;
  std::vector<BlockKey> keys;
  for (uint64_t n = 0; n < 12; ++n) values.push_back(RandomBytes(n, n * 400'000));
  for (uint64_t n = 0; n < 12; ++n) {
    keys.push_back(NumberedKey(n));
    puts.push_back({keys.back(), {}, 0, values[n]});
  }
  for (const TierAnswer& answer : tier->Put(puts, Soon())) EXPECT_EQ(answer.outcome, Outcome::kOk);
  const std::vector<TierAnswer> answers = tier->Get(keys, Soon());
  for (uint64_t n = 0; n < 12; ++n) EXPECT_EQ(answers[n].bytes, values[n]);
}

TEST(RemoteTier, BlocksExpireAndALoadRenewsTheirTime) {
  const RedisProcess redis;
  RemoteTierOptions options = redis.options();
  options.time_to_live = std::chrono::seconds(1000);
  const std::unique_ptr<BlockTier> tier = Open(options);
  const std::string name = "kvlink:1:" + HexOfKey(NumberedKey(1));
  PutOne(*tier, NumberedKey(1), "x");
  EXPECT_GT(redis.Run({"TTL", name}).integer, 900);
  redis.Run({"EXPIRE", name, "100"});
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).bytes, "x");
  EXPECT_GT(redis.Run({"TTL", name}).integer, 900);

  options.time_to_live = std::chrono::seconds(0);
  PutOne(*Open(options), NumberedKey(2), "x");
  EXPECT_EQ(redis.Run({"TTL", "kvlink:1:" + HexOfKey(NumberedKey(2))}).integer, -1);
}

TEST(RemoteTier, ListsItsOwnBlocksOnly) {
  const RedisProcess redis;
  redis.Run({"SET", "somebody's", "value"});
  redis.Run({"SET", "kvlink:1:short", "value"});
  const std::unique_ptr<BlockTier> tier = Open(redis.options());
  for (uint64_t n = 0; n < 2500; ++n) PutOne(*tier, NumberedKey(n), "xyz");
  uint64_t count = 0, bytes = 0;
  ASSERT_TRUE(tier->List([&](const TierEntry& entry) {
                    ++count;
                    bytes += entry.bytes;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(count, 2500u);
  EXPECT_EQ(bytes, 7500u);
}

TEST(RemoteTier, AFullRedisIsFullNotBroken) {
  const RedisProcess redis({.more = {"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"}});
  const std::unique_ptr<BlockTier> tier = Open(redis.options());
  const std::string value = RandomBytes(1, 1 << 20);
  ErrorReason reason = ErrorReason::kNone;
  for (uint64_t n = 0; n < 10; ++n) reason = PutOne(*tier, NumberedKey(n), value)[0].reason;
  EXPECT_EQ(reason, ErrorReason::kFull);
  EXPECT_EQ(GetOne(*tier, NumberedKey(0)).bytes, value);
  EXPECT_EQ(GetOne(*tier, NumberedKey(9)).outcome, Outcome::kMiss);
}

TEST(RemoteTier, AnEvictingRedisTakesAllAndWhatItEvictedIsAMiss) {
  const RedisProcess redis({.more = {"--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"}});
  const std::unique_ptr<BlockTier> tier = Open(redis.options());
  const std::string value = RandomBytes(1, 1 << 20);
  size_t hits = 0;
  for (uint64_t n = 0; n < 10; ++n) {
    EXPECT_EQ(PutOne(*tier, NumberedKey(n), value)[0].outcome, Outcome::kOk);
  }
  for (uint64_t n = 0; n < 10; ++n) {
    const TierAnswer answer = GetOne(*tier, NumberedKey(n));
    EXPECT_NE(answer.outcome, Outcome::kError);
    if (answer.outcome == Outcome::kOk) {
      ++hits;
      EXPECT_EQ(answer.bytes, value);
    }
  }
  EXPECT_LT(hits, 10u);
}

TEST(RemoteTier, ThePasswordIsUsedAndAWrongOneIsSaidWithoutShowingIt) {
  const RedisProcess redis({.password = "right-secret"});
  EXPECT_EQ(PutOne(*Open(redis.options()), NumberedKey(1), "x")[0].outcome, Outcome::kOk);
  RemoteTierOptions options = redis.options();
  for (const char* password : {"", "wrong-secret"}) {
    options.password = password;
    const std::unique_ptr<BlockTier> tier = Open(options);
    EXPECT_EQ(GetOne(*tier, NumberedKey(1)).reason, ErrorReason::kAuth);
    EXPECT_THAT(tier->LastError(), HasSubstr(*password == '\0' ? "NOAUTH" : "WRONGPASS"));
    EXPECT_THAT(tier->LastError(), Not(HasSubstr("secret")));
    EXPECT_FALSE(tier->Ping(Soon()).ok());
  }
  options.user = "default";
  options.password = "right-secret";
  EXPECT_EQ(GetOne(*Open(options), NumberedKey(1)).bytes, "x");
}

TEST(RemoteTier, APasswordThatTheServerDoesNotAskForIsSaid) {
  const RedisProcess redis;
  RemoteTierOptions options = redis.options();
  options.password = "secret";
  const std::unique_ptr<BlockTier> tier = Open(options);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).reason, ErrorReason::kAuth);
  EXPECT_THAT(tier->LastError(), HasSubstr("without any password configured"));
}

TEST(RemoteTier, SpeaksTlsWithAServerThatItTrusts) {
  const TempDirectory directory;
  const Certificate certificate(directory);
  const RedisProcess redis({.password = "secret", .certificate = &certificate});
  std::unique_ptr<BlockTier> tier = Open(redis.options());
  CompareWithNaiveMap(tier, 3, 100, 300000);
  RemoteTierOptions options = redis.options();
  options.endpoints[0].host = "localhost";
  EXPECT_TRUE(Open(options)->Ping(Soon()).ok());
}

TEST(RemoteTier, RefusesAServerThatItDoesNotTrust) {
  const TempDirectory directory;
  const Certificate certificate(directory), other(directory, "other");
  const RedisProcess redis({.certificate = &certificate});
  RemoteTierOptions options = redis.options();
  options.ca_file = other.certificate;
  std::unique_ptr<BlockTier> tier = Open(options);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).reason, ErrorReason::kTls);
  EXPECT_THAT(tier->LastError(), HasSubstr("TLS handshake failed: self-signed certificate"));

  options = redis.options();
  options.tls_server_name = "elsewhere.example";
  tier = Open(options);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).reason, ErrorReason::kTls);
  EXPECT_THAT(tier->LastError(), HasSubstr("hostname mismatch"));
}

TEST(RemoteTier, TlsAgainstAPlainServerAndTheReverseAreErrors) {
  const TempDirectory directory;
  const Certificate certificate(directory);
  const RedisProcess plain;
  RemoteTierOptions options = plain.options();
  options.tls = true;
  options.ca_file = certificate.certificate;
  std::unique_ptr<BlockTier> tier = Open(options);
  const TierAnswer answer = GetOne(*tier, NumberedKey(1));
  EXPECT_EQ(answer.outcome, Outcome::kError);
  EXPECT_THAT(tier->LastError(), HasSubstr("TLS"));

  const RedisProcess encrypted({.certificate = &certificate});
  options = encrypted.options();
  options.tls = false;
  EXPECT_EQ(GetOne(*Open(options), NumberedKey(1)).outcome, Outcome::kError);

  options.tls = true;
  options.ca_file = directory / "none";
  const auto opened = OpenRemoteTier(options);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("no certificate authorities in"));
}

TEST(RemoteTier, WhatAServerLoadsFromItsDiskOthersFindInRedis) {
  constexpr uint64_t kBlocks = 10;
  const RedisProcess redis;
  const TempDirectory directory;
  const auto open_cold = [&] {
    auto cold = OpenColdTier(
        {.directory = directory / "store", .budget_bytes = kMinColdBudget, .min_free_bytes = 0});
    EXPECT_TRUE(cold.ok()) << cold.status().ToString();
    return std::move(*cold);
  };
  const auto start_server = [&](bool with_disk) {
    std::vector<std::unique_ptr<BlockTier>> tiers;
    if (with_disk) tiers.push_back(open_cold());
    tiers.push_back(Open(redis.options()));
    return TierStore::Create({.model_fingerprint = "model"}, std::move(tiers));
  };
  const auto load_all = [](TierStore& store) {
    uint64_t loaded = 0;
    for (uint64_t n = 0; n < kBlocks; ++n) {
      const NumberedBlock block(n);
      const Want want{block.put.name, {}};
      const auto ticket = store.Load({&want, 1}, Soon(), {});
      EXPECT_TRUE(ticket->WaitUntil(Soon()));
      loaded += ticket->TakeResult(0).payload == block.payload ? 1 : 0;
    }
    EXPECT_TRUE(store.Drain(Soon()));
    return loaded;
  };
  {
    const auto cold = open_cold();  // when there was no Redis
    for (uint64_t n = 0; n < kBlocks; ++n) {
      PutOne(*cold, NumberedKey(n), NumberedBlock(n).Encoded());
    }
  }
  EXPECT_EQ(load_all(*start_server(/*with_disk=*/true)), kBlocks);
  EXPECT_EQ(redis.Run({"DBSIZE"}).integer, static_cast<int64_t>(kBlocks));
  EXPECT_EQ(load_all(*start_server(/*with_disk=*/false)), kBlocks);
  // And a server that comes back writes nothing twice.
  const auto again = start_server(/*with_disk=*/true);
  EXPECT_EQ(load_all(*again), kBlocks);
  EXPECT_EQ(again->Stats(0).hits, kBlocks);
  EXPECT_EQ(again->Stats(1).stored, 0u);
}

TEST(RemoteTier, SeveralHostsThatAreNoClusterAreRefused) {
  const RedisProcess a, b;
  RemoteTierOptions options = a.options();
  options.endpoints.push_back(b.endpoint());
  const std::unique_ptr<BlockTier> tier = Open(options);
  EXPECT_EQ(GetOne(*tier, NumberedKey(1)).reason, ErrorReason::kProtocol);
  EXPECT_THAT(tier->LastError(), HasSubstr("not a cluster node"));
}

}  // namespace
}  // namespace kvlink::tier
