#include "cli/command_shape.h"

#include <algorithm>
#include <utility>

namespace kvlink::cli {
namespace {

// "INT:INT in [1 - 16]" gives the text between " in [" and "]".
std::string Between(const std::string& text, const std::string& open, const std::string& close) {
  const size_t begin = text.find(open);
  if (begin == std::string::npos) return "";
  const size_t end = text.find(close, begin + open.size());
  if (end == std::string::npos) return "";
  return text.substr(begin + open.size(), end - begin - open.size());
}

std::vector<std::string> ChoicesIn(const std::string& type) {
  std::vector<std::string> choices;
  for (const std::string& choice : CLI::detail::split(Between(type, "{", "}"), ',')) {
    if (!choice.empty()) choices.push_back(choice);
  }
  return choices;
}

// `type` is CLI11's: the name of the type, then what each check says of itself: "INT:INT in [1 -
// 16]", "TEXT:{off,exact}", "TEXT:SIZE", "FILE".
void ReadType(const std::string& type, OptionShape* shape) {
  const std::string base = type.substr(0, type.find(':'));
  shape->choices = ChoicesIn(type);
  if (!shape->choices.empty()) {
    shape->kind = OptionKind::kChoice;
    shape->placeholder = "NAME";
  } else if (base == "FILE" || base == "PATH") {
    shape->kind = OptionKind::kFile;
    shape->placeholder = base;
  } else if (base == "DIR") {
    shape->kind = OptionKind::kFolder;
    shape->placeholder = base;
  } else if (base == "INT" || base == "UINT" || base == "FLOAT") {
    shape->kind = OptionKind::kNumber;
    shape->placeholder = "N";
    const std::string range = Between(type, " in [", "]");
    if (const size_t dash = range.find(" - "); dash != std::string::npos) {
      shape->least = range.substr(0, dash);
      shape->most = range.substr(dash + 3);
    }
  } else {
    shape->placeholder = type.ends_with(":SIZE") ? "SIZE" : base;
  }
}

}  // namespace

std::string CommandShape::Name(std::string_view separator) const {
  std::string name;
  for (const std::string& part : path) name += (name.empty() ? "" : std::string(separator)) + part;
  return name;
}

OptionShape ShapeOf(const CLI::Option& option) {
  OptionShape shape;
  for (const std::string& name : option.get_lnames()) shape.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) shape.names.push_back("-" + name);
  if (shape.names.empty()) shape.names.push_back(option.get_name(true));
  shape.description = option.get_description();
  shape.default_text = option.get_default_str();
  shape.environment = option.get_envname();
  shape.required = option.get_required();
  if (option.get_items_expected_max() == 0) {
    shape.kind = OptionKind::kFlag;
    shape.default_text.clear();
    return shape;
  }
  ReadType(option.get_type_name(), &shape);
  shape.commas = option.get_delimiter() != '\0';
  shape.repeats = option.get_items_expected_max() > 1;
  return shape;
}

CommandShape ShapeOf(const CLI::App& app, const std::string& name) {
  CommandShape shape;
  if (app.get_parent() != nullptr) {
    for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
      shape.path.insert(shape.path.begin(), at->get_parent() == nullptr ? name : at->get_name());
    }
  } else {
    shape.path = {name};
  }
  shape.description = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    OptionShape of_option = ShapeOf(*option);
    (option->get_positional() ? shape.positionals : shape.options).push_back(std::move(of_option));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    shape.commands.push_back(ShapeOf(*command, name));
  }
  return shape;
}

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; (begin = text.find_first_not_of(" \t\n", begin)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

}  // namespace kvlink::cli
