// `kvlink key`: API keys for `kvlink serve --api-keys`.
#pragma once

#include "cli/command.h"

namespace kvlink::cli {

Command AddKey(CLI::App& kvlink);

}  // namespace kvlink::cli
