#include "cli/completion.h"

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

namespace kvlink::cli {
namespace {

std::string Join(const std::vector<std::string>& words, std::string_view separator) {
  std::string joined;
  for (const std::string& word : words) {
    joined += (joined.empty() ? "" : std::string(separator)) + word;
  }
  return joined;
}

std::vector<std::string> NamesOf(const std::vector<CommandShape>& commands) {
  std::vector<std::string> names;
  for (const CommandShape& command : commands) names.push_back(command.path.back());
  return names;
}

// The command and all below it.
void Flatten(const CommandShape& command, std::vector<const CommandShape*>* all) {
  all->push_back(&command);
  for (const CommandShape& below : command.commands) Flatten(below, all);
}

// 'text' for a POSIX shell and its descendants.
std::string SingleQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

// The first sentence, or clause, of a description: what fits beside a name.
std::string Brief(const std::string& description) {
  constexpr size_t kMost = 60;
  std::string brief = description.substr(0, description.find("; "));
  if (brief.size() <= kMost) return brief;
  brief.resize(kMost);
  return brief.substr(0, brief.rfind(' ')) + " ...";
}

// What `_kvlink_takes` says of an option's or an argument's value.
std::string BashKind(const OptionShape& option) {
  switch (option.kind) {
    case OptionKind::kFlag:
      return "";
    case OptionKind::kChoice:
      return (option.commas ? "list " : "words ") + Join(option.choices, " ");
    case OptionKind::kFile:
      return "files";
    case OptionKind::kFolder:
      return "folders";
    case OptionKind::kText:
    case OptionKind::kNumber:
      break;
  }
  return "any";
}

// A case for each command: `key)` and what is echoed there.
std::string BashCase(const std::string& key, const std::string& echoed) {
  return "    " + SingleQuoted(key) + ") echo " + SingleQuoted(echoed) + " ;;\n";
}

constexpr const char* kBashMain = R"bash(
_kvlink() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=kvlink
  local word takes chosen i
  # Bash takes --name=value apart at the sign.
  if [[ $cur == '=' ]]; then
    cur=
  elif [[ $prev == '=' ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -* ]]; then
      [[ -z $(_kvlink_takes "$command" "$word") ]] || ((i++))
      [[ ${COMP_WORDS[i]-} != '=' ]] || ((i++))
    elif [[ " $(_kvlink_commands "$command") " == *" $word "* ]]; then
      command+=" $word"
    fi
  done
  takes=
  [[ $prev != -* ]] || takes=$(_kvlink_takes "$command" "$prev")
  if [[ -z $takes && $cur == -* ]]; then
    takes="words $(_kvlink_options "$command")"
  elif [[ -z $takes ]]; then
    takes=$(_kvlink_takes "$command" argument)
    word=$(_kvlink_commands "$command")
    [[ -z $word ]] || takes="words $word"
    [[ -n $takes ]] || takes="words $(_kvlink_options "$command")"
  fi
  COMPREPLY=()
  case $takes in
    words\ *) mapfile -t COMPREPLY < <(compgen -W "${takes#words }" -- "$cur") ;;
    list\ *)
      chosen=${cur%"${cur##*,}"}
      mapfile -t COMPREPLY < <(compgen -P "$chosen" -W "${takes#list }" -- "${cur##*,}")
      ;;
    files)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
      ;;
    folders)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$cur")
      ;;
  esac
}
complete -F _kvlink kvlink
)bash";

// --- zsh ---

// Text inside a specification of _arguments, which is in single quotes.
std::string ZshText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    if (c == '\'') {
      escaped += "'\\''";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string ZshAction(const OptionShape& option) {
  switch (option.kind) {
    case OptionKind::kChoice:
      return option.commas
                 ? "_values -s , " + ZshText(option.placeholder) + " " + Join(option.choices, " ")
                 : "(" + Join(option.choices, " ") + ")";
    case OptionKind::kFile:
      return "_files";
    case OptionKind::kFolder:
      return "_files -/";
    default:
      return " ";
  }
}

std::string ZshFunction(const CommandShape& command) {
  std::string name = "_" + command.Name("_");
  std::string text = name + "() {\n  local curcontext=\"$curcontext\" state line\n  _arguments -C";
  for (const OptionShape& option : command.options) {
    for (const std::string& spelled : option.names) {
      const bool flag = option.kind == OptionKind::kFlag;
      text += " \\\n    '" + std::string(option.repeats ? "*" : "") + spelled + "[" +
              ZshText(Brief(option.description)) + "]" +
              (flag ? "" : ":" + ZshText(option.placeholder) + ":" + ZshAction(option)) + "'";
    }
  }
  for (const OptionShape& argument : command.positionals) {
    text += " \\\n    '" + std::string(argument.repeats ? "*" : "") + ":" +
            ZshText(argument.names.front()) + ":" + ZshAction(argument) + "'";
  }
  if (command.commands.empty()) return text + "\n}\n\n";
  text +=
      " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n    command)\n"
      "      local -a commands=(\n";
  for (const CommandShape& below : command.commands) {
    text += "        '" + below.path.back() + ":" + ZshText(Brief(below.description)) + "'\n";
  }
  text +=
      "      )\n      _describe command commands\n      ;;\n    rest)\n"
      "      case $line[1] in\n";
  for (const CommandShape& below : command.commands) {
    text += "        " + below.path.back() + ") _" + below.Name("_") + " ;;\n";
  }
  return text + "      esac\n      ;;\n  esac\n}\n\n";
}

// --- fish ---

std::string FishQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// Holds where the words so far name `command` and nothing below it.
std::string FishCondition(const CommandShape& command) {
  std::string condition;
  for (size_t i = 1; i < command.path.size(); ++i) {
    condition += "__fish_seen_subcommand_from " + command.path[i] + "; and ";
  }
  if (command.commands.empty()) {
    return condition.substr(0, condition.size() - std::string_view("; and ").size());
  }
  return condition + "not __fish_seen_subcommand_from " + Join(NamesOf(command.commands), " ");
}

std::string FishValue(const OptionShape& option) {
  switch (option.kind) {
    case OptionKind::kFlag:
      return "";
    case OptionKind::kFile:
      return " -r -F";
    case OptionKind::kFolder:
      return " -x -a '(__fish_complete_directories (commandline -ct))'";
    case OptionKind::kChoice:
      if (option.commas) {
        return " -x -a " + FishQuoted("(__fish_append , " + Join(option.choices, " ") + ")");
      }
      return " -x -a " + FishQuoted(Join(option.choices, " "));
    default:
      return " -x";
  }
}

}  // namespace

