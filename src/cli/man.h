// Manual pages from the definitions of the command line: kvlink(1), and kvlink-serve(1) and so on
// for each subcommand (whose own subcommands are sections of its page).
//
// `kvlink man` writes one page, in the macros of man(7); `kvlink man --dir DIR` writes all of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/command_shape.h"

namespace kvlink::cli {

// Page of `command`: the root, or one directly below it (`root` is then what it refers to).
std::string ManPage(const CommandShape& root, const CommandShape& command,
                    const std::string& version);

// All pages, by file name: "kvlink.1", "kvlink-serve.1", ...
std::vector<std::pair<std::string, std::string>> ManPages(const CommandShape& root,
                                                          const std::string& version);

Command AddMan(CLI::App& kvlink);

}  // namespace kvlink::cli
