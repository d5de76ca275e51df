// What --print-config writes: the options of a subcommand as they are in effect, as a file that
// --config reads back to the same.
//
//     [serve]
//     # Port; 0 takes a free one
//     port = 9000
//
//     # GGUF file; default: the model that the set-up fetched
//     # model = FILE
//
// An option that is not set and has no fixed default stands there as a comment: what it will be
// depends on the machine. Secrets are written as they were given.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvlink::cli {

// Requires: `app` has parsed its command line and its file.
std::string ConfigText(const CLI::App& app);

// As given, or the default; nothing when neither is there. A flag has "true" or "false".
std::optional<std::vector<std::string>> EffectiveValues(const CLI::Option& option);

}  // namespace kvlink::cli
