// A pool of few small pages for tests of the block graph.
#pragma once

#include <cstdint>
#include <memory>

#include "pool/page_pool.h"

namespace kvlink::cache {

constexpr uint32_t kTokens = 8;  // of a block
constexpr uint64_t kPages = 40;
constexpr uint32_t kCapacity = 2;  // rows of a difference block

inline std::unique_ptr<pool::PagePool> MakePool() {
  return pool::PagePool::Create(
             {.page_bytes = 1024, .fragment_bytes = 256, .budget_bytes = kPages * 1024})
      .value();
}

}  // namespace kvlink::cache
