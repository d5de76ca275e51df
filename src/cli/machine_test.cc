#include "cli/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvlink::cli {
namespace {

namespace fs = std::filesystem;

// Another machine: a folder that stands for the root of its file system.
class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "kvlink_machine_" + std::to_string(getpid()) + "_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    Write("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void AddCpu(int cpu, int package, int core) {
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    Write(topology + "physical_package_id", std::to_string(package) + "\n");
    Write(topology + "core_id", std::to_string(core) + "\n");
  }

  std::string root_;
};

TEST_F(MachineTest, TwoThreadsOfACoreCountOnce) {
  for (int cpu = 0; cpu < 8; ++cpu) AddCpu(cpu, cpu / 4, cpu % 2);
  EXPECT_EQ(UsableCores({0, 1, 2, 3, 4, 5, 6, 7}, root_), 4);
  EXPECT_EQ(UsableCores({0, 2}, root_), 1);
}

TEST_F(MachineTest, WithoutTopologyEveryCpuIsACore) { EXPECT_EQ(UsableCores({3, 5}, root_), 2); }

TEST_F(MachineTest, AQuotaOfAnyAncestorLimitsTheCores) {
  Write("/proc/self/cgroup", "0::/slice/unit\n");
  Write("/sys/fs/cgroup/slice/unit/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(UsableCores({0, 1, 2, 3}, root_), 2);
}

TEST_F(MachineTest, AQuotaBelowOneCoreStillGivesOne) {
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(UsableCores({0, 1}, root_), 1);
}

TEST_F(MachineTest, MemoryIsWhatTheMachineHasAvailable) {
  EXPECT_EQ(AvailableMemory(root_), uint64_t{4} << 30);
  EXPECT_EQ(TotalMemory(root_), uint64_t{8} << 30);
}

TEST_F(MachineTest, MemoryIsAtMostWhatTheCgroupLeaves) {
  Write("/proc/self/cgroup", "0::/unit\n");
  Write("/sys/fs/cgroup/unit/memory.max", std::to_string(uint64_t{3} << 30) + "\n");
  Write("/sys/fs/cgroup/unit/memory.current", std::to_string(uint64_t{1} << 30) + "\n");
  EXPECT_EQ(AvailableMemory(root_), uint64_t{2} << 30);
}

TEST_F(MachineTest, FilesThatTheCgroupReadOnceCountAsLeft) {
  Write("/proc/self/cgroup", "0::/unit\n");
  Write("/sys/fs/cgroup/unit/memory.max", std::to_string(uint64_t{3} << 30) + "\n");
  Write("/sys/fs/cgroup/unit/memory.current", std::to_string(uint64_t{3} << 30) + "\n");
  Write("/sys/fs/cgroup/unit/memory.stat",
        "anon 5\nactive_file 7\ninactive_file " + std::to_string(uint64_t{1} << 30) + "\n");
  EXPECT_EQ(AvailableMemory(root_), uint64_t{1} << 30);
}

TEST_F(MachineTest, AnUnlimitedCgroupLeavesAll) {
  Write("/proc/self/cgroup", "4:memory:/unit\n0::/\n");
  Write("/sys/fs/cgroup/memory/unit/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/unit/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), uint64_t{4} << 30);
}

TEST(Machine, ThisProcessHasCoresMemoryAndAName) {
  EXPECT_GE(UsableCores(AffinityCpus()), 1);
  EXPECT_LE(static_cast<size_t>(UsableCores(AffinityCpus())), AffinityCpus().size());
  EXPECT_GT(AvailableMemory(), 0u);
  EXPECT_FALSE(CpuName().empty());
  EXPECT_GT(PeakResidentBytes(), 0u);
}

}  // namespace
}  // namespace kvlink::cli
