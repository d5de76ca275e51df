// ChatTranslator: what turning another protocol's request into the chat request that means the same
// takes, whichever the protocol: the fields that go over as they are, tools, and the first thing
// that is wrong.
//
// Objects keep the client's order of keys (InOrder), for tools are shown to the model as they came.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/api_error.h"
#include "server/fields.h"

namespace kvlink::server {

class ChatTranslator {
 protected:
  using Ordered = nlohmann::ordered_json;

  explicit ChatTranslator(const Ordered& request) : request_(request) {}

  // The first failure stands.
  void Fail(const std::string& param, const std::string& message) {
    if (!error_) error_ = ApiError{400, message, param, ""};
  }
  // "PATH must be WHAT, got VALUE".
  void FailMust(const std::string& path, const std::string& what, const Ordered& value) {
    Fail(path, path + " must be " + what + ", got " + Seen(value));
  }

  static bool Given(const Ordered& object, const char* key) {
    return object.contains(key) && !object[key].is_null();
  }
  bool Given(const char* key) const { return Given(request_, key); }

  void Copy(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (Given(key)) chat_[key] = request_[key];
    }
  }

  static Ordered Function(Ordered function) {
    return {{"type", "function"}, {"function", std::move(function)}};
  }
  static Ordered Call(Ordered id, Ordered name, Ordered arguments) {
    return {{"id", std::move(id)},
            {"type", "function"},
            {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}};
  }

  // `function_of(tool, path)` is the function that the tool describes; it may fail.
  template <typename FunctionOf>
  void Tools(FunctionOf function_of) {
    if (!Given("tools")) return;
    const Ordered& tools = request_["tools"];
    if (!tools.is_array()) return FailMust("tools", "an array", tools);
    chat_["tools"] = Ordered::array();
    for (size_t i = 0; i < tools.size() && !error_; ++i) {
      chat_["tools"].push_back(Function(function_of(tools[i], "tools[" + std::to_string(i) + "]")));
    }
  }

  const Ordered& request_;
  Ordered chat_ = Ordered::object();
  std::optional<ApiError> error_;
};

}  // namespace kvlink::server
