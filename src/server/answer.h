// Answer: what the engine reports, as the JSON that clients of OpenAI, vLLM and llama.cpp know.
//
// Pure functions of values: whole answers, chunks of a stream, usage, timings, and the `kvlink`
// object that says what was reused and why not more. Log-probabilities that are minus infinity are
// shown as -9999, for JSON has no infinity.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace kvlink::server {

// What became of one prompt.
struct PromptOutcome {
  std::shared_ptr<const engine::RequestReport> report;
  std::vector<std::vector<engine::TokenEvent>>
      events;  // per branch; filled where log-probabilities are wanted
  std::vector<TokenId> prompt;
  std::string prompt_text;  // for echo
  std::optional<size_t>
      diverged_message;  // chat: message that the first token without a cached row lies in
  bool hide_generated = false;
};

class AnswerFormat {
 public:
  struct Head {
    std::string id, model, fingerprint;
    int64_t created = 0;  // seconds since 1970
    bool chat = false, echo = false, include_usage = false;
    int logprobs = -1;
    int prompt_logprobs = -1;
  };
  AnswerFormat(Head head, const model::Tokenizer& tokenizer)
      : head_(std::move(head)), tokenizer_(tokenizer) {}

  std::string Whole(const std::vector<PromptOutcome>& prompts) const;

  // Chunks, framed as server-sent events. `index` is the choice.
  std::string FirstChunk(uint32_t index, const std::string& echo) const;
  // `text_offset`: characters of this choice's text before the token; advanced by the call.
  std::string TokenChunk(uint32_t index, const engine::TokenEvent& event,
                         size_t* text_offset) const;
  // `last`: the final chunk of the stream carries usage, timings and `kvlink` (unless they follow
  // in a chunk of their own).
  std::string FinishChunk(uint32_t index, const engine::BranchResult& branch,
                          const std::vector<PromptOutcome>* last) const;
  std::string UsageChunk(const std::vector<PromptOutcome>& prompts) const;
  static std::string ErrorEvent(const std::string& error_body);
  static std::string Done() { return "data: [DONE]\n\n"; }

 private:
  struct Writer;  // keeps the JSON library out of this header
  Head head_;
  const model::Tokenizer& tokenizer_;
};

// What became of similar reuse: "accepted", "enlarged" (accepted after more rows had run), why not,
// or null where it was off.
const char* VerdictName(const engine::RequestReport& report);
// "stop", "length", ...
const char* FinishReasonName(engine::FinishReason reason);
// Text of a token for people: its bytes when they are UTF-8, else "bytes:\xNN...".
std::string TokenText(const std::string& piece);

}  // namespace kvlink::server
