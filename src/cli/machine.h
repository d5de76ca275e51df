// Machine: what this process may use of the computer it runs on: cores, memory; and what it has
// used.
//
// Cores are physical ones inside the affinity mask and the cgroup quota: a second thread on a core
// adds nothing to a matrix product, and a thread without a core of its own stalls every barrier.
// Memory is what is available now, inside the cgroup limit. Every function takes the root of the
// file system, so that a test can show it another machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlink::cli {

// Logical CPUs of this process's affinity mask.
std::vector<int> AffinityCpus();

// Physical cores among `cpus`, at most the cgroup's CPU quota (rounded down); at least 1.
int UsableCores(const std::vector<int>& cpus, const std::string& root = "");

// MemAvailable, at most what the cgroup leaves. 0: unknown.
uint64_t AvailableMemory(const std::string& root = "");
uint64_t TotalMemory(const std::string& root = "");

// "AMD EPYC 9575F": the processor's own name, or its architecture.
std::string CpuName(const std::string& root = "");

// CPU seconds (user + system, all threads) of this process since its start.
double ProcessCpuSeconds();

// The most resident memory since the last ResetPeakResident (since the start where the kernel does
// not reset it).
uint64_t PeakResidentBytes();
void ResetPeakResident();

}  // namespace kvlink::cli
