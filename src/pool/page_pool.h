// PagePool: the CacheAllocator. Fixed-size pages in one mapped region, within a hard byte budget.
//
//   region | page 0 | page 1 | slab page: frag 0, 1, 2 ... | page 3 |   never handed out yet ... |
//
// A page holds one block's rows. A fragment is a fixed part of a page and holds a difference
// block's cells; fragments are carved out of slab pages, which come from the same budget and go
// back when their last fragment does. References are values: a copy shares, the last destructor
// gives back, so a leak cannot be written. Memory is committed by the first touch; what was given
// back is handed out again first (last in, first out).
//
// Invariants
//   1. free + pages + slabs == total, at every moment (Counts is one consistent reading).
//   2. The region never holds more than budget_bytes; pages and fragments are aligned to
//      kTileAlignment.
//   3. With `poison`, whatever is not handed out is NaN: a page or fragment starts as NaN. Under
//      AddressSanitizer it is also unaddressable.
// Threads: all of it may be used from any thread; a single reference, like a shared_ptr, from one
// at a time. Cost: a lock and a few instructions an allocation (plus the fill when poisoned); a
// copy is one atomic increment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "kvlink/kv_shape.h"
#include "kvlink/status.h"

namespace kvlink::pool {

// NaN as F16, as BF16 and, two of them, as F32.
inline constexpr uint16_t kPoison = 0x7fff;

class PagePool;
struct Slab;

// A share of one page. Empty by default. Must not outlive its pool.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(std::exchange(other.index_, 0)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(index_, other.index_);
    return *this;
  }
  ~PageRef() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const;
  uint32_t index() const { return index_; }  // of the page in the pool
  uint32_t use_count() const;                // 1: nobody else can see this page
  bool unique() const { return use_count() == 1; }
  void reset();
  bool operator==(const PageRef&) const = default;

 private:
  friend class PagePool;
  PageRef(PagePool* pool, uint32_t index) : pool_(pool), index_(index) {}
  PagePool* pool_ = nullptr;
  uint32_t index_ = 0;
};

// A share of one fragment. As PageRef.
class FragmentRef {
 public:
  FragmentRef() = default;
  FragmentRef(const FragmentRef& other);
  FragmentRef(FragmentRef&& other) noexcept
      : slab_(std::exchange(other.slab_, nullptr)), slot_(std::exchange(other.slot_, 0)) {}
  FragmentRef& operator=(FragmentRef other) noexcept {
    std::swap(slab_, other.slab_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~FragmentRef() { reset(); }

  explicit operator bool() const { return slab_ != nullptr; }
  std::byte* data() const;
  uint32_t use_count() const;
  bool unique() const { return use_count() == 1; }
  void reset();
  bool operator==(const FragmentRef&) const = default;

 private:
  friend class PagePool;
  FragmentRef(Slab* slab, uint32_t slot) : slab_(slab), slot_(slot) {}
  Slab* slab_ = nullptr;
  uint32_t slot_ = 0;
};

struct PoolOptions {
  size_t page_bytes = 0;      // a multiple of kTileAlignment
  size_t fragment_bytes = 0;  // at most page_bytes; 0: no fragments
  size_t budget_bytes = 0;    // at least one page
  bool poison = false;
};

struct PoolCounts {
  uint64_t total = 0;      // pages that the budget holds
  uint64_t free = 0;       // pages that can be handed out
  uint64_t pages = 0;      // handed out whole
  uint64_t slabs = 0;      // carved into fragments, at least one of which is handed out
  uint64_t fragments = 0;  // handed out
};

class PagePool {
 public:
  // kInvalidArgument: a size cannot be used. kResourceExhausted: the system refuses the address
  // space.
  static Result<std::unique_ptr<PagePool>> Create(const PoolOptions& options);
  ~PagePool();  // Requires: every reference is gone

  // kResourceExhausted: nothing is free. Contents are whatever was there (NaN with poison).
  Result<PageRef> AllocatePage();
  Result<FragmentRef> AllocateFragment();

  // Of the free pages `count`, or all if they are fewer, hold no memory of the system after this;
  // those that were handed out last keep theirs. They stay free.
  void GiveToSystem(uint64_t count);

  PoolCounts Counts() const;
  // The pages that `count` fragments would take from the free list now.
  uint64_t PagesForFragments(uint64_t count) const;
  const PoolOptions& options() const { return options_; }
  uint32_t fragments_per_page() const { return fragments_per_page_; }
  size_t tracking_bytes() const;  // of everything beside the region

 private:
  friend class PageRef;
  friend class FragmentRef;

  PagePool(const PoolOptions& options, std::byte* region, uint64_t total);
  std::byte* PageData(uint32_t index) const { return region_ + index * options_.page_bytes; }
  bool TakePage(uint32_t* index) KVLINK_REQUIRES(mutex_);
  void FreePage(uint32_t index);
  void FreeFragment(Slab* slab, uint32_t slot);
  std::byte* FragmentData(const Slab& slab, uint32_t slot) const;
  bool OpenSlab() KVLINK_REQUIRES(mutex_);
  void CloseSlab(Slab* slab) KVLINK_REQUIRES(mutex_);
  void Enable(std::byte* data, size_t bytes) const;
  void Disable(std::byte* data, size_t bytes) const;
  Status Exhausted(const char* what) const KVLINK_REQUIRES(mutex_);

  const PoolOptions options_;
  std::byte* const region_;
  const uint64_t total_;
  const size_t fragment_stride_;
  const uint32_t fragments_per_page_;
  const std::unique_ptr<std::atomic<uint32_t>[]> page_uses_;  // [total]

  mutable base::Mutex mutex_;
  uint32_t fresh_ KVLINK_GUARDED_BY(mutex_) = 0;  // pages below it were handed out once
  std::vector<uint32_t> given_back_ KVLINK_GUARDED_BY(mutex_);  // a stack
  size_t without_memory_ KVLINK_GUARDED_BY(mutex_) = 0;         // so many at its bottom
  uint64_t pages_ KVLINK_GUARDED_BY(mutex_) = 0;
  uint64_t fragments_ KVLINK_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Slab>> slabs_ KVLINK_GUARDED_BY(mutex_);
  std::vector<Slab*> open_ KVLINK_GUARDED_BY(mutex_);  // slabs with a free fragment
};

}  // namespace kvlink::pool