std::string BashCompletion(const CommandShape& kvlink) {
  std::vector<const CommandShape*> all;
  Flatten(kvlink, &all);
  std::string commands, options, takes;
  for (const CommandShape* command : all) {
    const std::string path = command->Name();
    std::vector<std::string> names;
    for (const OptionShape& option : command->options) {
      for (const std::string& name : option.names) {
        names.push_back(name);
        if (const std::string kind = BashKind(option); !kind.empty()) {
          takes += BashCase(path + " " + name, kind);
        }
      }
    }
    if (!command->positionals.empty()) {
      takes += BashCase(path + " argument", BashKind(command->positionals.front()));
    }
    options += BashCase(path, Join(names, " "));
    if (!command->commands.empty()) {
      commands += BashCase(path, Join(NamesOf(command->commands), " "));
    }
  }
  return "# Completion of kvlink for bash; made by `kvlink completion bash`.\n\n"
         "# Subcommands of a command.\n_kvlink_commands() {\n  case $1 in\n" +
         commands + "  esac\n}\n\n# Options of a command.\n_kvlink_options() {\n  case $1 in\n" +
         options +
         "  esac\n}\n\n# What an option of a command takes, or its argument; nothing: a flag.\n"
         "_kvlink_takes() {\n  case \"$1 $2\" in\n" +
         takes + "  esac\n}\n" + kBashMain;
}

std::string ZshCompletion(const CommandShape& kvlink) {
  std::vector<const CommandShape*> all;
  Flatten(kvlink, &all);
  std::string text =
      "#compdef kvlink\n# Completion of kvlink for zsh; made by `kvlink completion zsh`.\n\n";
  for (const CommandShape* command : all) text += ZshFunction(*command);
  // Loaded by compinit, the file is the function's body; sourced, it declares itself.
  return text +
         "if [[ $funcstack[1] == _kvlink ]]; then\n  _kvlink \"$@\"\nelse\n"
         "  compdef _kvlink kvlink\nfi\n";
}

std::string FishCompletion(const CommandShape& kvlink) {
  std::vector<const CommandShape*> all;
  Flatten(kvlink, &all);
  std::string text =
      "# Completion of kvlink for fish; made by `kvlink completion fish`.\n"
      "complete -c kvlink -f\n";
  for (const CommandShape* command : all) {
    const std::string where = "complete -c kvlink -n " + FishQuoted(FishCondition(*command));
    for (const CommandShape& below : command->commands) {
      text +=
          where + " -a " + below.path.back() + " -d " + FishQuoted(Brief(below.description)) + "\n";
    }
    for (const OptionShape& option : command->options) {
      std::string names;
      for (const std::string& name : option.names) {
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      text +=
          where + names + FishValue(option) + " -d " + FishQuoted(Brief(option.description)) + "\n";
    }
    if (command->positionals.empty()) continue;
    const OptionShape& argument = command->positionals.front();
    if (const std::string value = FishValue(argument); value != " -x") {
      text += where + (value == " -r -F" ? " -F" : value) + "\n";
    }
  }
  return text;
}

Command AddCompletion(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand(
      "completion", "Write the completion of this command line for a shell, to be sourced by it");
  const auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {app, [&kvlink, shell] {
            const CommandShape shape = ShapeOf(kvlink);
            const std::string text = *shell == "bash"  ? BashCompletion(shape)
                                     : *shell == "zsh" ? ZshCompletion(shape)
                                                       : FishCompletion(shape);
            std::fputs(text.c_str(), stdout);
            return 0;
          }};
}

}  // namespace kvlink::cli
