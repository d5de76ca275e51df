#include "pool/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"

namespace kvlink::pool {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kFragment = 1000;  // takes 1024: four a page

std::unique_ptr<PagePool> NewPool(uint64_t pages, bool poison = true) {
  auto pool = PagePool::Create({.page_bytes = kPage,
                                .fragment_bytes = kFragment,
                                .budget_bytes = pages * kPage,
                                .poison = poison});
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  return std::move(pool).value();
}

PageRef Page(PagePool& pool) {
  Result<PageRef> page = pool.AllocatePage();
  EXPECT_TRUE(page.ok()) << page.status().ToString();
  return std::move(page).value();
}

FragmentRef Fragment(PagePool& pool) {
  Result<FragmentRef> fragment = pool.AllocateFragment();
  EXPECT_TRUE(fragment.ok()) << fragment.status().ToString();
  return std::move(fragment).value();
}

bool IsNaN(const std::byte* data, size_t bytes) {
  const auto* halves = reinterpret_cast<const uint16_t*>(data);
  return std::all_of(halves, halves + bytes / 2, [](uint16_t h) { return h == kPoison; });
}

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % kTileAlignment == 0;
}

void Fill(std::byte* data, size_t bytes, uint32_t value) {
  std::fill_n(reinterpret_cast<uint32_t*>(data), bytes / 4, value);
}

bool IsFilled(const std::byte* data, size_t bytes, uint32_t value) {
  const auto* words = reinterpret_cast<const uint32_t*>(data);
  return std::all_of(words, words + bytes / 4, [&](uint32_t word) { return word == value; });
}

TEST(PagePool, HandsOutNoMoreThanTheBudgetHolds) {
  const auto pool = NewPool(3);
  std::vector<PageRef> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(Page(*pool));
  const Result<PageRef> more = pool->AllocatePage();
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(more.status().message().find("all 3 pages"), std::string::npos);
  EXPECT_EQ(pool->AllocateFragment().status().code(), StatusCode::kResourceExhausted);
  pages.pop_back();
  EXPECT_TRUE(pool->AllocatePage().ok());
}

TEST(PagePool, RoundsTheBudgetDownToWholePages) {
  const auto pool = PagePool::Create({.page_bytes = kPage, .budget_bytes = 3 * kPage - 1});
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->Counts().total, 2u);
}

TEST(PagePool, ACopySharesAndTheLastOneGivesBack) {
  const auto pool = NewPool(2);
  PageRef first = Page(*pool);
  EXPECT_TRUE(first.unique());
  PageRef second = first;
  EXPECT_EQ(second, first);
  EXPECT_EQ(second.data(), first.data());
  EXPECT_EQ(first.use_count(), 2u);
  first.reset();
  EXPECT_FALSE(first);
  EXPECT_EQ(first.use_count(), 0u);
  EXPECT_TRUE(second.unique());
  EXPECT_EQ(pool->Counts().pages, 1u);
  second = PageRef();
  EXPECT_EQ(pool->Counts().free, 2u);
}

TEST(PagePool, AMoveTakesTheShareAlong) {
  const auto pool = NewPool(2);
  PageRef first = Page(*pool);
  PageRef second = std::move(first);
  EXPECT_EQ(first, PageRef());  // NOLINT: a moved-from reference is empty
  EXPECT_TRUE(second.unique());
  second = std::move(second);  // NOLINT: harmless
  EXPECT_TRUE(second.unique());
}

TEST(PagePool, WhatWasGivenBackLastIsHandedOutFirst) {
  const auto pool = NewPool(4);
  PageRef a = Page(*pool), b = Page(*pool);
  const uint32_t index_a = a.index(), index_b = b.index();
  b.reset();
  a.reset();
  EXPECT_EQ(Page(*pool).index(), index_a);
  a = Page(*pool);
  EXPECT_EQ(a.index(), index_a);
  b = Page(*pool);
  EXPECT_EQ(b.index(), index_b);
}

TEST(PagePool, PagesAndFragmentsStartAsNaN) {
  const auto pool = NewPool(3);
  for (int round = 0; round < 2; ++round) {  // never handed out before, then given back
    PageRef page = Page(*pool);
    EXPECT_TRUE(IsNaN(page.data(), kPage));
    Fill(page.data(), kPage, 0x3c003c00);
    FragmentRef fragment = Fragment(*pool), other = Fragment(*pool);
    EXPECT_TRUE(IsNaN(fragment.data(), kFragment));
    Fill(fragment.data(), kFragment, 0x3c003c00);
    fragment.reset();
    EXPECT_TRUE(IsNaN(Fragment(*pool).data(), kFragment));
  }
}

