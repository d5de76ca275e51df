// CommandShape: what a command line looks like, read off CLI11's definitions: what completion,
// manual pages and configuration files are made of, so that none of them can lag behind.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvlink::cli {

enum class OptionKind : uint8_t { kFlag, kText, kNumber, kChoice, kFile, kFolder };

struct OptionShape {
  std::vector<std::string> names;  // "--help", "-h"; of a positional argument its name
  std::string description;
  OptionKind kind = OptionKind::kText;
  std::string placeholder;  // "FILE", "N"; empty with a flag
  std::vector<std::string> choices;
  std::string least, most;   // of a number with a range; else empty
  std::string default_text;  // empty: none that is fixed
  std::string environment;   // variable that stands in for it; empty: none
  bool repeats = false;      // takes several values
  bool commas = false;       // takes several in one word, with commas between
  bool required = false;
};

struct CommandShape {
  std::vector<std::string> path;  // "kvlink", "key", "new"
  std::string description;
  std::vector<OptionShape> options, positionals;
  std::vector<CommandShape> commands;

  std::string Name(std::string_view separator = " ") const;
};

OptionShape ShapeOf(const CLI::Option& option);
// The whole tree below `app`, whose own name is `name` if it has none.
CommandShape ShapeOf(const CLI::App& app, const std::string& name = "kvlink");

std::vector<std::string> WordsOf(std::string_view text);

}  // namespace kvlink::cli
