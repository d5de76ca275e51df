#include "server/json_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace kvlink::server {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A small reader of GBNF, as far as our grammars use it: does `text` match rule `root`? Sets of end
// positions, so that alternatives and repetitions need no backtracking.
class Gbnf {
 public:
  explicit Gbnf(const std::string& grammar) {
    size_t position = 0;
    while (position < grammar.size()) {
      const size_t end = grammar.find('\n', position);
      const std::string line = grammar.substr(position, end - position);
      const size_t sign = line.find(" ::=");
      rules_[line.substr(0, sign)] = line.substr(sign + 4);
      position = end + 1;
    }
  }
  bool Matches(const std::string& text) {
    text_ = text;
    return Rule("root", {0}).contains(text.size());
  }

 private:
  using Ends = std::set<size_t>;

  Ends Rule(const std::string& name, const Ends& starts) {
    EXPECT_TRUE(rules_.contains(name)) << "no rule " << name;
    size_t at = 0;
    const std::string& body = rules_[name];
    Ends ends = Alternatives(body, at, starts);
    EXPECT_EQ(at, body.size()) << name << " ::= " << body;
    return ends;
  }
  static void Skip(const std::string& body, size_t& at) {
    while (at < body.size() && body[at] == ' ') ++at;
  }
  Ends Alternatives(const std::string& body, size_t& at, const Ends& starts) {
    Ends ends;
    while (true) {
      ends.merge(Sequence(body, at, starts));
      if (at >= body.size() || body[at] != '|') return ends;
      ++at;
    }
  }
  Ends Sequence(const std::string& body, size_t& at, Ends current) {
    for (Skip(body, at); at < body.size() && body[at] != '|' && body[at] != ')'; Skip(body, at)) {
      const size_t begin = at;
      Ends once = Item(body, at, current);
      size_t least = 1, most = 1;
      Repetition(body, at, least, most);
      if (least == 1 && most == 1) {
        current = std::move(once);
        continue;
      }
      Ends reached = least == 0 ? current : Ends();
      Ends frontier = current;
      for (size_t count = 1; count <= most && !frontier.empty(); ++count) {
        size_t again = begin;
        Ends next = Item(body, again, frontier);
        frontier.clear();
        for (const size_t end : next) {
          if (count < least || !reached.contains(end)) frontier.insert(end);
        }
        if (count >= least) reached.insert(next.begin(), next.end());
      }
      current = std::move(reached);
    }
    return current;
  }
  static void Repetition(const std::string& body, size_t& at, size_t& least, size_t& most) {
    constexpr size_t kMany = 100000;
    const char c = at < body.size() ? body[at] : ' ';
    if (c == '?') least = 0, ++at;
    if (c == '*') least = 0, most = kMany, ++at;
    if (c == '+') most = kMany, ++at;
    if (c != '{') return;
    const size_t comma = body.find_first_of(",}", at), close = body.find('}', at);
    least = std::stoul(body.substr(at + 1));
    most = comma == close ? least : comma + 1 == close ? kMany : std::stoul(body.substr(comma + 1));
    at = close + 1;
  }
  Ends Item(const std::string& body, size_t& at, const Ends& starts) {
    if (body[at] == '(') {
      ++at;
      Ends ends = Alternatives(body, at, starts);
      EXPECT_EQ(body[at], ')');
      ++at;
      return ends;
    }
    if (body[at] == '"') return Literal(body, at, starts);
    if (body[at] == '[') return Class(body, at, starts);
    const size_t begin = at;
    while (at < body.size() &&
           (std::isalnum(static_cast<unsigned char>(body[at])) || body[at] == '-'))
      ++at;
    EXPECT_GT(at, begin) << body.substr(begin);
    return starts.empty() ? Ends() : Rule(body.substr(begin, at - begin), starts);
  }
  static int Char(const std::string& body, size_t& at) {
    if (body[at] != '\\') return static_cast<unsigned char>(body[at++]);
    const char c = body[at + 1];
    if (c == 'x') {
      at += 4;
      return std::stoi(body.substr(at - 2, 2), nullptr, 16);
    }
    at += 2;
    return c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
  }
  Ends Literal(const std::string& body, size_t& at, const Ends& starts) {
    std::string literal;
    for (++at; body[at] != '"';) literal += static_cast<char>(Char(body, at));
    ++at;
    Ends ends;
    for (const size_t start : starts) {
      if (text_.compare(start, literal.size(), literal) == 0) ends.insert(start + literal.size());
    }
    return ends;
  }
  Ends Class(const std::string& body, size_t& at, const Ends& starts) {
    const bool negated = body[++at] == '^';
    if (negated) ++at;
    std::vector<std::pair<int, int>> ranges;
    while (body[at] != ']') {
      const int low = Char(body, at);
      const bool range = body[at] == '-' && body[at + 1] != ']';
      if (range) ++at;
      ranges.emplace_back(low, range ? Char(body, at) : low);
    }
    ++at;
    Ends ends;
    for (const size_t start : starts) {
      if (start >= text_.size()) continue;
      const int c = static_cast<unsigned char>(text_[start]);
      bool in = false;
      for (const auto& [low, high] : ranges) in |= c >= low && c <= high;
      if (in != negated) ends.insert(start + 1);
    }
    return ends;
  }

  std::map<std::string, std::string> rules_;
  std::string text_;
};

bool Allows(const std::string& schema, const std::string& text) {
  const Result<std::string> grammar = GrammarFromSchema(Json::parse(schema));
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return grammar.ok() && Gbnf(*grammar).Matches(text);
}

