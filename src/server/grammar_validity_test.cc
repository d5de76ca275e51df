// What the grammar of a schema lets through is valid JSON of that schema: random walks through the
// grammars of random schemas, read by a validator that knows nothing of grammars. And it lets
// through enough: sample values of the schema, written compactly, are accepted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "grammar/library.h"
#include "server/json_grammar.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

size_t Characters(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

bool IsOfType(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

bool IsValid(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref"))
    return IsValid(value, root["$defs"][schema["$ref"].get<std::string>().substr(8)], root);
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum")) {
    bool any = false;
    for (const Json& one : schema["enum"]) any |= one == value;
    if (!any) return false;
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(key)) continue;
    bool any = false;
    for (const Json& one : schema[key]) any |= IsValid(value, one, root);
    if (!any) return false;
  }
  if (schema.contains("type")) {
    bool any = false;
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    for (const Json& type : types) any |= IsOfType(value, type.get<std::string>());
    if (!any) return false;
  }
  if (value.is_string()) {
    const size_t length = Characters(value.get<std::string>());
    if (length < schema.value("minLength", size_t{0}) ||
        length > schema.value("maxLength", size_t{100000}))
      return false;
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t{0}) ||
        value.size() > schema.value("maxItems", size_t{100000}))
      return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size()
              ? !IsValid(value[i], prefix[i], root)
              : schema.contains("items") && !IsValid(value[i], schema["items"], root)) {
        return false;
      }
    }
  }
  if (value.is_object()) {
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [key, element] : value.items()) {
      if (properties.contains(key)) {
        if (!IsValid(element, properties[key], root)) return false;
      } else if (schema.contains("additionalProperties") &&
                 !IsValid(element, schema["additionalProperties"], root)) {
        return false;
      }
    }
  }
  return true;
}

class RandomSchema {
 public:
  explicit RandomSchema(uint32_t seed) : random_(seed) {}
  uint32_t Below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

  Json Schema(int depth) {
    switch (Below(depth > 2 ? 6 : 11)) {
      case 0:
        return {{"type", "integer"}, {"description", "x"}};
      case 1:
        return {{"type", Json::array({"string", "null"})}};
      case 2:
        return {{"enum", {"a", 1, nullptr, "q\"\n\u00e9", Json::object({{"k", 1}})}}};
      case 3:
        return {{"type", "string"}, {"minLength", Below(3)}, {"maxLength", 3 + Below(4)}};
      case 4:
        return {{"const", "c" + std::to_string(Below(9))}};
      case 5:
        return {{"type", Below(2) == 0 ? "number" : "boolean"}};
      case 6:
        return {{"anyOf", {Schema(depth + 1), Schema(depth + 1)}}};
      case 7: {
        const uint32_t least = Below(3);
        return {{"type", "array"},
                {"items", Schema(depth + 1)},
                {"minItems", least},
                {"maxItems", least + Below(3)}};
      }
      case 8:
        return {{"type", "array"},
                {"prefixItems", {Schema(depth + 1), Schema(depth + 1)}},
                {"items", false}};
      case 9:
        return {{"type", "object"}, {"additionalProperties", Schema(depth + 1)}};
      default: {
        Json properties = Json::object(), required = Json::array();
        for (uint32_t i = Below(4) + 1; i > 0; --i) {
          const std::string name = "p" + std::to_string(i);
          properties[name] = Schema(depth + 1);
          if (Below(2) == 0) required.push_back(name);
        }
        return {{"type", "object"},
                {"properties", properties},
                {"required", required},
                {"additionalProperties", false}};
      }
    }
  }

 private:
  std::mt19937 random_;
};

std::vector<std::string> ByteTokens() {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  return pieces;
}

