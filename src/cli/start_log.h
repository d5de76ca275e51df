// StartLog: what `kvlink serve` says on standard error beside its server's log: why it did not
// start, warnings on the way, and that it stopped.
//
//   kvlink: --api-keys: no file 'keys'
//   {"time":"...","level":"error","message":"--api-keys: no file 'keys'","option":"--api-keys",
//    "value":"keys"}
//
// As objects where JSON logs were asked for, so that every line of standard error is one, however
// far the start came. The option is the first that the message names; its value is left out where
// it has none, and a URL's user and password always are.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "kvlink/status.h"

namespace kvlink::cli {

// Whether a command line asks `serve` for JSON lines, by an option or in the file that --config
// names; also one that has errors.
bool WantsJsonLog(int argc, const char* const* argv);

struct NamedOption {
  std::string name, value;
};
// The option of `app` that a message names, or a key of a configuration file that stands for one.
std::optional<NamedOption> OptionIn(const CLI::App& app, const std::string& message);

class StartLog {
 public:
  // `app`: whose options are meant; null: nobody's. Must outlive this.
  explicit StartLog(bool json, const CLI::App* app = nullptr) : json_(json), app_(app) {}

  bool json() const { return json_; }
  void Note(const std::string& message) const;
  void Warning(const std::string& message) const;
  void Error(const std::string& message) const;
  // Of an error that was told: more of it. Names no option of its own.
  void ErrorDetail(const std::string& message) const;
  // The error, and the exit code that belongs to it (command.h).
  int Fail(const Status& status) const;

 private:
  const bool json_;
  const CLI::App* const app_;
};

}  // namespace kvlink::cli
