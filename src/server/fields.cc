#include "server/fields.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvlink::server {
namespace {

constexpr int kMaxDepth = 100;
constexpr size_t kMaxSeenBytes = 80;
constexpr size_t kMaxOrderedKeys = 512;

std::string Show(double value) { return Seen(nlohmann::json(value)); }

// Deepest nesting of brackets outside strings. The JSON library parses any depth but writes and
// frees by recursion.
int NestingDepth(const std::string& text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

size_t LargestObject(const nlohmann::json& value) {
  if (!value.is_structured()) return 0;
  size_t largest = value.is_object() ? value.size() : 0;
  for (const nlohmann::json& child : value) largest = std::max(largest, LargestObject(child));
  return largest;
}

const char* TypeName(const nlohmann::json& value) {
  if (value.is_number_integer()) return "integer";
  return value.type_name();
}

}  // namespace

std::string Seen(const nlohmann::json& value) {
  if (value.is_array() && value.size() > 64) return "an array of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kMaxSeenBytes) return text;
  size_t cut = kMaxSeenBytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

std::optional<ApiError> ParseObject(const std::string& body, nlohmann::json* out) {
  if (body.empty())
    return ApiError{400, "the body is empty; a JSON object is expected", "", "invalid_json"};
  const int depth = NestingDepth(body);
  if (depth > kMaxDepth) {
    return ApiError{400,
                    "the JSON is nested " + std::to_string(depth) + " deep, at most " +
                        std::to_string(kMaxDepth) + " is taken",
                    "", "invalid_json"};
  }
  try {
    *out = nlohmann::json::parse(body);
  } catch (const nlohmann::json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string what = e.what();
    const size_t end = what.find("] ");
    if (end != std::string::npos) what = what.substr(end + 2);
    return ApiError{400, "the body is not valid JSON: " + what, "", "invalid_json"};
  }
  if (!out->is_object()) {
    return ApiError{
        400,
        std::string("the body must be a JSON object, got ") + TypeName(*out) + " " + Seen(*out), "",
        "invalid_json"};
  }
  return std::nullopt;
}

nlohmann::ordered_json InOrder(const std::string& body, const nlohmann::json& parsed,
                               std::initializer_list<const char*> keys) {
  using Ordered = nlohmann::ordered_json;
  Ordered sorted = Ordered::object();
  bool small = parsed.size() <= kMaxOrderedKeys;
  for (const char* key : keys) {
    if (!parsed.contains(key)) continue;
    small = small && LargestObject(parsed[key]) <= kMaxOrderedKeys;
    sorted[key] = Ordered(parsed[key]);
  }
  if (!small) return sorted;
  const auto wanted = [&](int depth, Ordered::parse_event_t event, Ordered& value) {
    if (depth != 1 || event != Ordered::parse_event_t::key) return true;
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return value == key; });
  };
  Ordered ordered = Ordered::parse(body, wanted, /*allow_exceptions=*/false);
  return ordered.is_object() ? ordered : sorted;
}

void Fields::Fail(const std::string& name, const std::string& message, const std::string& code) {
  if (!error_) error_ = ApiError{400, message, Path(name), code};
}

void Fields::Adopt(const Fields& nested) {
  if (!error_ && nested.error_) error_ = nested.error_;
}

const Fields::Json* Fields::Get(const char* name) const {
  if (error_) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Fields::Json* Fields::Typed(const char* name, bool (*is_type)(const Json&),
                                  const char* type_name) {
  const Json* value = Get(name);
  if (value == nullptr || is_type(*value)) return value;
  Fail(name,
       Path(name) + " must be " + type_name + ", got " + TypeName(*value) + " " + Seen(*value));
  return nullptr;
}

const Fields::Json* Fields::Object(const char* name) {
  return Typed(
      name, [](const Json& v) { return v.is_object(); }, "an object");
}

const Fields::Json* Fields::Array(const char* name) {
  return Typed(
      name, [](const Json& v) { return v.is_array(); }, "an array");
}

std::optional<bool> Fields::Bool(const char* name) {
  const Json* value = Typed(
      name, [](const Json& v) { return v.is_boolean(); }, "true or false");
  return value ? std::optional<bool>(value->get<bool>()) : std::nullopt;
}

std::optional<std::string> Fields::String(const char* name) {
  const Json* value = Typed(
      name, [](const Json& v) { return v.is_string(); }, "a string");
  return value ? std::optional<std::string>(value->get<std::string>()) : std::nullopt;
}

std::optional<double> Fields::Number(const char* name, double min, double max) {
  const Json* value = Typed(
      name, [](const Json& v) { return v.is_number(); }, "a number");
  if (value == nullptr) return std::nullopt;
  const double number = value->get<double>();
  if (number >= min && number <= max) return number;
  Fail(name, Path(name) + " must be between " + Show(min) + " and " + Show(max) + ", got " +
                 Seen(*value));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(const char* name, int64_t min, int64_t max) {
  const Json* value = Typed(
      name,
      [](const Json& v) {
        return v.is_number_integer() ||
               (v.is_number_float() && std::trunc(v.get<double>()) == v.get<double>());
      },
      "an integer");
  if (value == nullptr) return std::nullopt;
  bool fits = true;
  if (value->is_number_unsigned()) {
    fits = value->get<uint64_t>() <= uint64_t{INT64_MAX};
  } else if (value->is_number_float()) {
    const double approximate = value->get<double>();
    fits = approximate >= -0x1p63 && approximate < 0x1p63;
  }
  const int64_t number = fits ? value->get<int64_t>() : 0;
  if (fits && number >= min && number <= max) return number;
  Fail(name, Path(name) + " must be between " + std::to_string(min) + " and " +
                 std::to_string(max) + ", got " + Seen(*value));
  return std::nullopt;
}

const char* Fields::FirstGiven(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (Get(name) != nullptr) return name;
  }
  return *names.begin();
}

bool Fields::Tokens(const Json& array, const std::string& name, uint32_t vocab_size,
                    std::vector<TokenId>* out) {
  out->reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const Json& value = array[i];
    const bool good =
        value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < vocab_size;
    if (!good) {
      const std::string element = name + "[" + std::to_string(i) + "]";
      Fail(element, Path(element) + " must be a token id between 0 and " +
                        std::to_string(vocab_size - 1) + ", got " + Seen(value));
      return false;
    }
    out->push_back(value.get<TokenId>());
  }
  return true;
}

}  // namespace kvlink::server
