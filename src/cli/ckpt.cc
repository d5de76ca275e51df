// `kvlink ckpt`: training checkpoints in a store that keeps what they share once. docs/ckpt.md.
#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "cli/byte_size.h"
#include "cli/command.h"

namespace kvlink::cli {
namespace {

struct CkptFlags {
  CLI::App *add = nullptr, *get = nullptr, *list = nullptr, *gc = nullptr;
  std::string store, name, path, chunk = "1M";
  ckpt::AddOptions options;
  std::vector<std::string> remove;
  bool no_wait = false, verify = false;
};

void AddNameAndPath(CLI::App* app, CkptFlags& flags, const char* path_help) {
  app->add_option("NAME", flags.name, "The checkpoint's name in the store")->required();
  app->add_option("PATH", flags.path, path_help)->required();
}

void AddSubcommands(CLI::App& app, CkptFlags& flags) {
  app.require_subcommand(1);
  flags.add = app.add_subcommand("add", "Store a checkpoint");
  AddNameAndPath(flags.add, flags, "File, or folder of files: safetensors, GGUF or any other");
  flags.add->add_option("--base", flags.options.base,
                        "Checkpoint in the store that this one was trained from: what differs is "
                        "stored as the difference where that is smaller");
  flags.add->add_option("--level", flags.options.level, "Level of zstd")
      ->check(CLI::Range(1, 19))
      ->capture_default_str();
  flags.add->add_option("--chunk", flags.chunk, "Bytes that are shared or not as one")
      ->check(IsByteSize())
      ->capture_default_str();
  flags.get = app.add_subcommand("get", "Write a checkpoint out, as it was");
  AddNameAndPath(flags.get, flags, "File or folder to make");
  flags.list = app.add_subcommand("list", "Checkpoints, their sizes, and what they share");
  flags.list->add_flag("--verify", flags.verify, "Also read every byte and check it");
  flags.gc = app.add_subcommand("gc", "Remove checkpoints, and what no checkpoint needs");
  flags.gc->add_option("--remove", flags.remove, "Checkpoints to remove");
  for (CLI::App* subcommand : {flags.add, flags.get, flags.list, flags.gc}) {
    subcommand->add_option("--store", flags.store, "Folder of the store; `add` makes it")
        ->type_name("DIR")
        ->required();
    subcommand->add_flag("--no-wait", flags.no_wait,
                         "Fail rather than wait while another process changes the store");
  }
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

int Add(ckpt::CheckpointStore& store, CkptFlags& flags) {
  flags.options.chunk_bytes = *ParseByteSize(flags.chunk);
  const auto report = store.Add(flags.name, flags.path, flags.options);
  if (!report.ok()) return Fail(report.status());
  std::printf("%s: %s in %" PRIu64 " chunks; %" PRIu64 " new (%" PRIu64
              " as differences), stored in %s (%.1f %%)\n",
              flags.name.c_str(), FormatByteSize(report->bytes).c_str(), report->chunks,
              report->new_chunks, report->differences, FormatByteSize(report->new_bytes).c_str(),
              Share(report->new_bytes, report->bytes));
  return 0;
}

int Get(const ckpt::CheckpointStore& store, CkptFlags& flags) {
  // "restored/" is the folder "restored", beside which the checkpoint is written first.
  while (flags.path.size() > 1 && flags.path.ends_with('/')) flags.path.pop_back();
  const auto bytes = store.Get(flags.name, flags.path);
  if (!bytes.ok()) return Fail(bytes.status());
  std::printf("%s: %s to %s\n", flags.name.c_str(), FormatByteSize(*bytes).c_str(),
              flags.path.c_str());
  return 0;
}

int List(const ckpt::CheckpointStore& store, const CkptFlags& flags) {
  const auto listing = store.List();
  if (!listing.ok()) return Fail(listing.status());
  std::printf("%-24s %-12s %6s %8s %10s %10s %10s  %s\n", "name", "format", "files", "tensors",
              "size", "stored", "only its", "base");
  for (const ckpt::CheckpointInfo& info : listing->checkpoints) {
    std::printf("%-24s %-12s %6" PRIu64 " %8" PRIu64 " %10s %10s %10s  %s\n", info.name.c_str(),
                info.format.c_str(), info.files, info.tensors, FormatByteSize(info.bytes).c_str(),
                FormatByteSize(info.stored_bytes).c_str(), FormatByteSize(info.own_bytes).c_str(),
                info.base.empty() ? "-" : info.base.c_str());
  }
  std::printf("%zu checkpoints, %s, stored in %s (%.1f %%)\n", listing->checkpoints.size(),
              FormatByteSize(listing->bytes).c_str(), FormatByteSize(listing->stored_bytes).c_str(),
              Share(listing->stored_bytes, listing->bytes));
  if (!flags.verify) return 0;
  int exit_code = 0;
  for (const ckpt::CheckpointInfo& info : listing->checkpoints) {
    const auto verified = store.Verify(info.name);
    if (!verified.ok()) {
      exit_code = Fail({verified.status().code(), info.name + ": " + verified.status().message()});
    }
  }
  if (exit_code == 0) std::printf("every byte is as it was\n");
  return exit_code;
}

int Collect(ckpt::CheckpointStore& store, const CkptFlags& flags) {
  const auto report = store.Collect(flags.remove);
  if (!report.ok()) return Fail(report.status());
  std::printf("removed %" PRIu64 " checkpoints, %" PRIu64 " chunks, %" PRIu64
              " leftovers of interrupted writes; freed %s\n",
              report->removed_checkpoints, report->removed_chunks, report->leftovers,
              FormatByteSize(report->freed_bytes).c_str());
  return 0;
}

int Run(CkptFlags& flags) {
  auto store = ckpt::CheckpointStore::Open(flags.store, flags.add->parsed(), !flags.no_wait);
  if (!store.ok()) return Fail(store.status());
  if (flags.add->parsed()) return Add(*store, flags);
  if (flags.get->parsed()) return Get(*store, flags);
  if (flags.list->parsed()) return List(*store, flags);
  return Collect(*store, flags);
}

}  // namespace

Command AddCkpt(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("ckpt", "Store training checkpoints, what they share once");
  const auto flags = std::make_shared<CkptFlags>();
  AddSubcommands(*app, *flags);
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace kvlink::cli
