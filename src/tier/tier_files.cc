#include "tier/tier_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <unordered_set>

namespace kvlink::tier {
namespace {

constexpr size_t kMaxFindings = 100;
constexpr size_t kBlocksACall = 16;
constexpr std::chrono::seconds kTimeout{30};  // of one call

struct ReadEntry {
  TierEntry entry;
  TierAnswer answer;
};

// Calls visit for every block of the tier with its bytes, or why they did not come.
Status ReadAll(BlockTier& tier, const std::function<Status(const ReadEntry&)>& visit) {
  std::vector<TierEntry> entries;
  Status status = tier.List([&entries](const TierEntry& entry) {
    entries.push_back(entry);
    return true;
  });
  std::ranges::sort(entries, {}, &TierEntry::key);
  for (size_t first = 0; status.ok() && first < entries.size(); first += kBlocksACall) {
    const size_t count = std::min(kBlocksACall, entries.size() - first);
    std::vector<BlockKey> keys;
    for (size_t i = 0; i < count; ++i) keys.push_back(entries[first + i].key);
    std::vector<TierAnswer> answers = tier.Get(keys, std::chrono::steady_clock::now() + kTimeout);
    for (size_t i = 0; status.ok() && i < count; ++i) {
      status = visit({entries[first + i], std::move(answers[i])});
    }
  }
  return status;
}

CheckedBlock Check(const ReadEntry& read) {
  CheckedBlock block;
  block.entry = read.entry;
  if (read.answer.outcome == Outcome::kError) {
    block.error = {read.answer.reason,
                   std::string("cannot be read: ") + ErrorReasonName(read.answer.reason)};
    return block;
  }
  block.sound = ReadBlock(read.answer.bytes, &block.header, &block.error);
  if (block.sound && block.header.key != read.entry.key) {
    block.sound = false;
    block.error = {ErrorReason::kForeign, "holds the block " + HexOfKey(block.header.key)};
  }
  std::vector<std::byte> payload(block.sound ? block.header.payload_bytes : 0);
  if (block.sound && !ReadPayload(read.answer.bytes, block.header, payload, &block.error)) {
    block.sound = false;
  }
  return block;
}

}  // namespace

Result<VerifyReport> VerifyTier(BlockTier& tier, bool remove_damaged,
                                const std::function<void(const CheckedBlock&)>& visit) {
  VerifyReport report;
  std::unordered_set<BlockKey> present;
  Status status = tier.List([&present](const TierEntry& entry) {
    present.insert(entry.key);
    return true;
  });
  if (!status.ok()) return status;
  std::vector<BlockKey> damaged;
  const auto find = [&report](const BlockKey& key, const std::string& what) {
    if (report.findings.size() < kMaxFindings)
      report.findings.push_back(HexOfKey(key) + ": " + what);
  };
  status = ReadAll(tier, [&](const ReadEntry& read) -> Status {
    if (read.answer.outcome == Outcome::kMiss) {
      ++report.missing;
      find(read.entry.key, "is listed but cannot be found");
      return {};
    }
    CheckedBlock block = Check(read);
    if (block.sound) {
      ++report.blocks;
      report.bytes += read.answer.bytes.size();
      const BlockKey& parent = block.header.parent;
      block.reachable = parent == BlockKey{} || present.contains(parent);
      report.unreachable += block.reachable ? 0 : 1;
    } else {
      ++report.damaged;
      damaged.push_back(read.entry.key);
      find(read.entry.key, block.error.message);
    }
    if (visit) visit(block);
    return {};
  });
  if (!status.ok()) return status;
  if (remove_damaged && !damaged.empty()) {
    for (const TierAnswer& answer :
         tier.Remove(damaged, std::chrono::steady_clock::now() + kTimeout)) {
      if (answer.outcome == Outcome::kError) {
        return Status(StatusCode::kUnavailable,
                      "damaged blocks cannot be removed: " + tier.LastError());
      }
    }
  }
  return report;
}

Result<uint64_t> ExportTier(BlockTier& tier, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Status(StatusCode::kUnavailable, "'" + directory + "': " + error.message());
  }
  uint64_t written = 0;
  Status status = ReadAll(tier, [&](const ReadEntry& read) -> Status {
    if (read.answer.outcome != Outcome::kOk || !Check(read).sound) return {};
    const std::filesystem::path path =
        std::filesystem::path(directory) / (HexOfKey(read.entry.key) + ".kvblock");
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(read.answer.bytes.data(), static_cast<std::streamsize>(read.answer.bytes.size()));
    file.close();
    if (!file) {
      return {StatusCode::kUnavailable,
              "'" + path.string() + "': cannot be written: " + std::strerror(errno)};
    }
    ++written;
    return {};
  });
  if (!status.ok()) return status;
  return written;
}

std::string HexOfKey(const BlockKey& key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (const uint64_t half : {key.hi, key.lo}) {
    for (int shift = 60; shift >= 0; shift -= 4) digits.push_back(kDigits[half >> shift & 15]);
  }
  return digits;
}

bool KeyOfHex(std::string_view digits, BlockKey* key) {
  if (digits.size() != 32) return false;
  *key = {};
  for (size_t i = 0; i < digits.size(); ++i) {
    const char c = digits[i];
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (c < 'a' || c > 'f')) return false;
    uint64_t& half = i < 16 ? key->hi : key->lo;
    half = half << 4 | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return true;
}

}  // namespace kvlink::tier
