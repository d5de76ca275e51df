#include "match/value_edits.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlink::match {
namespace {

TEST(OnlyValues, LooksAtTheKindsOfWhatDiffers) {
  // 0 "at", 1 "7", 2 "2026", 3 ":", 4 "AT", 5 "not"
  const std::vector<std::string> texts = {"at", "7", "2026", ":", "AT", "not"};
  const NormalTokens classes(texts);
  const std::vector<ReuseSpan> spans = {{0, 0, 1}, {4, 5, 2}};
  const std::vector<TokenId> tokens = {0, 1, 3, 1, 3, 3, 5};
  EXPECT_TRUE(OnlyValues(tokens, std::vector<TokenId>{0, 2, 3, 2, 1, 3, 3}, spans, classes));
  EXPECT_FALSE(OnlyValues(tokens, std::vector<TokenId>{0, 2, 3, 2, 5, 3, 3}, spans, classes));
  EXPECT_FALSE(OnlyValues(tokens, std::vector<TokenId>{0, 2, 1, 2, 1, 3, 3}, spans, classes));
  EXPECT_TRUE(OnlyValues(tokens, tokens, {}, classes)) << "only what comes before a span counts";
}

}  // namespace
}  // namespace kvlink::match
