// `kvlink key new`: a key for `kvlink serve --api-keys`.
//
// The secret goes to standard error and the file's line to standard output, so that
// `kvlink key new ... >> keys` shows the secret once and stores its hash only.
#include "cli/key.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/api_keys.h"

namespace kvlink::cli {
namespace {

struct KeyFlags {
  std::string name, tenant;
  std::vector<std::string> rights = {"inference"};
};

int NewKey(const KeyFlags& flags) {
  const auto made = server::MakeApiKey(flags.name, flags.tenant, flags.rights);
  if (!made.ok()) return Fail(made.status());
  std::fprintf(stderr, "%s\n", made->secret.c_str());
  std::printf("%s\n", made->line.c_str());
  return 0;
}

}  // namespace

Command AddKey(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("key", "API keys for kvlink serve --api-keys");
  app->require_subcommand(1);
  const auto flags = std::make_shared<KeyFlags>();
  CLI::App* made = app->add_subcommand(
      "new", "Make a key: the secret on standard error, the file's line on standard output");
  made->add_option("--name", flags->name, "Whose key it is; for people and the log")->required();
  made->add_option("--tenant", flags->tenant, "Whom it shares blocks with")->required();
  made->add_option("--rights", flags->rights, "inference, metrics and admin, with commas between")
      ->delimiter(',')
      ->capture_default_str();
  return {app, [flags] { return NewKey(*flags); }};
}

}  // namespace kvlink::cli
