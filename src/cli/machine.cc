#include "cli/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace kvlink::cli {
namespace {

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> FirstNumber(const std::string& path) {
  const auto line = FirstLine(path);
  if (!line) return std::nullopt;
  std::istringstream in(*line);
  int64_t number = 0;
  if (!(in >> number)) return std::nullopt;  // "max"
  return number;
}

// "Name:   123 kB" of /proc/meminfo and /proc/self/status, in bytes.
std::optional<uint64_t> KilobyteField(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream in(line.substr(name.size() + 1));
    uint64_t kilobytes = 0;
    if (in >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

// Folders of this process's cgroup for a controller, from its own up to the root: a limit anywhere
// on the way holds. Version 2 has one tree ("0::/path"), version 1 a tree per controller
// ("4:memory:/path").
std::vector<std::string> CgroupFolders(const std::string& root, const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string base = root + "/sys/fs/cgroup";
    if (controllers.find("," + controller + ",") != std::string::npos) {
      base += "/" + controller;
    } else if (controllers != ",,") {
      continue;
    }
    std::string path = line.substr(second + 1);
    while (true) {
      folders.push_back(base + (path == "/" ? "" : path));
      const size_t slash = path.rfind('/');
      if (path.empty() || path == "/" || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return folders;
}

// Cores' worth of time that the cgroup grants; infinite without a quota.
double CpuQuota(const std::string& root) {
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& folder : CgroupFolders(root, "cpu")) {
    if (const auto line = FirstLine(folder + "/cpu.max")) {
      std::istringstream in(*line);
      double limit = 0, period = 0;
      if (in >> limit >> period && period > 0) quota = std::min(quota, limit / period);
    }
    const auto limit = FirstNumber(folder + "/cpu.cfs_quota_us");
    const auto period = FirstNumber(folder + "/cpu.cfs_period_us");
    if (limit && period && *limit > 0 && *period > 0) {
      quota = std::min(quota, static_cast<double>(*limit) / static_cast<double>(*period));
    }
  }
  return quota;
}

}  // namespace

std::vector<int> AffinityCpus() {
  std::vector<int> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

int UsableCores(const std::vector<int>& cpus, const std::string& root) {
  std::set<std::pair<int64_t, int64_t>> cores;
  for (const int cpu : cpus) {
    const std::string topology =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const auto package = FirstNumber(topology + "physical_package_id");
    const auto core = FirstNumber(topology + "core_id");
    // Without topology every logical CPU counts as a core.
    cores.emplace(package.value_or(-1), core ? *core : int64_t{-1} - cpu);
  }
  const double quota = CpuQuota(root);
  const auto count = static_cast<double>(cores.size());
  return std::max(1, static_cast<int>(std::min(count, quota)));
}

// Of what a cgroup uses, files that were read once: the kernel drops those first.
int64_t InactiveFileBytes(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  int64_t bytes = 0, inactive = 0;
  while (file >> name >> bytes) {
    // Version 1 names those of its subgroups as well.
    if (name == "inactive_file" || name == "total_inactive_file")
      inactive = std::max(inactive, bytes);
  }
  return inactive;
}

uint64_t AvailableMemory(const std::string& root) {
  auto available = KilobyteField(root + "/proc/meminfo", "MemAvailable");
  if (!available) return 0;
  for (const std::string& folder : CgroupFolders(root, "memory")) {
    for (const auto& [limit_file, used_file] :
         {std::pair{"/memory.max", "/memory.current"},
          std::pair{"/memory.limit_in_bytes", "/memory.usage_in_bytes"}}) {
      const auto limit = FirstNumber(folder + limit_file);
      const auto used = FirstNumber(folder + used_file);
      if (!limit || !used) continue;
      const int64_t kept = *used - std::min(*used, InactiveFileBytes(folder));
      const auto left = static_cast<uint64_t>(std::max(int64_t{0}, *limit - kept));
      available = std::min(*available, left);
    }
  }
  return *available;
}

uint64_t TotalMemory(const std::string& root) {
  return KilobyteField(root + "/proc/meminfo", "MemTotal").value_or(0);
}

std::string CpuName(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

double ProcessCpuSeconds() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

uint64_t PeakResidentBytes() { return KilobyteField("/proc/self/status", "VmHWM").value_or(0); }

void ResetPeakResident() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace kvlink::cli
