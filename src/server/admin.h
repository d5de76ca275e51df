// Admin: what the routes under /kvlink that change the cache are asked, and what they answer.
//
//   pin    keeps the resident blocks of one prompt from eviction for a time
//   unpin  ends that, as far as no other pin needs the same blocks
//   warm   computes prompts and drops the answer, so that whoever asks next hits
//   flush  drops every block that no sequence uses
//
// Prompts come as a chat's `messages` or as `prompt`, read by the parsers of the completions. Only
// what decides the prompt's tokens and who may share them is taken over from such a body; how an
// answer would be sampled is not.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "kvlink/cache.h"
#include "server/answer_style.h"
#include "server/api_request.h"

namespace kvlink::server {

struct PinRequest {
  ApiRequest prompt;  // of exactly one prompt
  std::chrono::milliseconds ttl{0};
};

// `ttl_s` in the body: 0.001 s to 30 days, one hour where it is not given.
Parsed<PinRequest> ParsePinRequest(const std::string& body, const Limits& limits,
                                   uint32_t vocab_size);
// Of exactly one prompt.
Parsed<ApiRequest> ParseUnpinRequest(const std::string& body, const Limits& limits,
                                     uint32_t vocab_size);
// One greedy token that nobody sees. kvlink.store: false is refused: nothing would stay.
Parsed<ApiRequest> ParseWarmRequest(const std::string& body, const Limits& limits,
                                    uint32_t vocab_size);
// Empty, or {}: there is nothing to choose.
std::optional<ApiError> CheckFlushRequest(const std::string& body);

// JSON objects.
std::string PinAnswer(uint32_t prompt_tokens, uint32_t pinned_tokens, std::chrono::milliseconds ttl,
                      uint64_t pinned_bytes);
std::string UnpinAnswer(uint32_t prompt_tokens, uint32_t unpinned_tokens, uint64_t pinned_bytes);
std::string FlushAnswer(const CacheStats& before, const CacheStats& after);
// Never streams.
std::unique_ptr<AnswerStyle> MakeWarmStyle();

// A pin that could not be had, as a client is told: 409 where the budget is full.
ApiError PinError(const Status& status);

}  // namespace kvlink::server
