#include "tier/cold_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kNames = {"COLD_STORE", "MODELS", "MODELS.new", "CURRENT",
                                                    "IDENTITY",   "LOCK",   "LOG"};
constexpr std::array<std::string_view, 3> kPrefixes = {"MANIFEST-", "OPTIONS-", "LOG.old."};
constexpr std::array<std::string_view, 5> kSuffixes = {".blob", ".log", ".sst", ".ldb", ".dbtmp"};

// Empty: a regular file, or one that has gone.
std::string_view OddKind(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a directory";
    case fs::file_type::symlink:
      return "a symbolic link";
    case fs::file_type::fifo:
      return "a FIFO";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "";
  }
}

}  // namespace

bool IsColdFile(std::string_view name) {
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::ranges::any_of(kSuffixes, [&](auto suffix) { return name.ends_with(suffix); });
}

Status CheckColdFiles(const std::string& directory) {
  std::error_code error;
  fs::directory_iterator at(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!IsColdFile(name)) continue;
    std::error_code gone;
    const std::string_view kind = OddKind(at->symlink_status(gone).type());
    if (kind.empty()) continue;
    return {StatusCode::kFailedPrecondition, "cold store '" + directory + "': '" + name + "' is " +
                                                 std::string(kind) +
                                                 " where a file of the store belongs; remove it"};
  }
  return {};  // a directory that cannot be read fails where it is opened
}

}  // namespace kvlink::tier
