// Command: a subcommand of `kvlink`: its options and what runs once they are read. One file a
// subcommand adds one.
//
// Exit codes: 0 done, 1 it failed on the way, 2 an option or a value is wrong (nothing was
// started).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "kvlink/status.h"

namespace kvlink::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command AddServe(CLI::App& kvlink);
Command AddRun(CLI::App& kvlink);
Command AddChat(CLI::App& kvlink);
Command AddBench(CLI::App& kvlink);
Command AddCalibrate(CLI::App& kvlink);
Command AddDoctor(CLI::App& kvlink);
Command AddInspect(CLI::App& kvlink);
Command AddCkpt(CLI::App& kvlink);
Command AddVersion(CLI::App& kvlink);

inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadOption = 2;

int ExitCodeOf(const Status& status);
// Prints "kvlink: <message>" on stderr; answers the exit code that belongs to the status.
int Fail(const Status& status);

// Adds --config and --print-config; the command line's `run` then sees the file's values.
void AddConfigOption(CLI::App& app);

// Checks for CLI::Option::check: an empty answer is fine, else it is the error after the option's
// name.
CLI::Validator IsByteSize();

// Number of threads: `given`, or with 0 one per physical core that this process may use. Warns past
// those, on stderr or in `warning`.
int ChooseThreads(int given);
int ChooseThreads(int given, std::string* warning);

// Parses, applies the config file, runs. What main() does.
int RunCommandLine(int argc, const char* const* argv);

}  // namespace kvlink::cli
