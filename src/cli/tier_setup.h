// What --cold-dir, --cold-size, --no-cold, --remote and --remote-ca mean: the tiers below RAM.
//
// `kvlink serve` has a cold tier unless told otherwise: in the user's cache folder, with a budget
// that leaves the disk most of its free room. One process at a time uses a folder; when another one
// has the default folder, the server runs without a cold tier and says so. A folder that was asked
// for must work.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "kvlink/status.h"

namespace kvlink::cli {

struct TierFlags {
  std::string cold_dir, cold_size, remote, remote_ca, writes = "paid";
  bool no_cold = false;
};

inline constexpr uint64_t kDefaultColdBytes = uint64_t{10} << 30;

void AddTierOptions(CLI::App& app, TierFlags& flags);

// $XDG_CACHE_HOME/kvlink/cold, or ~/.cache/kvlink/cold; empty when the user has no home.
std::string DefaultColdDir();

// kInvalidArgument: options that contradict each other or cannot be read. With `cold_by_default`
// the default folder and budget stand where nothing was said.
Result<TierOptions> ReadTierFlags(const TierFlags& flags, bool cold_by_default);

// The cache with its tiers. Where the default folder cannot be used, `options->tiers` loses it and
// `warning` says why.
Result<std::unique_ptr<Cache>> CreateTieredCache(const TierFlags& flags, CacheOptions* options,
                                                 std::string* warning);

// "10 GiB in /home/me/.cache/kvlink/cold; remote redis://host:6379", passwords left out; "none".
std::string DescribeTiers(const TierOptions& tiers);

}  // namespace kvlink::cli
