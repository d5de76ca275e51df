#include "cli/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <vector>

namespace kvlink::cli {
namespace {

using testing::HasSubstr;

// A `kvlink` with two subcommands; tests write a file and run a command line against it.
class ConfigFileTest : public testing::Test {
 protected:
  ConfigFileTest() {
    serve_ = app_.add_subcommand("serve");
    serve_->add_option("--port", port_)->check(CLI::Range(0, 65535));
    serve_->add_option("--kv-memory", kv_memory_);
    serve_->add_option("--ratio", ratio_);
    serve_->add_flag("--verbose", verbose_);
    serve_->add_option("--names", names_);
    serve_->add_option("--config", config_);
    CLI::App* bench = app_.add_subcommand("bench");
    bench->add_option("--rounds", rounds_);
    bench->add_option("--config", config_);
    app_.add_subcommand("version");
    path_ = testing::TempDir() + "kvlink_config_" + std::to_string(getpid()) + ".toml";
  }
  ~ConfigFileTest() override { std::remove(path_.c_str()); }

  Status Run(const std::string& toml, const std::string& command_line = "") {
    std::ofstream(path_) << toml;
    app_.parse("serve " + command_line, false);
    return ApplyConfigFile(path_, *serve_);
  }

  CLI::App app_;
  CLI::App* serve_;
  std::string path_, kv_memory_ = "1G", config_;
  int port_ = 8080, rounds_ = 0;
  double ratio_ = 0;
  bool verbose_ = false;
  std::vector<std::string> names_;
};

TEST_F(ConfigFileTest, EveryKindOfValueReachesItsOption) {
  const Status status = Run(
      "port = 9000\nkv_memory = \"4GiB\"\nratio = 0.25\nverbose = true\nnames = [\"a\", \"b\"]\n");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 9000);
  EXPECT_EQ(kv_memory_, "4GiB");
  EXPECT_EQ(ratio_, 0.25);
  EXPECT_TRUE(verbose_);
  EXPECT_EQ(names_, (std::vector<std::string>{"a", "b"}));
}

TEST_F(ConfigFileTest, TheCommandLineWins) {
  const Status status = Run("port = 9000\nratio = 0.5\n", "--port 7000");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 7000);
  EXPECT_EQ(ratio_, 0.5);
}

TEST_F(ConfigFileTest, ATableOfThisSubcommandHoldsAndOthersAreLeft) {
  const Status status = Run("[serve]\nport = 9000\n[bench]\nrounds = 1\n");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 9000);
  EXPECT_EQ(rounds_, 0);
}

TEST_F(ConfigFileTest, AnUnknownKeyIsNamedWithFileAndLine) {
  const Status status = Run("port = 1\nporrt = 2\n");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(path_ + ":2: unknown key 'porrt'"));
}

TEST_F(ConfigFileTest, AnUnknownKeyInsideTheTableIsNamedToo) {
  const Status status = Run("[serve]\n\nporrt = 2\n");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(":3: unknown key 'porrt'"));
}

TEST_F(ConfigFileTest, AnUnknownKeyOfAnotherSubcommandIsNoticed) {
  EXPECT_THAT(
      Run("[bench]\n\nruonds = 1\n").message(),
      HasSubstr(path_ + ":3: unknown key 'ruonds' for kvlink bench; did you mean 'rounds'?"));
}

TEST_F(ConfigFileTest, ATableOutranksWhatHoldsForAll) {
  // Whichever comes first in the file, or in the alphabet.
  const Status status = Run("port = 1\nverbose = true\n[serve]\nport = 2\nverbose = false\n");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 2);
  EXPECT_FALSE(verbose_);
}

TEST_F(ConfigFileTest, WhatWasProbablyMeantIsSuggested) {
  EXPECT_THAT(Run("kv_memroy = \"1G\"\n").message(), HasSubstr("did you mean 'kv-memory'?"));
  EXPECT_THAT(Run("something_else = 1\n").message(), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(Run("[sevre]\nport = 1\n").message(), HasSubstr("did you mean 'serve'?"));
}

TEST_F(ConfigFileTest, ASubcommandWithoutAFileHasNoTable) {
  EXPECT_THAT(Run("[version]\n").message(), HasSubstr(":1: [version] is no subcommand"));
}

TEST_F(ConfigFileTest, AnUnknownTableIsNamed) {
  const Status status = Run("[server]\nport = 2\n");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(":1: [server] is no subcommand"));
}

TEST_F(ConfigFileTest, AValueOutOfRangeIsNamedWithKeyAndValue) {
  const Status status = Run("port = 70000\n");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(":1: key 'port' has the value '70000'"));
}

TEST_F(ConfigFileTest, AValueOfTheWrongKindIsNamed) {
  EXPECT_THAT(Run("port = \"many\"\n").message(), HasSubstr("key 'port' has the value 'many'"));
  EXPECT_THAT(Run("port = 2026-01-01\n").message(), HasSubstr("key 'port' must be a string"));
}

TEST_F(ConfigFileTest, BrokenTomlIsReportedWithItsLine) {
  const Status status = Run("port = 1\nratio = = 2\n");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(path_ + ":2: "));
}

TEST_F(ConfigFileTest, AMissingFileIsNamed) {
  app_.parse("serve", false);
  const Status status = ApplyConfigFile("/no/such/file.toml", *serve_);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("--config: cannot read '/no/such/file.toml'"));
}

TEST_F(ConfigFileTest, TheFileCannotNameAnotherFile) {
  EXPECT_THAT(Run("config = \"other.toml\"\n").message(), HasSubstr("unknown key 'config'"));
}

TEST_F(ConfigFileTest, AnEmptyFileSaysNothingAndAFolderIsNoFile) {
  EXPECT_TRUE(Run("").ok());
  EXPECT_EQ(port_, 8080);
  const std::string folder = testing::TempDir();
  const Status status = ApplyConfigFile(folder, *serve_);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("cannot read '" + folder + "'"));
}

}  // namespace
}  // namespace kvlink::cli
