// `kvlink cache`: the cache of a running server, from the command line.
#pragma once

#include "cli/command.h"

namespace kvlink::cli {

Command AddCache(CLI::App& kvlink);

}  // namespace kvlink::cli
