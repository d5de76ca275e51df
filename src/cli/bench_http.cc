#include "cli/bench_http.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvlink::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

// One request over one connection. The deadline holds for the whole of it: Beast's timers only act
// on asynchronous calls, so every step is started, and the context run until it is done.
class Exchange {
 public:
  explicit Exchange(const HttpTargetOptions& options)
      : url_(options.url), key_(options.api_key), stream_(context_) {
    stream_.expires_after(
        std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)));
  }

  // Calls `on_body` with each piece of the body as it comes. Answers the HTTP status.
  Result<int> Send(http::verb verb, const std::string& path, const std::string& body,
                   const std::function<void(std::string_view)>& on_body) {
    asio::ip::tcp::resolver resolver(context_);
    beast::error_code error;
    const auto addresses = resolver.resolve(url_.host, std::to_string(url_.port), error);
    if (error) return Failure("cannot resolve", error);
    stream_.async_connect(addresses,
                          [&](beast::error_code result, const auto&) { error = result; });
    RunToEnd();
    if (error) return Failure("cannot connect to", error);

    http::request<http::string_body> request(verb, url_.path + path, 11);
    request.set(http::field::host, url_.host + ":" + std::to_string(url_.port));
    request.set(http::field::content_type, "application/json");
    request.set(http::field::connection, "close");
    if (!key_.empty()) request.set(http::field::authorization, "Bearer " + key_);
    request.body() = body;
    request.prepare_payload();
    const auto note = [&](beast::error_code result, size_t) { error = result; };
    http::async_write(stream_, request, note);
    RunToEnd();
    if (error) return Failure("cannot write to", error);
    return ReadAnswer(on_body);
  }

 private:
  Result<int> ReadAnswer(const std::function<void(std::string_view)>& on_body) {
    beast::error_code error;
    const auto note = [&](beast::error_code result, size_t) { error = result; };
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    http::async_read_header(stream_, buffer, parser, note);
    RunToEnd();
    if (error) return Failure("no answer from", error);
    while (!parser.is_done()) {
      char piece[16384];
      parser.get().body().data = piece;
      parser.get().body().size = sizeof piece;
      // _some: whatever is there, at once; a read that fills the piece would hide when tokens come.
      http::async_read_some(stream_, buffer, parser, note);
      RunToEnd();
      if (error == http::error::need_buffer) error = {};
      if (error) return Failure("broken answer from", error);
      on_body(std::string_view(piece, sizeof piece - parser.get().body().size));
    }
    return static_cast<int>(parser.get().result_int());
  }

  void RunToEnd() {
    context_.restart();
    context_.run();
  }

  Status Failure(const std::string& what, beast::error_code error) const {
    return Status(StatusCode::kUnavailable, what + " " + url_.host + ":" +
                                                std::to_string(url_.port) + ": " + error.message());
  }

  const Url& url_;
  const std::string& key_;
  asio::io_context context_;
  beast::tcp_stream stream_;
};

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

  TurnOutcome Finish() {
    outcome_.latency_s = Elapsed(start_, SteadyClock::now());
    if (last_.empty()) outcome_.ttft_s = outcome_.latency_s;
    if (!has_usage_) outcome_.generated_tokens = chunks_;
    outcome_.computed_tokens =
        outcome_.prompt_tokens - std::min(outcome_.prompt_tokens, outcome_.cached_tokens);
    return std::move(outcome_);
  }

 private:
  static double Elapsed(SteadyClock::time_point from, SteadyClock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  void ReadUsage(const json& usage) {
    has_usage_ = true;
    outcome_.prompt_tokens = Count(usage, "prompt_tokens");
    outcome_.generated_tokens = Count(usage, "completion_tokens");
    outcome_.cached_tokens = Count(usage, "cached_tokens");
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object()) {
      outcome_.cached_tokens = Count(*details, "cached_tokens");
    }
  }

  void ReadChoice(const json& choice) {
    if (!choice.is_object()) return;
    const auto delta = choice.find("delta");
    if (delta == choice.end() || !delta->is_object()) return;
    const auto content = delta->find("content");
    if (content == delta->end() || !content->is_string()) return;
    const auto text = content->get<std::string>();
    if (text.empty()) return;  // the chunk that only names the role
    const auto now = SteadyClock::now();
    const uint64_t branch = Count(choice, "index");
    if (last_.empty()) outcome_.ttft_s = Elapsed(start_, now);
    const auto [last, first_of_branch] = last_.try_emplace(branch, now);
    if (!first_of_branch) outcome_.itl_s.push_back(Elapsed(last->second, now));
    last->second = now;
    ++chunks_;
    if (branch == 0) outcome_.answer += text;
  }

  const SteadyClock::time_point start_;
  TurnOutcome outcome_;
  std::map<uint64_t, SteadyClock::time_point> last_;  // chunk of each branch
  uint64_t chunks_ = 0;
  bool has_usage_ = false;
};

