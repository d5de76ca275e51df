// The cold tier when the process is killed, files are damaged, the disk is full.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "tier/cold_tier.h"
#include "tier/testing/file_limit.h"
#include "tier/testing/tier_world.h"
#include "tier/tier_files.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

using ::testing::HasSubstr;

ColdTierOptions OptionsOf(const std::string& directory, uint64_t budget = uint64_t{64} << 20) {
  ColdTierOptions options;
  options.directory = directory;
  options.budget_bytes = budget;
  options.min_free_bytes = 0;
  return options;
}

std::string WriterProgram() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cold_writer").string();
}

// cold_writer as a child, until it has confirmed `lines` blocks; then it is killed.
class Writer {
 public:
  Writer(const ColdTierOptions& options, size_t block_bytes) {
    const std::string program = WriterProgram();
    const std::string budget = std::to_string(options.budget_bytes);
    const std::string bytes = std::to_string(block_bytes);
    int ends[2];
    if (::pipe(ends) != 0) ADD_FAILURE();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], 1);
      ::close(ends[0]);
      ::close(ends[1]);
      ::execl(program.c_str(), program.c_str(), options.directory.c_str(), budget.c_str(),
              bytes.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(ends[1]);
    output_ = ::fdopen(ends[0], "r");
  }
  ~Writer() { std::fclose(output_); }

  void WaitFor(size_t lines) {
    for (size_t i = 0; i < lines && ReadLine(); ++i) {
    }
  }
  void KillAfter(size_t lines) {
    WaitFor(lines);
    ::kill(pid_, SIGKILL);
    while (ReadLine()) {  // what it said before it died
    }
    ::waitpid(pid_, nullptr, 0);
  }
  const std::set<uint64_t>& confirmed() const { return confirmed_; }
  uint64_t refused() const { return refused_; }

 private:
  bool ReadLine() {
    char line[64], word[32];
    unsigned long long n = 0;
    if (std::fgets(line, sizeof(line), output_) == nullptr) return false;
    if (std::sscanf(line, "%llu %31s", &n, word) != 2) return true;  // cut short
    if (std::string(word) == "ok" && line[std::strlen(line) - 1] == '\n') {
      confirmed_.insert(n);
    } else {
      ++refused_;
    }
    return true;
  }
  pid_t pid_ = 0;
  std::FILE* output_ = nullptr;
  std::set<uint64_t> confirmed_;
  uint64_t refused_ = 0;
};

TEST(ColdFault, AfterKillNineAllThatWasConfirmedIsThereAndNothingIsHalf) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store", uint64_t{512} << 20);
  base::Random random(1);
  std::set<uint64_t> confirmed;
  for (int round = 0; round < 4; ++round) {
    Writer writer(options, 200'000);
    writer.KillAfter(20 + random.Below(round % 2 == 0 ? 60 : 200));
    confirmed.insert(writer.confirmed().begin(), writer.confirmed().end());
    EXPECT_EQ(writer.refused(), 0u);
    const auto tier = OpenColdTier(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    for (const uint64_t n : confirmed) {
      ASSERT_EQ(GetOne(**tier, NumberedKey(n)).bytes, NumberedBlock(n, 200'000).Encoded()) << n;
    }
    const Result<VerifyReport> report = VerifyTier(**tier, false);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->damaged + report->missing + report->unreachable, 0u);
    EXPECT_GE(report->blocks, confirmed.size());
    EXPECT_LE(report->blocks, confirmed.size() + 1) << "the one that was being confirmed";
  }
  EXPECT_GT(confirmed.size(), 50u);
}

TEST(ColdFault, KillNineWhileSpaceIsGivenBackKeepsTheBudgetAndTheChecks) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store", kMinColdBudget);
  for (const size_t lines : {150, 170, 260}) {
    Writer writer(options, 400'000);
    writer.KillAfter(lines);
    EXPECT_EQ(writer.refused(), 0u);
    const auto tier = OpenColdTier(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    EXPECT_LE((*tier)->Usage().device_bytes, options.budget_bytes);
    const Result<VerifyReport> report = VerifyTier(**tier, false);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->damaged + report->missing, 0u);
    EXPECT_GT(report->blocks, 10u);
  }
}

TEST(ColdFault, AnotherProcessIsTurnedAway) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  Writer writer(options, 1000);
  writer.WaitFor(1);
  const auto tier = OpenColdTier(options);
  ASSERT_FALSE(tier.ok());
  EXPECT_THAT(tier.status().message(), HasSubstr("is in use by another process"));
  writer.KillAfter(1);
  EXPECT_GE(writer.confirmed().size(), 2u);
  EXPECT_TRUE(OpenColdTier(options).ok());
}

// A store of twenty blocks.
void Fill(const ColdTierOptions& options) {
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  for (uint64_t n = 0; n < 20; ++n) {
    const NumberedBlock block(n, 300'000);
    ASSERT_EQ(
        PutOne(**tier, block.put.name.key, block.Encoded(), block.put.name.parent, 1)[0].outcome,
        Outcome::kOk);
  }
}

void FlipByte(const std::filesystem::path& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x40));
}

