#include "cli/tier_setup.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/byte_size.h"
#include "cli/command.h"
#include "kvlink/cache.h"
#include "tier/cold_tier.h"
#include "tier/remote_tier.h"

namespace kvlink::cli {
namespace {

Status Bad(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

// A quarter of what is free where the folder will be, at most the default, at least the least that
// the tier takes.
uint64_t DefaultBudget(const std::string& directory) {
  std::error_code error;
  std::filesystem::path existing = std::filesystem::absolute(directory, error);
  while (!existing.empty() && existing != existing.root_path() &&
         !std::filesystem::exists(existing, error)) {
    existing = existing.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(existing, error);
  if (error) return kDefaultColdBytes;
  return std::clamp<uint64_t>(space.available / 4, tier::kMinColdBudget, kDefaultColdBytes);
}

}  // namespace

void AddTierOptions(CLI::App& app, TierFlags& flags) {
  app.add_option(
         "--cold-dir", flags.cold_dir,
         "Folder for KV blocks that RAM has no room for, and for the next start; default of "
         "serve: ~/.cache/kvlink/cold")
      ->type_name("DIR");
  app.add_option(
         "--cold-size", flags.cold_size,
         "Disk that the folder may take; default: 10 GiB, at most a quarter of what is free")
      ->check(IsByteSize());
  app.add_flag("--no-cold", flags.no_cold, "No blocks on disk");
  app.add_option("--remote", flags.remote,
                 "Redis for KV blocks, shared with other servers: "
                 "redis://[[user]:password@]host[:port][,host[:port]...], rediss:// with TLS; more "
                 "than one host is a cluster")
      ->type_name("URL");
  app.add_option("--remote-ca", flags.remote_ca,
                 "With rediss://: PEM file of the authorities to trust; default: the system's")
      ->type_name("FILE");
  app.add_option("--tier-writes", flags.writes,
                 "paid: blocks are written at once while that pays, else in idle time; all: at "
                 "once, whatever it costs")
      ->check(CLI::IsMember({"paid", "all"}))
      ->capture_default_str();
}

// Longer than anything runs.
constexpr std::chrono::hours kForever{24 * 365 * 10};

std::string DefaultColdDir() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/kvlink/cold";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/kvlink/cold";
  return "";
}

Result<TierOptions> ReadTierFlags(const TierFlags& flags, bool cold_by_default) {
  TierOptions tiers;
  if (flags.writes == "all") tiers.write_head_start = kForever;
  if (flags.no_cold && !(flags.cold_dir.empty() && flags.cold_size.empty())) {
    return Bad("--no-cold: not with --cold-dir or --cold-size");
  }
  if (!flags.no_cold) {
    tiers.cold_dir = flags.cold_dir;
    if (flags.cold_dir.empty() && (cold_by_default || !flags.cold_size.empty())) {
      tiers.cold_dir = DefaultColdDir();
      if (tiers.cold_dir.empty() && !flags.cold_size.empty()) {
        return Bad("--cold-size: neither HOME nor XDG_CACHE_HOME says where; give --cold-dir");
      }
    }
    tiers.cold_bytes =
        flags.cold_size.empty() ? DefaultBudget(tiers.cold_dir) : *ParseByteSize(flags.cold_size);
    if (tiers.cold_bytes < tier::kMinColdBudget) {
      return Bad("--cold-size is " + FormatByteSize(tiers.cold_bytes) + "; it must be at least " +
                 FormatByteSize(tier::kMinColdBudget));
    }
  }
  if (!flags.remote.empty()) {
    const auto parsed = tier::ParseRemoteUrl(flags.remote);
    if (!parsed.ok()) return Bad("--remote: " + parsed.status().message());
    if (!flags.remote_ca.empty() && !parsed->tls) return Bad("--remote-ca needs rediss://");
    tiers.remote_url = flags.remote;
    tiers.remote_ca_file = flags.remote_ca;
  } else if (!flags.remote_ca.empty()) {
    return Bad("--remote-ca needs --remote");
  }
  return tiers;
}

Result<std::unique_ptr<Cache>> CreateTieredCache(const TierFlags& flags, CacheOptions* options,
                                                 std::string* warning) {
  auto cache = CreateCache(*options);
  const bool asked_for = !flags.cold_dir.empty() || !flags.cold_size.empty();
  if (cache.ok() || asked_for || options->tiers.cold_dir.empty()) return cache;
  // It may be the folder, or anything else: without it the rest shows.
  const std::string why = cache.status().message();
  const std::string directory = std::exchange(options->tiers.cold_dir, "");
  cache = CreateCache(*options);
  if (cache.ok()) *warning = "no cold tier in '" + directory + "': " + why;
  return cache;
}

std::string DescribeTiers(const TierOptions& tiers) {
  std::string text;
  if (!tiers.cold_dir.empty()) {
    text = FormatByteSize(tiers.cold_bytes) + " in " + tiers.cold_dir;
  }
  if (!tiers.remote_url.empty()) {
    const std::string& url = tiers.remote_url;
    const size_t scheme = url.find("://"), at = url.rfind('@');
    const size_t start = scheme == std::string::npos ? 0 : scheme + 3;
    const std::string hosts = url.substr(at == std::string::npos ? start : at + 1);
    text += (text.empty() ? "remote " : "; remote ") + url.substr(0, start) + hosts;
  }
  return text.empty() ? "none" : text;
}

}  // namespace kvlink::cli
