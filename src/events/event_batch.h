// EventBatch: KV events as vLLM publishes them (vllm/distributed/kv_events.py of vLLM 0.32), so
// that what reads those reads these.
//
//   [ts, [event, ...], data_parallel_rank]
//   {"type": "BlockStored", "block_hashes": [int], "parent_block_hash": int or nil,
//    "token_ids": [int], "block_size": int, "lora_id": nil, "medium": "CPU", "lora_name": nil,
//    "extra_keys": [[text], ...]}                              extra_keys: in a namespace only
//   {"type": "BlockRemoved", "block_hashes": [int], "medium": "CPU"}
//   {"type": "AllBlocksCleared"}
//
// RAM is "CPU". Tiers below it are "STORAGE" with a "locality", as vLLM's own offloading tiers have
// them: "LOCAL" a disk, "REMOTE" a peer.
// A hash is the low 64 bits of a block's key (vLLM's default is 64 bits, too). In place of a
// tenant's salt, extra_keys have 16 hexadecimal digits of a hash of the namespace: who reads events
// can tell namespaces apart, and learns no secret.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvlink/block_observer.h"

namespace kvlink::events {

struct Event {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  enum class Medium : uint8_t { kRam, kDisk, kPeer };
  Kind kind = Kind::kCleared;
  Medium medium = Medium::kRam;         // stored, removed
  BlockHash hash;                       // stored, removed
  std::optional<BlockHash> parent;      // stored
  std::vector<TokenId> tokens;          // stored
  std::optional<BlockHash> name_space;  // stored
};

// Stored blocks of one chain, and removed blocks, of one medium that follow each other become one
// event each.
// `unix_s`: seconds since 1970.
std::string EncodeBatch(double unix_s, std::span<const Event> events);

}  // namespace kvlink::events
