#include "cli/config_file.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

#include "cli/nearest_name.h"

namespace kvlink::cli {
namespace {

Status Bad(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

bool IsConfigurable(const CLI::Option& option) {
  if (option.get_lnames().empty()) return false;
  const std::string& name = option.get_lnames().front();
  return name != "config" && name != "print-config" && name != "help";
}

class ConfigApplier {
 public:
  ConfigApplier(const std::string& path, CLI::App& app, std::vector<ConfigOrigin>* origins)
      : path_(path), app_(app), origins_(origins) {}

  Status Apply(const toml::table& root) {
    // Tables first: what is said for this subcommand alone outranks what is said for all.
    for (const auto& [key, node] : root) {
      if (const toml::table* table = node.as_table()) {
        if (Status status = ApplyTable(key.str(), *table); !status.ok()) return status;
      }
    }
    for (const auto& [key, node] : root) {
      if (node.is_table()) continue;
      if (Status status = ApplyKey(key.str(), node); !status.ok()) return status;
    }
    return Status::Ok();
  }

 private:
  std::string Where(const toml::node& node) const {
    return path_ + ":" + std::to_string(node.source().begin.line) + ": ";
  }

  // Subcommands that read a file: this one and those beside it.
  std::vector<CLI::App*> Subcommands() const {
    CLI::App* parent = app_.get_parent();
    if (parent == nullptr) return {&app_};
    return parent->get_subcommands([this](CLI::App* other) {
      return other == &app_ || other->get_option_no_throw("--config") != nullptr;
    });
  }

  Status ApplyTable(std::string_view name, const toml::table& table) {
    std::vector<std::string> names;
    for (CLI::App* subcommand : Subcommands()) {
      names.push_back(subcommand->get_name());
      if (subcommand->get_name() != name) continue;
      for (const auto& [key, node] : table) {
        CLI::Option* option = nullptr;
        Status status = Find(*subcommand, key.str(), node, &option);
        if (status.ok() && subcommand == &app_) status = Set(*option, key.str(), node);
        if (!status.ok()) return status;
      }
      return Status::Ok();
    }
    return Bad(Where(table) + "[" + std::string(name) +
               "] is no subcommand that takes options from a file" + DidYouMean(name, names));
  }

  Status ApplyKey(std::string_view key, const toml::node& node) {
    CLI::Option* option = nullptr;
    if (Status status = Find(app_, key, node, &option); !status.ok()) return status;
    return Set(*option, key, node);
  }

  Status Find(CLI::App& app, std::string_view key, const toml::node& node,
              CLI::Option** option) const {
    std::string name(key);
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::string> known;
    for (CLI::Option* candidate : ConfigurableOptions(app)) {
      known.push_back(candidate->get_lnames().front());
      if (known.back() == name) *option = candidate;
    }
    if (*option != nullptr) return Status::Ok();
    const std::string command = "kvlink " + app.get_name();
    return Bad(Where(node) + "unknown key '" + std::string(key) + "' for " + command +
               DidYouMean(name, known) + " (" + command + " --help lists the options)");
  }

  Status Set(CLI::Option& option, std::string_view key, const toml::node& node) {
    std::vector<std::string> values;
    if (!Flatten(node, values)) {
      return Bad(Where(node) + "key '" + std::string(key) +
                 "' must be a string, a number, true, false or an array of these");
    }
    if (option.count() > 0) return Status::Ok();
    if (origins_ != nullptr) {
      origins_->push_back({option.get_lnames().front(), node.source().begin.line});
    }
    std::string shown;
    for (const std::string& value : values) {
      option.add_result(value);
      shown += (shown.empty() ? "" : ", ") + value;
    }
    try {
      if (!values.empty()) option.run_callback();
    } catch (const CLI::Error& error) {
      return Bad(Where(node) + "key '" + std::string(key) + "' has the value '" + shown +
                 "': " + error.what());
    }
    return Status::Ok();
  }

  static bool Flatten(const toml::node& node, std::vector<std::string>& values) {
    if (const toml::array* array = node.as_array()) {
      return std::all_of(array->begin(), array->end(), [&](const toml::node& element) {
        return !element.is_array() && Flatten(element, values);
      });
    }
    if (const auto text = node.value_exact<std::string>()) {
      values.push_back(*text);
    } else if (const auto boolean = node.value_exact<bool>()) {
      values.push_back(*boolean ? "true" : "false");
    } else if (const auto integer = node.value_exact<int64_t>()) {
      values.push_back(std::to_string(*integer));
    } else if (const auto number = node.value_exact<double>()) {
      char digits[64];
      values.emplace_back(digits, std::to_chars(digits, digits + sizeof digits, *number).ptr);
    } else {
      return false;
    }
    return true;
  }

  const std::string& path_;
  CLI::App& app_;
  std::vector<ConfigOrigin>* const origins_;
};

// kNotFound: the file. kInvalidArgument: it is no TOML.
Result<toml::table> ReadToml(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Copying nothing counts as a failure, and an empty file says nothing.
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file.is_open() || file.bad() || !text) {
    return Status(StatusCode::kNotFound, "--config: cannot read '" + path + "'");
  }
  // Debian's library is built with exceptions: its parser throws.
  try {
    return toml::parse(text.str(), path);
  } catch (const toml::parse_error& error) {
    return Bad(path + ":" + std::to_string(error.source().begin.line) + ": " +
               std::string(error.description()));
  }
}

}  // namespace

std::vector<CLI::Option*> ConfigurableOptions(CLI::App& app) {
  return app.get_options([](CLI::Option* option) { return IsConfigurable(*option); });
}

std::vector<const CLI::Option*> ConfigurableOptions(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return IsConfigurable(*option); });
}

Status ApplyConfigFile(const std::string& path, CLI::App& app, std::vector<ConfigOrigin>* origins) {
  const Result<toml::table> table = ReadToml(path);
  if (!table.ok()) return table.status();
  return ConfigApplier(path, app, origins).Apply(*table);
}

std::string PeekConfig(const std::string& path, const std::string& subcommand,
                       const std::string& option) {
  const Result<toml::table> root = ReadToml(path);
  if (!root.ok()) return "";
  const auto look = [&](const toml::table& table) -> std::string {
    for (const auto& [key, node] : table) {
      std::string name(key.str());
      std::replace(name.begin(), name.end(), '_', '-');
      if (name == option) return node.value_or(std::string());
    }
    return "";
  };
  if (const toml::table* own = (*root)[subcommand].as_table()) {
    if (std::string value = look(*own); !value.empty()) return value;
  }
  return look(*root);
}

}  // namespace kvlink::cli
