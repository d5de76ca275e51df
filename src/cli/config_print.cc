#include "cli/config_print.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "cli/command_shape.h"
#include "cli/config_file.h"

namespace kvlink::cli {
namespace {

constexpr size_t kCommentColumns = 96;

// A TOML basic string.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04X", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

bool AreDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Whether TOML reads this number as the very same text; anything else is quoted, which reads back
// as well.
bool IsPlainNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  if (!AreDigits(whole) || whole.size() > 18 || (whole.size() > 1 && whole[0] == '0')) return false;
  return point == std::string_view::npos || AreDigits(text.substr(point + 1));
}

std::string ValueText(const OptionShape& shape, const std::string& value) {
  if (shape.kind == OptionKind::kFlag) return value;
  return shape.kind == OptionKind::kNumber && IsPlainNumber(value) ? value : Quoted(value);
}

std::string ValuesText(const OptionShape& shape, const std::vector<std::string>& values) {
  if (!shape.repeats) return values.empty() ? "\"\"" : ValueText(shape, values.back());
  std::string text;
  for (const std::string& value : values) {
    text += (text.empty() ? "" : ", ") + ValueText(shape, value);
  }
  return "[" + text + "]";
}

std::string Comment(const std::string& text) {
  std::string comment, line;
  for (const std::string& word : WordsOf(text)) {
    if (!line.empty() && line.size() + 1 + word.size() > kCommentColumns) {
      comment += "# " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return comment + "# " + line + "\n";
}

}  // namespace

std::optional<std::vector<std::string>> EffectiveValues(const CLI::Option& option) {
  const OptionShape shape = ShapeOf(option);
  if (shape.kind == OptionKind::kFlag) {
    return std::vector<std::string>{option.count() > 0 && option.as<bool>() ? "true" : "false"};
  }
  if (option.count() > 0) return option.results();
  std::string text = option.get_default_str();
  if (text.empty()) return std::nullopt;
  if (!shape.repeats) return std::vector<std::string>{text};
  // CLI11 writes a list as "[a,b]".
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> values;
  for (const std::string& value : CLI::detail::split(text, ',')) {
    if (!value.empty()) values.push_back(value);
  }
  return values;
}

std::string ConfigText(const CLI::App& app) {
  std::string text = "[" + app.get_name() + "]\n";
  for (const CLI::Option* option : ConfigurableOptions(app)) {
    const OptionShape shape = ShapeOf(*option);
    const std::string name = option->get_lnames().front();
    text += Comment(shape.description);
    const auto values = EffectiveValues(*option);
    if (values) {
      text += name + " = " + ValuesText(shape, *values) + "\n\n";
    } else {
      text += "# " + name + " = " + shape.placeholder + "\n\n";
    }
  }
  return text;
}

}  // namespace kvlink::cli
