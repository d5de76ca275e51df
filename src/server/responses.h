// Responses: OpenAI's /v1/responses on top of the chat completion.
//
// A request becomes the chat request that means the same; `instructions` are the system message and
// are not carried over to the next response, as OpenAI has it. `previous_response_id` puts the
// stored conversation in front. What cannot be done here (built-in tools, files, images,
// background) is refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/answer_style.h"
#include "server/api_request.h"
#include "server/response_store.h"

namespace kvlink::server {

struct ResponsesTranslation {
  std::string body;      // of the chat request
  std::string messages;  // the conversation without instructions, a JSON array of chat messages
  bool store = true;
  std::string previous;  // previous_response_id, "": none
  // What the answer repeats of the request, a JSON object.
  std::string echo;
};

// `stored`: the conversation of a response; nothing: there is none of this name.
using StoredConversation = std::function<std::optional<std::string>(const std::string& id)>;
Parsed<ResponsesTranslation> TranslateResponsesRequest(const std::string& body,
                                                       const StoredConversation& stored);

struct ResponsesHead {
  std::string id, model;
  int64_t created = 0;
  std::string messages, echo;  // of the translation
  // Told the finished response and the conversation with it; null: not stored.
  std::function<void(std::string response, std::string messages)> keep;
};
std::unique_ptr<AnswerStyle> MakeResponsesStyle(ResponsesHead head);

}  // namespace kvlink::server
