#include "server/api_request.h"

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/constraint_fields.h"
#include "server/fields.h"
#include "server/tool_fields.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr int64_t kMaxTokensField = int64_t{1} << 31;
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxMessages = 4096;
// Fields in which the order of keys matters: it is shown to the model, or is the answer's.
constexpr std::initializer_list<const char*> kOrderedFields = {
    "messages", "tools", "response_format", "json_schema", "guided_json", "structured_outputs"};

// --- what chat and completions share ---

void ReadSampling(Fields& fields, uint32_t vocab_size, ApiRequest* out) {
  model::SamplingParams& sampling = out->generation.sampling;
  if (auto v = fields.Number("temperature", 0, 2)) sampling.temperature = static_cast<float>(*v);
  if (auto v = fields.Number("top_p", 0, 1)) sampling.top_p = static_cast<float>(*v);
  // -1 is vLLM's "all", 0 is llama.cpp's.
  if (auto v = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling.top_k = *v < 0 ? 0 : static_cast<int32_t>(*v);
  }
  if (auto v = fields.Number("min_p", 0, 1)) sampling.min_p = static_cast<float>(*v);
  if (auto v = fields.Number("frequency_penalty", -2, 2))
    sampling.frequency_penalty = static_cast<float>(*v);
  if (auto v = fields.Number("presence_penalty", -2, 2))
    sampling.presence_penalty = static_cast<float>(*v);
  const char* repetition = fields.FirstGiven({"repetition_penalty", "repeat_penalty"});
  if (auto v = fields.Number(repetition, 0.01, 100))
    sampling.repetition_penalty = static_cast<float>(*v);
  if (auto v = fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max())) {
    // llama.cpp's clients send -1 for "any".
    if (*v != -1) {
      sampling.seed = static_cast<uint64_t>(*v);
      out->has_seed = true;
    }
  }
  if (auto v = fields.Bool("ignore_eos")) sampling.ignore_eos = *v;
  const Json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    const std::string name = "logit_bias." + key;
    const bool digits =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoul(key) >= vocab_size) {
      return fields.Fail(name, "logit_bias: keys must be token ids between 0 and " +
                                   std::to_string(vocab_size - 1) + ", got \"" + key + "\"");
    }
    if (!value.is_number() || value.get<double>() < -100 || value.get<double>() > 100) {
      return fields.Fail(name, name + " must be a number between -100 and 100, got " + Seen(value));
    }
    sampling.logit_bias[static_cast<TokenId>(std::stoul(key))] = value.get<float>();
  }
}

void ReadStop(Fields& fields, ApiRequest* out) {
  const Json* stop = fields.Get("stop");
  if (stop == nullptr) return;
  const auto add = [&](const Json& value, const std::string& name) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
        value.get_ref<const std::string&>().size() > kMaxStopBytes) {
      fields.Fail(name, name + " must be a string of 1 to " + std::to_string(kMaxStopBytes) +
                            " bytes, got " + Seen(value));
      return;
    }
    out->generation.stop.push_back(value.get<std::string>());
  };
  if (stop->is_string()) return add(*stop, "stop");
  if (!stop->is_array() || stop->size() > kMaxStops) {
    return fields.Fail("stop", "stop must be a string or an array of at most " +
                                   std::to_string(kMaxStops) + " strings, got " + Seen(*stop));
  }
  for (size_t i = 0; i < stop->size(); ++i) add((*stop)[i], "stop[" + std::to_string(i) + "]");
}

void ReadBranching(Fields& fields, const Limits& limits, ApiRequest* out) {
  engine::GenerationRequest& generation = out->generation;
  if (auto v = fields.Integer("n", 1, limits.max_choices)) generation.n = static_cast<uint32_t>(*v);
  if (auto v = fields.Integer("best_of", 1, limits.max_choices)) {
    if (*v < generation.n) {
      return fields.Fail("best_of", "best_of must be at least n (" + std::to_string(generation.n) +
                                        "), got " + std::to_string(*v));
    }
    generation.best_of = static_cast<uint32_t>(*v);
  }
  if (auto v = fields.Bool("use_beam_search")) generation.beam_search = *v;
  if (auto v = fields.Number("length_penalty", -10, 10))
    generation.length_penalty = static_cast<float>(*v);
}

