// Byte sizes as people write and read them: "512M", "4GiB", "1.5 GB" and back.
//
// Suffixes B, K, M, G, T with or without "iB" or "B", any case; all are powers of 1,024, as KV
// pages are. A number without a suffix is bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::cli {

// kInvalidArgument with the text seen when it is no size, or one past 2^63.
Result<uint64_t> ParseByteSize(std::string_view text);

// "1.5 GiB": three significant digits, the largest unit that leaves at least 1.
std::string FormatByteSize(uint64_t bytes);

}  // namespace kvlink::cli