TEST(PagePool, WithoutPoisonAPageKeepsItsBytes) {
  const auto pool = NewPool(1, /*poison=*/false);
  PageRef page = Page(*pool);
  Fill(page.data(), kPage, 7);
  page.reset();
  EXPECT_TRUE(IsFilled(Page(*pool).data(), kPage, 7));
}

TEST(PagePool, FragmentsShareAPageThatGoesBackWithTheLast) {
  const auto pool = NewPool(2);
  ASSERT_EQ(pool->fragments_per_page(), 4u);
  std::vector<FragmentRef> fragments;
  std::set<std::byte*> places;
  for (int i = 0; i < 5; ++i) {
    fragments.push_back(Fragment(*pool));
    EXPECT_TRUE(IsAligned(fragments.back().data()));
    places.insert(fragments.back().data());
    EXPECT_EQ(pool->Counts().slabs, i < 4 ? 1u : 2u);
  }
  EXPECT_EQ(places.size(), 5u);
  EXPECT_EQ(pool->PagesForFragments(3), 0u);
  EXPECT_EQ(pool->PagesForFragments(4), 1u);
  EXPECT_EQ(pool->PagesForFragments(8), 2u);
  FragmentRef copy = fragments[4];
  fragments.pop_back();
  EXPECT_EQ(pool->Counts().slabs, 2u);
  copy.reset();
  EXPECT_EQ(pool->Counts().slabs, 1u);
  fragments.clear();
  EXPECT_EQ(pool->Counts().free, 2u);
}

TEST(PagePool, ASlabThatClosesLeavesTheOtherOpenSlabsAlone) {
  const auto pool = NewPool(3);
  std::vector<FragmentRef> fragments;
  for (int i = 0; i < 12; ++i) fragments.push_back(Fragment(*pool));
  for (const int open : {0, 4, 8}) fragments[open].reset();
  const std::byte* const first_place = fragments[1].data();
  for (const int last : {5, 6, 7}) fragments[last].reset();  // the slab in the middle closes
  EXPECT_EQ(pool->Counts().slabs, 2u);
  for (const int last : {9, 10, 11}) fragments[last].reset();
  EXPECT_EQ(pool->Counts().slabs, 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(Fragment(*pool).data()) / kPage,
            reinterpret_cast<uintptr_t>(first_place) / kPage);
  fragments.clear();
  EXPECT_EQ(pool->Counts().free, 3u);
}

TEST(PagePool, RefusesOptionsItCannotUseAndNamesThem) {
  const std::vector<std::pair<PoolOptions, std::string>> cases = {
      {{.page_bytes = 0, .budget_bytes = 1}, "page_bytes 0"},
      {{.page_bytes = 100, .budget_bytes = 1000}, "page_bytes 100"},
      {{.page_bytes = 128, .budget_bytes = 127}, "budget_bytes 127"},
      {{.page_bytes = 128, .fragment_bytes = 129, .budget_bytes = 1000}, "fragment_bytes 129"},
      {{.page_bytes = 64, .budget_bytes = size_t{1} << 40}, "budget_bytes 1099511627776"},
  };
  for (const auto& [options, what] : cases) {
    const auto pool = PagePool::Create(options);
    ASSERT_FALSE(pool.ok()) << what;
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(pool.status().message().find(what), std::string::npos) << pool.status().message();
  }
  const auto too_large =
      PagePool::Create({.page_bytes = size_t{1} << 40, .budget_bytes = size_t{1} << 60});
  EXPECT_EQ(too_large.status().code(), StatusCode::kResourceExhausted);
}

TEST(PagePool, WithoutFragmentsRefusesOne) {
  const auto pool = PagePool::Create({.page_bytes = kPage, .budget_bytes = kPage});
  EXPECT_EQ((*pool)->AllocateFragment().status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*pool)->PagesForFragments(3), 0u);
}

TEST(PagePool, CommitsMemoryOnlyWhereItWasTouched) {
  constexpr size_t kBig = size_t{16} << 20;
  constexpr size_t kBudget = 256 * kBig;
  const auto pool = PagePool::Create({.page_bytes = kBig, .budget_bytes = kBudget});
  ASSERT_TRUE(pool.ok());
  const PageRef page = Page(**pool);
  page.data()[0] = std::byte{1};
  const auto system_page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(kBudget / system_page);
  ASSERT_EQ(mincore(page.data(), kBudget, resident.data()), 0);
  const auto touched =
      std::ranges::count_if(resident, [](unsigned char r) { return (r & 1) != 0; });
  EXPECT_GE(touched, 1);
  EXPECT_LE(static_cast<size_t>(touched) * system_page, size_t{4} << 20);  // a huge page at most
}

TEST(PagePoolDeathTest, ALeakedReferenceIsReported) {
  EXPECT_DEATH(
      {
        PageRef page;
        const auto pool = NewPool(2);
        page = Page(*pool);
      },
      "1 pages and 0 fragments outlive their pool");
}

