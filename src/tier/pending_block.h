// PendingBlock: a copy of a block that waits to be written, shared by the queues of all tiers that
// will write it; encoded once, by the first thread that needs the bytes. A tier in memory may keep
// it instead of a copy of its own; so its bytes never change once they are there.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tier/block_codec.h"
#include "tier/spare_buffers.h"

namespace kvlink::tier {

class PendingBlock {
 public:
  // Copies the payload and the tokens.
  PendingBlock(const PutBlock& block, const BlockKey& model, Compression compression,
               std::shared_ptr<SpareBuffers> spare)
      : block_(block),
        model_(model),
        compression_(compression),
        spare_(std::move(spare)),
        size_bytes_(SizeOf(block)) {
    if (compression == Compression::kNone) {
      // Which is one copy.
      encoded_ = EncodeUnsummed(block, model, compression, spare_->Take());
      block_.payload = {};
      block_.name.tokens = {};
    } else {
      tokens_.assign(block.name.tokens.begin(), block.name.tokens.end());
      payload_.reserve(block.payload_bytes());
      payload_.assign(block.payload.begin(), block.payload.end());
      for (const std::span<const std::byte> piece : block.pieces) {
        payload_.insert(payload_.end(), piece.begin(), piece.end());
      }
      block_.name.tokens = tokens_;
      block_.payload = payload_;
    }
    block_.pieces = {};
  }
  // Bytes that EncodeBlock made before, of a block read from another tier.
  PendingBlock(const BlockHeader& header, std::string encoded)
      : encoded_(std::move(encoded)), size_bytes_(encoded_.size()) {
    block_.name.kind = header.kind;
    block_.name.key = header.key;
    block_.name.parent = header.parent;
    block_.cost_us = header.cost_us;
    std::call_once(once_, [] {});
  }
  ~PendingBlock() {
    if (spare_) spare_->Give(std::move(encoded_));
  }
  PendingBlock(const PendingBlock&) = delete;
  PendingBlock& operator=(const PendingBlock&) = delete;

  PayloadKind kind() const { return block_.name.kind; }
  const BlockKey& key() const { return block_.name.key; }
  const BlockKey& parent() const { return block_.name.parent; }
  double cost_us() const { return block_.cost_us; }
  // Of memory, at most.
  static size_t SizeOf(const PutBlock& block) {
    return kHeaderBytes + kChecksumBytes + block.name.tokens.size_bytes() + block.payload_bytes();
  }
  size_t size_bytes() const { return size_bytes_; }

  std::string_view Encoded() {
    std::call_once(once_, [this] {
      if (compression_ == Compression::kNone) return AppendChecksum(encoded_);
      encoded_ = EncodeBlock(block_, model_, compression_);
      payload_ = {};
    });
    return encoded_;
  }

 private:
  PutBlock block_;
  BlockKey model_;
  Compression compression_ = Compression::kNone;
  std::shared_ptr<SpareBuffers> spare_;  // null: the bytes came from elsewhere
  std::vector<TokenId> tokens_;
  std::vector<std::byte> payload_;
  std::once_flag once_;
  std::string encoded_;
  size_t size_bytes_ = 0;
};

}  // namespace kvlink::tier
