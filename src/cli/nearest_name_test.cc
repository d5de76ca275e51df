#include "cli/nearest_name.h"

#include <gtest/gtest.h>

namespace kvlink::cli {
namespace {

TEST(NearestName, ADistanceCountsEditsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("port", "port"), 0u);
  EXPECT_EQ(EditDistance("", "port"), 4u);
  EXPECT_EQ(EditDistance("port", ""), 4u);
  EXPECT_EQ(EditDistance("porrt", "port"), 1u);
  EXPECT_EQ(EditDistance("prot", "port"), 1u);  // a swap
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(NearestName, TheNearestIsSuggestedAndNothingFarAway) {
  const std::vector<std::string> names = {"--port", "--host", "--kv-memory", "--max-seqs"};
  EXPECT_EQ(NearestName("--porrt", names), "--port");
  EXPECT_EQ(NearestName("--kv-memroy", names), "--kv-memory");
  EXPECT_EQ(NearestName("--max-sequences", names), "--max-seqs");
  EXPECT_EQ(NearestName("--kv", names), "--kv-memory");
  EXPECT_EQ(NearestName("--completely-different", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(DidYouMean("--prot", names), "; did you mean '--port'?");
  EXPECT_EQ(DidYouMean("zzzzzz", names), "");
}

}  // namespace
}  // namespace kvlink::cli