void ReadLength(Fields& fields, int64_t fallback, ApiRequest* out) {
  const char* name = fields.FirstGiven({"max_completion_tokens", "max_tokens", "n_predict"});
  // -1 is llama.cpp's "as many as fit".
  const std::optional<int64_t> given = fields.Integer(name, -1, kMaxTokensField);
  const int64_t tokens = given.value_or(fallback);
  if (tokens == 0) {
    out->hide_generated = true;
    out->generation.max_tokens = 1;
  } else {
    out->generation.max_tokens = tokens < 0 ? 0 : static_cast<uint32_t>(tokens);
  }
}

void ReadStream(Fields& fields, ApiRequest* out) {
  if (auto v = fields.Bool("stream")) out->stream = *v;
  if (const Json* options = fields.Object("stream_options")) {
    Fields nested(*options, "stream_options");
    if (auto v = nested.Bool("include_usage")) out->include_usage = *v;
    fields.Adopt(nested);
  }
  if (!out->stream) return;
  if (out->generation.beam_search) {
    fields.Fail(
        "stream",
        "stream cannot be combined with use_beam_search: the answer is known only at the end");
  } else if (out->generation.best_of > out->generation.n) {
    fields.Fail("stream",
                "stream cannot be combined with best_of greater than n: the answer is known only "
                "at the end");
  }
}

SimilarPolicy ReadSimilar(const std::string& name, Fields* fields) {
  if (name == "on") return SimilarPolicy::kOn;
  if (name == "strict") return SimilarPolicy::kStrict;
  if (name != "off")
    fields->Fail("similar", "kvlink.similar must be off, on or strict, not '" + name + "'");
  return SimilarPolicy::kOff;
}

void ReadCachePolicy(Fields& fields, ApiRequest* out) {
  engine::GenerationRequest& generation = out->generation;
  if (auto v = fields.String("cache_salt")) generation.ns.salt = *v;
  if (auto v = fields.Bool("cache_prompt")) generation.reuse = *v;
  (void)fields.String("prompt_cache_key");  // a routing hint; one cache serves all
  if (const Json* kvlink = fields.Object("kvlink")) {
    Fields nested(*kvlink, "kvlink");
    if (auto v = nested.Bool("reuse")) generation.reuse = *v;
    if (auto v = nested.Bool("store")) generation.store = *v;
    if (auto v = nested.String("similar")) out->similar = ReadSimilar(*v, &nested);
    if (auto v = nested.Bool("sort_tool_keys")) out->sort_tool_keys = *v;
    fields.Adopt(nested);
  }
  // Whatever else it asks for.
  if (fields.Bool("deterministic").value_or(false)) out->similar = SimilarPolicy::kOff;
}

void ReadDeadline(Fields& fields, ApiRequest* out) {
  if (auto v = fields.Integer("deadline_ms", 1, 86400000)) {
    out->generation.deadline = std::chrono::milliseconds(*v);
  } else if (auto seconds = fields.Number("timeout", 0.001, 86400)) {
    out->generation.deadline = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
  }
}

void ReadCommon(Fields& fields, const Ordered& ordered, const Limits& limits, uint32_t vocab_size,
                int64_t default_tokens, ApiRequest* out) {
  if (auto v = fields.String("model")) out->model = *v;
  ReadSampling(fields, vocab_size, out);
  ReadStop(fields, out);
  ReadBranching(fields, limits, out);
  ReadLength(fields, default_tokens, out);
  ReadStream(fields, out);
  ReadCachePolicy(fields, out);
  ReadDeadline(fields, out);
  ReadConstraint(fields, ordered, out);
  if (auto v = fields.Integer("prompt_logprobs", -1, kMaxTopLogprobs)) {
    out->generation.prompt_logprobs = static_cast<int>(*v);
    if (*v >= 0 && out->stream)
      fields.Fail("prompt_logprobs", "prompt_logprobs cannot be combined with stream");
  }
}

// --- messages ---

// A message's content: a string, null, or an array of text parts, which are joined.
std::string ReadContent(Fields& message) {
  const Json* content = message.Get("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.Fail("content", message.Path("content") +
                                " must be a string or an array of parts, got " + Seen(*content));
    return "";
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string name = "content[" + std::to_string(i) + "]";
    if (!part.is_object()) {
      message.Fail(name,
                   message.Path(name) + " must be an object with type and text, got " + Seen(part));
      return "";
    }
    Fields fields(part, message.Path(name));
    const std::string type = fields.String("type").value_or("text");
    if (!fields.error() && type != "text") {
      fields.Fail("type",
                  fields.Path("type") +
                      ": only \"text\" parts are supported by this model, got \"" + type + "\"",
                  "unsupported_content");
    }
    const std::optional<std::string> part_text = fields.String("text");
    if (!fields.error() && !part_text) fields.Fail("text", fields.Path("text") + " is missing");
    message.Adopt(fields);
    if (message.error()) return "";
    text += *part_text;
  }
  return text;
}

