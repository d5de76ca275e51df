#include <cstdio>
#include <exception>
#include <iostream>

#include "cli/command.h"

namespace {

// What could not be printed (a full disk, say) is a failure. A server, which serves on, has let go
// of it by now.
int WithOutputWritten(int code) {
  // What was lost before the last flush shows in ferror alone.
  const bool written =
      std::cout.flush().good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  std::fputs("kvlink: standard output cannot be written\n", stderr);
  return code == 0 ? kvlink::cli::kExitFailed : code;
}

}  // namespace

int main(int argc, char** argv) {
  // Libraries may throw: CLI11 does, TOML's and JSON's parsers do.
  try {
    return WithOutputWritten(kvlink::cli::RunCommandLine(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvlink: %s\n", error.what());
    return kvlink::cli::kExitFailed;
  }
}
