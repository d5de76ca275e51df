#include "server/json_grammar.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

// Exponents stay where every reader has a finite number for them. White space is bounded, since a
// model that is held to a grammar may otherwise write it for ever.
constexpr const char* kBasicRules = R"(value ::= object | array | string | number | boolean | null
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
string ::= "\"" char* "\"" ws
integral ::= "-"? ("0" | [1-9] [0-9]{0,15})
integer ::= integral ws
number ::= integral ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})? ws
boolean ::= ("true" | "false") ws
null ::= "null" ws
ws ::= | " " | "\n" [ \t]{0,20}
)";

constexpr int64_t kMaxRepetitions = 1000;
constexpr size_t kMaxRules = 2000;
constexpr size_t kMaxPathBytes = 4000;  // stands for depth, and bounds the text of errors

std::string Literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += c;
    }
  }
  return out + "\"";
}

std::string LiteralOf(const Json& value) { return Literal(value.dump()) + " ws"; }

const std::set<std::string>& Annotations() {
  static const std::set<std::string> names = {
      "title",    "description", "default",        "examples", "$schema",
      "$id",      "$comment",    "$defs",          "format",   "definitions",
      "readOnly", "writeOnly",   "deprecated",     "strict",   "additionalProperties",
      "required", "nullable",    "contentEncoding"};
  return names;
}

class Converter {
 public:
  // `name`: of the rule for the whole schema, and what the others' names begin with.
  Converter(const Json& root, std::string name) : root_(root), name_(std::move(name)) {}

  Result<std::string> Convert(const std::string& path) {
    const std::string top = Visit(root_, path);
    if (!error_.empty()) return Status(StatusCode::kInvalidArgument, error_);
    std::string grammar = name_ + " ::= " + top + "\n";
    for (const auto& [name, body] : rules_) grammar += name + " ::= " + body + "\n";
    return grammar;
  }

 private:
  std::string Fail(const std::string& path, const std::string& what) {
    if (error_.empty()) error_ = path + ": " + what;
    return "null";
  }

  std::string NewRule(const std::string& hint) {
    if (rules_.size() >= kMaxRules) {
      Fail("schema", "needs more than " + std::to_string(kMaxRules) + " grammar rules");
    }
    std::string name =
        (name_ == "root" ? hint : name_ + "-" + hint) + "-" + std::to_string(rules_.size());
    rules_[name] = "";
    return name;
  }

  std::string AddRule(const std::string& hint, const std::string& body) {
    std::string name = NewRule(hint);
    rules_[name] = body;
    return name;
  }

  // Refuses keywords outside `known` that are no annotations.
  void CheckKeywords(const Json& schema, const std::string& path,
                     const std::set<std::string>& known) {
    for (const auto& [key, value] : schema.items()) {
      if (!known.contains(key) && !Annotations().contains(key))
        Fail(path, "keyword \"" + key + "\" is not supported");
    }
  }

  // An expression that matches what the schema allows.
  std::string Visit(const Json& schema, const std::string& path) {
    if (!error_.empty()) return "null";
    if (path.size() > kMaxPathBytes) return Fail(path.substr(0, 200) + "...", "is nested too deep");
    if (schema.is_boolean() && schema.get<bool>()) return "value";
    if (!schema.is_object())
      return Fail(path, "a schema must be an object, got " + schema.dump().substr(0, 80));
    if (schema.contains("$ref")) return Reference(schema, path);
    if (schema.contains("const")) {
      CheckKeywords(schema, path, {"const", "type"});
      return "(" + LiteralOf(schema["const"]) + ")";
    }
    if (schema.contains("enum")) {
      CheckKeywords(schema, path, {"enum", "type"});
      return Alternatives(schema["enum"], path + ".enum",
                          [](const Json& value, const std::string&) { return LiteralOf(value); });
    }
    // One condition among all is that condition, as generators write for a reference with a title.
    if (schema.contains("allOf")) {
      CheckKeywords(schema, path, {"allOf"});
      const Json& all = schema["allOf"];
      if (!all.is_array() || all.size() != 1)
        return Fail(path + ".allOf", "is supported with one schema only");
      return Visit(all[0], path + ".allOf[0]");
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      CheckKeywords(schema, path, {key});
      return Alternatives(
          schema[key], path + "." + key,
          [this](const Json& value, const std::string& at) { return Visit(value, at); });
    }
    if (!schema.contains("type")) {
      if (schema.contains("properties")) return Object(schema, path);
      if (schema.contains("items")) return Array(schema, path);
      CheckKeywords(schema, path, {});
      return "value";
    }
    const Json& type = schema["type"];
    if (type.is_array()) {
      return Alternatives(type, path + ".type", [&](const Json& one, const std::string&) {
        return OfType(schema, one, path, true);
      });
    }
    return OfType(schema, type, path, false);
  }

