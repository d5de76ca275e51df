// KvBudget: how many bytes of RAM the KV cache gets when nobody says, and what a budget holds.
#pragma once

#include <cstdint>
#include <string>

#include "kvlink/kv_shape.h"
#include "kvlink/status.h"

namespace kvlink::cli {

// Half of what is left of `available` RAM after the model (whose pages the weights will fill) and a
// margin for everything else; at most 16 GiB, at least 64 MiB. 1 GiB when `available` is 0
// (unknown).
uint64_t DefaultKvBytes(uint64_t available, uint64_t model_bytes);

// `text` is --kv-memory, empty for the default. kInvalidArgument: less than two pages, or more than
// the machine has.
Result<uint64_t> ChooseKvBytes(const std::string& text, uint64_t available, uint64_t total,
                               uint64_t model_bytes, const KvShape& shape);

// "5.60 GiB: 262,144 tokens, 32 sequences of 8,192".
std::string DescribeKvBytes(uint64_t bytes, const KvShape& shape, uint32_t context);

// 1234567 -> "1,234,567".
std::string Grouped(uint64_t number);

}  // namespace kvlink::cli
