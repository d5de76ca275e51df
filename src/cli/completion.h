// Completion of the command line in bash, zsh and fish, from the definitions of its options.
//
// `kvlink completion bash` writes the script: subcommands, options, and what options take (names
// out of a list, with commas where several may stand; files; folders). Installed where each shell
// looks for it.
#pragma once

#include <string>

#include "cli/command.h"
#include "cli/command_shape.h"

namespace kvlink::cli {

std::string BashCompletion(const CommandShape& kvlink);
std::string ZshCompletion(const CommandShape& kvlink);
std::string FishCompletion(const CommandShape& kvlink);

Command AddCompletion(CLI::App& kvlink);

}  // namespace kvlink::cli
