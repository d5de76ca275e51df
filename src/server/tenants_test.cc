#include "server/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace kvlink::server {
namespace {

using ::testing::HasSubstr;

TEST(Scope, NoTwoKindsOfTenantShareOne) {
  const TenantSettings own, group{TenantSharing::kGroup, "acme", false, 0},
      sensitive{TenantSharing::kTenant, "", true, 0};
  EXPECT_EQ(ScopeOf("acme", own), "acme");
  EXPECT_EQ(ScopeOf("a", group), ScopeOf("b", group));
  EXPECT_NE(ScopeOf("a", group), "acme");
  EXPECT_NE(ScopeOf("acme", sensitive), "acme");
  for (const std::string& scope : {ScopeOf("a", group), ScopeOf("acme", sensitive)}) {
    EXPECT_FALSE(IsTenantName(scope)) << scope << " could be a tenant's name";
  }
}

TEST(Scope, OnlyBlocksOfSensitiveTenantsStayInRam) {
  EXPECT_TRUE(MayLeaveRam({"acme", ""}));
  EXPECT_TRUE(MayLeaveRam({ScopeOf("a", {TenantSharing::kGroup, "sensitive", false, 0}), "salt"}));
  EXPECT_FALSE(MayLeaveRam({ScopeOf("acme", {TenantSharing::kTenant, "", true, 0}), ""}));
  EXPECT_FALSE(MayLeaveRam({ScopeOf("acme", {TenantSharing::kNone, "", true, 0}), "salt"}));
  // Nobody would look for them in a tier.
  EXPECT_FALSE(MayLeaveRam(TextScopeOf({"acme", "salt"})));
}

TEST(Scope, NamesAreShortAndPlain) {
  for (const std::string name : {"a", "A-1_b.c"}) EXPECT_TRUE(IsTenantName(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("a:b"), std::string("a b"), std::string("\xc3\xa9"),
        std::string("a\0b", 3), std::string(65, 'a')}) {
    EXPECT_FALSE(IsTenantName(name)) << name;
  }
}

const ApiError* ErrorOf(const std::variant<TenantGate::Place, ApiError>& answer) {
  return std::get_if<ApiError>(&answer);
}

TEST(TenantGate, ATenantsOwnLimitIsToldWithItsFigures) {
  TenantGate gate(100);
  TenantSettings two;
  two.max_requests = 2;
  auto first = gate.Enter("acme", two, 1, false);
  auto second = gate.Enter("acme", two, 1, false);
  const auto third = gate.Enter("acme", two, 1, false);
  ASSERT_NE(ErrorOf(third), nullptr);
  EXPECT_EQ(ErrorOf(third)->status, 429);
  EXPECT_EQ(ErrorOf(third)->code, "tenant_max_requests");
  EXPECT_THAT(ErrorOf(third)->message, HasSubstr("has 2 requests in flight"));
  EXPECT_EQ(ErrorOf(gate.Enter("other", two, 1, false)), nullptr);
  first = TenantGate::Place();
  EXPECT_EQ(ErrorOf(gate.Enter("acme", two, 1, false)), nullptr);
}

TEST(TenantGate, WhatCanNeverFitIsNotToBeTriedAgain) {
  TenantGate gate(100);
  TenantSettings two;
  two.max_requests = 2;
  const auto answer = gate.Enter("acme", two, 3, false);
  ASSERT_NE(ErrorOf(answer), nullptr);
  EXPECT_EQ(ErrorOf(answer)->status, 400);
  EXPECT_EQ(gate.in_flight("acme"), 0u);
}

TEST(TenantGate, AFloodOfOneTenantLeavesRoomForAnother) {
  TenantGate gate(100);
  std::vector<std::variant<TenantGate::Place, ApiError>> held;
  while (true) {
    auto answer = gate.Enter("flood", {}, 1, true);
    if (ErrorOf(answer) != nullptr) {
      EXPECT_EQ(ErrorOf(answer)->code, "tenant_share");
      break;
    }
    held.push_back(std::move(answer));
    ASSERT_LE(held.size(), 100u);
  }
  EXPECT_EQ(gate.in_flight("flood"), 50u);
  for (int i = 0; i < 25; ++i) {
    held.push_back(gate.Enter("quiet", {}, 1, true));
    EXPECT_EQ(ErrorOf(held.back()), nullptr) << i;
  }
  // A tenant that is alone is held up by nobody but the engine.
  TenantGate alone(100);
  EXPECT_EQ(ErrorOf(alone.Enter("flood", {}, 100, false)), nullptr);
}

TEST(TenantGate, AMinutesAllowanceFillsUpWithTime) {
  base::FakeClock clock;
  TenantGate gate(1000, clock.clock());
  TenantSettings settings;
  settings.requests_per_minute = 60;
  const auto ask = [&](uint32_t prompts) { return gate.Enter("acme", settings, prompts, false); };
  EXPECT_EQ(ErrorOf(ask(50)), nullptr);
  EXPECT_EQ(ErrorOf(ask(10)), nullptr);
  const auto refused = ask(5);
  ASSERT_NE(ErrorOf(refused), nullptr);
  EXPECT_EQ(ErrorOf(refused)->status, 429);
  EXPECT_EQ(ErrorOf(refused)->code, "tenant_requests_per_minute");
  EXPECT_EQ(ErrorOf(refused)->retry_after_s, 5);
  EXPECT_EQ(ErrorOf(gate.Enter("other", settings, 60, false)), nullptr);
  clock.Advance(std::chrono::seconds(5));
  EXPECT_EQ(ErrorOf(ask(5)), nullptr);
  EXPECT_NE(ErrorOf(ask(1)), nullptr);
  clock.Advance(std::chrono::hours(5));  // no more than a minute's is saved up
  EXPECT_EQ(ErrorOf(ask(60)), nullptr);
  EXPECT_NE(ErrorOf(ask(1)), nullptr);
  EXPECT_EQ(ErrorOf(ask(61))->status, 400);
}

TEST(TenantGate, WhoIsRefusedComesBackAsFastAsItsRequestsAreServed) {
  base::FakeClock clock;
  TenantGate gate(100, clock.clock());
  TenantSettings two;
  two.max_requests = 2;
  for (int i = 0; i < 20; ++i) {
    gate.Served("slow", 1);
    clock.Advance(std::chrono::seconds(10));
    gate.Served("fast", 10);
  }
  const auto slow = gate.Enter("slow", two, 2, false), fast = gate.Enter("fast", two, 2, false);
  const auto slow_refused = gate.Enter("slow", two, 1, false);
  const auto fast_refused = gate.Enter("fast", two, 1, false);
  ASSERT_NE(ErrorOf(slow_refused), nullptr);
  ASSERT_NE(ErrorOf(fast_refused), nullptr);
  EXPECT_NEAR(ErrorOf(slow_refused)->retry_after_s, 11, 1);
  EXPECT_LE(ErrorOf(fast_refused)->retry_after_s, 2);
}

TEST(TenantGate, CountsWhatANaiveModelCounts) {
  base::Random random(7);
  TenantGate gate(40);
  struct Held {
    std::string tenant;
    uint32_t prompts;
    TenantGate::Place place;
  };
  std::vector<Held> held;
  std::map<std::string, size_t> model;
  size_t total = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string tenant(1, static_cast<char>('a' + random.Below(4)));
    TenantSettings settings;
    settings.max_requests = tenant == "a" ? 5 : 0;
    if (random.OneIn(2) || held.empty()) {
      const auto prompts = static_cast<uint32_t>(1 + random.Below(4));
      auto answer = gate.Enter(tenant, settings, prompts, true);
      const bool fits = model[tenant] + prompts <= 40 - total &&
                        (settings.max_requests == 0 || model[tenant] + prompts <= 5);
      ASSERT_EQ(ErrorOf(answer) == nullptr, fits) << i;
      if (fits) {
        held.push_back({tenant, prompts, std::get<TenantGate::Place>(std::move(answer))});
        model[tenant] += prompts;
        total += prompts;
      } else {
        ++refused;
      }
    } else {
      const size_t at = random.Below(held.size());
      std::swap(held[at], held.back());
      model[held.back().tenant] -= held.back().prompts;
      total -= held.back().prompts;
      held.pop_back();
    }
    ASSERT_EQ(gate.in_flight(tenant), model[tenant]) << i;
  }
  EXPECT_GT(refused, 100u);
  held.clear();
  for (const auto& [tenant, count] : model) EXPECT_EQ(gate.in_flight(tenant), 0u);
}

}  // namespace
}  // namespace kvlink::server
