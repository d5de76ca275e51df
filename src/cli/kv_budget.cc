#include "cli/kv_budget.h"

#include <algorithm>

#include "cli/byte_size.h"

namespace kvlink::cli {
namespace {
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMargin = 512 * kMiB;
constexpr uint64_t kLeast = 64 * kMiB;
constexpr uint64_t kMost = 16 * 1024 * kMiB;
constexpr uint64_t kUnknown = 1024 * kMiB;
}  // namespace

uint64_t DefaultKvBytes(uint64_t available, uint64_t model_bytes) {
  if (available == 0) return kUnknown;
  const uint64_t taken = model_bytes + kMargin;
  const uint64_t left = available > taken ? available - taken : 0;
  return std::clamp(left / 2, kLeast, kMost);
}

Result<uint64_t> ChooseKvBytes(const std::string& text, uint64_t available, uint64_t total,
                               uint64_t model_bytes, const KvShape& shape) {
  if (text.empty()) {
    return std::max<uint64_t>(DefaultKvBytes(available, model_bytes), 2 * shape.page_bytes());
  }
  const auto bytes = ParseByteSize(text);
  if (!bytes.ok()) {
    return Status(StatusCode::kInvalidArgument, "--kv-memory: " + bytes.status().message());
  }
  if (*bytes < 2 * shape.page_bytes()) {
    return Status(StatusCode::kInvalidArgument,
                  "--kv-memory: '" + text + "' holds less than two blocks of " +
                      std::to_string(shape.tokens_per_block) + " tokens (" +
                      FormatByteSize(shape.page_bytes()) + " each with this model)");
  }
  if (total != 0 && *bytes > total) {
    return Status(StatusCode::kInvalidArgument, "--kv-memory: '" + text +
                                                    "' is more than this machine's memory (" +
                                                    FormatByteSize(total) + ")");
  }
  return *bytes;
}

std::string DescribeKvBytes(uint64_t bytes, const KvShape& shape, uint32_t context) {
  const uint64_t pages = bytes / shape.page_bytes();
  const uint64_t pages_each =
      std::max<uint64_t>(1, (context + shape.tokens_per_block - 1) / shape.tokens_per_block);
  const uint64_t sequences = pages / pages_each;
  return FormatByteSize(bytes) + ": " + Grouped(pages * shape.tokens_per_block) + " tokens, " +
         Grouped(sequences) + (sequences == 1 ? " sequence" : " sequences") + " of " +
         Grouped(context);
}

std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace kvlink::cli
