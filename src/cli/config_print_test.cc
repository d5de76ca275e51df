#include "cli/config_print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/command_shape.h"
#include "cli/config_file.h"

namespace kvlink::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;
using Adder = Command (*)(CLI::App&);

// A command line with one subcommand, as main() has it.
class CommandLine {
 public:
  explicit CommandLine(Adder add) : command_(add(app_)) {}
  CLI::App& app() { return *command_.app; }
  const CLI::App& app() const { return *command_.app; }
  // Empty: it was taken.
  std::string Parse(Words words) {
    words.insert(words.begin(), command_.app->get_name());
    std::reverse(words.begin(), words.end());  // as CLI11 takes vectors
    try {
      app_.parse(words);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

 private:
  CLI::App app_;
  Command command_;
};

// A value that is not the option's default and that it takes; empty: none was found.
std::string OtherValue(Adder add, const CLI::Option& option) {
  const OptionShape shape = ShapeOf(option);
  Words candidates = {"a \"quoted\" \\ [x] #y\t\u00e9", "0.375", "17", "3G", "5999"};
  if (shape.kind == OptionKind::kNumber) candidates = {"17", "0.375", "300", "1"};
  candidates.insert(candidates.begin(), shape.choices.rbegin(), shape.choices.rend());
  for (const std::string& candidate : candidates) {
    if (candidate == shape.default_text) continue;
    CommandLine line(add);
    if (line.Parse({shape.names.front(), candidate}).empty()) return candidate;
  }
  return "";
}

class ConfigPrintTest : public testing::TestWithParam<Adder> {
 protected:
  ConfigPrintTest()
      : path_(testing::TempDir() + "kvlink_print_" + std::to_string(getpid()) + ".toml") {}
  ~ConfigPrintTest() override { std::remove(path_.c_str()); }

  // What a fresh command line prints that was given this file alone.
  std::string ReadBack(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    CommandLine line(GetParam());
    EXPECT_EQ(line.Parse({}), "");
    const Status status = ApplyConfigFile(path_, line.app());
    EXPECT_TRUE(status.ok()) << status.message();
    return ConfigText(line.app());
  }

  const std::string path_;
};

TEST_P(ConfigPrintTest, EveryOptionSurvivesTheWayThroughAFile) {
  CommandLine defaults(GetParam());
  ASSERT_EQ(defaults.Parse({}), "");
  size_t options = 0;
  for (const CLI::Option* option : ConfigurableOptions(std::as_const(defaults).app())) {
    const std::string name = "--" + option->get_lnames().front();
    CommandLine line(GetParam());
    const bool flag = ShapeOf(*option).kind == OptionKind::kFlag;
    const std::string value = flag ? "true" : OtherValue(GetParam(), *option);
    ASSERT_FALSE(value.empty()) << name << ": no value to try is taken";
    ASSERT_EQ(line.Parse(flag ? Words{name} : Words{name, value}), "") << name;
    const std::string text = ConfigText(line.app());
    EXPECT_NE(text, ConfigText(defaults.app())) << name << " does not show";
    EXPECT_EQ(ReadBack(text), text) << name;
    CommandLine again(GetParam());
    ASSERT_EQ(again.Parse({}), "");
    ASSERT_TRUE(ApplyConfigFile(path_, again.app()).ok()) << name;
    EXPECT_EQ(EffectiveValues(*again.app().get_option(name)), Words{value}) << name;
    ++options;
  }
  EXPECT_GE(options, 10u);
}

TEST_P(ConfigPrintTest, AllOptionsAtOnceSurviveToo) {
  CommandLine defaults(GetParam());
  ASSERT_EQ(defaults.Parse({}), "");
  Words words;
  for (const CLI::Option* option : ConfigurableOptions(std::as_const(defaults).app())) {
    words.push_back("--" + option->get_lnames().front());
    if (ShapeOf(*option).kind == OptionKind::kFlag) continue;
    words.push_back(OtherValue(GetParam(), *option));
  }
  CommandLine line(GetParam());
  ASSERT_EQ(line.Parse(words), "");
  const std::string text = ConfigText(line.app());
  EXPECT_EQ(ReadBack(text), text);
}

TEST_P(ConfigPrintTest, TheDefaultsAreAFileThatChangesNothing) {
  CommandLine line(GetParam());
  ASSERT_EQ(line.Parse({}), "");
  const std::string text = ConfigText(line.app());
  EXPECT_THAT(text, testing::StartsWith("[" + line.app().get_name() + "]\n"));
  EXPECT_EQ(ReadBack(text), text);
}

std::string NameOf(const testing::TestParamInfo<Adder>& info) {
  CLI::App app;
  return info.param(app).app->get_name();
}

INSTANTIATE_TEST_SUITE_P(Commands, ConfigPrintTest,
                         testing::Values(&AddServe, &AddRun, &AddChat, &AddBench, &AddCalibrate,
                                         &AddDoctor),
                         NameOf);

TEST(ConfigPrint, ValuesHaveTheirTypes) {
  CLI::App app("", "serve");
  int port = 8080;
  double share = 0.25;
  std::string dir;
  std::vector<std::string> names;
  bool quiet = false;
  app.add_option("--port", port, "Port")->capture_default_str();
  app.add_option("--share", share, "Share")->capture_default_str();
  app.add_option("--dir", dir, "Folder")->type_name("DIR");
  app.add_option("--names", names, "Names")->delimiter(',');
  app.add_flag("--quiet", quiet, "No log");
  app.parse(Words{"C:\\x", "--dir", "a,b", "--names"});  // backwards, as CLI11 takes it
  EXPECT_EQ(ConfigText(app),
            "[serve]\n# Port\nport = 8080\n\n# Share\nshare = 0.25\n\n# Folder\n"
            "dir = \"C:\\\\x\"\n\n# Names\nnames = [\"a\", \"b\"]\n\n# No log\nquiet = false\n\n");
}

TEST(ConfigPrint, WhatTheMachineDecidesIsAComment) {
  CommandLine line(&AddServe);
  ASSERT_EQ(line.Parse({}), "");
  const std::string text = ConfigText(line.app());
  EXPECT_THAT(text, HasSubstr("\n# model = FILE\n"));
  EXPECT_THAT(text, HasSubstr("\n# threads = N\n"));
  EXPECT_THAT(text, HasSubstr("\nport = 8080\n"));
  EXPECT_THAT(text, HasSubstr("\nsharing = \"exact\"\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("config")));
}

}  // namespace
}  // namespace kvlink::cli
