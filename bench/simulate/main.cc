// simulate: what a trace's cache hits would be, by eviction policy, size, tier and routing.
// docs/scaling.md has figures and how to read them.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "options.h"
#include "report.h"
#include "trace.h"

namespace kvlink::simulate {
namespace {

bool WriteFile(const std::string& path, const std::string& text) {
  if (path.empty()) return true;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return true;
  std::fprintf(stderr, "simulate: cannot write '%s'\n", path.c_str());
  return false;
}

int Run(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"--help"}) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const Result<Options> options = ParseOptions(arguments);
  if (!options.ok()) {
    std::fprintf(stderr, "simulate: %s\n%s", options.status().message().c_str(), kUsage);
    return 2;
  }
  const Result<Trace> trace = ReadTrace(options->trace, options->max_input);
  if (!trace.ok()) {
    std::fprintf(stderr, "simulate: %s\n", trace.status().message().c_str());
    return 2;
  }
  const Result<Report> report = MakeReport(*trace, *options);
  if (!report.ok()) {
    std::fprintf(stderr, "simulate: %s\n", report.status().message().c_str());
    return 2;
  }
  const std::string markdown = ToMarkdown(*report, *trace, *options);
  std::fputs(markdown.c_str(), stdout);
  const bool written = WriteFile(options->markdown, markdown) &&
                       WriteFile(options->json, ToJson(*report, *trace, *options));
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvlink::simulate

int main(int argc, char** argv) {
  return kvlink::simulate::Run(std::vector<std::string>(argv + 1, argv + argc));
}