#ifdef __SANITIZE_ADDRESS__
TEST(PagePoolDeathTest, AddressSanitizerSeesAReadOfAPageThatWasGivenBack) {
  const auto pool = NewPool(1);
  PageRef page = Page(*pool);
  const volatile std::byte* const data = page.data();
  page.reset();
  EXPECT_DEATH(static_cast<void>(data[10]), "use-after-poison");
}
#endif

// Allocate, share, write and give back at random, beside a model that knows every page's contents
// and shares.
class PoolModel {
 public:
  explicit PoolModel(uint64_t pages) : total_(pages), pool_(NewPool(pages)) {}

  // Fills up and drains in turns, so that slabs open and close all the time.
  void Step() {
    const bool filling = step_++ / 200 % 2 == 0;
    switch (random_.Below(filling ? 8 : 12)) {
      case 0:
        AllocatePage();
        break;
      case 1:
      case 2:
        AllocateFragment();
        break;
      case 3:
        Share(pages_);
        break;
      case 4:
        Share(fragments_);
        break;
      case 5:
        CopyOnWrite();
        break;
      case 6:
      case 8:
        Drop(pages_, random_.Below(pages_.size() + 1));
        break;
      default:
        Drop(fragments_, random_.Below(fragments_.size() + 1));
        break;
    }
    Check();
  }
  void Drain() {
    while (!pages_.empty()) Drop(pages_, 0);
    while (!fragments_.empty()) Drop(fragments_, 0);
    Check();
    EXPECT_EQ(pool_->Counts().free, total_);
    EXPECT_EQ(pool_->Counts().slabs, 0u);
  }

 private:
  template <typename Ref>
  struct Held {
    Ref ref;
    uint32_t value;  // what its bytes hold: unique to the page
  };

  void AllocatePage() {
    const bool fits = FreePages() > 0;
    Allocate(pages_, pool_->AllocatePage(), kPage, fits);
  }
  void AllocateFragment() {
    const bool fits = FragmentFits();
    Allocate(fragments_, pool_->AllocateFragment(), kFragment, fits);
  }
  template <typename Ref>
  void Allocate(std::vector<Held<Ref>>& held, Result<Ref> ref, size_t bytes, bool fits) {
    ASSERT_EQ(ref.ok(), fits);
    if (!fits) return;
    ASSERT_TRUE(IsAligned(ref->data()));
    ASSERT_TRUE(IsNaN(ref->data(), bytes));
    ASSERT_TRUE(ref->unique());
    Fill(ref->data(), bytes, ++last_value_);
    held.push_back({std::move(ref).value(), last_value_});
  }
  template <typename Ref>
  void Share(std::vector<Held<Ref>>& held) {
    if (held.empty()) return;
    const Held<Ref> copy = held[random_.Below(held.size())];
    held.push_back(copy);
  }
  template <typename Ref>
  void Drop(std::vector<Held<Ref>>& held, size_t i) {
    if (i >= held.size()) return;
    std::swap(held[i], held.back());
    held.pop_back();
  }
  void CopyOnWrite() {
    if (pages_.empty()) return;
    Held<PageRef>& held = pages_[random_.Below(pages_.size())];
    if (!held.ref.unique()) {
      Result<PageRef> copy = pool_->AllocatePage();
      if (!copy.ok()) return;
      std::memcpy(copy->data(), held.ref.data(), kPage);
      held.ref = std::move(copy).value();
    }
    held.value = ++last_value_;
    Fill(held.ref.data(), kPage, held.value);
  }

  // Distinct pages or fragments, with the shares of each.
  template <typename Ref>
  std::map<std::byte*, uint32_t> Distinct(const std::vector<Held<Ref>>& held) const {
    std::map<std::byte*, uint32_t> shares;
    for (const Held<Ref>& one : held) ++shares[one.ref.data()];
    return shares;
  }
  uint64_t FreePages() const { return pool_->Counts().free; }
  bool FragmentFits() const {
    const PoolCounts counts = pool_->Counts();
    return counts.free > 0 || counts.slabs * pool_->fragments_per_page() > counts.fragments;
  }

  template <typename Ref>
  void CheckHeld(const std::vector<Held<Ref>>& held, size_t bytes) {
    const auto shares = Distinct(held);
    for (const Held<Ref>& one : held) {
      ASSERT_TRUE(IsFilled(one.ref.data(), bytes, one.value));
      ASSERT_EQ(one.ref.use_count(), shares.at(one.ref.data()));
    }
  }
  void Check() {
    CheckHeld(pages_, kPage);
    CheckHeld(fragments_, kFragment);
    const PoolCounts counts = pool_->Counts();
    ASSERT_EQ(counts.free + counts.pages + counts.slabs, total_);
    ASSERT_EQ(counts.pages, Distinct(pages_).size());
    const auto fragments = Distinct(fragments_);
    ASSERT_EQ(counts.fragments, fragments.size());
    std::set<uintptr_t> slabs;  // a page of the system is a page of this pool
    for (const auto& [data, count] : fragments)
      slabs.insert(reinterpret_cast<uintptr_t>(data) / kPage);
    ASSERT_EQ(counts.slabs, slabs.size());
  }

  const uint64_t total_;
  std::unique_ptr<PagePool> pool_;
  std::vector<Held<PageRef>> pages_;
  std::vector<Held<FragmentRef>> fragments_;
  base::Random random_{16};
  uint32_t last_value_ = 0;
  uint64_t step_ = 0;
};

TEST(PagePool, KeepsItsLawsUnderRandomOperations) {
  PoolModel model(12);
  for (int step = 0; step < 10000 && !testing::Test::HasFailure(); ++step) model.Step();
  model.Drain();
}

TEST(PagePool, IsUsedFromManyThreadsAndEndsWithEverythingFree) {
  const auto pool = NewPool(16);
  const PageRef shared = Page(*pool);
  Fill(shared.data(), kPage, 1234);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, &shared, t] {
      base::Random random(t);
      std::vector<PageRef> pages;
      std::vector<FragmentRef> fragments;
      for (int i = 0; i < 3000; ++i) {
        const PageRef copy = shared;
        EXPECT_EQ(*reinterpret_cast<uint32_t*>(copy.data()), 1234u);
        if (Result<PageRef> page = pool->AllocatePage(); page.ok()) {
          Fill(page->data(), kPage, t);
          pages.push_back(*page);
        }
        if (Result<FragmentRef> fragment = pool->AllocateFragment(); fragment.ok()) {
          Fill(fragment->data(), kFragment, t);
          fragments.push_back(*fragment);
        }
        const PoolCounts counts = pool->Counts();
        EXPECT_EQ(counts.free + counts.pages + counts.slabs, counts.total);
        if (pages.size() > random.Below(5)) {
          EXPECT_TRUE(IsFilled(pages.back().data(), kPage, t));
          pages.pop_back();
        }
        if (fragments.size() > random.Below(9)) {
          EXPECT_TRUE(IsFilled(fragments.back().data(), kFragment, t));
          fragments.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->Counts().free, 15u);
  EXPECT_EQ(pool->Counts().fragments, 0u);
}

// Pages of the pool that hold memory of the system.
int Resident(const std::vector<std::byte*>& pages) {
  int resident = 0;
  for (std::byte* page : pages) {
    unsigned char in_core = 0;
    EXPECT_EQ(mincore(page, kPage, &in_core), 0);
    resident += in_core & 1;
  }
  return resident;
}

TEST(PagePool, FreePagesGiveTheirMemoryToTheSystemTheOldestFirst) {
  if (static_cast<size_t>(sysconf(_SC_PAGESIZE)) != kPage)
    GTEST_SKIP() << "pages here are no pages of the system";
  const auto pool = NewPool(12, /*poison=*/false);
  std::vector<PageRef> pages;
  std::vector<std::byte*> addresses;
  for (uint32_t i = 0; i < 8; ++i) {
    pages.push_back(Page(*pool));
    addresses.push_back(pages.back().data());
    Fill(addresses.back(), kPage, i + 1);
  }
  while (pages.size() > 2) pages.pop_back();
  pool->GiveToSystem(4);  // those that were never handed out do already
  EXPECT_EQ(Resident(addresses), 8);
  pool->GiveToSystem(7);
  EXPECT_EQ(Resident(addresses), 5);
  EXPECT_TRUE(IsFilled(addresses[1], kPage, 2)) << "a page in use was touched";
  EXPECT_EQ(pool->Counts().free, 10u);
  for (int i = 0; i < 3; ++i) pages.push_back(Page(*pool));  // those that kept theirs come first
  EXPECT_EQ(Resident(addresses), 5);
  for (int i = 0; i < 3; ++i) {
    pages.push_back(Page(*pool));
    EXPECT_TRUE(IsFilled(pages.back().data(), kPage, 0));
  }
  while (pages.size() > 2) pages.pop_back();
  pool->GiveToSystem(100);
  EXPECT_EQ(Resident(addresses), 2);
}

TEST(PagePool, WhatComesBackFromTheSystemIsPoisonedToo) {
  const auto pool = NewPool(4);
  { const PageRef page = Page(*pool); }
  pool->GiveToSystem(4);
  const PageRef page = Page(*pool);
  EXPECT_TRUE(IsNaN(page.data(), kPage));
}

}  // namespace
}  // namespace kvlink::pool
