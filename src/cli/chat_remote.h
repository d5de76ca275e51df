// An Answerer behind a URL: any OpenAI-compatible server, whose usage says what came from its
// cache.
#pragma once

#include <memory>
#include <string>

#include "cli/chat_answerer.h"

namespace kvlink::cli {

struct ChatRemoteOptions {
  std::string url;      // "http://host[:port][/prefix]"
  std::string model;    // empty: the first of /v1/models
  std::string api_key;  // empty: none
  double timeout_s = 600;
};

// kInvalidArgument: the URL; kUnavailable: nobody answers there.
Result<std::unique_ptr<Answerer>> OpenChatRemote(const ChatRemoteOptions& options);

}  // namespace kvlink::cli
