#include "server/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace kvlink::server {
namespace {

const LogFields kFields = {{"request_id", "4f0c"}, {"status", int64_t{200}}, {"ms", 12.34}};

TEST(Log, TextIsTheMessageAndNamedValues) {
  EXPECT_EQ(LogLine(LogFormat::kText, "answered", kFields),
            "answered request_id=4f0c status=200 ms=12.3");
}

TEST(Log, TextQuotesWhatCouldBeTakenForSomethingElse) {
  EXPECT_EQ(LogLine(LogFormat::kText, "m", {{"a", ""}, {"b", "x y"}, {"c", "n\nlevel=info"}}),
            R"(m a="" b="x y" c="n\nlevel=info")");
}

TEST(Log, JsonKeepsTheTypesOfItsFields) {
  const auto json =
      nlohmann::json::parse("{" + LogLine(LogFormat::kJson, "a \"b\"", kFields) + "}");
  EXPECT_EQ(json,
            (nlohmann::json{
                {"message", "a \"b\""}, {"request_id", "4f0c"}, {"status", 200}, {"ms", 12.3}}));
}

TEST(Log, JsonStaysJsonWhateverBytesCome) {
  const std::string line = "{" + LogLine(LogFormat::kJson, "\xff\n", {{"a", "\"\x01\xc3"}}) + "}";
  EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Log, AFileOfJsonHasAnObjectALineWithTimeAndLevel) {
  const std::string dir = testing::TempDir() + "kvlink_log_" + std::to_string(getpid());
  {
    auto log = Log::Create(dir, /*to_stderr=*/false, LogFormat::kJson);
    ASSERT_TRUE(log.ok()) << log.status().message();
    (*log)->Note("one", kFields);
    (*log)->Warning("two");
  }
  std::ifstream file(dir + "/kvlink.log");
  std::string first, second, rest;
  ASSERT_TRUE(std::getline(file, first) && std::getline(file, second));
  EXPECT_FALSE(std::getline(file, rest));
  const auto one = nlohmann::json::parse(first), two = nlohmann::json::parse(second);
  EXPECT_EQ(one["level"], "info");
  EXPECT_EQ(one["message"], "one");
  EXPECT_EQ(two["level"], "warning");
  // 2026-11-30T01:02:03.456+00:00
  EXPECT_EQ(one["time"].get<std::string>().size(), 29u) << one;
  EXPECT_EQ(one["time"].get<std::string>()[10], 'T');
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace kvlink::server
