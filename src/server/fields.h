// Fields: typed, ranged access to the fields of one JSON object; remembers the first that is wrong.
//
//   Fields fields(object);
//   if (auto t = fields.Number("temperature", 0, 2)) params.temperature = *t;
//   if (fields.error()) return *fields.error();
//
// A field that is absent or null is "not given". After an error the rest returns nothing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvlink/kv_shape.h"
#include "server/api_error.h"

namespace kvlink::server {

class Fields {
 public:
  using Json = nlohmann::json;

  // `path` stands before the names in messages: "messages[2]".
  explicit Fields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  const std::optional<ApiError>& error() const { return error_; }
  void Fail(const std::string& name, const std::string& message, const std::string& code = "");
  // Takes over the error of a nested object.
  void Adopt(const Fields& nested);

  // Null when not given.
  const Json* Get(const char* name) const;
  const Json* Object(const char* name);
  const Json* Array(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<double> Number(const char* name, double min, double max);
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  std::optional<std::string> String(const char* name);
  // The first of several names that is given.
  const char* FirstGiven(std::initializer_list<const char*> names) const;
  // Reads [id, ...] with ids in [0, vocab_size).
  bool Tokens(const Json& array, const std::string& name, uint32_t vocab_size,
              std::vector<TokenId>* out);

  std::string Path(const std::string& name) const {
    return path_.empty() ? name : path_ + "." + name;
  }

 private:
  const Json* Typed(const char* name, bool (*is_type)(const Json&), const char* type_name);

  const Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

// The value as it goes into a message: JSON, cut after 80 bytes.
std::string Seen(const nlohmann::json& value);

// Parses a body that must be a JSON object no deeper than we recurse.
std::optional<ApiError> ParseObject(const std::string& body, nlohmann::json* out);

// Those top-level fields of a body that ParseObject took, with object keys in the client's order
// (tool descriptions are shown to the model as they came). Objects of very many keys, which that
// costs dearly, come back sorted.
nlohmann::ordered_json InOrder(const std::string& body, const nlohmann::json& parsed,
                               std::initializer_list<const char*> keys);

}  // namespace kvlink::server