void ReadMessages(Fields& fields, const Ordered& ordered, std::vector<model::ChatMessage>* out) {
  const Json* messages = fields.Array("messages");
  if (fields.error()) return;
  if (messages == nullptr) return fields.Fail("messages", "messages is missing", "missing_field");
  if (messages->empty() || messages->size() > kMaxMessages) {
    return fields.Fail("messages", "messages must hold 1 to " + std::to_string(kMaxMessages) +
                                       " messages, got " + std::to_string(messages->size()));
  }
  for (size_t i = 0; i < messages->size() && !fields.error(); ++i) {
    const Json& value = (*messages)[i];
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!value.is_object())
      return fields.Fail(name, name + " must be an object, got " + Seen(value));
    Fields message(value, name);
    model::ChatMessage parsed;
    const std::optional<std::string> role = message.String("role");
    if (!role && !message.error()) message.Fail("role", name + ".role is missing", "missing_field");
    // OpenAI's newer name for the same role, which templates do not know.
    parsed.role = role.value_or("") == "developer" ? "system" : role.value_or("");
    parsed.content = ReadContent(message);
    CheckToolCalls(message);
    bool more = false;
    for (const auto& [key, field] : value.items())
      more |= key != "role" && key != "content" && !field.is_null();
    if (!message.error() && !more && message.Get("content") == nullptr) {
      message.Fail("content", name + ".content is missing", "missing_field");
    }
    fields.Adopt(message);
    if (more) {
      Ordered whole = ordered["messages"][i];
      whole["role"] = parsed.role;
      whole["content"] = parsed.content;
      parsed.extra_json = whole.dump();
    }
    out->push_back(std::move(parsed));
  }
}

// Chat's logprobs: a bool and the number of alternatives beside it.
void ReadChatLogprobs(Fields& fields, ApiRequest* out) {
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wanted) {
    return fields.Fail("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  if (wanted) out->generation.logprobs = static_cast<int>(top.value_or(0));
}

// --- prompts of a completion ---

void ReadPrompts(Fields& fields, const Limits& limits, uint32_t vocab_size,
                 std::vector<PromptInput>* out) {
  const Json* prompt = fields.Get("prompt");
  if (fields.error()) return;
  if (prompt == nullptr) return fields.Fail("prompt", "prompt is missing", "missing_field");
  const auto wrong = [&](const std::string& name, const Json& value) {
    fields.Fail(name, name +
                          " must be a string, an array of strings, an array of token ids or an "
                          "array of such arrays, got " +
                          Seen(value));
  };
  if (prompt->is_string()) return out->emplace_back(prompt->get<std::string>()), void();
  if (!prompt->is_array() || prompt->empty()) return wrong("prompt", *prompt);
  std::vector<TokenId> tokens;
  if (prompt->front().is_number()) {
    if (fields.Tokens(*prompt, "prompt", vocab_size, &tokens)) out->emplace_back(std::move(tokens));
    return;
  }
  if (prompt->size() > limits.max_prompts) {
    return fields.Fail("prompt", "prompt must hold at most " + std::to_string(limits.max_prompts) +
                                     " prompts, got " + std::to_string(prompt->size()));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& value = (*prompt)[i];
    const std::string name = "prompt[" + std::to_string(i) + "]";
    if (value.is_string()) {
      out->emplace_back(value.get<std::string>());
    } else if (value.is_array()) {
      tokens.clear();
      if (!fields.Tokens(value, name, vocab_size, &tokens)) return;
      out->emplace_back(std::exchange(tokens, {}));
    } else {
      return wrong(name, value);
    }
  }
}

void ReadCompletionLogprobs(Fields& fields, ApiRequest* out) {
  const Json* value = fields.Get("logprobs");
  if (value == nullptr) return;
  if (value->is_boolean()) {  // chat's form, which clients mix up
    if (value->get<bool>()) out->generation.logprobs = 0;
  } else if (auto v = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    out->generation.logprobs = static_cast<int>(*v);
  }
}

template <typename T>
Parsed<T> Finish(const Fields& fields, T&& value) {
  if (fields.error()) return *fields.error();
  return std::forward<T>(value);
}

}  // namespace

