#include "kernel/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace kvlink::kernel {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLeastRegion = size_t{16} << 20;
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// `bytes`, a multiple of kHugePage, that begin with a huge page; null: no memory.
std::shared_ptr<std::byte[]> MapRegion(size_t bytes) {
  const size_t mapped = bytes + kHugePage;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto* const first = static_cast<std::byte*>(memory) + (RoundUp(address, kHugePage) - address);
#ifdef MADV_HUGEPAGE
  (void)madvise(first, bytes, MADV_HUGEPAGE);  // only advice
#endif
  return {first, [memory, mapped](std::byte*) { munmap(memory, mapped); }};
}

}  // namespace

std::shared_ptr<std::byte[]> WeightMemory::Allocate(size_t bytes) {
  const size_t rounded = RoundUp(bytes, kAlignment);
  if (rounded > size_ - used_) {
    const size_t size = RoundUp(std::max({rounded, expected_bytes_, kLeastRegion}), kHugePage);
    region_ = MapRegion(size);
    used_ = 0;
    size_ = region_ == nullptr ? 0 : size;
    expected_bytes_ = 0;
    if (region_ == nullptr) return nullptr;
  }
  std::byte* const first = region_.get() + used_;
  used_ += rounded;
  return {region_, first};
}

}  // namespace kvlink::kernel
