// What tests and benchmarks turn off to show that it changes no bits. Not for the engine.
#pragma once

#include <optional>

#include "kernel/isa.h"
#include "kernel/paged_attention.h"

namespace kvlink::kernel {

struct AttentionTuning {
  bool cascade = true;
  bool prefetch = true;
  // Query rows (queries x heads of a KV head) that one pass over K serves.
  uint32_t max_tile_rows = 48;
  std::optional<Isa> isa;  // default: CurrentIsa()
};

Result<std::unique_ptr<PagedAttention>> CreatePagedAttention(const AttentionParams& params,
                                                             const AttentionTuning& tuning);

}  // namespace kvlink::kernel
