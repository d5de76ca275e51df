#include "server/blocks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/fakes.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename T>
ApiError ErrorIn(const Parsed<T>& parsed) {
  const ApiError* error = std::get_if<ApiError>(&parsed);
  return error != nullptr ? *error : ApiError{200, "no error", "", ""};
}

BlockList ListOf(size_t blocks) {
  BlockList list;
  list.tokens_per_block = 32;
  list.page_bytes = 1000;
  list.difference_bytes = 150;
  list.tiers = {"cold", "remote"};
  list.spaces = {{.tenant = "ac\"me", .salt = ""}, {.tenant = "", .salt = "secret"}};
  for (uint64_t i = 0; i < blocks; ++i) {
    ListedBlock block;
    block.id = i + 1;
    block.parent = i;
    block.depth = static_cast<uint32_t>(i);
    block.rows = 32;
    list.blocks.push_back(block);
  }
  return list;
}

Json AnswerOf(const BlockPages::Kept& kept, const BlocksQuery& query) {
  return Json::parse(BlocksAnswer(kept, query, milliseconds(1500)));
}

TEST(Blocks, AQueryIsReadAndWhatIsWrongIsNamedWithItsValue) {
  const auto parsed = ParseBlocksQuery("limit=25&cursor=7.100");
  const BlocksQuery* query = std::get_if<BlocksQuery>(&parsed);
  ASSERT_NE(query, nullptr) << ErrorIn(parsed).message;
  EXPECT_EQ(query->limit, 25u);
  EXPECT_EQ(query->cursor.list, 7u);
  EXPECT_EQ(query->cursor.offset, 100u);
  EXPECT_EQ(std::get<BlocksQuery>(ParseBlocksQuery("")).limit, 1000u);
  EXPECT_EQ(std::get<BlocksQuery>(ParseBlocksQuery("&&")).cursor.list, 0u);
  const auto refused = [](const char* text) { return ErrorIn(ParseBlocksQuery(text)); };
  for (const char* text : {"limit=0", "limit=10001", "limit=-1", "limit=x", "limit=", "limit"}) {
    EXPECT_EQ(refused(text).param, "limit") << text;
    EXPECT_EQ(refused(text).status, 400) << text;
  }
  for (const char* text : {"cursor=7", "cursor=.", "cursor=0.5", "cursor=7.x", "cursor="}) {
    EXPECT_EQ(refused(text).param, "cursor") << text;
  }
  EXPECT_NE(refused("colour=red").message.find("'colour'"), std::string::npos);
}

TEST(Blocks, ABlocksPathIsItsIdAndNothingElse) {
  EXPECT_EQ(std::get<ShowBlockQuery>(ParseShowBlock("12", "last=3")).last, 3u);
  EXPECT_EQ(std::get<ShowBlockQuery>(ParseShowBlock("12", "")).id, 12u);
  for (const char* id : {"0", "-1", "x", "1/2", "99999999999999999999999"}) {
    EXPECT_EQ(ErrorIn(ParseShowBlock(id, "")).param, "id") << id;
  }
  EXPECT_EQ(ErrorIn(ParseShowBlock("1", "last=257")).param, "last");
}

TEST(Blocks, PagesOfAListTellAllOfItOnce) {
  BlockPages pages;
  const auto start = BlockPages::TimePoint() + seconds(100);
  const auto kept = pages.Keep("acme", ListOf(7), start);
  BlocksQuery query;
  query.limit = 3;
  std::vector<uint64_t> ids;
  for (int page = 0; page < 3; ++page) {
    const Json json = AnswerOf(kept, query);
    EXPECT_EQ(json["total"], 7);
    EXPECT_EQ(json["first"], 3 * page);
    EXPECT_EQ(json["taken_s_ago"], 1.5);
    for (const Json& block : json["data"]) ids.push_back(block["id"].get<uint64_t>());
    if (page == 2) {
      EXPECT_TRUE(json["next"].is_null());
      break;
    }
    const auto next = ParseBlocksQuery("limit=3&cursor=" + json["next"].get<std::string>());
    query = std::get<BlocksQuery>(next);
    ASSERT_TRUE(pages.Find(query.cursor.list, "acme", start + seconds(59)).has_value());
  }
  EXPECT_EQ(ids, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}));
}

