#include "cli/bench_http.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace kvlink::cli {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

std::string ErrorText(int status, const std::string& body) {
  const json object = json::parse(body, nullptr, false);
  std::string message = body.substr(0, 200);
  if (object.is_object() && object.contains("error")) {
    const json& error = object["error"];
    message = error.is_object() ? error.value("message", message) : error.dump();
  }
  return "HTTP " + std::to_string(status) + ": " + message;
}

uint64_t Count(const json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

// The stream of one answer: times of its chunks, its text, its usage.
class StreamedAnswer {
 public:
  explicit StreamedAnswer(SteadyClock::time_point start) : start_(start) {}

  void OnData(std::string_view data) {
    const json chunk = json::parse(data, nullptr, false);
    if (!chunk.is_object()) return;  // "[DONE]"
    if (chunk.contains("error")) outcome_.error = chunk["error"].dump();
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
      ReadUsage(*usage);
    }
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array()) return;
    for (const json& choice : *choices) ReadChoice(choice);
  }

  // A branch that never came or never ended is an error: a server that does less work than asked
  // must not look faster.
  TurnOutcome Finish(uint32_t branches) {
    outcome_.latency_s = Elapsed(start_, SteadyClock::now());
    if (last_.empty()) outcome_.ttft_s = outcome_.latency_s;
    // A token makes at most one piece. Servers hold pieces back (half a character) or put several
    // in one, and some count one branch only: the larger count is nearer.
    outcome_.generated_tokens = std::max(outcome_.generated_tokens, pieces_);
    outcome_.computed_tokens =
        outcome_.prompt_tokens - std::min(outcome_.prompt_tokens, outcome_.cached_tokens);
    if (outcome_.error.empty() && ended_.size() < branches) {
      outcome_.error = std::to_string(ended_.size()) + " of " + std::to_string(branches) +
                       " branches were answered to their end";
    }
    return std::move(outcome_);
  }

 private:
  static double Elapsed(SteadyClock::time_point from, SteadyClock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  void ReadUsage(const json& usage) {
    outcome_.prompt_tokens = Count(usage, "prompt_tokens");
    outcome_.generated_tokens = Count(usage, "completion_tokens");
    outcome_.cached_tokens = Count(usage, "cached_tokens");
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object()) {
      outcome_.cached_tokens = Count(*details, "cached_tokens");
    }
  }

  // Chat: choices[].delta.content; completions: choices[].text.
  void ReadChoice(const json& choice) {
    if (!choice.is_object()) return;
    const uint64_t branch = Count(choice, "index");
    const auto reason = choice.find("finish_reason");
    if (reason != choice.end() && reason->is_string()) ended_.insert(branch);
    const auto delta = choice.find("delta");
    const bool chat = delta != choice.end() && delta->is_object();
    const json& holder = chat ? *delta : choice;
    const auto content = holder.find(chat ? "content" : "text");
    if (content == holder.end() || !content->is_string()) return;
    const auto& text = content->get_ref<const std::string&>();
    if (text.empty()) return;  // the chunk that only names the role
    const auto now = SteadyClock::now();
    if (last_.empty()) outcome_.ttft_s = Elapsed(start_, now);
    const auto [last, first_of_branch] = last_.try_emplace(branch, now);
    if (!first_of_branch) outcome_.itl_s.push_back(Elapsed(last->second, now));
    last->second = now;
    ++pieces_;
    if (branch == 0) outcome_.answer += text;
  }

  const SteadyClock::time_point start_;
  TurnOutcome outcome_;
  std::map<uint64_t, SteadyClock::time_point> last_;  // chunk of each branch
  std::set<uint64_t> ended_;                          // branches with a finish reason
  uint64_t pieces_ = 0;                               // of text, all branches
};

json RequestBody(const TurnRequest& turn, const HttpTargetOptions& options) {
  json body = {{"model", options.model},
               {"max_tokens", turn.max_tokens},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"temperature", turn.seeds.empty() ? 0.0 : 0.8}};
  if (options.endpoint == Endpoint::kChat) {
    json& messages = body["messages"] = json::array();
    for (const model::ChatMessage& message : turn.messages) {
      messages.push_back({{"role", message.role}, {"content", message.content}});
    }
  } else {
    std::string prompt;
    for (const model::ChatMessage& message : turn.messages) prompt += message.content + "\n";
    body["prompt"] = prompt;
  }
  if (turn.n > 1) body["n"] = turn.n;
  // Some servers take 32-bit seeds only.
  if (!turn.seeds.empty()) body["seed"] = turn.seeds.front() & 0x7fffffffu;
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body;
}

}  // namespace

Result<std::string> FirstModel(const HttpClient& client) {
  const auto answer = client.Get("/v1/models");
  if (!answer.ok()) return Status(answer.status().code(), "--url: " + answer.status().message());
  const json models = json::parse(answer->body, nullptr, false);
  const bool usable = answer->status == 200 && models.is_object() && models.contains("data") &&
                      models["data"].is_array() && !models["data"].empty() &&
                      models["data"][0].is_object() && models["data"][0].contains("id") &&
                      models["data"][0]["id"].is_string();
  if (usable) return models["data"][0]["id"].get<std::string>();
  return Status(StatusCode::kUnavailable, "--url: /v1/models names no model (" +
                                              ErrorText(answer->status, answer->body) +
                                              "); give --model-name");
}

Result<std::unique_ptr<HttpTarget>> HttpTarget::Create(HttpTargetOptions options) {
  auto client =
      HttpClient::Create({options.url, options.api_key, options.tls_ca, options.timeout_s});
  if (!client.ok()) return client.status();
  if (options.model.empty()) {
    auto model = FirstModel(*client);
    if (!model.ok()) return model.status();
    options.model = *std::move(model);
  }
  return std::unique_ptr<HttpTarget>(new HttpTarget(std::move(options), *std::move(client)));
}

TurnOutcome HttpTarget::Answer(const TurnRequest& turn) {
  StreamedAnswer answer(SteadyClock::now());
  EventStream events;
  std::string raw;  // an error comes as one object, not as a stream
  const char* const path =
      options_.endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
  const auto status =
      client_.PostAndStream(path, RequestBody(turn, options_).dump(), [&](std::string_view piece) {
        if (raw.size() < 4096) raw += piece;
        events.Feed(piece, [&](std::string_view data) { answer.OnData(data); });
      });
  TurnOutcome outcome = answer.Finish(turn.n);
  if (!status.ok()) outcome.error = status.status().message();
  if (status.ok() && *status != 200) outcome.error = ErrorText(*status, raw);
  return outcome;
}

}  // namespace kvlink::cli