// A random text of the grammar; "" if it did not come to an end.
std::string Walk(const std::shared_ptr<grammar::Grammar>& compiled, std::mt19937& random) {
  grammar::Matcher matcher(compiled);
  std::string text;
  grammar::TokenMask mask;
  for (int i = 0; i < 600; ++i) {
    if (matcher.accepting() && random() % 2 == 0) return text;
    matcher.FillMask(&mask);
    std::vector<TokenId> can;
    for (TokenId token = 0; token < 256; ++token) {
      if (grammar::IsAllowed(mask, token)) can.push_back(token);
    }
    if (can.empty()) return matcher.accepting() ? text : "";
    TokenId token = can[random() % can.size()];
    // What closes, more often, so that texts end.
    for (const char closing : {'"', '}', ']'}) {
      if (grammar::IsAllowed(mask, closing) && random() % 3 == 0) token = closing;
    }
    EXPECT_TRUE(matcher.Accept(token));
    text += static_cast<char>(token);
  }
  return "";
}

TEST(SchemaGrammars, LetThroughOnlyValidJson) {
  grammar::Library library(ByteTokens);
  std::mt19937 random(1);
  int texts = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    Json schema = RandomSchema(seed).Schema(0);
    const Result<std::string> text = GrammarFromSchema(schema);
    ASSERT_TRUE(text.ok()) << text.status().message() << schema;
    const auto compiled = library.Get(*text);
    ASSERT_TRUE(compiled.ok()) << compiled.status().message() << *text;
    for (int i = 0; i < 20; ++i) {
      const std::string written = Walk(*compiled, random);
      if (written.empty()) continue;
      ++texts;
      const Json value = Json::parse(written, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << written;
      EXPECT_TRUE(IsValid(value, schema, schema)) << written << "\n" << schema;
      EXPECT_EQ(Json::parse(value.dump(), nullptr, false), value);  // strings are UTF-8
    }
  }
  EXPECT_GT(texts, 1000);
}

TEST(SchemaGrammars, TakeCompactAndSpacedTextsAndReferences) {
  const Json schema = Json::parse(R"({"$defs": {"node": {"type": "object", "properties": {"value":
    {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required":
    ["value"], "additionalProperties": false}}, "allOf": [{"$ref": "#/$defs/node"}]})");
  grammar::Library library(ByteTokens);
  const auto compiled = library.Get(*GrammarFromSchema(schema));
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const auto accepts = [&](const char* text) {
    grammar::Matcher matcher(*compiled);
    return matcher.AcceptText(text) && matcher.accepting();
  };
  EXPECT_TRUE(accepts(R"({"value":1,"next":{"value":-2,"next":null}})"));
  EXPECT_TRUE(accepts("{\n  \"value\": 1,\n  \"next\": {\"value\": 2}\n}"));
  EXPECT_FALSE(accepts(R"({"next":null})"));
  EXPECT_FALSE(accepts(R"({"value":1.5})"));
  EXPECT_FALSE(accepts(R"({"value":1,"more":2})"));
}

TEST(SchemaGrammars, UnsupportedKeywordsAreNamedWithTheirPath) {
  const auto error = [](const char* schema) {
    return GrammarFromSchema(Json::parse(schema)).status().message();
  };
  EXPECT_EQ(
      error(
          R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"string","pattern":"x"}}}})"),
      "schema.properties.a.items: keyword \"pattern\" is not supported");
  EXPECT_NE(error(R"({"type":"object","additionalProperties":{"type":"number","minimum":1}})")
                .find("schema.additionalProperties: keyword \"minimum\""),
            std::string::npos);
  EXPECT_NE(error(R"({"allOf":[{"type":"string"},{"type":"string"}]})").find("allOf"),
            std::string::npos);
  EXPECT_NE(error(R"({"type":"object","required":["x"]})").find("required"), std::string::npos);
  std::string deep = "{}";
  for (int i = 0; i < 2000; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  EXPECT_NE(error(deep.c_str()).find("nested too deep"), std::string::npos);
}

}  // namespace
}  // namespace kvlink::server
