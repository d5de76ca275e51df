#include "cli/cache_report.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvlink::cli {
namespace {

CacheJson Block(uint64_t id, uint64_t uses, double idle_s) {
  return {{"id", id},          {"parent", id > 1 ? CacheJson(id - 1) : CacheJson(nullptr)},
          {"base", nullptr},   {"kind", "full"},
          {"tenant", "acme"},  {"tokens", 32},
          {"length", 32 * id}, {"bytes", 737280},
          {"users", 0},        {"uses", uses},
          {"state", "cached"}, {"tainted", false},
          {"tiers", {"cold"}}, {"pinned_s", nullptr},
          {"age_s", 300.0},    {"idle_s", idle_s}};
}

std::vector<uint64_t> Ids(const std::vector<CacheJson>& blocks) {
  std::vector<uint64_t> ids;
  for (const CacheJson& block : blocks) ids.push_back(block["id"].get<uint64_t>());
  return ids;
}

TEST(CacheReport, BlocksAreSortedByIdUpwardsAndByFiguresDownwards) {
  std::vector<CacheJson> blocks = {Block(2, 1, 9), Block(3, 7, 1), Block(1, 3, 5)};
  EXPECT_TRUE(SortBlocks("id", &blocks));
  EXPECT_EQ(Ids(blocks), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_TRUE(SortBlocks("uses", &blocks));
  EXPECT_EQ(Ids(blocks), (std::vector<uint64_t>{3, 1, 2}));
  EXPECT_TRUE(SortBlocks("idle", &blocks));
  EXPECT_EQ(Ids(blocks), (std::vector<uint64_t>{2, 1, 3}));
  EXPECT_FALSE(SortBlocks("colour", &blocks));
}

TEST(CacheReport, TheTableHasALineABlockAndSaysHowManyThereAre) {
  CacheJson pinned = Block(2, 3, 4);
  pinned["pinned_s"] = 60.0;
  pinned["kind"] = "tail";
  const std::string table = BlocksTable({Block(1, 12, 2.5), pinned}, 40);
  EXPECT_NE(table.find("BLOCK  PARENT  TOKENS"), std::string::npos) << table;
  EXPECT_NE(table.find("    1       -      32      32"), std::string::npos) << table;
  EXPECT_NE(table.find("60.0s  5.0m"), std::string::npos) << table;
  EXPECT_NE(table.find("cached, tail, also cold"), std::string::npos) << table;
  EXPECT_NE(table.find("40 blocks, 2 shown (--limit 0 shows all)"), std::string::npos) << table;
  EXPECT_EQ(table.find("TENANT"), std::string::npos) << "one tenant needs no column";
  EXPECT_EQ(BlocksTable({}, 0), "0 blocks\n");
}

TEST(CacheReport, SeveralTenantsAndTextsGetTheirPlaceInOneLineABlock) {
  CacheJson rival = Block(2, 1, 1);
  rival["tenant"] = "rival";
  rival["text"] = "two\nlines \xE4\xBD\xA0 " + std::string(200, 'x');
  const std::string table = BlocksTable({Block(1, 1, 1), rival}, 2);
  EXPECT_NE(table.find("TENANT"), std::string::npos);
  EXPECT_NE(table.find("\"two\\nlines \xE4\xBD\xA0 xxx"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
}

TEST(CacheReport, FiguresAreReadFromMetrics) {
  const CacheJson figures = CacheFigures(
      "kvlink_kv_bytes{model_name=\"m\",state=\"in_use\"} 1048576\n"
      "kvlink_kv_bytes{model_name=\"m\",state=\"without_sharing\"} 4194304\n"
      "kvlink_kv_saved_bytes{model_name=\"m\"} 3145728\n"
      "vllm:prompt_tokens_total{model_name=\"m\"} 200\n"
      "kvlink_reuse_tokens_total{class=\"exact\",tier=\"ram\"} 100\n"
      "kvlink_reuse_tokens_total{class=\"exact\",tier=\"cold\"} 50\n"
      "kvlink_tier_blocks{tier=\"cold\",state=\"reachable\"} 7\n");
  EXPECT_EQ(figures["kv_bytes"]["saved"], 3145728.0);
  EXPECT_EQ(figures["prompt_tokens"]["not_computed"], 150.0);
  EXPECT_EQ(figures["prompt_tokens"]["from"]["cold"], 50.0);
  EXPECT_EQ(figures["tier_blocks"]["cold"], 7.0);
  const std::string table = FiguresTable(figures);
  EXPECT_NE(table.find("3.00 MiB (75.0 %) saved now"), std::string::npos) << table;
  EXPECT_NE(table.find("200, not computed 150 (75.0 %)"), std::string::npos) << table;
  EXPECT_NE(table.find("in cold"), std::string::npos) << table;
}

}  // namespace
}  // namespace kvlink::cli
