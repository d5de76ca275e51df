// Answer: what the engine reports, as the JSON that clients of OpenAI, vLLM and llama.cpp know.
//
// Pure functions of values: whole answers, chunks of a stream, usage, timings, and the `kvlink`
// object that says what was reused and why not more. Log-probabilities that are minus infinity are
// shown as -9999, for JSON has no infinity.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/answer_style.h"

namespace kvlink::server {

class AnswerFormat : public AnswerStyle {
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

  std::string Whole(const std::vector<PromptOutcome>& prompts) override;
  std::string Begin(uint32_t index, const std::string& echo,
                    const engine::RequestReport* started) override;
  std::string Token(uint32_t index, const engine::TokenEvent& event,
                    const std::vector<MessagePart>& parts, size_t* text_offset) override;
  // The final chunk carries usage, timings and `kvlink`, unless they follow in a chunk of their
  // own.
  std::string Finish(uint32_t index, const engine::BranchResult& branch, uint32_t calls,
                     const std::vector<PromptOutcome>* last) override;
  std::string End(const std::vector<PromptOutcome>& prompts) override;
  std::string StreamError(const ApiError& error) override;

 private:
  struct Writer;  // keeps the JSON library out of this header
  Head head_;
  const model::Tokenizer& tokenizer_;
};

// The slowest tier that cached rows came from: "ram", "cold", "remote".
std::string TierName(const engine::RequestReport& report);
// What became of similar reuse: "accepted", "enlarged" (accepted after more rows had run), why not,
// or null where it was off.
const char* VerdictName(const engine::RequestReport& report);
// The sums that every protocol tells in its own words.
struct AnswerTotals {
  uint64_t prompt = 0, generated = 0, cached = 0, computed = 0;
};
AnswerTotals TotalsOf(const std::vector<PromptOutcome>& prompts);
// The objects `timings` and `kvlink`, as JSON texts.
std::string TimingsText(const std::vector<PromptOutcome>& prompts);
std::string ReuseText(const std::vector<PromptOutcome>& prompts);
// "stop", "length", ...
const char* FinishReasonName(engine::FinishReason reason);
// Text of a token for people: its bytes when they are UTF-8, else "bytes:\xNN...".
std::string TokenText(const std::string& piece);

}  // namespace kvlink::server