std::string ErrorOf(const std::string& schema) {
  const Result<std::string> grammar = GrammarFromSchema(Json::parse(schema));
  return grammar.ok() ? "taken" : grammar.status().message();
}

TEST(JsonGrammar, AllowsAnyObjectAndNothingElse) {
  Gbnf grammar(JsonGrammar());
  for (const char* good :
       {"{}", R"({"a": [1, -2.5e3, true, null, "x\n\u00e9"], "b": {"c": {}}})", "{\n  \"a\":1}"}) {
    EXPECT_TRUE(grammar.Matches(good)) << good;
  }
  for (const char* bad :
       {"", "[]", "1", "{", R"({"a"})", R"({"a":01})", R"({"a":1,})", "{'a':1}", R"({"a":"
"})"}) {
    EXPECT_FALSE(grammar.Matches(bad)) << bad;
  }
}

TEST(JsonGrammar, PropertiesComeInOrderAndOptionalOnesMayBeLeftOut) {
  const std::string schema =
      R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"},
    "m":{"type":"boolean"}},"required":["a"],"additionalProperties":false})";
  for (const char* good : {R"({"z":1,"a":"x","m":true})", R"({"a":"x"})", R"({"z":1,"a":"x"})",
                           R"({"a":"","m":false})"}) {
    EXPECT_TRUE(Allows(schema, good)) << good;
  }
  for (const char* bad : {"{}", R"({"z":1})", R"({"a":"x","z":1})", R"({"a":1})",
                          R"({"a":"x","b":1})", R"({,"a":"x"})", R"({"z":1.5,"a":"x"})"}) {
    EXPECT_FALSE(Allows(schema, bad)) << bad;
  }
}

TEST(JsonGrammar, WithoutRequiredPropertiesTheObjectMayBeEmpty) {
  const std::string schema = R"({"properties":{"a":{"type":"null"},"b":{"type":"number"}}})";
  for (const char* good : {"{}", R"({"a":null})", R"({"b":-1.5})", R"({"a":null,"b":2})"}) {
    EXPECT_TRUE(Allows(schema, good)) << good;
  }
  EXPECT_FALSE(Allows(schema, R"({"b":1,"a":null})"));
}

TEST(JsonGrammar, ArraysAndStringsKeepTheirBounds) {
  const std::string array =
      R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})";
  EXPECT_FALSE(Allows(array, "[]"));
  EXPECT_TRUE(Allows(array, "[1]"));
  EXPECT_TRUE(Allows(array, "[1,2,3]"));
  EXPECT_FALSE(Allows(array, "[1,2,3,4]"));
  EXPECT_TRUE(Allows(R"({"type":"array"})", R"([{},"x",[]])"));
  EXPECT_TRUE(Allows(R"({"type":"array","maxItems":0})", "[]"));
  const std::string text = R"({"type":"string","minLength":2,"maxLength":3})";
  EXPECT_FALSE(Allows(text, R"("a")"));
  EXPECT_TRUE(Allows(text, R"("abc")"));
  EXPECT_FALSE(Allows(text, R"("abcd")"));
}

TEST(JsonGrammar, ChoicesAreLiteral) {
  const std::string schema = R"({"enum":["red","a\"b\\",5,null]})";
  for (const char* good : {R"("red")", R"("a\"b\\")", "5", "null"})
    EXPECT_TRUE(Allows(schema, good)) << good;
  EXPECT_FALSE(Allows(schema, R"("green")"));
  EXPECT_TRUE(Allows(R"({"const":{"k":1}})", R"({"k":1})"));
  EXPECT_TRUE(Allows(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", R"("x")"));
  EXPECT_TRUE(Allows(R"({"type":["string","null"]})", "null"));
  EXPECT_FALSE(Allows(R"({"type":["string","null"]})", "1"));
}

TEST(JsonGrammar, ReferencesMayRecur) {
  const std::string schema =
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{
    "v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}})";
  EXPECT_TRUE(Allows(schema, R"({"v":1,"next":{"v":2,"next":null}})"));
  EXPECT_FALSE(Allows(schema, R"({"v":1,"next":{"v":2}})"));
}

TEST(JsonGrammar, WhatItDoesNotKnowIsRefusedByName) {
  EXPECT_THAT(ErrorOf(R"({"type":"object","properties":{"a":{"type":"string","pattern":"x"}}})"),
              ::testing::AllOf(HasSubstr("schema.properties.a"), HasSubstr("pattern")));
  EXPECT_THAT(ErrorOf(R"({"type":"integer","minimum":3})"), HasSubstr("minimum"));
  EXPECT_THAT(ErrorOf(R"({"allOf":[]})"), HasSubstr("allOf"));
  EXPECT_THAT(ErrorOf(R"({"type":"text"})"), HasSubstr("text"));
  EXPECT_THAT(ErrorOf("5"), HasSubstr("5"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"http://x"})"), HasSubstr("http://x"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"#/nowhere"})"), HasSubstr("#/nowhere"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"#"})"), HasSubstr("itself"));
  EXPECT_THAT(ErrorOf(R"({"type":"array","minItems":3,"maxItems":2})"), HasSubstr("maxItems"));
  EXPECT_THAT(ErrorOf(R"({"type":"string","minLength":3,"maxLength":2})"), HasSubstr("maxLength"));
  EXPECT_THAT(ErrorOf(R"({"type":"string","maxLength":100000})"), HasSubstr("100000"));
  EXPECT_THAT(ErrorOf(R"({"type":"object","properties":{"a":{}},"required":["b"]})"),
              HasSubstr("b"));
  EXPECT_EQ(ErrorOf(R"({"type":"string","description":"fine","format":"date"})"), "taken");
}

}  // namespace
}  // namespace kvlink::server