  template <typename Make>
  std::string Alternatives(const Json& list, const std::string& path, Make make) {
    if (!list.is_array() || list.empty()) return Fail(path, "must be an array that is not empty");
    std::string out;
    for (size_t i = 0; i < list.size(); ++i) {
      out += (i == 0 ? "" : " | ") + make(list[i], path + "[" + std::to_string(i) + "]");
    }
    return "(" + out + ")";
  }

  // `several`: the schema has more types, whose keywords are not this one's business.
  std::string OfType(const Json& schema, const Json& type, const std::string& path, bool several) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    if (name == "object") return Object(schema, path, several);
    if (name == "array") return Array(schema, path, several);
    if (name == "string") return Text(schema, path, several);
    if (name != "number" && name != "integer" && name != "boolean" && name != "null") {
      return Fail(path + ".type", "\"" + name + "\" is no type");
    }
    if (!several) CheckKeywords(schema, path, {"type"});
    return name;
  }

  std::optional<int64_t> Count(const Json& schema, const char* key, const std::string& path) {
    if (!schema.contains(key)) return std::nullopt;
    const Json& value = schema[key];
    const int64_t count = value.is_number_integer() ? value.get<int64_t>() : -1;
    if (count < 0 || count > kMaxRepetitions) {
      Fail(path + "." + key,
           "must be between 0 and " + std::to_string(kMaxRepetitions) + ", got " + value.dump());
      return std::nullopt;
    }
    return count;
  }

  std::string Text(const Json& schema, const std::string& path, bool several) {
    if (!several) CheckKeywords(schema, path, {"type", "minLength", "maxLength"});
    const std::optional<int64_t> least = Count(schema, "minLength", path),
                                 most = Count(schema, "maxLength", path);
    if (!least && !most) return "string";
    if (least && most && *most < *least) return Fail(path, "maxLength is below minLength");
    return "(\"\\\"\" char{" + std::to_string(least.value_or(0)) + "," +
           (most ? std::to_string(*most) : "") + "} \"\\\"\" ws)";
  }

  std::string Array(const Json& schema, const std::string& path, bool several = false) {
    if (!several)
      CheckKeywords(schema, path, {"type", "items", "minItems", "maxItems", "prefixItems"});
    if (schema.contains("prefixItems")) return Tuple(schema, path);
    const std::string item =
        schema.contains("items") ? Visit(schema["items"], path + ".items") : "value";
    const int64_t least = Count(schema, "minItems", path).value_or(0);
    const std::optional<int64_t> most = Count(schema, "maxItems", path);
    if (most && *most < least) return Fail(path, "maxItems is below minItems");
    if (most && *most == 0) return "(\"[\" ws \"]\" ws)";
    const std::string more = "(\",\" ws " + item + "){" +
                             std::to_string(std::max<int64_t>(least - 1, 0)) + "," +
                             (most ? std::to_string(*most - 1) : "") + "}";
    const std::string items = "(" + item + " " + more + ")" + (least == 0 ? "?" : "");
    return AddRule("array", "\"[\" ws " + items + " \"]\" ws");
  }

  // One schema a place, and nothing behind them.
  std::string Tuple(const Json& schema, const std::string& path) {
    const Json& items = schema["prefixItems"];
    if (!items.is_array() || items.empty())
      return Fail(path + ".prefixItems", "must be an array that is not empty");
    const auto size = static_cast<int64_t>(items.size());
    if (schema.contains("items") && schema["items"] != false)
      return Fail(path + ".items", "beside prefixItems is supported as false only");
    if (Count(schema, "minItems", path).value_or(size) > size ||
        Count(schema, "maxItems", path).value_or(size) < size)
      return Fail(path + ".prefixItems",
                  "minItems and maxItems must allow as many items as are described");
    std::string body;
    for (size_t i = 0; i < items.size(); ++i) {
      body += (i == 0 ? "" : " \",\" ws ") +
              Visit(items[i], path + ".prefixItems[" + std::to_string(i) + "]");
    }
    return AddRule("tuple", "\"[\" ws " + body + " \"]\" ws");
  }

  // Properties in order, optional ones left out at will:
  //   first = the property that opens,
  //   more-k = what may follow from property k on, each behind a comma.
  std::string Object(const Json& schema, const std::string& path, bool several = false) {
    if (!several) CheckKeywords(schema, path, {"type", "properties"});
    if (!schema.contains("properties") || schema["properties"].empty()) return Map(schema, path);
    const Json& properties = schema["properties"];
    if (!properties.is_object()) return Fail(path + ".properties", "must be an object");
    std::set<std::string> required;
    if (schema.contains("required")) {
      for (const Json& name : schema["required"]) {
        if (!name.is_string() || !properties.contains(name.get<std::string>())) {
          return Fail(path + ".required", "names a property that is not described: " + name.dump());
        }
        required.insert(name.get<std::string>());
      }
    }
    std::vector<std::pair<std::string, bool>> pairs;  // rule, required
    for (const auto& [key, value] : properties.items()) {
      const std::string body =
          Literal(Json(key).dump()) + " \":\" ws " + Visit(value, path + ".properties." + key);
      pairs.emplace_back(AddRule("pair", body), required.contains(key));
    }
    std::vector<std::string> more(pairs.size() + 1);
    for (size_t i = pairs.size(); i-- > 0;) {
      const std::string one = "\",\" ws " + pairs[i].first;
      more[i] = AddRule("more", (pairs[i].second ? one : "(" + one + ")?") + " " + more[i + 1]);
    }
    std::string first;
    bool may_be_empty = true;
    for (size_t i = 0; i < pairs.size() && may_be_empty; ++i) {
      first += (i == 0 ? "" : " | ") + pairs[i].first + " " + more[i + 1];
      may_be_empty = !pairs[i].second;
    }
    return AddRule("object", "\"{\" ws (" + first + ")" + (may_be_empty ? "?" : "") + " \"}\" ws");
  }

  // An object of any keys, with values of one schema.
  std::string Map(const Json& schema, const std::string& path) {
    if (schema.contains("required") && !schema["required"].empty())
      return Fail(path + ".required", "names a property that is not described: " +
                                          schema["required"].dump().substr(0, 80));
    const Json values = schema.value("additionalProperties", Json(true));
    if (values == false) return "(\"{\" ws \"}\" ws)";
    if (values == true) return "object";
    const std::string pair = "string \":\" ws " + Visit(values, path + ".additionalProperties");
    return AddRule("map", "\"{\" ws ( " + pair + " (\",\" ws " + pair + ")* )? \"}\" ws");
  }

  std::string Reference(const Json& schema, const std::string& path) {
    CheckKeywords(schema, path, {"$ref"});
    if (!schema["$ref"].is_string()) return Fail(path + ".$ref", "must be a string");
    const std::string reference = schema["$ref"].get<std::string>();
    const auto known = references_.find(reference);
    if (known != references_.end()) return known->second;
    if (!reference.starts_with("#"))
      return Fail(path + ".$ref", "only local references are supported, got " + reference);
    const Json* target = &root_;
    for (size_t position = 1; position < reference.size();) {
      const size_t end = std::min(reference.find('/', position + 1), reference.size());
      const std::string key = reference.substr(position + 1, end - position - 1);
      if (!target->is_object() || !target->contains(key))
        return Fail(path + ".$ref", reference + " does not exist");
      target = &(*target)[key];
      position = end;
    }
    const std::string rule = NewRule("ref");
    references_[reference] = rule;
    const std::string body = Visit(*target, reference);
    // A reference to itself alone would be a rule without an end.
    if (body == rule) return Fail(path + ".$ref", reference + " refers to itself");
    rules_[rule] = body;
    return rule;
  }

  const Json& root_;
  const std::string name_;
  std::map<std::string, std::string> rules_, references_;
  std::string error_;
};

}  // namespace

std::string JsonGrammar() { return std::string("root ::= object\n") + kBasicRules; }

std::string JsonRules() { return kBasicRules; }

Result<std::string> RulesFromSchema(const nlohmann::ordered_json& schema, const std::string& name,
                                    const std::string& path) {
  return Converter(schema, name).Convert(path);
}

Result<std::string> GrammarFromSchema(const nlohmann::ordered_json& schema) {
  Result<std::string> rules = RulesFromSchema(schema, "root", "schema");
  if (!rules.ok()) return rules;
  return *rules + kBasicRules;
}

std::string GrammarLiteral(const std::string& text) { return Literal(text); }

}  // namespace kvlink::server
