// Config file: every option of a subcommand, also in one TOML file.
//
//     threads = 4            a key is an option's long name; '-' and '_' mean the same
//     [serve]                a table named after a subcommand holds for that one only
//     port = 8080
//
// The command line wins: a key whose option was given there is checked and left. An unknown key, a
// value of the wrong kind or out of range is an error that names the file, the line, the key and
// the value.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kvlink/status.h"

namespace kvlink::cli {

// Requires: `app` (a subcommand) has parsed its command line.
Status ApplyConfigFile(const std::string& path, CLI::App& app);

}  // namespace kvlink::cli
