// What lies in a cold store's folder under the names of its files and is none.
#include "tier/cold_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tier/cold_models.h"
#include "tier/cold_tier.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

ColdTierOptions OptionsOf(const std::string& directory) {
  ColdTierOptions options;
  options.directory = directory;
  options.budget_bytes = kMinColdBudget;
  options.min_free_bytes = 0;
  return options;
}

// A store with blocks and with tables: what RocksDB writes at its end is in a table at the next.
void Fill(const ColdTierOptions& options) {
  for (uint64_t run = 0; run < 3; ++run) {
    const auto tier = OpenColdTier(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    for (uint64_t n = 0; n < 3000; ++n) PutOne(**tier, NumberedKey(run * 3000 + n), "block");
    NoteColdModel(options.directory, "model " + std::to_string(run));
  }
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

bool MakeFifo(const std::string& path) { return ::mkfifo(path.c_str(), 0600) == 0; }
bool MakeSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const bool bound =
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return bound;
}

struct Odd {
  const char* name;
  std::function<bool(const std::string& path)> make;  // false: not on this system
};

const Odd kOdd[] = {
    {"a FIFO", MakeFifo},
    {"a socket", MakeSocket},
    {"a directory", [](const std::string& path) { return fs::create_directory(path); }},
    {"a symbolic link",
     [](const std::string& path) {
       fs::create_symlink("/dev/zero", path);
       return true;
     }},
    {"a device",
     [](const std::string& path) {
       return ::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;  // /dev/null
     }},
};

TEST(ColdFiles, WhateverAStoreKeepsHasANameThatIsChecked) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  const auto open = OpenColdTier(options);
  ASSERT_TRUE(open.ok());
  const std::vector<std::string> names = NamesIn(options.directory);
  for (const std::string& name : names) EXPECT_TRUE(IsColdFile(name)) << name;
  for (const char* part : {"COLD_STORE", "MODELS", "CURRENT", "MANIFEST-", "OPTIONS-", ".sst",
                           ".log", "kv-000001.blob"}) {
    EXPECT_THAT(names, ::testing::Contains(HasSubstr(part)));
  }
}

// In place of each file that is there, and under the names of those that come and go.
TEST(ColdFiles, WhatIsNoFileIsRefusedByNameAndKindAndNothingHangs) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  std::vector<std::string> names = NamesIn(options.directory);
  names.insert(names.end(),
               {"kv-000999.blob", "000999.log", "000999.dbtmp", "LOG.old.1", "MODELS.new"});
  for (const std::string& name : names) {
    for (const Odd& odd : kOdd) {
      const std::string path = options.directory + "/" + name, aside = directory / "aside";
      if (fs::exists(path)) fs::rename(path, aside);
      if (odd.make(path)) {
        for (const bool read_only : {false, true}) {
          options.read_only = read_only;
          const auto opened = OpenColdTier(options);
          ASSERT_FALSE(opened.ok()) << name << " as " << odd.name;
          EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
          EXPECT_THAT(opened.status().message(),
                      AllOf(HasSubstr(options.directory), HasSubstr("'" + name + "'"),
                            HasSubstr(odd.name)));
        }
        fs::remove(path);
      }
      if (fs::exists(aside)) fs::rename(aside, path);
    }
  }
  options.read_only = false;
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  EXPECT_EQ(GetOne(**tier, NumberedKey(5)).bytes, "block");
}

TEST(ColdFiles, WhatHasAnotherNameIsLeftAlone) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  for (const Odd& odd : kOdd) (void)odd.make(options.directory + "/" + (odd.name + 2));
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  EXPECT_EQ(GetOne(**tier, NumberedKey(5)).bytes, "block");
  EXPECT_TRUE(fs::symlink_status(options.directory + "/FIFO").type() == fs::file_type::fifo);
}

}  // namespace
}  // namespace kvlink::tier
