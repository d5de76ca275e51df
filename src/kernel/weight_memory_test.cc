#include "kernel/weight_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace kvlink::kernel {
namespace {

TEST(WeightMemory, PiecesAreAlignedAndApart) {
  WeightMemory memory(1 << 20);
  const std::vector<size_t> sizes = {1, 64, 100, 5 << 20, 17 << 20, 3 << 20, 65};  // some regions
  std::vector<std::shared_ptr<std::byte[]>> pieces;
  for (size_t i = 0; i < sizes.size(); i++) {
    pieces.push_back(memory.Allocate(sizes[i]));
    ASSERT_NE(pieces[i], nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].get()) % 64, 0u);
    std::memset(pieces[i].get(), static_cast<int>(i + 1), sizes[i]);
  }
  for (size_t i = 0; i < sizes.size(); i++) {
    for (size_t at = 0; at < sizes[i]; at++)
      ASSERT_EQ(pieces[i][static_cast<ptrdiff_t>(at)], static_cast<std::byte>(i + 1));
  }
}

TEST(WeightMemory, APieceOutlivesTheMemoryThatItIsFrom) {
  std::shared_ptr<std::byte[]> piece;
  {
    WeightMemory memory;
    piece = memory.Allocate(1000);
    piece[0] = piece[999] = std::byte{7};
  }
  EXPECT_EQ(piece[0], piece[999]);
}

TEST(WeightMemory, MoreThanTheSystemHasIsNull) {
  WeightMemory memory;
  EXPECT_EQ(memory.Allocate(size_t{1} << 60), nullptr);
  EXPECT_NE(memory.Allocate(1), nullptr);
}

}  // namespace
}  // namespace kvlink::kernel
