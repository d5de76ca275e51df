// Config file: every option of a subcommand, also in one TOML file.
//
//     threads = 4            a key is an option's long name; '-' and '_' mean the same
//     [serve]                a table named after a subcommand holds for that one only
//     port = 8080
//
// The command line wins, then the table, then what stands above the tables. An unknown key (in
// other subcommands' tables, too: one file serves all), a value of the wrong kind or out of range
// is an error that names the file, the line, the key, the value, and what was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "kvlink/status.h"

namespace kvlink::cli {

// An option that a file set, and where.
struct ConfigOrigin {
  std::string option;  // its long name, without dashes
  uint32_t line = 0;
};

// Requires: `app` (a subcommand) has parsed its command line. `origins`, if not null: which options
// the file set, for errors that only their values together show.
Status ApplyConfigFile(const std::string& path, CLI::App& app,
                       std::vector<ConfigOrigin>* origins = nullptr);

// What a file says for one option of a subcommand, whatever else is wrong with it; "" where it says
// nothing or is no TOML.
std::string PeekConfig(const std::string& path, const std::string& subcommand,
                       const std::string& option);

// Options of `app` that a file may set, as they are defined; those with a long name, but for the
// ones about the file itself and --help.
std::vector<CLI::Option*> ConfigurableOptions(CLI::App& app);
std::vector<const CLI::Option*> ConfigurableOptions(const CLI::App& app);

}  // namespace kvlink::cli
