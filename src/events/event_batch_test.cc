#include "events/event_batch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "events/msgpack.h"

namespace kvlink::events {
namespace {

using Json = nlohmann::json;

Event Stored(uint64_t hash, std::optional<uint64_t> parent, std::vector<TokenId> tokens) {
  Event event{.kind = Event::Kind::kStored, .hash = {hash, 9}, .tokens = std::move(tokens)};
  if (parent) event.parent = BlockHash{*parent, 9};
  return event;
}

Event Removed(uint64_t hash) { return {.kind = Event::Kind::kRemoved, .hash = {hash, 9}}; }

// Read by another implementation of MessagePack than the one that wrote it.
Json Decode(std::span<const Event> events) { return Json::from_msgpack(EncodeBatch(1.5, events)); }

TEST(Msgpack, NumbersAndTextsOfEveryLengthComeBack) {
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{255}, uint64_t{256}, uint64_t{65535},
        uint64_t{65536}, uint64_t{0xffffffff}, uint64_t{0x100000000}, ~uint64_t{0}}) {
    MsgpackWriter out;
    out.Unsigned(value);
    EXPECT_EQ(Json::from_msgpack(out.bytes()).get<uint64_t>(), value);
  }
  for (const size_t size : {0, 15, 16, 31, 32, 255, 256, 65535, 65536}) {
    MsgpackWriter text, array, map;
    text.Text(std::string(size, 'x'));
    EXPECT_EQ(Json::from_msgpack(text.bytes()), std::string(size, 'x'));
    array.Array(size);
    for (size_t i = 0; i < size; ++i) array.Nil();
    EXPECT_EQ(Json::from_msgpack(array.bytes()).size(), size);
    map.Map(size);
    for (size_t i = 0; i < size; ++i) {
      map.Text(std::to_string(i));
      map.Double(0.5);
    }
    EXPECT_EQ(Json::from_msgpack(map.bytes()).size(), size);
  }
}

TEST(EventBatch, SaysInWhichTierABlockIs) {
  std::vector<Event> events = {Stored(7, std::nullopt, {1, 2}), Stored(8, 7, {3, 4}), Removed(8),
                               Removed(7)};
  events[0].medium = events[1].medium = events[2].medium = Event::Medium::kDisk;
  events[1].name_space = events[0].name_space = BlockHash{1, 2};
  events[3].medium = Event::Medium::kPeer;
  const Json expected = Json::parse(R"([
    {"type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": null,
     "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": null, "medium": "STORAGE",
     "locality": "LOCAL", "lora_name": null,
     "extra_keys": [["0000000000000001"], ["0000000000000001"]]},
    {"type": "BlockRemoved", "block_hashes": [8], "medium": "STORAGE", "locality": "LOCAL"},
    {"type": "BlockRemoved", "block_hashes": [7], "medium": "STORAGE", "locality": "REMOTE"}])");
  EXPECT_EQ(Decode(events)[1], expected);
  events[1].medium = Event::Medium::kRam;
  EXPECT_EQ(Decode(events)[1].size(), 4u) << "no event speaks of two media";
}

TEST(EventBatch, HasTheFieldsOfVllm) {
  const std::vector<Event> events = {Stored(7, std::nullopt, {1, 2}), Removed(7), {}};
  const Json batch = Decode(events);
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0], 1.5);
  EXPECT_EQ(batch[2], 0);
  const Json expected = Json::parse(R"([
    {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [1, 2],
     "block_size": 2, "lora_id": null, "medium": "CPU", "lora_name": null},
    {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"},
    {"type": "AllBlocksCleared"}])");
  EXPECT_EQ(batch[1], expected);
}

TEST(EventBatch, BlocksOfOneChainAreOneEvent) {
  const std::vector<Event> events = {Stored(1, std::nullopt, {1, 2}), Stored(2, 1, {3, 4}),
                                     Stored(3, 2, {5, 6}), Stored(4, 2, {7, 8})};
  const Json list = Decode(events)[1];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["block_hashes"], (Json{1, 2, 3}));
  EXPECT_EQ(list[0]["token_ids"], (Json{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(list[0]["block_size"], 2);
  EXPECT_EQ(list[1]["parent_block_hash"], 2);
  EXPECT_EQ(list[1]["block_hashes"], (Json::array({4})));
}

TEST(EventBatch, RemovedBlocksThatFollowEachOtherAreOneEvent) {
  const std::vector<Event> events = {Removed(1), Removed(2), {}, Removed(3)};
  const Json list = Decode(events)[1];
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["block_hashes"], (Json{1, 2}));
}

TEST(EventBatch, ANamespaceShowsAsAHashThatEndsAChain) {
  Event other = Stored(2, 1, {3, 4});
  other.name_space = BlockHash{0xab, 1};
  const std::vector<Event> events = {Stored(1, std::nullopt, {1, 2}), other};
  const Json list = Decode(events)[1];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_FALSE(list[0].contains("extra_keys"));
  EXPECT_EQ(list[1]["extra_keys"], Json::parse(R"([["00000000000000ab"]])"));
}

TEST(EventBatch, HashesAreUnsigned64Bits) {
  const std::vector<Event> events = {Removed(~uint64_t{0})};
  EXPECT_EQ(Decode(events)[1][0]["block_hashes"][0].get<uint64_t>(), ~uint64_t{0});
}

}  // namespace
}  // namespace kvlink::events
