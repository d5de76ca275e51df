#include "pool/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#ifdef __has_feature
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) static_cast<void>(0)
#endif

namespace kvlink::pool {
namespace {

size_t RoundUp(size_t bytes) {
  return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

Status Invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "page pool: " + message);
}

Status Validate(const PoolOptions& options) {
  if (options.page_bytes == 0 || options.page_bytes % kTileAlignment != 0) {
    return Invalid("page_bytes " + std::to_string(options.page_bytes) +
                   " is not a positive multiple of " + std::to_string(kTileAlignment));
  }
  if (options.fragment_bytes > options.page_bytes) {
    return Invalid("fragment_bytes " + std::to_string(options.fragment_bytes) +
                   " is more than page_bytes " + std::to_string(options.page_bytes));
  }
  if (options.budget_bytes < options.page_bytes) {
    return Invalid("budget_bytes " + std::to_string(options.budget_bytes) + " holds no page of " +
                   std::to_string(options.page_bytes) + " bytes");
  }
  if (options.budget_bytes / options.page_bytes >= UINT32_MAX) {
    return Invalid("budget_bytes " + std::to_string(options.budget_bytes) +
                   " is more than 2^32 pages");
  }
  return Status::Ok();
}

void Fill(std::byte* data, size_t bytes) {
  std::fill_n(reinterpret_cast<uint16_t*>(data), bytes / sizeof(uint16_t), kPoison);
}

}  // namespace

// A page carved into fragments. Guarded by the pool's mutex, but for `uses` and what is constant.
struct Slab {
  PagePool* const pool;
  const uint32_t page;
  std::byte* const data;
  const std::unique_ptr<std::atomic<uint32_t>[]> uses;  // [fragments_per_page]
  std::vector<uint32_t> free;                           // slots, a stack
  size_t slab_index = 0;                                // in PagePool::slabs_
  size_t open_index = 0;  // in PagePool::open_, while `free` is not empty
};

Result<std::unique_ptr<PagePool>> PagePool::Create(const PoolOptions& options) {
  if (Status status = Validate(options); !status.ok()) return status;
  const uint64_t total = options.budget_bytes / options.page_bytes;
  const size_t bytes = total * options.page_bytes;
  void* const region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted, "page pool: cannot map " + std::to_string(bytes) +
                                                      " bytes: " + std::strerror(errno));
  }
  // Only advice: without huge pages everything works, with more TLB misses.
  (void)madvise(region, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<PagePool>(new PagePool(options, static_cast<std::byte*>(region), total));
}

PagePool::PagePool(const PoolOptions& options, std::byte* region, uint64_t total)
    : options_(options),
      region_(region),
      total_(total),
      fragment_stride_(RoundUp(options.fragment_bytes)),
      fragments_per_page_(
          fragment_stride_ == 0 ? 0 : static_cast<uint32_t>(options.page_bytes / fragment_stride_)),
      page_uses_(new std::atomic<uint32_t>[total]()) {
  given_back_.reserve(total);  // giving back runs in destructors and must not fail
  ASAN_POISON_MEMORY_REGION(region_, total_ * options_.page_bytes);
}

PagePool::~PagePool() {
  const PoolCounts counts = Counts();
  KVLINK_CHECK(counts.free == counts.total)
      << counts.pages << " pages and " << counts.fragments << " fragments outlive their pool";
  // The shadow of AddressSanitizer stays with the addresses, which the system will give to others.
  ASAN_UNPOISON_MEMORY_REGION(region_, total_ * options_.page_bytes);
  munmap(region_, total_ * options_.page_bytes);
}

Result<PageRef> PagePool::AllocatePage() {
  const base::MutexLock lock(mutex_);
  uint32_t index = 0;
  if (!TakePage(&index)) return Exhausted("page");
  ++pages_;
  page_uses_[index].store(1, std::memory_order_relaxed);
  return PageRef(this, index);
}

Result<FragmentRef> PagePool::AllocateFragment() {
  const base::MutexLock lock(mutex_);
  if (fragments_per_page_ == 0) return Invalid("made without fragments");
  if (open_.empty() && !OpenSlab()) return Exhausted("fragment");
  Slab* const slab = open_.back();
  const uint32_t slot = slab->free.back();
  slab->free.pop_back();
  if (slab->free.empty()) open_.pop_back();
  ++fragments_;
  Enable(FragmentData(*slab, slot), fragment_stride_);
  slab->uses[slot].store(1, std::memory_order_relaxed);
  return FragmentRef(slab, slot);
}

