// Anthropic: the Messages API (/v1/messages) on top of the chat completion.
//
// A request becomes the chat request that means the same, which is then parsed and checked as any
// other; an answer is told in content blocks. System blocks become the system message, tool_use and
// tool_result blocks become tool calls and tool messages, thinking blocks of earlier turns are left
// out. cache_control is taken: caching needs no asking here. Usage is told Anthropic's way: the
// prompt is input_tokens + cache_read_input_tokens + cache_creation_input_tokens; what was computed
// counts as creation where cache_control asked for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/answer_style.h"
#include "server/api_request.h"

namespace kvlink::server {

struct ChatTranslation {
  std::string body;               // of the chat request
  bool wants_cache_told = false;  // cache_control was given
};

// `generates`: max_tokens must be there.
Parsed<ChatTranslation> TranslateMessagesRequest(const std::string& body, bool generates = true);

// {"type": "error", "error": {"type", "message"}}
std::string MessagesErrorBody(const ApiError& error);
HttpResponse MessagesErrorResponse(const ApiError& error);

struct MessagesHead {
  std::string id, model;
  bool cache_told = false;
};
std::unique_ptr<AnswerStyle> MakeMessagesStyle(MessagesHead head);

}  // namespace kvlink::server
