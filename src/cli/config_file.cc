#include "cli/config_file.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

namespace kvlink::cli {
namespace {

Status Bad(const std::string& message) { return Status(StatusCode::kInvalidArgument, message); }

class ConfigApplier {
 public:
  ConfigApplier(const std::string& path, CLI::App& app) : path_(path), app_(app) {}

  Status Apply(const toml::table& root) {
    for (const auto& [key, node] : root) {
      const toml::table* table = node.as_table();
      if (table == nullptr) {
        if (Status status = ApplyKey(key.str(), node); !status.ok()) return status;
        continue;
      }
      if (!IsSubcommand(key.str())) {
        return Bad(Where(node) + "[" + std::string(key.str()) + "] is no subcommand");
      }
      if (key.str() != app_.get_name()) continue;
      for (const auto& [inner_key, inner] : *table) {
        if (Status status = ApplyKey(inner_key.str(), inner); !status.ok()) return status;
      }
    }
    return Status::Ok();
  }

 private:
  std::string Where(const toml::node& node) const {
    return path_ + ":" + std::to_string(node.source().begin.line) + ": ";
  }

  bool IsSubcommand(std::string_view name) const {
    const CLI::App* parent = app_.get_parent();
    if (parent == nullptr) return name == app_.get_name();
    return !parent
                ->get_subcommands([&](const CLI::App* other) { return other->get_name() == name; })
                .empty();
  }

  Status ApplyKey(std::string_view key, const toml::node& node) {
    std::string name = "--" + std::string(key);
    std::replace(name.begin(), name.end(), '_', '-');
    CLI::Option* option = app_.get_option_no_throw(name);
    if (option == nullptr || name == "--config" || name == "--help") {
      return Bad(Where(node) + "unknown key '" + std::string(key) + "' for kvlink " +
                 app_.get_name() + " (kvlink " + app_.get_name() + " --help lists the options)");
    }
    std::vector<std::string> values;
    if (!Flatten(node, values)) {
      return Bad(Where(node) + "key '" + std::string(key) +
                 "' must be a string, a number, true, false or an array of these");
    }
    if (option->count() > 0) return Status::Ok();
    std::string shown;
    for (const std::string& value : values) {
      option->add_result(value);
      shown += (shown.empty() ? "" : ", ") + value;
    }
    try {
      if (!values.empty()) option->run_callback();
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
};

}  // namespace

Status ApplyConfigFile(const std::string& path, CLI::App& app) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status(StatusCode::kNotFound, "--config: cannot read '" + path + "'");
  }
  // Debian's library is built with exceptions: its parser throws.
  toml::table table;
  try {
    table = toml::parse(text.str(), path);
  } catch (const toml::parse_error& error) {
    return Bad(path + ":" + std::to_string(error.source().begin.line) + ": " +
               std::string(error.description()));
  }
  return ConfigApplier(path, app).Apply(table);
}

}  // namespace kvlink::cli
