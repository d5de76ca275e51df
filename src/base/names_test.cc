// Names of the public enumerations, which are values of metrics' labels and of fields in answers:
// each has one, and no two the same.
#include <gtest/gtest.h>

#include <cstddef>

#include "base/testing/names.h"
#include "kvlink/cache.h"
#include "kvlink/kv_shape.h"
#include "kvlink/similar.h"
#include "kvlink/status.h"

namespace kvlink {
namespace {

using base::ExpectNamesOfTheirOwn;

TEST(Names, AreThereOncePerValue) {
  ExpectNamesOfTheirOwn(static_cast<size_t>(MissReason::kCount), MissReasonName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(SimilarReason::kCount), SimilarReasonName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(EditClass::kCount), EditClassName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(StatusCode::kQuotaExhausted) + 1, StatusCodeName);
  ExpectNamesOfTheirOwn(std::size(kKvTypes), KvTypeName);
}

TEST(Status, SaysItsKindAndItsMessage) {
  EXPECT_EQ(Status(StatusCode::kDataLoss, "file: cut off").ToString(), "data loss: file: cut off");
  EXPECT_TRUE(Status::Ok().ok());
  const Result<int> error = Status(StatusCode::kNotFound, "x");
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvlink
