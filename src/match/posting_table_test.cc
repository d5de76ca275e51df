#include "match/posting_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"

namespace kvlink::match {
namespace {

std::vector<uint32_t> Donors(const PostingTable& table, uint32_t key) {
  const PostingTable::Bucket bucket = table.Find(key);
  return {bucket.donors.begin(), bucket.donors.begin() + bucket.size};
}

TEST(PostingTable, FindsTheNewestAndSomeOfTheOldestDonorsAndCountsAll) {
  PostingTable table;
  EXPECT_EQ(table.Find(5).frequency, 0u);
  for (uint32_t donor = 0; donor < 40; ++donor) table.Add(5, donor);
  EXPECT_EQ(table.Find(5).frequency, 40u);
  const std::vector<uint32_t> donors = Donors(table, 5);
  ASSERT_EQ(donors.size(), PostingTable::kBucketSize);
  for (uint32_t i = 0; i < 12; ++i) EXPECT_EQ(donors[i], 39 - i);
  for (uint32_t i = 12; i < 16; ++i) EXPECT_EQ(donors[i], 15 - i);
  EXPECT_EQ(table.num_nodes(), PostingTable::kBucketSize) << "those pushed out take no memory";
}

TEST(PostingTable, ForgetsAKeyWithItsLastDonor) {
  PostingTable table;
  table.Add(1, 7);
  table.Add(1, 8);
  table.Remove(1, 7);
  EXPECT_EQ(Donors(table, 1), std::vector<uint32_t>{8});
  table.Remove(1, 8);
  EXPECT_EQ(table.num_keys(), 0u);
  EXPECT_EQ(table.num_nodes(), 0u);
}

TEST(PostingTable, RemovesADonorThatWasPushedOut) {
  PostingTable table;
  for (uint32_t donor = 0; donor < 20; ++donor) table.Add(1, donor);
  table.Remove(1, 4);
  EXPECT_EQ(table.Find(1).frequency, 19u);
  EXPECT_EQ(table.Find(1).size, PostingTable::kBucketSize);
}

TEST(PostingTable, GivesMemoryBack) {
  PostingTable table;
  for (uint32_t key = 0; key < 100000; ++key) table.Add(key * 2654435761u, key);
  const size_t full = table.tracking_bytes();
  EXPECT_LT(full, 100000u * 45);
  for (uint32_t key = 0; key < 100000; ++key) table.Remove(key * 2654435761u, key);
  EXPECT_LT(table.tracking_bytes(), full / 100);
}

// What the table promises, as lists: which donors have a key, and which the bucket still shows.
struct Naive {
  std::vector<uint32_t> all, shown;
};

TEST(PostingTable, DoesWhatListsDo) {
  // Few keys far apart, and many close together, so that probes run into each other and around the
  // end.
  for (const uint32_t stride : {0x10000000u, 1u, 0xfffffff0u}) {
    PostingTable table;
    std::map<uint32_t, Naive> naive;
    base::Random random(stride);
    uint32_t next_donor = 0;
    for (int step = 0; step < 30000; ++step) {
      const auto key = static_cast<uint32_t>(random.Below(60)) * stride;
      Naive& entry = naive[key];
      const bool filling = step / 3000 % 2 == 0;
      if (random.Below(10) < (filling ? 7u : 2u)) {
        table.Add(key, next_donor);
        entry.all.push_back(next_donor);
        entry.shown.insert(entry.shown.begin(), next_donor++);
        if (entry.shown.size() > PostingTable::kBucketSize) {
          entry.shown.erase(entry.shown.begin() + PostingTable::kNewest);
        }
      } else if (!entry.all.empty()) {
        const size_t which = random.Below(entry.all.size());
        const uint32_t donor = entry.all[which];
        table.Remove(key, donor);
        entry.all.erase(entry.all.begin() + static_cast<std::ptrdiff_t>(which));
        std::erase(entry.shown, donor);
      }
      ASSERT_EQ(table.Find(key).frequency, entry.all.size());
      ASSERT_EQ(Donors(table, key), entry.shown);
      if (step % 100 == 0) {
        size_t keys = 0, nodes = 0;
        for (const auto& [other, lists] : naive) {
          ASSERT_EQ(table.Find(other).frequency, lists.all.size());
          keys += lists.all.empty() ? 0 : 1;
          nodes += lists.shown.size();
        }
        ASSERT_EQ(table.num_keys(), keys);
        ASSERT_EQ(table.num_nodes(), nodes);
      }
    }
  }
}

}  // namespace
}  // namespace kvlink::match