json RequestBody(const TurnRequest& turn, const HttpTargetOptions& options) {
  json messages = json::array();
  for (const model::ChatMessage& message : turn.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  json body = {{"model", options.model},
               {"messages", messages},
               {"max_tokens", turn.max_tokens},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"temperature", turn.seeds.empty() ? 0.0 : 0.8}};
  if (turn.n > 1) body["n"] = turn.n;
  // Some servers take 32-bit seeds only.
  if (!turn.seeds.empty()) body["seed"] = turn.seeds.front() & 0x7fffffffu;
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body;
}

}  // namespace

Result<Url> ParseUrl(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "--url: '" + std::string(text) + "' " + why);
  };
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return bad("must start with http://");
  std::string_view rest = text.substr(kScheme.size());
  Url url;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  const size_t colon = rest.find(']') == std::string_view::npos ? rest.rfind(':') : rest.find("]:");
  if (colon != std::string_view::npos) {
    const size_t host_end = rest[colon] == ']' ? colon + 1 : colon;
    const std::string_view digits = rest.substr(host_end + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || end != digits.data() + digits.size() || url.port == 0) {
      return bad("has no port from 1 to 65535");
    }
    rest = rest.substr(0, host_end);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return bad("names no host");
  url.host = rest;
  return url;
}

Result<std::unique_ptr<HttpTarget>> HttpTarget::Create(HttpTargetOptions options) {
  if (options.model.empty()) {
    std::string body;
    const auto status = Exchange(options).Send(http::verb::get, "/v1/models", "",
                                               [&](std::string_view piece) { body += piece; });
    if (!status.ok()) return Status(status.status().code(), "--url: " + status.status().message());
    const json models = json::parse(body, nullptr, false);
    const bool usable = *status == 200 && models.is_object() && models.contains("data") &&
                        models["data"].is_array() && !models["data"].empty() &&
                        models["data"][0].is_object() && models["data"][0].contains("id") &&
                        models["data"][0]["id"].is_string();
    if (!usable) {
      return Status(
          StatusCode::kUnavailable,
          "--url: /v1/models names no model (" + ErrorText(*status, body) + "); give --model-name");
    }
    options.model = models["data"][0]["id"].get<std::string>();
  }
  return std::unique_ptr<HttpTarget>(new HttpTarget(std::move(options)));
}

TurnOutcome HttpTarget::Answer(const TurnRequest& turn) {
  StreamedAnswer answer(SteadyClock::now());
  EventStream events;
  std::string raw;  // an error comes as one object, not as a stream
  const auto status = Exchange(options_).Send(
      http::verb::post, "/v1/chat/completions", RequestBody(turn, options_).dump(),
      [&](std::string_view piece) {
        if (raw.size() < 4096) raw += piece;
        events.Feed(piece, [&](std::string_view data) { answer.OnData(data); });
      });
  TurnOutcome outcome = answer.Finish();
  if (!status.ok()) outcome.error = status.status().message();
  if (status.ok() && *status != 200) outcome.error = ErrorText(*status, raw);
  return outcome;
}

}  // namespace kvlink::cli