TEST(Blocks, AListIsKeptForItsReaderAMinuteAndFourAtATime) {
  BlockPages pages;
  const auto start = BlockPages::TimePoint() + seconds(100);
  const uint64_t first = pages.Keep("acme", ListOf(1), start).number;
  EXPECT_TRUE(pages.Find(first, "acme", start + seconds(60)).has_value());
  EXPECT_FALSE(pages.Find(first, "rival", start).has_value());
  EXPECT_FALSE(pages.Find(first + 1, "acme", start).has_value());
  EXPECT_FALSE(pages.Find(first, "acme", start + seconds(61)).has_value());
  for (int i = 0; i < 4; ++i) pages.Keep("acme", ListOf(1), start);
  EXPECT_FALSE(pages.Find(first, "acme", start).has_value()) << "newer ones took its place";
  EXPECT_TRUE(pages.Find(first + 1, "acme", start).has_value());
}

TEST(Blocks, ABlockIsToldWithEverythingThatIsKnownOfIt) {
  BlockList list = ListOf(2);
  ListedBlock& block = list.blocks[1];
  block.base = 1;
  block.kind = BlockKind::kTail;
  block.space = 1;
  block.rows = 5;
  block.children = 2;
  block.differences = 1;
  block.users = 3;
  block.uses = 4;
  block.writer = 99;
  block.tiers = 2;
  block.tainted = true;
  block.pinned_for = milliseconds(2500);
  block.age = seconds(9);
  const BlockPages::Kept kept{1, "", {}, std::make_shared<const BlockList>(list)};
  const Json json = AnswerOf(kept, {});
  const Json plain = json["data"][0], full = json["data"][1];
  EXPECT_EQ(plain["parent"], nullptr);
  EXPECT_EQ(plain["tenant"], "ac\"me");
  EXPECT_EQ(plain["salt"], nullptr);
  EXPECT_EQ(plain["bytes"], 1000);
  EXPECT_EQ(plain["pinned_s"], nullptr);
  EXPECT_EQ(plain["writer"], nullptr);
  EXPECT_EQ(plain["tiers"], Json::array());
  EXPECT_EQ(plain["state"], "cached");
  EXPECT_EQ(plain["hot"], false);
  EXPECT_EQ(full["parent"], 1);
  EXPECT_EQ(full["base"], 1);
  EXPECT_EQ(full["kind"], "tail");
  EXPECT_EQ(full["tenant"], nullptr);
  EXPECT_EQ(full["salt"].get<std::string>().size(), 16u) << "a hash, not the salt";
  EXPECT_EQ(full["position"], 32);
  EXPECT_EQ(full["tokens"], 5);
  EXPECT_EQ(full["length"], 37);
  EXPECT_EQ(full["bytes"], 150);
  EXPECT_EQ(full["references"], 3);
  EXPECT_EQ(full["users"], 3);
  EXPECT_EQ(full["uses"], 4);
  EXPECT_EQ(full["state"], "in_use");
  EXPECT_EQ(full["hot"], true);
  EXPECT_EQ(full["tainted"], true);
  EXPECT_EQ(full["writer"], 99);
  EXPECT_EQ(full["tiers"], Json::array({"remote"}));
  EXPECT_EQ(full["pinned_s"], 2.5);
  EXPECT_EQ(full["age_s"], 9.0);
}

TEST(Blocks, TextIsToldOrTheReasonWhyNot) {
  const FakeTokenizer tokenizer;
  ShownBlocks shown;
  shown.list = ListOf(2);
  shown.tokens = {'h', 'i', '\n', '"'};
  const Json told = Json::parse(ShowBlockAnswer(shown, tokenizer, ""));
  EXPECT_EQ(told["object"], "kvlink.block");
  EXPECT_EQ(told["id"], 2);
  EXPECT_EQ(told["chain"], Json::array({1, 2}));
  EXPECT_EQ(told["text"], "hi\n\"");
  EXPECT_EQ(told["text_withheld"], nullptr);
  const Json withheld = Json::parse(ShowBlockAnswer(shown, tokenizer, "no right"));
  EXPECT_EQ(withheld["text"], nullptr);
  EXPECT_EQ(withheld["text_withheld"], "no right");
  shown.tokens.clear();
  EXPECT_EQ(Json::parse(ShowBlockAnswer(shown, tokenizer, ""))["text"], nullptr);
}

}  // namespace
}  // namespace kvlink::server
