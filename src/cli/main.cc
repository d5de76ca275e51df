#include <cstdio>
#include <exception>
#include <iostream>
#include <string_view>

#include "cli/command.h"

namespace {

// What could not be printed (a full disk, say) is a failure, but for a server, which serves on.
int WithOutputWritten(int code, std::string_view command) {
  // What was lost before the last flush shows in ferror alone.
  const bool written =
      std::cout.flush().good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || (code == 0 && command == "serve")) return code;
  std::fputs("kvlink: standard output cannot be written\n", stderr);
  return code == 0 ? kvlink::cli::kExitFailed : code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  // Libraries may throw: CLI11 does, TOML's and JSON's parsers do.
  try {
    return WithOutputWritten(kvlink::cli::RunCommandLine(argc, argv), command);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvlink: %s\n", error.what());
    return kvlink::cli::kExitFailed;
  }
}
