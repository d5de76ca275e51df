#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/man.h"

namespace kvlink::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A `kvlink` with a subcommand of each kind.
class ShapeTest : public testing::Test {
 protected:
  ShapeTest() : app_("Shares blocks") {
    CLI::App* serve = app_.add_subcommand("serve", "Serve a model; for ever");
    serve->add_option("--model,-m", text_, "It's a file")->type_name("FILE");
    serve->add_option("--dir", text_, "A folder")->type_name("DIR");
    serve->add_option("--port", port_, "Where")->check(CLI::Range(0, 65535))->capture_default_str();
    serve->add_option("--sharing", text_, "What")->check(CLI::IsMember({"off", "exact"}));
    serve->add_option("--modes", list_, "Which")
        ->delimiter(',')
        ->check(CLI::IsMember({"off", "on"}));
    serve->add_flag("--quiet", quiet_, ".no \\log");
    CLI::App* key = app_.add_subcommand("key", "Keys");
    key->add_subcommand("new", "Make one")->add_option("FILE", text_, "Where to")->required();
    shape_ = ShapeOf(app_);
  }
  const OptionShape& Option(const std::string& name) {
    for (const OptionShape& option : shape_.commands[0].options) {
      if (option.names.front() == name) return option;
    }
    ADD_FAILURE() << name;
    return shape_.commands[0].options[0];
  }

  CLI::App app_;
  std::string text_;
  std::vector<std::string> list_;
  int port_ = 8080;
  bool quiet_ = false;
  CommandShape shape_;
};

TEST_F(ShapeTest, AShapeIsWhatTheDefinitionsSay) {
  ASSERT_EQ(shape_.commands.size(), 2u);
  EXPECT_EQ(shape_.commands[0].Name(), "kvlink serve");
  EXPECT_EQ(shape_.commands[1].commands[0].Name("-"), "kvlink-key-new");
  EXPECT_THAT(Option("--model").names, ElementsAre("--model", "-m"));
  EXPECT_EQ(Option("--model").kind, OptionKind::kFile);
  EXPECT_EQ(Option("--dir").kind, OptionKind::kFolder);
  EXPECT_EQ(Option("--port").kind, OptionKind::kNumber);
  EXPECT_EQ(Option("--port").default_text, "8080");
  EXPECT_EQ(Option("--port").least + " " + Option("--port").most, "0 65535");
  EXPECT_THAT(Option("--sharing").choices, ElementsAre("off", "exact"));
  EXPECT_FALSE(Option("--sharing").commas);
  EXPECT_TRUE(Option("--modes").commas);
  EXPECT_EQ(Option("--quiet").kind, OptionKind::kFlag);
  EXPECT_TRUE(shape_.commands[1].commands[0].positionals[0].required);
}

TEST_F(ShapeTest, EachShellIsToldWhatOptionsTake) {
  const std::string bash = BashCompletion(shape_);
  EXPECT_THAT(bash, HasSubstr("'kvlink serve --sharing') echo 'words off exact' ;;"));
  EXPECT_THAT(bash, HasSubstr("'kvlink serve --modes') echo 'list off on' ;;"));
  EXPECT_THAT(bash, HasSubstr("'kvlink serve -m') echo 'files' ;;"));
  EXPECT_THAT(bash, HasSubstr("'kvlink key') echo 'new' ;;"));
  EXPECT_THAT(bash, Not(HasSubstr("serve --quiet')")));
  const std::string fish = FishCompletion(shape_);
  EXPECT_THAT(fish, HasSubstr("-l sharing -x -a 'off exact' -d 'What'"));
  EXPECT_THAT(fish, HasSubstr("-l model -s m -r -F -d 'It\\'s a file'"));
  const std::string zsh = ZshCompletion(shape_);
  EXPECT_THAT(zsh, HasSubstr("'--sharing[What]:NAME:(off exact)'"));
  EXPECT_THAT(zsh, HasSubstr("'-m[It'\\''s a file]:FILE:_files'"));
  EXPECT_THAT(zsh, HasSubstr("'serve:Serve a model'"));
}

TEST_F(ShapeTest, AManualPageHasEveryOptionAndProtectsWhatRoffWouldObey) {
  const std::string page = ManPage(shape_, shape_.commands[0], "1.2.3");
  EXPECT_THAT(page, HasSubstr(".TH KVLINK-SERVE 1 \"\" \"kvlink 1.2.3\""));
  EXPECT_THAT(page, HasSubstr("kvlink\\-serve \\- Serve a model; for ever\n"));
  EXPECT_THAT(page,
              HasSubstr("\\fB\\-\\-model\\fR, \\fB\\-m\\fR \\fIFILE\\fR\nIt\\(aqs a file.\n"));
  EXPECT_THAT(page, HasSubstr("From 0 to 65535.\nDefault: 8080.\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.no \\elog.\n"));
  const std::string key = ManPage(shape_, shape_.commands[1], "1.2.3");
  EXPECT_THAT(key, HasSubstr(".SS new\n"));
  EXPECT_THAT(key, HasSubstr("\\fBkvlink key new\\fR [\\fIOPTIONS\\fR] \\fIFILE\\fR"));
  std::vector<std::string> names;
  for (const auto& [name, text] : ManPages(shape_, "1")) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("kvlink.1", "kvlink-serve.1", "kvlink-key.1"));
}

}  // namespace
}  // namespace kvlink::cli