// Every file of the store is damaged somewhere, one at a time: the store opens, and each block is
// right or a miss.
TEST(ColdFault, AFlippedByteInAnyFileIsAMissNeverAWrongAnswer) {
  const TempDirectory directory;
  Fill(OptionsOf(directory / "sound"));
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(directory / "sound")) {
    files.push_back(file.path().filename());
  }
  base::Random random(5);
  uint64_t missing = 0, errors = 0;
  for (const auto& name : files) {
    // Small files hold the structure: more of their bytes matter.
    const bool small =
        std::filesystem::file_size(std::filesystem::path(directory / "sound") / name) < 10'000;
    for (int round = 0; round < (small ? 6 : 2); ++round) {
      const ColdTierOptions options = OptionsOf(directory / "damaged");
      std::filesystem::remove_all(options.directory);
      std::filesystem::copy(directory / "sound", options.directory);
      const uint64_t size =
          std::filesystem::file_size(std::filesystem::path(options.directory) / name);
      if (size == 0) continue;
      FlipByte(std::filesystem::path(options.directory) / name, random.Below(size));

      auto opened = OpenColdTier(options);
      if (name == "COLD_STORE") {  // whose it is cannot be told any more
        EXPECT_FALSE(opened.ok());
        continue;
      }
      ASSERT_TRUE(opened.ok()) << name << ": " << opened.status().ToString();
      std::vector<std::unique_ptr<BlockTier>> tiers;
      tiers.push_back(std::move(*opened));
      TierStoreOptions store_options;
      store_options.model_fingerprint = "model";
      const auto store = TierStore::Create(store_options, std::move(tiers));
      for (uint64_t n = 0; n < 20; ++n) {
        const NumberedBlock block(n, 300'000);
        const Want want{block.put.name, {}};
        const auto ticket = store->Load({&want, 1}, Soon(), {});
        ASSERT_TRUE(ticket->WaitUntil(Soon()));
        const LoadResult result = ticket->TakeResult(0);
        missing += result.loaded() ? 0 : 1;
        if (result.loaded()) {
          ASSERT_EQ(result.payload, block.payload) << name;
        }
      }
      errors += store->Stats(0).num_errors();
    }
  }
  EXPECT_GT(missing, 0u);
  EXPECT_GT(errors, 0u);
}

TEST(ColdFault, ADamagedStructureIsAnErrorWhereItMustNotBeEmptied) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  std::ofstream(options.directory + "/CURRENT") << "rubbish";
  options.recreate_if_damaged = false;
  const auto refused = OpenColdTier(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kDataLoss) << refused.status().ToString();
  options.recreate_if_damaged = true;
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  EXPECT_EQ((*tier)->Usage().blocks, 0u);
  EXPECT_EQ(PutOne(**tier, NumberedKey(0), "x")[0].outcome, Outcome::kOk);
}

TEST(ColdFault, TheFreeRoomThatMustStayIsKept) {
  const TempDirectory directory;
  ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  options.min_free_bytes = uint64_t{1} << 60;
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok());
  EXPECT_EQ(PutOne(**tier, NumberedKey(99), "x")[0].reason, ErrorReason::kFull);
  EXPECT_EQ((*tier)->ContainsNow(NumberedKey(99)), false);
  EXPECT_EQ(GetOne(**tier, NumberedKey(5)).outcome, Outcome::kOk);
  EXPECT_THAT((*tier)->LastError(), HasSubstr("free on the device"));
}

TierAnswer PutNumbered(BlockTier& tier, uint64_t n, size_t bytes) {
  const NumberedBlock block(n, bytes);
  return PutOne(tier, block.put.name.key, block.Encoded(), block.put.name.parent, 1)[0];
}

