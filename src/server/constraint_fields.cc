#include "server/constraint_fields.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_grammar.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

// The grammar of a schema, or an error at `name`.
std::string SchemaGrammar(Fields& fields, const std::string& name, const Ordered& schema) {
  const Result<std::string> converted = GrammarFromSchema(schema);
  if (converted.ok()) return *converted;
  fields.Fail(name, fields.Path(name) + ": " + converted.status().message());
  return "";
}

std::string ResponseFormatGrammar(Fields& fields, const Json& format, const Ordered& ordered) {
  Fields nested(format, "response_format");
  const std::string type = nested.String("type").value_or("text");
  std::string grammar;
  if (type == "json_object") {
    // llama-server takes a schema here as well.
    grammar = format.contains("schema") ? SchemaGrammar(nested, "schema", ordered["schema"])
                                        : JsonGrammar();
  } else if (type == "json_schema") {
    // OpenAI has the schema inside `json_schema`, others beside the type.
    const Json* wrapper = nested.Object("json_schema");
    const Ordered& holder = wrapper == nullptr ? ordered : ordered["json_schema"];
    if (!nested.error() && !holder.contains("schema")) {
      nested.Fail("json_schema", "response_format.json_schema.schema is missing");
    } else if (!nested.error()) {
      grammar = SchemaGrammar(nested, "json_schema", holder["schema"]);
    }
  } else if (type != "text" && !nested.error()) {
    nested.Fail(
        "type",
        "response_format.type must be \"text\", \"json_object\" or \"json_schema\", got \"" + type +
            "\"");
  }
  fields.Adopt(nested);
  return grammar;
}

// vLLM's choice among texts.
std::string ChoiceGrammar(Fields& fields, const char* name) {
  const Json* choices = fields.Array(name);
  if (choices == nullptr) return "";
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices->size(); ++i) {
    const Json& choice = (*choices)[i];
    if (!choice.is_string()) {
      const std::string element = std::string(name) + "[" + std::to_string(i) + "]";
      fields.Fail(element, fields.Path(element) + " must be a string, got " + Seen(choice));
      return "";
    }
    grammar += (i == 0 ? "" : " | ") + GrammarLiteral(choice.get<std::string>());
  }
  if (choices->empty()) fields.Fail(name, fields.Path(name) + " must not be empty");
  return grammar;
}

// vLLM's object for all of them.
std::string StructuredOutputs(Fields& fields, const Json& outputs, const Ordered& ordered) {
  Fields nested(outputs, "structured_outputs");
  std::string grammar;
  if (outputs.contains("json")) grammar = SchemaGrammar(nested, "json", ordered["json"]);
  if (auto v = nested.String("grammar")) grammar = *v;
  if (outputs.contains("choice")) grammar = ChoiceGrammar(nested, "choice");
  if (nested.Bool("json_object").value_or(false)) grammar = JsonGrammar();
  for (const char* key : {"regex", "structural_tag"}) {
    if (nested.Get(key) != nullptr)
      nested.Fail(key, nested.Path(key) + " is not supported; use grammar or json", "unsupported");
  }
  fields.Adopt(nested);
  return grammar;
}

}  // namespace

// At most one of the ways in which clients say what an answer must look like.
void ReadConstraint(Fields& fields, const Ordered& ordered, ApiRequest* out) {
  std::string& grammar = out->generation.sampling.grammar;
  std::string given_by;
  const auto take = [&](const char* name, std::string made) {
    if (made.empty() || fields.error()) return;
    if (!grammar.empty()) {
      return fields.Fail(name, std::string(name) + " cannot be combined with " + given_by);
    }
    grammar = std::move(made);
    given_by = name;
  };
  if (auto v = fields.String("grammar")) take("grammar", *v);
  if (const Json* format = fields.Object("response_format"))
    take("response_format", ResponseFormatGrammar(fields, *format, ordered["response_format"]));
  for (const char* name : {"json_schema", "guided_json"}) {  // llama-server's, vLLM's older one
    if (fields.Get(name) != nullptr) take(name, SchemaGrammar(fields, name, ordered[name]));
  }
  if (auto v = fields.String("guided_grammar")) take("guided_grammar", *v);
  if (fields.Get("guided_choice") != nullptr)
    take("guided_choice", ChoiceGrammar(fields, "guided_choice"));
  if (const Json* outputs = fields.Object("structured_outputs"))
    take("structured_outputs", StructuredOutputs(fields, *outputs, ordered["structured_outputs"]));
  if (fields.Get("guided_regex") != nullptr)
    fields.Fail("guided_regex", "guided_regex is not supported; use grammar", "unsupported");
  if (grammar.empty()) return;
  out->grammar_field = given_by;
  if (out->generation.beam_search)
    fields.Fail("use_beam_search", "use_beam_search cannot be combined with " + given_by);
  // What the answer may look like was decided by someone who relies on it.
  out->similar = SimilarPolicy::kOff;
}

}  // namespace kvlink::server