Parsed<ApiRequest> ParseChatRequest(const std::string& body, const Limits& limits,
                                    uint32_t vocab_size) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  Fields fields(json);
  const Ordered ordered = InOrder(body, json, kOrderedFields);
  ApiRequest out;
  out.chat = true;
  out.style = ApiRequest::Style::kChat;
  ReadMessages(fields, ordered, &out.messages);
  if (auto v = fields.Bool("add_generation_prompt")) out.add_generation_prompt = *v;
  ReadCommon(fields, ordered, limits, vocab_size, -1, &out);
  ReadTools(fields, ordered, &out);
  if (auto v = fields.String("reasoning_format")) out.split_reasoning = *v != "none";
  ReadChatLogprobs(fields, &out);
  if (out.hide_generated) fields.Fail("max_tokens", "max_tokens must be at least 1, got 0");
  return Finish(fields, std::move(out));
}

Parsed<ApiRequest> ParseCompletionRequest(const std::string& body, const Limits& limits,
                                          uint32_t vocab_size) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  Fields fields(json);
  const Ordered ordered = InOrder(body, json, kOrderedFields);
  ApiRequest out;
  ReadPrompts(fields, limits, vocab_size, &out.prompts);
  if (auto v = fields.String("suffix"); v && !v->empty()) out.suffix = *v;
  ReadCommon(fields, ordered, limits, vocab_size, 16, &out);
  ReadCompletionLogprobs(fields, &out);
  if (auto v = fields.Bool("echo")) out.echo = *v;
  if (auto v = fields.Bool("add_special_tokens")) out.add_special_tokens = *v;
  engine::GenerationRequest& generation = out.generation;
  if (out.hide_generated && !out.echo && generation.prompt_logprobs < 0) {
    fields.Fail("max_tokens",
                "max_tokens 0 needs echo or prompt_logprobs: nothing would be answered");
  }
  if (out.hide_generated && out.stream)
    fields.Fail("stream", "stream cannot be combined with max_tokens 0");
  if (out.suffix && out.echo) fields.Fail("echo", "echo cannot be combined with suffix");
  // Echoed text shows the prompt's log-probabilities as well.
  if (out.echo && generation.logprobs >= 0) {
    if (out.stream) fields.Fail("echo", "echo with logprobs cannot be combined with stream");
    generation.prompt_logprobs = std::max(generation.prompt_logprobs, generation.logprobs);
  }
  return Finish(fields, std::move(out));
}

Parsed<TokenizeRequest> ParseTokenizeRequest(const std::string& body) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  Fields fields(json);
  const Ordered ordered = InOrder(body, json, {"messages", "tools"});
  TokenizeRequest out;
  if (auto v = fields.String("model")) out.model = *v;
  const char* name = fields.FirstGiven({"prompt", "content"});
  out.text = fields.String(name);
  if (!out.text && !fields.error()) {
    if (fields.Get("messages") == nullptr) {
      fields.Fail("prompt", "one of prompt, content and messages is needed", "missing_field");
    }
    ReadMessages(fields, ordered, &out.messages);
    ApiRequest tools;
    ReadTools(fields, ordered, &tools);
    out.tools_json = tools.tools_json;
    if (auto v = fields.Bool("add_generation_prompt")) out.add_generation_prompt = *v;
  }
  // llama.cpp's form (`content`) adds no BOS unless asked to, vLLM's (`prompt`) does.
  out.add_special = std::string_view(name) != "content";
  if (auto v = fields.Bool(fields.FirstGiven({"add_special_tokens", "add_special"})))
    out.add_special = *v;
  if (auto v = fields.Bool("parse_special")) out.parse_special = *v;
  if (auto v = fields.Bool(fields.FirstGiven({"return_token_strs", "with_pieces"})))
    out.with_pieces = *v;
  return Finish(fields, std::move(out));
}

Parsed<DetokenizeRequest> ParseDetokenizeRequest(const std::string& body, uint32_t vocab_size) {
  Json json;
  if (auto error = ParseObject(body, &json)) return *error;
  Fields fields(json);
  DetokenizeRequest out;
  if (auto v = fields.String("model")) out.model = *v;
  if (const Json* tokens = fields.Array("tokens")) {
    fields.Tokens(*tokens, "tokens", vocab_size, &out.tokens);
  } else if (!fields.error()) {
    fields.Fail("tokens", "tokens is missing", "missing_field");
  }
  return Finish(fields, std::move(out));
}

}  // namespace kvlink::server