TEST(ColdFault, ABlockThatTheDeviceRefusesIsAnErrorAndTheNextIsNot) {
  const TempDirectory directory;
  const auto tier = OpenColdTier(OptionsOf(directory / "store"));
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  ASSERT_EQ(PutNumbered(**tier, 0, 5000).outcome, Outcome::kOk);
  const uint64_t device = (*tier)->Usage().device_bytes;
  ErrorReason reason = ErrorReason::kNone;
  {
    const FileLimit limit(20'000);
    reason = PutNumbered(**tier, 1, 300'000).reason;
  }
  EXPECT_EQ(reason, ErrorReason::kIo);
  EXPECT_EQ((*tier)->ContainsNow(NumberedKey(1)), false);
  EXPECT_NE((*tier)->LastError(), "");
  EXPECT_LE((*tier)->Usage().device_bytes, device + 1000) << "what was written is given back";
  EXPECT_EQ(PutNumbered(**tier, 1, 300'000).outcome, Outcome::kOk);
  for (const uint64_t n : {0, 1}) {
    EXPECT_EQ(GetOne(**tier, NumberedKey(n)).bytes,
              NumberedBlock(n, n == 0 ? 5000 : 300'000).Encoded());
  }
}

// RocksDB takes an error of its log, other than a full device, for the end of all writing.
TEST(ColdFault, AStoreWhoseLogFailedIsOpenedAgainWithAllThatWasConfirmed) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  {
    const auto tier = OpenColdTier(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    ASSERT_EQ(PutNumbered(**tier, 0, 10).outcome, Outcome::kOk);
    const auto write_a_line = [&](uint64_t n) {  // to the log alone
      const BlockKey key = NumberedKey(1000 + n);
      return (*tier)->Remove({&key, 1}, Soon())[0];
    };
    for (uint64_t n = 0; n < 500; ++n) ASSERT_EQ(write_a_line(n).outcome, Outcome::kMiss);
    uint64_t log_bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(options.directory)) {
      if (file.path().extension() == ".log")
        log_bytes = std::max<uint64_t>(log_bytes, file.file_size());
    }
    ASSERT_GT(log_bytes, 10'000u);
    ErrorReason reason = ErrorReason::kNone;
    {
      const FileLimit limit(log_bytes + 10);
      reason = write_a_line(500).reason;
    }
    EXPECT_EQ(reason, ErrorReason::kIo);
    EXPECT_EQ(GetOne(**tier, NumberedKey(0)).outcome, Outcome::kOk) << "reading goes on";
    EXPECT_FALSE((*tier)->Flush(Soon()).ok()) << "and it ends nothing: RocksDB would abort";
    EXPECT_TRUE((*tier)->Ping(Soon()).ok()) << (*tier)->LastError();
    EXPECT_EQ(PutNumbered(**tier, 1, 10).outcome, Outcome::kOk) << (*tier)->LastError();
    EXPECT_TRUE((*tier)->Flush(Soon()).ok());
  }
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  for (const uint64_t n : {0, 1}) {
    EXPECT_EQ(GetOne(**tier, NumberedKey(n)).bytes, NumberedBlock(n, 10).Encoded()) << n;
  }
}

// On a file system of 24 MB of its own, where the system lets us make one.
TEST(ColdFault, NoSpaceLeftIsCountedAndInvisible) {
  const TempDirectory directory;
  const std::string in_namespace =
      "unshare --mount --map-root-user sh -c 'mount -t tmpfs -o size=24m none \"" +
      directory.path() + "\" && ";
  if (std::system((in_namespace + "true' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  const std::string command = in_namespace + "exec \"" + WriterProgram() + "\" \"" +
                              (directory / "store") + "\" 67108864 300000 100'";
  std::FILE* said = ::popen(command.c_str(), "r");
  std::map<std::string, int> words;
  char subject[32], word[32];
  while (std::fscanf(said, "%31s %31s", subject, word) == 2) {
    const bool of_block = std::isdigit(static_cast<unsigned char>(subject[0])) != 0;
    ++words[of_block ? word : std::string(subject) + " " + word];
  }
  EXPECT_EQ(::pclose(said), 0);
  EXPECT_GT(words["ok"], 20);
  EXPECT_GT(words["full"], 10) << "io: " << words["io"];
  EXPECT_EQ(words["now sound"], 1);
  EXPECT_EQ(words["again sound"], 1);
}

// Files may not grow past 0.8 MB (one of blobs is longer), as on a full disk: in a child, since the
// limit is of the process.
TEST(ColdFault, ADiskThatTakesNoMoreLosesNothingOldAndShowsNothingNew) {
  const TempDirectory directory;
  const ColdTierOptions options = OptionsOf(directory / "store");
  Fill(options);
  const std::string limited = "trap '' XFSZ; ulimit -f 1600; exec '" + WriterProgram() + "' '" +
                              options.directory + "' " + std::to_string(options.budget_bytes) +
                              " 100000 | head -n 40 >'" + (directory / "said") + "'";
  ASSERT_NE(std::system(limited.c_str()), -1);
  std::ifstream said(directory / "said");
  std::set<uint64_t> confirmed;
  uint64_t refused = 0, n = 0;
  for (std::string word; said >> n >> word;) {
    if (word == "ok") {
      confirmed.insert(n);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0u);
  const auto tier = OpenColdTier(options);
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  for (uint64_t old = 0; old < 20; ++old) {
    const std::string bytes = GetOne(**tier, NumberedKey(old)).bytes;
    const bool is_new = bytes == NumberedBlock(old, 100'000).Encoded();
    EXPECT_TRUE(is_new || bytes == NumberedBlock(old, 300'000).Encoded()) << old;
    if (confirmed.contains(old)) {
      EXPECT_TRUE(is_new) << old;
    }
  }
  const Result<VerifyReport> report = VerifyTier(**tier, false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->damaged + report->missing, 0u);
}

}  // namespace
}  // namespace kvlink::tier
