#include "cli/byte_size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>

namespace kvlink::cli {
namespace {

constexpr std::string_view kUnits = "kmgt";

Status NotASize(std::string_view text) {
  return Status(StatusCode::kInvalidArgument, "'" + std::string(text) +
                                                  "' is not a size; write bytes or a number with "
                                                  "K, M, G or T, such as 512M or 4GiB");
}

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) return NotASize(text);

  std::string suffix;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  if (suffix.ends_with("ib") && suffix.size() > 2) {
    suffix.resize(suffix.size() - 2);
  } else if (suffix.ends_with("b")) {
    suffix.resize(suffix.size() - 1);
  }
  if (suffix.size() > 1) return NotASize(text);
  if (!suffix.empty()) {
    const size_t unit = kUnits.find(suffix[0]);
    if (unit == std::string_view::npos) return NotASize(text);
    for (size_t i = 0; i <= unit; ++i) number *= 1024;
  }
  if (number >= 9.2e18) return NotASize(text);
  return static_cast<uint64_t>(number);
}

std::string FormatByteSize(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.*f %s", decimals, value, kNames[unit]);
  return buffer;
}

}  // namespace kvlink::cli
