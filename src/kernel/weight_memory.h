// WeightMemory: where the packed matrices of a model lie, one behind the other, in huge pages.
//
// A decode step reads every weight once; in pages of 4 KB each of them costs it a translation, and
// most matrices of a small model are smaller than a huge page of their own. Memory is taken from
// the system in regions and only counts once it is written.
// Threads: one at a time. A region lives as long as any matrix in it.
#pragma once

#include <cstddef>
#include <memory>

namespace kvlink::kernel {

class WeightMemory {
 public:
  // `expected_bytes`: of all that will be asked for; more is found, too.
  explicit WeightMemory(size_t expected_bytes = 0) : expected_bytes_(expected_bytes) {}

  // 64-byte aligned; null: the system has none.
  std::shared_ptr<std::byte[]> Allocate(size_t bytes);

 private:
  std::shared_ptr<std::byte[]> region_;
  size_t used_ = 0, size_ = 0;  // of the region
  size_t expected_bytes_;       // of the first region
};

}  // namespace kvlink::kernel
