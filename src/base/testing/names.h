// ExpectNamesOfTheirOwn: for names of enumerations, which are values of metrics' labels and fields
// in answers: each value has one, and no two the same.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

namespace kvlink::base {

// Of the values 0 to count - 1.
template <typename Enum>
void ExpectNamesOfTheirOwn(size_t count, const char* (*name_of)(Enum)) {
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = name_of(static_cast<Enum>(i));
    EXPECT_NE(name, "") << i;
    EXPECT_NE(name, "unknown") << i;
    EXPECT_TRUE(names.insert(name).second) << name << " twice, the second time as " << i;
  }
}

}  // namespace kvlink::base
