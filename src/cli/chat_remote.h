// An Answerer behind a URL: any OpenAI-compatible server, whose usage says what came from its
// cache.
#pragma once

#include <memory>
#include <string>

#include "cli/chat_answerer.h"

namespace kvlink::cli {

struct ChatRemoteOptions {
  std::string url;      // as ParseUrl takes it
  std::string model;    // empty: the first of /v1/models
  std::string api_key;  // empty: none
  std::string tls_ca;   // PEM file of the authorities to trust; empty: the system's
  double timeout_s = 600;
};

// kInvalidArgument, kNotFound: the URL, tls_ca; kUnavailable: nobody answers there.
Result<std::unique_ptr<Answerer>> OpenChatRemote(const ChatRemoteOptions& options);

}  // namespace kvlink::cli
