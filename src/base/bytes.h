// Sizes in bytes as people write them: "512M", "2G", "1.5GiB", "4096". Units are powers of 1024;
// case does not matter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::base {

// kInvalidArgument with the text seen: no number, an unknown unit, negative, or over 2^63.
Result<uint64_t> ParseBytes(std::string_view text);

// "512 MiB", "1.50 GiB", "17 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace kvlink::base
