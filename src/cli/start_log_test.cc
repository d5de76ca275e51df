#include "cli/start_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvlink::cli {
namespace {

using Json = nlohmann::json;

bool Wants(std::vector<const char*> words) {
  words.insert(words.begin(), "kvlink");
  return WantsJsonLog(static_cast<int>(words.size()), words.data());
}

class StartLogTest : public testing::Test {
 protected:
  StartLogTest() {
    path_ = testing::TempDir() + "kvlink_start_log_" + std::to_string(getpid()) + ".toml";
    serve_ = app_.add_subcommand("serve");
    serve_->add_option("--port", port_)->capture_default_str();
    serve_->add_option("--kv-memory", kv_memory_);
    serve_->add_option("--remote", remote_);
  }
  ~StartLogTest() override { std::remove(path_.c_str()); }

  bool WantsByFile(const std::string& toml) {
    std::ofstream(path_) << toml;
    return Wants({"serve", "--config", path_.c_str()});
  }
  // "option=value" of a message.
  std::string Named(const std::string& message) const {
    const auto named = OptionIn(*serve_, message);
    return named ? named->name + "=" + named->value : "none";
  }
  template <typename Say>
  Json Said(Say say) const {
    testing::internal::CaptureStderr();
    say(StartLog(/*json=*/true, serve_));
    return Json::parse(testing::internal::GetCapturedStderr());
  }

  CLI::App app_;
  CLI::App* serve_;
  std::string path_, kv_memory_, remote_;
  int port_ = 8080;
};

TEST_F(StartLogTest, JsonLinesAreWantedByAnOptionOfServe) {
  EXPECT_TRUE(Wants({"serve", "--log-format", "json"}));
  EXPECT_TRUE(Wants({"serve", "--port", "x", "--log-format=json", "--nonsense"}));
  EXPECT_FALSE(Wants({"serve", "--log-format", "text"}));
  EXPECT_FALSE(Wants({"serve"}));
  EXPECT_FALSE(Wants({"serve", "--log-format"}));
  EXPECT_FALSE(Wants({"bench", "--log-format", "json"}));
  EXPECT_FALSE(Wants({}));
}

TEST_F(StartLogTest, JsonLinesAreWantedByTheFileOfOptions) {
  EXPECT_TRUE(WantsByFile("[serve]\nport = \"wrong\"\nlog_format = \"json\"\n"));
  EXPECT_TRUE(WantsByFile("log-format = \"json\"\n[bench]\nlog-format = \"text\"\n"));
  EXPECT_FALSE(WantsByFile("log-format = \"json\"\n[serve]\nlog-format = \"text\"\n"));
  EXPECT_FALSE(WantsByFile("[bench]\nlog-format = \"json\"\n"));
  EXPECT_FALSE(WantsByFile("log-format = 5\n"));
  EXPECT_FALSE(WantsByFile("this is no TOML"));
  EXPECT_FALSE(Wants({"serve", "--config", "/no/such/file"}));
  // The command line wins.
  std::ofstream(path_) << "log-format = \"json\"\n";
  EXPECT_FALSE(Wants({"serve", "--config", path_.c_str(), "--log-format", "text"}));
}

TEST_F(StartLogTest, AMessagesOptionIsFoundWithItsValue) {
  app_.parse("serve --kv-memory 4K", false);
  EXPECT_EQ(Named("--kv-memory: '4K' holds less than two blocks"), "--kv-memory=4K");
  EXPECT_EQ(Named("--port: cannot listen on x"), "--port=8080") << "the default";
  EXPECT_EQ(Named("kvlink.toml:2: key 'kv_memory' has the value '4K': too small"),
            "--kv-memory=4K");
  EXPECT_EQ(Named("kvlink.toml:2: unknown key 'porrt' for kvlink serve (kvlink serve --help)"),
            "--porrt=");
  EXPECT_EQ(Named("--kv-memory: x.gguf: no key 'general.name'"), "--kv-memory=4K");
  EXPECT_EQ(Named("The following argument was not expected: --porrt"), "--porrt=");
  EXPECT_EQ(Named("it is a-b--c, and 5 -- 3"), "none");
  EXPECT_EQ(Named("out of memory"), "none");
}

TEST_F(StartLogTest, AUrlIsShownWithoutItsPassword) {
  app_.parse("serve --remote redis://me:se@cret@host:1", false);
  EXPECT_EQ(Named("--remote: has no port"), "--remote=redis://host:1");
}

TEST_F(StartLogTest, WhatShouldBeAUrlIsShownWithoutItsPasswordToo) {
  app_.parse("serve --remote me:secret@host", false);
  EXPECT_EQ(Named("--remote: no URL"), "--remote=host");
}

TEST_F(StartLogTest, ALineOfTheJsonLogHasLevelMessageOptionAndValue) {
  app_.parse("serve --kv-memory 4K", false);
  const Json error = Said([](const StartLog& log) {
    EXPECT_EQ(log.Fail(Status(StatusCode::kInvalidArgument, "--kv-memory: is \"4K\"")), 2);
  });
  EXPECT_EQ(error["level"], "error");
  EXPECT_EQ(error["message"], "--kv-memory: is \"4K\"");
  EXPECT_EQ(error["option"], "--kv-memory");
  EXPECT_EQ(error["value"], "4K");
  EXPECT_TRUE(error.contains("time"));
  const Json note = Said([](const StartLog& log) { log.Note("stopped"); });
  EXPECT_EQ(note["level"], "info");
  EXPECT_FALSE(note.contains("option"));
  const Json detail = Said([](const StartLog& log) { log.ErrorDetail("from f: --port (line 1)"); });
  EXPECT_FALSE(detail.contains("option")) << "it says where values came from, not what is wrong";
}

TEST_F(StartLogTest, PeopleReadText) {
  testing::internal::CaptureStderr();
  const StartLog log(/*json=*/false, serve_);
  log.Warning("--port: odd");
  EXPECT_EQ(log.Fail(Status(StatusCode::kUnavailable, "no peer")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "kvlink: warning: --port: odd\nkvlink: no peer\n");
}

}  // namespace
}  // namespace kvlink::cli
