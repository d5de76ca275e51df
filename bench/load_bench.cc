// How long a model takes to load, and what stays in memory: load_bench FILE.gguf
//
// Prints the seconds of reading the file once (one thread, through read()), then of Model::Load and
// of its part that packs weights, each with the file out of the page cache and in it; and the
// resident memory afterwards beside the size of the file. bench/make_random_model.py makes files of
// any size.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "model/model.h"

namespace kvlink {
namespace {

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void DropFromPageCache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  fdatasync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

void ReadAll(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<char> buffer(size_t{1} << 20);
  while (read(fd, buffer.data(), buffer.size()) > 0) {
  }
  close(fd);
}

// Of /proc/self/status, in MiB.
double StatusMegabytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

int Main(const std::string& path) {
  for (const bool cold : {true, false}) {
    if (cold) DropFromPageCache(path);
    const double read = SecondsOf([&] { ReadAll(path); });
    if (cold) DropFromPageCache(path);
    const double before = StatusMegabytes("VmRSS");
    // When packing began: progress reports the digest and packing one after the other.
    double half = 0, half_cpu = 0;
    int reports = 0;
    const auto begin = std::chrono::steady_clock::now();
    model::LoadOptions options;
    options.path = path;
    options.progress = [&](double fraction) {
      ++reports;
      const auto now = std::chrono::steady_clock::now();
      if (fraction <= 0.5) half = std::chrono::duration<double>(now - begin).count();
      if (fraction <= 0.5) half_cpu = CpuSeconds();
    };
    auto model = model::Model::Load(options);
    const double load =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double cpu = CpuSeconds() - half_cpu;
    if (!model.ok()) {
      std::fprintf(stderr, "%s\n", model.status().message().c_str());
      return 1;
    }
    const double megabytes = static_cast<double>((*model)->info().file_bytes) / (1 << 20);
    const double resident = StatusMegabytes("VmRSS") - before;
    std::printf(
        "%s page cache: read once %.2f s; load %.2f s = %.2f x, of it packing %.2f s (CPU %.2f s); "
        "%d reports of progress\n",
        cold ? "out of" : "in", read, load, load / read, load - half, cpu, reports);
    std::printf("  file %.0f MiB; resident after loading %.0f MiB = %.3f x the file; peak %.0f\n",
                megabytes, resident, resident / megabytes, StatusMegabytes("VmHWM"));
  }
  return 0;
}

}  // namespace
}  // namespace kvlink

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: load_bench FILE.gguf\n");
    return 2;
  }
  return kvlink::Main(argv[1]);
}
