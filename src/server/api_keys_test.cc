#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlink::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// printf 'secret' | sha256sum
const char kSecretHash[] = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

std::string ErrorOf(const std::string& text) {
  const Result<ApiKeys> keys = ApiKeys::Parse(text, "keys.txt");
  return keys.ok() ? "taken" : keys.status().message();
}

std::string Key(const std::string& name, const std::string& hash, const std::string& tenant,
                const std::string& rights = R"(["inference"])") {
  return R"({"name": ")" + name + R"(", "hash": ")" + hash + R"(", "tenant": ")" + tenant +
         R"(", "rights": )" + rights + "}\n";
}

TEST(ApiKeys, AKeyIsFoundByItsHash) {
  const auto keys =
      ApiKeys::Parse("# comment\n\n  " + Key("alice", kSecretHash, "acme"), "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_NE(keys->Find("Bearer secret"), nullptr);
  EXPECT_EQ(keys->Find("bearer secret")->tenant, "acme");
  EXPECT_EQ(keys->Find("Bearer secret")->name, "alice");
}

TEST(ApiKeys, NothingElseIsFound) {
  const auto keys = ApiKeys::Parse(Key("alice", kSecretHash, "acme"), "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  for (const std::string& header :
       {std::string(), std::string("secret"), std::string("Bearer"), std::string("Bearer "),
        std::string("Basic secret"), std::string("Bearer secre"), std::string("Bearer secret2"),
        std::string("Bearer ") + kSecretHash}) {
    EXPECT_EQ(keys->Find(header), nullptr) << header;
  }
}

TEST(ApiKeys, AKeyHasTheRightsOfItsLineAndNoOthers) {
  const auto keys = ApiKeys::Parse(Key("a", kSecretHash, "t", R"(["metrics", "admin"])"), "k");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  const Rights rights = keys->Find("Bearer secret")->rights;
  EXPECT_TRUE(rights.Has(Right::kMetrics));
  EXPECT_TRUE(rights.Has(Right::kAdmin));
  EXPECT_FALSE(rights.Has(Right::kInference));
}

TEST(ApiKeys, BrokenFilesAreToldByLineAndWithoutTheKey) {
  const std::string zeros(64, '0');
  EXPECT_THAT(ErrorOf("alice\n"), AllOf(HasSubstr("keys.txt:1"), HasSubstr("JSON object")));
  EXPECT_THAT(ErrorOf("\n\n" + Key("alice", "my-plain-key", "acme")),
              AllOf(HasSubstr("keys.txt:3"), HasSubstr("SHA-256"), Not(HasSubstr("my-plain-key"))));
  EXPECT_THAT(ErrorOf(R"({"name": "a", "key": "my-plain-key"})"),
              AllOf(HasSubstr("\"key\" is not known"), Not(HasSubstr("my-plain-key"))));
  EXPECT_THAT(ErrorOf(Key("a", kSecretHash, "t:u")), HasSubstr("tenant: must be"));
  EXPECT_THAT(ErrorOf(Key("a", kSecretHash, "t", R"(["root"])")), HasSubstr("not \"root\""));
  EXPECT_THAT(ErrorOf(Key("a", kSecretHash, "t", "[]")), HasSubstr("rights: must be"));
  EXPECT_THAT(ErrorOf(Key("a", kSecretHash, "t") + Key("a", zeros, "t")),
              AllOf(HasSubstr("keys.txt:2"), HasSubstr("twice")));
  EXPECT_THAT(ErrorOf(Key("a", kSecretHash, "t") + Key("b", kSecretHash, "u")),
              HasSubstr("same key"));
  EXPECT_THAT(ErrorOf("# nothing\n"), HasSubstr("no key"));
  EXPECT_THAT(ErrorOf("{\"tenant\": \"acme\"}\n"), HasSubstr("no key"));
}

TEST(ApiKeys, ALineOfTheOldFormatIsShownAsItIsWrittenNow) {
  const std::string error = ErrorOf(std::string("alice ") + kSecretHash + " acme # hers\n");
  EXPECT_THAT(error, HasSubstr("keys.txt:1"));
  const std::string line = error.substr(error.find('{'));
  const auto keys = ApiKeys::Parse(line, "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->Find("Bearer secret")->tenant, "acme");
  EXPECT_THAT(ErrorOf("alice my-plain-key acme\n"), Not(HasSubstr("my-plain-key")));
}

TEST(ApiKeys, ALineWithoutANameDescribesATenant) {
  const auto keys = ApiKeys::Parse(
      Key("a", kSecretHash, "acme") +
          R"({"tenant": "acme", "sharing": "group", "group": "g", "max_requests": 8})" + "\n" +
          R"({"tenant": "clinic", "sensitive": true, "sharing": "none"})" + "\n",
      "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->num_tenants(), 2u);
  EXPECT_EQ(keys->SettingsOf("acme").sharing, TenantSharing::kGroup);
  EXPECT_EQ(keys->SettingsOf("acme").group, "g");
  EXPECT_EQ(keys->SettingsOf("acme").max_requests, 8u);
  EXPECT_TRUE(keys->SettingsOf("clinic").sensitive);
  EXPECT_EQ(keys->SettingsOf("clinic").sharing, TenantSharing::kNone);
  EXPECT_EQ(keys->SettingsOf("unknown").sharing, TenantSharing::kTenant);
}

TEST(ApiKeys, ATenantsLimitsAreRead) {
  const auto keys = ApiKeys::Parse(
      Key("a", kSecretHash, "acme") +
          R"({"tenant": "acme", "requests_per_minute": 600, "weight": 3, "cache_bytes": 1048576})"
          "\n",
      "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  const TenantSettings& settings = keys->SettingsOf("acme");
  EXPECT_EQ(settings.requests_per_minute, 600u);
  EXPECT_EQ(settings.weight, 3u);
  EXPECT_EQ(settings.cache_bytes, 1048576u);
  EXPECT_EQ(keys->SettingsOf("other").weight, 1u);
  EXPECT_EQ(keys->CacheQuotas(), (std::map<std::string, uint64_t>{{"acme", 1048576}}));
}

TEST(ApiKeys, AGroupHasOneWeightAndOneQuota) {
  const auto group = [](const std::string& tenant, const std::string& fields) {
    return R"({"tenant": ")" + tenant + R"(", "sharing": "group", "group": "g", )" + fields + "}\n";
  };
  const std::string key = Key("a", kSecretHash, "acme");
  const auto keys = ApiKeys::Parse(
      key + group("acme", R"("cache_bytes": 7)") + group("other", R"("cache_bytes": 7)"), "k");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->CacheQuotas(), (std::map<std::string, uint64_t>{{"group:g", 7}}));
  EXPECT_THAT(
      ErrorOf(key + group("acme", R"("cache_bytes": 7)") + group("other", R"("cache_bytes": 8)")),
      AllOf(HasSubstr("keys.txt:3"), HasSubstr("cache_bytes: is 8, but 7"), HasSubstr("\"g\"")));
  EXPECT_THAT(
      ErrorOf(key + group("acme", R"("weight": 2)") + group("other", R"("max_requests": 8)")),
      HasSubstr("weight: is 1, but 2"));
}

TEST(ApiKeys, SettingsThatMakeNoSenseAreToldWithTheirValue) {
  const auto error = [](const std::string& fields) {
    return ErrorOf(R"({"tenant": "acme", )" + fields + "}");
  };
  EXPECT_THAT(error(R"("sharing": "all")"), HasSubstr("not \"all\""));
  EXPECT_THAT(error(R"("sharing": "group")"), HasSubstr("group: is missing"));
  EXPECT_THAT(error(R"("group": "g")"), HasSubstr("needs \"sharing\""));
  EXPECT_THAT(error(R"("sharing": "group", "group": "g", "sensitive": true)"),
              HasSubstr("sensitive tenant"));
  EXPECT_THAT(error(R"("max_requests": 0)"), HasSubstr("not 0"));
  EXPECT_THAT(error(R"("max_requests": -1)"), HasSubstr("not -1"));
  EXPECT_THAT(error(R"("weight": 0)"), HasSubstr("weight: must be a whole number from 1 to 1000"));
  EXPECT_THAT(error(R"("requests_per_minute": 1.5)"), HasSubstr("not 1.5"));
  EXPECT_THAT(error(R"("cache_bytes": "1G")"), HasSubstr("not \"1G\""));
  EXPECT_THAT(error(R"("sensitive": "yes")"), HasSubstr("not \"yes\""));
  EXPECT_THAT(error(R"("quota": 1)"), HasSubstr("\"quota\" is not known"));
}

TEST(ApiKeys, ANewKeyIsFoundByItsLineAndNoTwoAreEqual) {
  const auto made = MakeApiKey("alice", "acme", {"inference", "metrics"});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->secret.size(), 4 + 64u);
  EXPECT_TRUE(made->secret.starts_with("kvl_"));
  EXPECT_THAT(made->line, Not(HasSubstr(made->secret.substr(4))));
  const auto keys = ApiKeys::Parse(made->line, "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_NE(keys->Find("Bearer " + made->secret), nullptr);
  EXPECT_FALSE(keys->Find("Bearer " + made->secret)->rights.Has(Right::kAdmin));
  EXPECT_NE(MakeApiKey("alice", "acme", {"inference"})->secret, made->secret);
  EXPECT_THAT(MakeApiKey("alice", "a:b", {"inference"}).status().message(),
              HasSubstr("--tenant: must be"));
}

}  // namespace
}  // namespace kvlink::server
