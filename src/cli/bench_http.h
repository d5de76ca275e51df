// A benchmark target behind a URL: any OpenAI-compatible server, streamed so that TTFT and ITL are
// seen.
//
// Generated tokens are the usage of the last chunk (`stream_options.include_usage`) or the pieces
// of text that came, whichever is more, so that every server is counted alike. Cached tokens come
// from usage.prompt_tokens_details.cached_tokens or usage.cached_tokens, 0 without either.
// Blocking.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cli/bench_run.h"
#include "cli/http_client.h"

namespace kvlink::cli {

enum class Endpoint : uint8_t {
  kChat,  // /v1/chat/completions
  // /v1/completions: the prompt is the contents of the messages, a line break after each.
  kCompletions,
};

struct HttpTargetOptions {
  Url url;
  std::string model;    // empty: the first of /v1/models
  std::string api_key;  // empty: none
  bool ignore_eos = false;
  double timeout_s = 600;
  Endpoint endpoint = Endpoint::kChat;
  std::string tls_ca;  // PEM file of the authorities to trust; empty: the system's
};

class HttpTarget : public BenchTarget {
 public:
  // Asks the server for its model where none is named. kUnavailable: nobody answers. What is wrong
  // with --tls-ca.
  static Result<std::unique_ptr<HttpTarget>> Create(HttpTargetOptions options);
  TurnOutcome Answer(const TurnRequest& request) override;
  const std::string& model() const { return options_.model; }

 private:
  HttpTarget(HttpTargetOptions options, HttpClient client)
      : options_(std::move(options)), client_(std::move(client)) {}

  const HttpTargetOptions options_;
  const HttpClient client_;
};

// The first model that the server names. kUnavailable: nobody answers, or it names none.
Result<std::string> FirstModel(const HttpClient& client);

// Takes a server-sent event stream apart: Feed bytes as they come, get the payload of every "data:"
// event.
class EventStream {
 public:
  template <typename OnData>
  void Feed(std::string_view bytes, OnData on_data) {
    rest_ += bytes;
    size_t begin = 0;
    for (size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
      std::string_view line = std::string_view(rest_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("data:")) {
        line.remove_prefix(5);
        if (line.starts_with(' ')) line.remove_prefix(1);
        on_data(line);
      }
      begin = end + 1;
    }
    rest_.erase(0, begin);
  }

 private:
  std::string rest_;
};

}  // namespace kvlink::cli