// Pages that were never handed out hold none either. Only whole pages of the system can go.
void PagePool::GiveToSystem(uint64_t count) {
  const base::MutexLock lock(mutex_);
  const uint64_t fresh = total_ - fresh_;
  const size_t wanted = std::min<uint64_t>(count - std::min(count, fresh), given_back_.size());
  const auto system_page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (size_t i = without_memory_; i < wanted; ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(PageData(given_back_[i]));
    const uintptr_t first = (begin + system_page - 1) / system_page * system_page;
    const uintptr_t end = (begin + options_.page_bytes) / system_page * system_page;
    if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
  without_memory_ = std::max(without_memory_, wanted);
}

PoolCounts PagePool::Counts() const {
  const base::MutexLock lock(mutex_);
  return {.total = total_,
          .free = given_back_.size() + (total_ - fresh_),
          .pages = pages_,
          .slabs = slabs_.size(),
          .fragments = fragments_};
}

uint64_t PagePool::PagesForFragments(uint64_t count) const {
  const base::MutexLock lock(mutex_);
  if (fragments_per_page_ == 0) return 0;
  const uint64_t room = slabs_.size() * fragments_per_page_ - fragments_;
  return count <= room ? 0 : (count - room + fragments_per_page_ - 1) / fragments_per_page_;
}

size_t PagePool::tracking_bytes() const {
  const base::MutexLock lock(mutex_);
  const size_t per_slab = sizeof(Slab) + fragments_per_page_ * 2 * sizeof(uint32_t);
  return sizeof(*this) + total_ * sizeof(std::atomic<uint32_t>) +
         given_back_.capacity() * sizeof(uint32_t) + slabs_.size() * per_slab +
         (slabs_.capacity() + open_.capacity()) * sizeof(Slab*);
}

bool PagePool::TakePage(uint32_t* index) {
  if (!given_back_.empty()) {
    *index = given_back_.back();
    given_back_.pop_back();
    Enable(PageData(*index), options_.page_bytes);
    if (given_back_.size() < without_memory_) {
      without_memory_ = given_back_.size();
      if (options_.poison) Fill(PageData(*index), options_.page_bytes);
    }
    return true;
  }
  if (fresh_ == total_) return false;
  *index = fresh_++;
  Enable(PageData(*index), options_.page_bytes);
  if (options_.poison) Fill(PageData(*index), options_.page_bytes);
  return true;
}

void PagePool::FreePage(uint32_t index) {
  // The last reference is gone, so nobody else can see the page: the fill needs no lock.
  Disable(PageData(index), options_.page_bytes);
  const base::MutexLock lock(mutex_);
  --pages_;
  given_back_.push_back(index);
}

std::byte* PagePool::FragmentData(const Slab& slab, uint32_t slot) const {
  return slab.data + slot * fragment_stride_;
}

bool PagePool::OpenSlab() {
  uint32_t page = 0;
  if (!TakePage(&page)) return false;
  slabs_.push_back(std::unique_ptr<Slab>(new Slab{
      .pool = this,
      .page = page,
      .data = PageData(page),
      .uses = std::unique_ptr<std::atomic<uint32_t>[]>(
          new std::atomic<uint32_t>[fragments_per_page_]()),
  }));
  Slab* const slab = slabs_.back().get();
  slab->slab_index = slabs_.size() - 1;
  slab->free.resize(fragments_per_page_);
  for (uint32_t i = 0; i < fragments_per_page_; ++i) slab->free[i] = fragments_per_page_ - 1 - i;
  open_.reserve(slabs_.capacity());  // a full slab that opens again does so in a destructor
  slab->open_index = open_.size();
  open_.push_back(slab);
  ASAN_POISON_MEMORY_REGION(slab->data, options_.page_bytes);
  return true;
}

void PagePool::FreeFragment(Slab* slab, uint32_t slot) {
  Disable(FragmentData(*slab, slot), fragment_stride_);
  const base::MutexLock lock(mutex_);
  --fragments_;
  slab->free.push_back(slot);
  if (slab->free.size() == 1) {
    slab->open_index = open_.size();
    open_.push_back(slab);
  }
  if (slab->free.size() == fragments_per_page_) CloseSlab(slab);
}

// Both lists are unordered: the last element fills the gap.
void PagePool::CloseSlab(Slab* slab) {
  open_.back()->open_index = slab->open_index;
  open_[slab->open_index] = open_.back();
  open_.pop_back();
  given_back_.push_back(slab->page);
  const size_t gap = slab->slab_index;
  slabs_.back()->slab_index = gap;
  std::swap(slabs_[gap], slabs_.back());
  slabs_.pop_back();
}

// Addressable from now on.
void PagePool::Enable([[maybe_unused]] std::byte* data, [[maybe_unused]] size_t bytes) const {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
}

// NaN, if the options say so, and not addressable from now on.
void PagePool::Disable(std::byte* data, size_t bytes) const {
  if (options_.poison) Fill(data, bytes);
  ASAN_POISON_MEMORY_REGION(data, bytes);
}

Status PagePool::Exhausted(const char* what) const {
  return Status(StatusCode::kResourceExhausted,
                "page pool: no free " + std::string(what) + ": all " + std::to_string(total_) +
                    " pages are in use (" + std::to_string(pages_) + " whole, " +
                    std::to_string(slabs_.size()) + " for " + std::to_string(fragments_) +
                    " fragments)");
}

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), index_(other.index_) {
  if (pool_ != nullptr) pool_->page_uses_[index_].fetch_add(1, std::memory_order_relaxed);
}

std::byte* PageRef::data() const { return pool_->PageData(index_); }

// Acquire: who finds itself alone must see what the others wrote before they let go.
uint32_t PageRef::use_count() const {
  return pool_ == nullptr ? 0 : pool_->page_uses_[index_].load(std::memory_order_acquire);
}

void PageRef::reset() {
  PagePool* const pool = std::exchange(pool_, nullptr);
  if (pool == nullptr) return;
  const uint32_t index = std::exchange(index_, 0);
  if (pool->page_uses_[index].fetch_sub(1, std::memory_order_acq_rel) == 1) pool->FreePage(index);
}

FragmentRef::FragmentRef(const FragmentRef& other) : slab_(other.slab_), slot_(other.slot_) {
  if (slab_ != nullptr) slab_->uses[slot_].fetch_add(1, std::memory_order_relaxed);
}

std::byte* FragmentRef::data() const { return slab_->pool->FragmentData(*slab_, slot_); }

uint32_t FragmentRef::use_count() const {
  return slab_ == nullptr ? 0 : slab_->uses[slot_].load(std::memory_order_acquire);
}

void FragmentRef::reset() {
  Slab* const slab = std::exchange(slab_, nullptr);
  if (slab == nullptr) return;
  const uint32_t slot = std::exchange(slot_, 0);
  if (slab->uses[slot].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    slab->pool->FreeFragment(slab, slot);
  }
}

}  // namespace kvlink::pool
