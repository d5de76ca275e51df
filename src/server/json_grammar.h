// JsonGrammar: GBNF grammars that hold a model to JSON, or to JSON of one schema.
//
// The subset of JSON Schema that structured output uses: type (also several), properties and
// required, items with minItems and maxItems, enum, const, anyOf and oneOf, minLength and
// maxLength, allOf of one schema, prefixItems, additionalProperties as the schema of an object
// without properties, local $ref, recursion included. Properties come in the schema's order; ones
// that the schema does not name are never written. A keyword that would change what is valid and is
// not known here is refused by name; annotations (title, description, default, format, ...) are
// skipped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvlink/status.h"

namespace kvlink::server {

// Any JSON object.
std::string JsonGrammar();

// kInvalidArgument with the path and the keyword.
Result<std::string> GrammarFromSchema(const nlohmann::ordered_json& schema);

// For grammars that hold JSON among other things: a rule `name` for texts of the schema, with the
// rules that it needs (all called name-...) and JsonRules(), which are written once. `path` stands
// in front of paths in errors.
Result<std::string> RulesFromSchema(const nlohmann::ordered_json& schema, const std::string& name,
                                    const std::string& path);
std::string JsonRules();
// A literal of GBNF, quotes included.
std::string GrammarLiteral(const std::string& text);

}  // namespace kvlink::server
