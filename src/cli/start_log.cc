#include "cli/start_log.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>

#include "cli/command.h"
#include "cli/config_file.h"
#include "server/log.h"

namespace kvlink::cli {
namespace {

// Null: there is no such log, and nobody to tell.
std::shared_ptr<server::Log> JsonLog() {
  auto log = server::Log::Create("", /*to_stderr=*/true, server::LogFormat::kJson);
  return log.ok() ? *std::move(log) : nullptr;
}

bool IsNamePart(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }

// "port" of "--port: ..."; empty: no option is named.
std::string NameAfterDashes(const std::string& message) {
  for (size_t at = message.find("--"); at != std::string::npos; at = message.find("--", at + 2)) {
    const bool begins = at == 0 || !IsNamePart(message[at - 1]);
    size_t end = at + 2;
    while (end < message.size() && IsNamePart(message[end])) ++end;
    if (begins && end > at + 2) return message.substr(at + 2, end - at - 2);
  }
  return "";
}

// "port" of "kvlink.toml:3: key 'port' has the value ...".
std::string NameOfKey(const std::string& message) {
  constexpr std::string_view kKey = "key '";
  const size_t at = message.find(kKey);
  if (at == std::string::npos) return "";
  const size_t begin = at + kKey.size();
  std::string name = message.substr(begin, message.find('\'', begin) - begin);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Without what stands before the last "@", but for the scheme of a URL.
std::string WithoutPassword(const std::string& value) {
  const size_t scheme = value.find("://"), at = value.rfind('@');
  if (at == std::string::npos) return value;
  return (scheme < at ? value.substr(0, scheme + 3) : "") + value.substr(at + 1);
}

// What stands in for a URL may be a mistyped one.
bool IsUrl(const std::string& name, const std::string& value) {
  return name == "remote" || value.find("://") != std::string::npos;
}

std::string ValueOf(const std::string& name, const CLI::Option& option) {
  std::string text;
  for (const std::string& result : option.results()) {
    text += (text.empty() ? "" : ", ") + (IsUrl(name, result) ? WithoutPassword(result) : result);
  }
  return text.empty() ? option.get_default_str() : text;
}

server::LogFields FieldsOf(const CLI::App* app, const std::string& message) {
  const auto named = app == nullptr ? std::nullopt : OptionIn(*app, message);
  if (!named) return {};
  server::LogFields fields = {{"option", named->name}};
  if (!named->value.empty()) fields.push_back({"value", named->value});
  return fields;
}

}  // namespace

bool WantsJsonLog(int argc, const char* const* argv) {
  std::string command, format, config;
  const auto take = [&](int* i, std::string_view name, std::string* value) {
    const std::string_view word = argv[*i];
    if (word == name && *i + 1 < argc) {
      *value = argv[++*i];
      return true;
    }
    if (!word.starts_with(name) || word.substr(name.size(), 1) != "=") return false;
    *value = word.substr(name.size() + 1);
    return true;
  };
  for (int i = 1; i < argc; ++i) {
    if (take(&i, "--log-format", &format) || take(&i, "--config", &config)) continue;
    if (command.empty() && argv[i][0] != '-') command = argv[i];
  }
  if (command != "serve") return false;
  if (format.empty() && !config.empty()) format = PeekConfig(config, command, "log-format");
  return format == "json";
}

std::optional<NamedOption> OptionIn(const CLI::App& app, const std::string& message) {
  std::string name = NameOfKey(message);
  const auto find = [&] { return name.empty() ? nullptr : app.get_option_no_throw("--" + name); };
  const CLI::Option* option = find();
  // A key may also be one of a model's file, behind the option that names this.
  if (option == nullptr && message.find("unknown key '") == std::string::npos) {
    name = NameAfterDashes(message);
    option = find();
  }
  if (name.empty()) return std::nullopt;
  return NamedOption{"--" + name, option == nullptr ? "" : ValueOf(name, *option)};
}

void StartLog::Note(const std::string& message) const {
  if (!json_) {
    std::fprintf(stderr, "kvlink: %s\n", message.c_str());
  } else if (const auto log = JsonLog()) {
    log->Note(message);
  }
}

void StartLog::Warning(const std::string& message) const {
  if (!json_) {
    std::fprintf(stderr, "kvlink: warning: %s\n", message.c_str());
  } else if (const auto log = JsonLog()) {
    log->Warning(message, FieldsOf(app_, message));
  }
}

void StartLog::Error(const std::string& message) const {
  if (!json_) {
    std::fprintf(stderr, "kvlink: %s\n", message.c_str());
  } else if (const auto log = JsonLog()) {
    log->Error(message, FieldsOf(app_, message));
  }
}

void StartLog::ErrorDetail(const std::string& message) const {
  if (!json_) {
    std::fprintf(stderr, "kvlink: %s\n", message.c_str());
  } else if (const auto log = JsonLog()) {
    log->Error(message);
  }
}

int StartLog::Fail(const Status& status) const {
  Error(status.message());
  return ExitCodeOf(status);
}

}  // namespace kvlink::cli
