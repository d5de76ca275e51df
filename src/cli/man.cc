#include "cli/man.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "cli/nearest_name.h"

namespace kvlink::cli {
namespace {

// What the definitions do not say. Paragraphs; a line that begins with a tab and holds another one
// is an entry of a list: its name, and what that is.
struct Details {
  std::string_view command, text;
};

constexpr Details kDetails[] = {
    {"serve",
     "Serves the OpenAI API (and Anthropic's) on one model until SIGINT or SIGTERM: then no new "
     "requests are taken, and those that run may finish within --shutdown-grace; a second signal "
     "ends them. SIGHUP reads the files of --api-keys and --tls-cert again; without them it ends a "
     "server whose terminal has gone, and nothing else. Under systemd, a unit of Type=notify is "
     "told when requests are answered.\n"
     "Answers carry X-Request-Id: the client's own, or a new one. The log has it on every line of "
     "a request, with the trace and span of a W3C traceparent header."},
    {"run",
     "Writes one answer to standard output while it is generated; figures and progress go to "
     "standard error. SIGINT stops the answer, and the exit code is 130 then."},
    {"chat",
     "A conversation. What was said stays in the KV cache, so that each turn computes only what is "
     "new; the line behind an answer says how much that was. Without a terminal every line of "
     "standard input is a turn.\n"
     "Three double quotes begin and end a message of several lines; two slashes begin one that "
     "starts with a slash. SIGINT stops an answer, a second one ends.\n"
     "\t/help\tThe commands\n"
     "\t/reset\tForget the conversation; /reset all: the system message too\n"
     "\t/system [TEXT]\tSet the system message, or show it\n"
     "\t/stats\tTokens, hits and speed so far\n"
     "\t/save FILE\tWrite the conversation as JSON, which --load reads\n"
     "\t/quit\tEnd; so does the end of input"},
    {"completion",
     "bash: source <(kvlink completion bash). fish: kvlink completion fish | source. zsh: write it "
     "to a file _kvlink in a folder of fpath. cmake --install puts all three in place."},
};

constexpr std::string_view kConfigText =
    "--config reads a file in TOML: keys are names of options without the dashes in front, a table "
    "such as [serve] holds for that subcommand only, and the command line wins. --print-config "
    "writes such a file with the options in effect.";

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if (c == '~') {
      escaped += "\\(ti";
    } else if (c == '^') {
      escaped += "\\(ha";
    } else if (c == '\'') {
      escaped += "\\(aq";
    } else if (c == '`') {
      escaped += "\\(ga";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// A line of text; one that begins like a request of roff is protected.
std::string Line(std::string_view text) {
  const std::string escaped = Escape(text);
  return (escaped.starts_with('.') ? "\\&" + escaped : escaped) + "\n";
}

std::string Bold(std::string_view text) { return "\\fB" + Escape(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Escape(text) + "\\fR"; }

std::string Sentence(std::string text) {
  if (!text.empty() && text.back() != '.') text += '.';
  return text;
}

std::string OptionText(const OptionShape& option, bool positional) {
  std::string text = ".TP\n";
  for (size_t i = 0; i < option.names.size(); ++i) {
    text += (i == 0 ? "" : ", ") + (positional ? Italic(option.names[i]) : Bold(option.names[i]));
  }
  if (!positional && option.kind != OptionKind::kFlag) text += " " + Italic(option.placeholder);
  if (option.repeats && !option.commas) text += " ...";
  text += "\n" + Line(Sentence(option.description));
  std::string choices;
  for (const std::string& choice : option.choices) {
    choices += (choices.empty() ? "" : ", ") + choice;
  }
  if (!choices.empty()) {
    text += Line((option.commas ? "With commas between: " : "One of ") + choices + ".");
  }
  if (!option.least.empty()) text += Line("From " + option.least + " to " + option.most + ".");
  if (!option.default_text.empty()) text += Line("Default: " + option.default_text + ".");
  if (!option.environment.empty()) text += Line("Or the variable " + option.environment + ".");
  return text;
}

std::string Synopsis(const CommandShape& command) {
  std::string text = Bold(command.Name());
  if (!command.options.empty()) text += " [" + Italic("OPTIONS") + "]";
  if (!command.commands.empty()) text += " " + Italic("COMMAND") + " ...";
  for (const OptionShape& argument : command.positionals) {
    const std::string name = Italic(argument.names.front());
    text += argument.required ? " " + name : " [" + name + "]";
  }
  return text + "\n";
}

std::string DetailsText(std::string_view command) {
  std::string text;
  for (const Details& details : kDetails) {
    if (details.command != command) continue;
    std::string_view rest = details.text;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (line.starts_with('\t')) {
        const size_t tab = line.find('\t', 1);
        text += ".TP\n" + Bold(line.substr(1, tab - 1)) + "\n" + Line(line.substr(tab + 1));
      } else {
        text += ".PP\n" + Line(line);
      }
    }
  }
  return text;
}

void AddOptions(const CommandShape& command, std::string* text) {
  for (const OptionShape& argument : command.positionals) *text += OptionText(argument, true);
  for (const OptionShape& option : command.options) *text += OptionText(option, false);
}

bool HasConfig(const CommandShape& command) {
  return std::ranges::any_of(command.options, [](const OptionShape& option) {
    return option.names.front() == "--config";
  });
}

}  // namespace

std::string ManPage(const CommandShape& root, const CommandShape& command,
                    const std::string& version) {
  const bool is_root = &root == &command;
  std::string title = command.Name("-");
  std::ranges::transform(title, title.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string text = ".\\\" Made by `kvlink man`.\n.TH " + title + " 1 \"\" \"kvlink " + version +
                     "\" \"User Commands\"\n.SH NAME\n" + Escape(command.Name("-")) + " \\- " +
                     Line(command.description) + ".SH SYNOPSIS\n" + Synopsis(command) +
                     ".SH DESCRIPTION\n" + Line(Sentence(command.description)) +
                     DetailsText(command.path.back());
  if (!is_root && HasConfig(command)) text += ".PP\n" + Line(kConfigText);
  text += ".SH OPTIONS\n";
  AddOptions(command, &text);
  if (!command.commands.empty()) text += ".SH COMMANDS\n";
  for (const CommandShape& below : command.commands) {
    if (is_root) {
      text += ".TP\n" + Bold(below.path.back()) + "\n" + Line(Sentence(below.description));
    } else {
      text += ".SS " + Escape(below.path.back()) + "\n" + Line(Sentence(below.description)) +
              ".PP\n" + Synopsis(below);
      AddOptions(below, &text);
    }
  }
  text += ".SH EXIT STATUS\n.TP\n" + Bold("0") + "\nDone.\n.TP\n" + Bold("1") +
          "\nIt failed on the way.\n.TP\n" + Bold("2") +
          "\nAn option or a value is wrong; nothing was started.\n";
  text += ".SH SEE ALSO\n";
  if (!is_root) return text + Bold(root.Name()) + "(1)\n";
  std::string also;
  for (const CommandShape& below : command.commands) {
    also += (also.empty() ? "" : ",\n") + Bold(below.Name("-")) + "(1)";
  }
  return text + also + "\n";
}

std::vector<std::pair<std::string, std::string>> ManPages(const CommandShape& root,
                                                          const std::string& version) {
  std::vector<std::pair<std::string, std::string>> pages = {
      {root.Name("-") + ".1", ManPage(root, root, version)}};
  for (const CommandShape& below : root.commands) {
    pages.emplace_back(below.Name("-") + ".1", ManPage(root, below, version));
  }
  return pages;
}

namespace {

int WritePages(const CommandShape& root, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const auto& [name, text] : ManPages(root, KVLINK_VERSION)) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) {
      return Fail(Status(StatusCode::kInvalidArgument, "--dir: cannot write '" + path + "'"));
    }
  }
  return 0;
}

int WritePage(const CommandShape& root, const std::string& name) {
  const CommandShape* page = name.empty() ? &root : nullptr;
  std::vector<std::string> names;
  for (const CommandShape& below : root.commands) {
    names.push_back(below.path.back());
    if (names.back() == name) page = &below;
  }
  if (page == nullptr) {
    return Fail(Status(StatusCode::kInvalidArgument,
                       "'" + name + "' is no subcommand of kvlink" + DidYouMean(name, names)));
  }
  std::fputs(ManPage(root, *page, KVLINK_VERSION).c_str(), stdout);
  return 0;
}

}  // namespace

Command AddMan(CLI::App& kvlink) {
  CLI::App* app =
      kvlink.add_subcommand("man", "Write a manual page, to be read with man -l -, or all of them");
  const auto name = std::make_shared<std::string>();
  const auto folder = std::make_shared<std::string>();
  app->add_option("COMMAND", *name, "Subcommand whose page is wanted; default: kvlink itself");
  app->add_option("--dir", *folder, "Write all pages into this folder instead")->type_name("DIR");
  return {app, [&kvlink, name, folder] {
            const CommandShape root = ShapeOf(kvlink);
            return folder->empty() ? WritePage(root, *name) : WritePages(root, *folder);
          }};
}

}  // namespace kvlink::cli
