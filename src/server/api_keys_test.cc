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

TEST(ApiKeys, AKeyIsFoundByItsHash) {
  const auto keys = ApiKeys::Parse(
      std::string("# comment\n\n  alice ") + kSecretHash + " acme # hers\n", "keys.txt");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_NE(keys->Find("Bearer secret"), nullptr);
  EXPECT_EQ(keys->Find("bearer secret")->tenant, "acme");
  EXPECT_EQ(keys->Find("Bearer secret")->name, "alice");
}

TEST(ApiKeys, NothingElseIsFound) {
  const auto keys = ApiKeys::Parse(std::string("alice ") + kSecretHash + " acme\n", "keys.txt");
  for (const std::string& header :
       {std::string(), std::string("secret"), std::string("Bearer"), std::string("Bearer "),
        std::string("Basic secret"), std::string("Bearer secre"), std::string("Bearer secret2"),
        std::string("Bearer ") + kSecretHash}) {
    EXPECT_EQ(keys->Find(header), nullptr) << header;
  }
}

TEST(ApiKeys, BrokenFilesAreToldByLineAndWithoutTheKey) {
  EXPECT_THAT(ErrorOf("alice\n"), HasSubstr("keys.txt:1"));
  EXPECT_THAT(ErrorOf("\n\nalice my-plain-key acme\n"),
              AllOf(HasSubstr("keys.txt:3"), HasSubstr("SHA-256"), Not(HasSubstr("my-plain-key"))));
  EXPECT_THAT(ErrorOf(std::string("a ") + kSecretHash + " t x\n"), HasSubstr("keys.txt:1"));
  EXPECT_THAT(ErrorOf(std::string("a ") + kSecretHash + " t\na " + std::string(64, '0') + " t\n"),
              AllOf(HasSubstr("keys.txt:2"), HasSubstr("twice")));
  EXPECT_THAT(ErrorOf(std::string("a ") + kSecretHash + " t\nb " + kSecretHash + " u\n"),
              HasSubstr("same key"));
  EXPECT_THAT(ErrorOf("# nothing\n"), HasSubstr("no key"));
}

}  // namespace
}  // namespace kvlink::server
