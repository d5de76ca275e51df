#include "verify/edit_class.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlink::verify {
namespace {

using Spans = std::vector<ReuseSpan>;

TEST(EditClass, TellsValuesWordsPassagesAndManyPlacesApart) {
  const Spans clock = {{0, 0, 8}, {28, 25, 2300}};
  EXPECT_EQ(ClassOfEdits(clock, true), EditClass::kValues);
  EXPECT_EQ(ClassOfEdits(clock, false), EditClass::kWords);
  EXPECT_EQ(ClassOfEdits(Spans{{0, 0, 8}, {128, 8, 2300}}, true), EditClass::kPassage);
  EXPECT_EQ(ClassOfEdits(Spans{{0, 0, 8}, {8, 108, 2300}}, true), EditClass::kPassage);
  Spans many = {{0, 0, 20}};
  for (int i = 0; i < 9; ++i) many.push_back({many.back().end() + 1, many.back().donor_end(), 20});
  EXPECT_EQ(ClassOfEdits(many, true), EditClass::kMany);
  many.pop_back();
  EXPECT_EQ(ClassOfEdits(many, true), EditClass::kValues);
}

TEST(EditClass, CountsAnEditBeforeTheFirstSpan) {
  EXPECT_EQ(ClassOfEdits(Spans{{100, 10, 500}}, false), EditClass::kPassage);
  EXPECT_EQ(ClassOfEdits({}, false), EditClass::kWords);
}

}  // namespace
}  // namespace kvlink::verify
