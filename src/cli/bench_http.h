// A benchmark target behind a URL: any OpenAI-compatible server, streamed so that TTFT and ITL are
// seen.
//
// Tokens are counted from the usage in the last chunk (`stream_options.include_usage`); servers
// that send none are counted by chunks. Cached tokens come from
// usage.prompt_tokens_details.cached_tokens or usage.cached_tokens, 0 without either. Plain HTTP
// only. Blocking; a connection a request.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/bench_run.h"

namespace kvlink::cli {

struct Url {
  std::string host;
  uint16_t port = 80;
  std::string path;  // before "/v1/...": "" or "/prefix"
};

// "http://host[:port][/prefix]", with or without "/v1" at the end. kInvalidArgument with the text
// seen.
Result<Url> ParseUrl(std::string_view text);

struct HttpTargetOptions {
  Url url;
  std::string model;    // empty: the first of /v1/models
  std::string api_key;  // empty: none
  bool ignore_eos = false;
  double timeout_s = 600;
};

class HttpTarget : public BenchTarget {
 public:
  // Asks the server for its model where none is named. kUnavailable: nobody answers.
  static Result<std::unique_ptr<HttpTarget>> Create(HttpTargetOptions options);
  TurnOutcome Answer(const TurnRequest& request) override;
  const std::string& model() const { return options_.model; }

 private:
  explicit HttpTarget(HttpTargetOptions options) : options_(std::move(options)) {}

  HttpTargetOptions options_;
};

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
