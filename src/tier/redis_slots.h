// RedisSlots: which node of a Redis Cluster has which of the 16384 hash slots.
//
// A key's slot is CRC16 (XMODEM: polynomial 0x1021, start 0) of the key modulo 16384; our keys have
// no {hash tag}. (Redis Cluster Specification, "Key distribution model".)
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tier/remote_tier.h"

namespace kvlink::tier {

inline constexpr uint32_t kNumSlots = 16384;

constexpr uint16_t Crc16(std::string_view bytes) {
  uint16_t crc = 0;
  for (const char byte : bytes) {
    crc = static_cast<uint16_t>(crc ^ static_cast<unsigned char>(byte) << 8);
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc;
}
constexpr uint32_t SlotOf(std::string_view key) { return Crc16(key) % kNumSlots; }

class RedisSlots {
 public:
  RedisSlots() { node_of_.fill(kNobody); }
  // The index of the node; the same for an equal endpoint.
  uint32_t AddNode(const RemoteEndpoint& endpoint) {
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i] == endpoint) return i;
    }
    nodes_.push_back(endpoint);
    return static_cast<uint32_t>(nodes_.size()) - 1;
  }
  void Assign(uint32_t first, uint32_t last, uint32_t node) {
    for (uint32_t slot = first; slot <= last && slot < kNumSlots; ++slot) {
      node_of_[slot] = static_cast<uint16_t>(node);
    }
  }
  void ForgetSlots() { node_of_.fill(kNobody); }

  // Node 0 where nobody is known to have the slot: it will say who has.
  uint32_t NodeOf(uint32_t slot) const { return node_of_[slot] == kNobody ? 0 : node_of_[slot]; }
  const RemoteEndpoint& endpoint(uint32_t node) const { return nodes_[node]; }
  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size()); }

 private:
  static constexpr uint16_t kNobody = 0xffff;
  std::vector<RemoteEndpoint> nodes_;
  std::array<uint16_t, kNumSlots> node_of_;
};

}  // namespace kvlink::tier
