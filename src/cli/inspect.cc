// `kvlink inspect`: what a cold store holds, whether it is sound, and its blocks as files. For a
// folder that no server uses at the moment.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/byte_size.h"
#include "cli/command.h"
#include "cli/tier_setup.h"
#include "tier/cold_tier.h"
#include "tier/tier_files.h"

namespace kvlink::cli {
namespace {

struct InspectFlags {
  std::string action, cold_dir, output;
  size_t limit = 20;
  bool repair = false;
};

Result<std::unique_ptr<tier::BlockTier>> Open(const InspectFlags& flags) {
  tier::ColdTierOptions options;
  options.directory = flags.cold_dir.empty() ? DefaultColdDir() : flags.cold_dir;
  options.recreate_if_damaged = false;
  options.read_only = !flags.repair;
  options.must_exist = true;
  options.budget_bytes = tier::kAnyColdSize;  // what it may take is the server's matter
  if (options.directory.empty()) {
    return Status(StatusCode::kInvalidArgument, "give --cold-dir DIR");
  }
  std::printf("%s\n", options.directory.c_str());
  return tier::OpenColdTier(options);
}

std::string ModelOf(const tier::BlockHeader& header) { return tier::HexOfKey(header.model); }

// A line a block, the longest chains' blocks are recognised by their parents.
int List(const InspectFlags& flags, tier::BlockTier& cold) {
  size_t shown = 0;
  const auto report = tier::VerifyTier(cold, false, [&](const tier::CheckedBlock& block) {
    if (!block.sound || (flags.limit != 0 && shown >= flags.limit)) return;
    if (shown++ == 0) {
      std::printf("%-34s%-34s%8s%10s%6s  %s\n", "key", "parent", "tokens", "bytes", "uses",
                  "model");
    }
    const bool is_first = block.entry.parent == tier::BlockKey{};
    std::printf("%-34s%-34s%8zu%10llu%6u  %s%s\n", tier::HexOfKey(block.entry.key).c_str(),
                is_first ? "-" : tier::HexOfKey(block.entry.parent).c_str(),
                block.header.tokens.size(), static_cast<unsigned long long>(block.entry.bytes),
                block.entry.uses, ModelOf(block.header).c_str(),
                block.reachable ? "" : "  unreachable");
  });
  if (!report.ok()) return Fail(report.status());
  if (shown < report->blocks) {
    std::printf("... and %llu more (--limit 0 shows all)\n",
                static_cast<unsigned long long>(report->blocks - shown));
  }
  std::printf("%llu blocks, %s\n", static_cast<unsigned long long>(report->blocks),
              FormatByteSize(report->bytes).c_str());
  return 0;
}

int Fsck(const InspectFlags& flags, tier::BlockTier& cold) {
  const auto report = tier::VerifyTier(cold, flags.repair);
  if (!report.ok()) return Fail(report.status());
  for (const std::string& finding : report->findings) std::printf("%s\n", finding.c_str());
  const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("%llu sound blocks, %s; %llu damaged%s, %llu missing, %llu unreachable\n",
              count(report->blocks), FormatByteSize(report->bytes).c_str(), count(report->damaged),
              flags.repair && report->damaged > 0 ? " (removed)" : "", count(report->missing),
              count(report->unreachable));
  const bool is_sound = report->damaged + report->missing == 0;
  return is_sound || flags.repair ? 0 : kExitFailed;
}

int Export(const InspectFlags& flags, tier::BlockTier& cold) {
  if (flags.output.empty()) {
    return Fail(Status(StatusCode::kInvalidArgument, "export: give --output DIR"));
  }
  const auto exported = tier::ExportTier(cold, flags.output);
  if (!exported.ok()) return Fail(exported.status());
  std::printf("%llu blocks written to %s\n", static_cast<unsigned long long>(*exported),
              flags.output.c_str());
  return 0;
}

int Inspect(const InspectFlags& flags) {
  if (flags.repair && flags.action != "fsck") {
    return Fail(Status(StatusCode::kInvalidArgument, "--repair: only with fsck"));
  }
  auto cold = Open(flags);
  if (!cold.ok()) return Fail(cold.status());
  if (flags.action == "list") return List(flags, **cold);
  if (flags.action == "fsck") return Fsck(flags, **cold);
  return Export(flags, **cold);
}

}  // namespace

Command AddInspect(CLI::App& kvlink) {
  CLI::App* app =
      kvlink.add_subcommand("inspect", "List, verify or export the KV blocks of a cold store");
  const auto flags = std::make_shared<InspectFlags>();
  app->add_option("action", flags->action,
                  "list; fsck: read and check every block, exit 1 when one is damaged; export: one "
                  "file a block")
      ->check(CLI::IsMember({"list", "fsck", "export"}))
      ->required();
  app->add_option("--cold-dir", flags->cold_dir, "Folder of the store; default: that of serve")
      ->type_name("DIR");
  app->add_option("--output", flags->output, "export: folder for the files")->type_name("DIR");
  app->add_option("--limit", flags->limit, "list: blocks to show; 0: all")->capture_default_str();
  app->add_flag("--repair", flags->repair, "fsck: remove damaged blocks");
  AddConfigOption(*app);
  return {app, [flags] { return Inspect(*flags); }};
}

}  // namespace kvlink::cli
