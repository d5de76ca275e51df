#include "cli/chat_remote.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/bench_http.h"
#include "cli/http_client.h"
#include "server/dump.h"

namespace kvlink::cli {
namespace {

using Json = nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMostErrorBytes = 4096;

uint64_t Count(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

// The words of an error, as OpenAI's servers send it, or the beginning of what came.
std::string ErrorText(const Json& json, const std::string& raw) {
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
    return server::Dump(error);
  }
  return raw.substr(0, 200);
}

// Chunks of one answer.
class Stream {
 public:
  Stream(const AnswerEvents& events, SteadyClock::time_point start)
      : events_(events), start_(start) {}

  void OnBody(std::string_view piece) {
    if (raw_.size() < kMostErrorBytes) raw_ += piece;
    lines_.Feed(piece, [this](std::string_view data) { OnData(data); });
  }

  Result<AnswerFigures> Finish(const Result<int>& status) {
    figures_.total_s = Elapsed();
    if (!status.ok() && status.status().code() == StatusCode::kCancelled) {
      figures_.stopped = true;
      // The usage comes at the end of a stream only.
      figures_.generated_tokens = std::max(figures_.generated_tokens, pieces_);
      return figures_;
    }
    if (!status.ok()) return status.status();
    if (*status != 200) {
      return Status(
          *status < 500 && *status != 429 ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
          "HTTP " + std::to_string(*status) + ": " +
              ErrorText(Json::parse(raw_, nullptr, false), raw_));
    }
    if (!error_.empty()) return Status(StatusCode::kUnavailable, error_);
    if (!ended_) return Status(StatusCode::kUnavailable, "the answer broke off");
    figures_.generated_tokens = std::max(figures_.generated_tokens, pieces_);
    return figures_;
  }

 private:
  double Elapsed() const {
    return std::chrono::duration<double>(SteadyClock::now() - start_).count();
  }

  void OnData(std::string_view data) {
    const Json chunk = Json::parse(data, nullptr, false);
    if (!chunk.is_object()) return;  // "[DONE]"
    if (chunk.contains("error")) error_ = ErrorText(chunk, std::string(data));
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
      ReadUsage(*usage);
    }
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array()) return;
    for (const Json& choice : *choices) {
      if (choice.is_object()) ReadChoice(choice);
    }
  }

  void ReadUsage(const Json& usage) {
    figures_.prompt_tokens = Count(usage, "prompt_tokens");
    figures_.generated_tokens = Count(usage, "completion_tokens");
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object()) {
      figures_.cached_tokens = Count(*details, "cached_tokens");
    }
  }

  // Chat: delta.content, and what a server keeps apart as reasoning; completions: text.
  void ReadChoice(const Json& choice) {
    if (const auto reason = choice.find("finish_reason");
        reason != choice.end() && reason->is_string()) {
      ended_ = true;
      figures_.cut = *reason == "length";
    }
    const auto delta = choice.find("delta");
    const bool chat = delta != choice.end() && delta->is_object();
    if (chat) Take(*delta, "reasoning_content");
    Take(chat ? *delta : choice, chat ? "content" : "text");
  }

  void Take(const Json& holder, const char* key) {
    const auto content = holder.find(key);
    if (content == holder.end() || !content->is_string()) return;
    const auto& text = content->get_ref<const std::string&>();
    if (text.empty()) return;
    if (pieces_ == 0) figures_.first_token_s = Elapsed();
    ++pieces_;
    events_.on_text(text);
  }

  const AnswerEvents& events_;
  const SteadyClock::time_point start_;
  EventStream lines_;
  AnswerFigures figures_;
  std::string raw_, error_;
  uint64_t pieces_ = 0;
  bool ended_ = false;
};

class RemoteAnswerer : public Answerer {
 public:
  RemoteAnswerer(HttpClient client, std::string url, std::string model)
      : client_(std::move(client)), url_(std::move(url)), model_(std::move(model)) {}

  Result<AnswerFigures> Answer(std::span<const model::ChatMessage> messages,
                               const AnswerOptions& options, const AnswerEvents& events) override {
    Json body = Body(options);
    body["messages"] = Json::array();
    for (const model::ChatMessage& message : messages) {
      body["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    return Send("/v1/chat/completions", body, events);
  }

  Result<AnswerFigures> Complete(const std::string& prompt, const AnswerOptions& options,
                                 const AnswerEvents& events) override {
    Json body = Body(options);
    body["prompt"] = prompt;
    return Send("/v1/completions", body, events);
  }

  std::string Name() const override { return model_ + " at " + url_; }

 private:
  Json Body(const AnswerOptions& options) const {
    Json body = {{"model", model_},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"temperature", options.temperature},
                 {"top_p", options.top_p}};
    if (options.max_tokens > 0) body["max_tokens"] = options.max_tokens;
    if (options.top_k > 0) body["top_k"] = options.top_k;
    if (options.seed) body["seed"] = *options.seed;
    if (!options.stop.empty()) body["stop"] = options.stop;
    return body;
  }

  Result<AnswerFigures> Send(const std::string& path, const Json& body,
                             const AnswerEvents& events) const {
    Stream stream(events, SteadyClock::now());
    return stream.Finish(client_.PostAndStream(
        path, server::Dump(body), [&](std::string_view piece) { stream.OnBody(piece); },
        events.stop));
  }

  const HttpClient client_;
  const std::string url_, model_;
};

}  // namespace

Result<std::unique_ptr<Answerer>> OpenChatRemote(const ChatRemoteOptions& options) {
  const auto url = ParseUrl(options.url);
  if (!url.ok()) return url.status();
  auto client = HttpClient::Create({*url, options.api_key, options.tls_ca, options.timeout_s});
  if (!client.ok()) return client.status();
  std::string model = options.model;
  if (model.empty()) {
    auto first = FirstModel(*client);
    if (!first.ok()) return first.status();
    model = *std::move(first);
  }
  return std::unique_ptr<Answerer>(
      std::make_unique<RemoteAnswerer>(*std::move(client), options.url, std::move(model)));
}

}  // namespace kvlink::cli
