#include "cli/command.h"

#include <cstdio>
#include <vector>

#include "cli/byte_size.h"
#include "cli/config_file.h"
#include "cli/key.h"
#include "cli/machine.h"

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

int RunCommandLine(int argc, const char* const* argv) {
  CLI::App kvlink(
      "KVLink: serve language models with one copy of every KV block that requests share");
  kvlink.require_subcommand(0, 1);
  const std::vector<Command> commands = {
      AddServe(kvlink),   AddBench(kvlink), AddCalibrate(kvlink), AddDoctor(kvlink),
      AddInspect(kvlink), AddCkpt(kvlink),  AddKey(kvlink),       AddVersion(kvlink)};
  try {
    kvlink.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return kvlink.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "kvlink: %s\nRun with --help for the options.\n", error.what());
    return kExitBadOption;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const CLI::Option* config = command.app->get_option_no_throw("--config");
    if (config != nullptr && config->count() > 0) {
      const Status status = ApplyConfigFile(config->as<std::string>(), *command.app);
      if (!status.ok()) return Fail(status);
    }
    return command.run();
  }
  std::fprintf(stderr, "kvlink: give a subcommand\n%s", kvlink.help().c_str());
  return kExitBadOption;
}

}  // namespace kvlink::cli
