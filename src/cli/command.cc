#include "cli/command.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/byte_size.h"
#include "cli/cache.h"
#include "cli/completion.h"
#include "cli/config_file.h"
#include "cli/config_print.h"
#include "cli/key.h"
#include "cli/machine.h"
#include "cli/man.h"
#include "cli/nearest_name.h"

namespace kvlink::cli {

int Fail(const Status& status) {
  std::fprintf(stderr, "kvlink: %s\n", status.message().c_str());
  const bool bad_option =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound;
  return bad_option ? kExitBadOption : kExitFailed;
}

void AddConfigOption(CLI::App& app) {
  app.add_option("--config", "TOML file with any of these options; the command line wins")
      ->type_name("FILE");
  const std::string print = "Print the options in effect as such a file, and do nothing else";
  app.add_flag("--print-config", print);
}

CLI::Validator IsByteSize() {
  return CLI::Validator(
      [](std::string& text) {
        const auto size = ParseByteSize(text);
        return size.ok() ? std::string() : size.status().message();
      },
      "SIZE", "size");
}

int ChooseThreads(int given) {
  const int usable = UsableCores(AffinityCpus());
  if (given == 0) return usable;
  if (given > static_cast<int>(AffinityCpus().size())) {
    std::fprintf(stderr,
                 "kvlink: warning: --threads %d is more than the %zu processors this process may "
                 "use; every step will wait for the slowest\n",
                 given, AffinityCpus().size());
  }
  return given;
}

namespace {

// For words that nobody expected: the option or subcommand that was meant.
std::string Suggestion(const CLI::App& kvlink, int argc, const char* const* argv) {
  const CLI::App* app = &kvlink;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  std::vector<std::string> commands;
  for (const CLI::App* below : app->get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(below->get_name());
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    const bool option = word.starts_with("--");
    const std::vector<std::string>& known = option ? names : commands;
    if (word == app->get_name() || std::ranges::find(known, word) != known.end()) continue;
    if (std::string meant = DidYouMean(word, known); !meant.empty()) {
      return "'" + word + "': " + meant.substr(2);
    }
  }
  return "";
}

// "--port (line 3), --api-keys (line 7)", in the file's order.
std::string OriginsText(std::vector<ConfigOrigin> origins) {
  std::ranges::stable_sort(origins, {}, &ConfigOrigin::line);
  std::string text;
  for (const ConfigOrigin& origin : origins) {
    text += (text.empty() ? "--" : ", --") + origin.option + " (line " +
            std::to_string(origin.line) + ")";
  }
  return text;
}

int RunCommand(const Command& command) {
  const CLI::Option* config = command.app->get_option_no_throw("--config");
  if (config == nullptr) return command.run();
  std::vector<ConfigOrigin> origins;
  if (config->count() > 0) {
    const Status status = ApplyConfigFile(config->as<std::string>(), *command.app, &origins);
    if (!status.ok()) return Fail(status);
  }
  if (command.app->get_option("--print-config")->count() == 0) {
    const int code = command.run();
    // The error names an option; where that comes from is the file's to tell.
    if (code == kExitBadOption && !origins.empty()) {
      std::fprintf(stderr, "kvlink: from %s: %s\n", config->as<std::string>().c_str(),
                   OriginsText(origins).c_str());
    }
    return code;
  }
  std::fputs(ConfigText(*command.app).c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kExitFailed;
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv) {
  CLI::App kvlink(
      "KVLink: serve language models with one copy of every KV block that requests share");
  kvlink.require_subcommand(0, 1);
  kvlink.set_version_flag("--version", "kvlink " KVLINK_VERSION);
  const std::vector<Command> commands = {
      AddServe(kvlink),     AddRun(kvlink),    AddChat(kvlink),       AddBench(kvlink),
      AddCalibrate(kvlink), AddDoctor(kvlink), AddInspect(kvlink),    AddCkpt(kvlink),
      AddCache(kvlink),     AddKey(kvlink),    AddCompletion(kvlink), AddMan(kvlink),
      AddVersion(kvlink)};
  try {
    kvlink.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return kvlink.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "kvlink: %s\n", error.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
      const std::string meant = Suggestion(kvlink, argc, argv);
      if (!meant.empty()) std::fprintf(stderr, "%s\n", meant.c_str());
    }
    std::fprintf(stderr, "Run with --help for the options.\n");
    return kExitBadOption;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return RunCommand(command);
  }
  std::fprintf(stderr, "kvlink: give a subcommand\n%s", kvlink.help().c_str());
  return kExitBadOption;
}

}  // namespace kvlink::cli
