// `kvlink version`: what this executable is, and which kernels it takes on this machine.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/command.h"
#include "cli/machine.h"
#include "kernel/isa.h"
#include "kernel/paged_attention.h"

namespace kvlink::cli {

Command AddVersion(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("version", "Print the version and the kernels in use");
  return {app, [] {
            // As a start of the model would end: what is printed is what would run.
            if (Status isa = kernel::ApplyIsaEnvironment(); !isa.ok()) return Fail(isa);
            std::printf("kvlink %s\ncompiler %s\nprocessor %s\nkernels %s\n", KVLINK_VERSION,
                        __VERSION__, CpuName().c_str(), kernel::NumericPath().c_str());
            return 0;
          }};
}

}  // namespace kvlink::cli
