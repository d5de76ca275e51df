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
#include "cli/start_log.h"

namespace kvlink::cli {

int ExitCodeOf(const Status& status) {
  const bool bad_option =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound;
  return bad_option ? kExitBadOption : kExitFailed;
}

int Fail(const Status& status) { return StartLog(/*json=*/false).Fail(status); }

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
  std::string warning;
  const int threads = ChooseThreads(given, &warning);
  if (!warning.empty()) StartLog(/*json=*/false).Warning(warning);
  return threads;
}

int ChooseThreads(int given, std::string* warning) {
  if (given == 0) return UsableCores(AffinityCpus());
  const size_t processors = AffinityCpus().size();
  if (given > static_cast<int>(processors)) {
    *warning = "--threads " + std::to_string(given) + " is more than the " +
               std::to_string(processors) +
               " processors this process may use; every step will wait for the slowest";
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

int RunCommand(const Command& command, const StartLog& log) {
  const CLI::Option* config = command.app->get_option_no_throw("--config");
  if (config == nullptr) return command.run();
  std::vector<ConfigOrigin> origins;
  if (config->count() > 0) {
    const Status status = ApplyConfigFile(config->as<std::string>(), *command.app, &origins);
    if (!status.ok()) return log.Fail(status);
  }
  if (command.app->get_option("--print-config")->count() == 0) {
    const int code = command.run();
    // The error names an option; where that comes from is the file's to tell.
    if (code == kExitBadOption && !origins.empty()) {
      log.ErrorDetail("from " + config->as<std::string>() + ": " + OriginsText(origins));
    }
    return code;
  }
  std::fputs(ConfigText(*command.app).c_str(), stdout);
  return 0;
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
  const bool json = WantsJsonLog(argc, argv);
  const StartLog log(json, json ? kvlink.get_subcommand("serve") : nullptr);
  try {
    kvlink.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return kvlink.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    log.Error(error.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
      const std::string meant = Suggestion(kvlink, argc, argv);
      if (!meant.empty() && json) log.ErrorDetail(meant);
      if (!meant.empty() && !json) std::fprintf(stderr, "%s\n", meant.c_str());
    }
    if (!json) std::fprintf(stderr, "Run with --help for the options.\n");
    return kExitBadOption;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return RunCommand(command, log);
  }
  std::fprintf(stderr, "kvlink: give a subcommand\n%s", kvlink.help().c_str());
  return kExitBadOption;
}

}  // namespace kvlink::cli
