// RecentRequests: the last requests and what they hit, for whoever asks why hits are low
// (`kvlink doctor`, GET /kvlink/requests).
//
// A ring: the oldest goes when a new one comes. Of a prompt's text it keeps the first token without
// a cached row and a few before it, no more; and a sketch, which tells whether two prompts are much
// the same and nothing else. A tenant sees its own requests only. Thread-safe; an entry is about
// 300 bytes, making one costs about 5 ns a prompt token.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "engine/engine.h"

namespace kvlink::server {

// Of the hashes of all 4-grams of token ids, the smallest in each sixteenth of their range (0:
// none): one-permutation MinHash (Li et al. 2012).
constexpr size_t kSketchBins = 16;
using PromptSketch = std::array<uint32_t, kSketchBins>;
PromptSketch SketchPrompt(std::span<const TokenId> tokens);
// An estimate, in steps of 1/16, of which share of both prompts' 4-grams is in both (Jaccard).
double SketchSimilarity(const PromptSketch& a, const PromptSketch& b);

struct RecentRequest {
  std::string id, tenant;
  uint64_t salt = 0;  // which of the tenant's salts; 0: none was sent
  uint32_t prompt_tokens = 0, exact = 0, partial = 0, similar = 0, computed = 0;
  const char* verdict = nullptr;  // of similar reuse; null: it was off
  const char* edit = nullptr;     // class of the edits of the plan that was tried
  double mask_similarity = 0;
  MissReason miss_reason = MissReason::kNone;
  uint32_t diverged_at = 0;
  std::optional<size_t> diverged_message;
  std::string diverged_token, diverged_after;  // texts; empty when nothing was missed, or is kept
  bool waited = false;
  double match_ms = 0, queue_ms = 0, first_token_ms = 0;
  PromptSketch sketch{};

  // Of a request that is to leave nothing behind its figures stay alone.
  void LeaveOutPrompt() {
    diverged_token.clear();
    diverged_after.clear();
    sketch = {};
  }
};

RecentRequest DescribeRequest(std::string id, const Namespace& ns,
                              const engine::RequestReport& report, std::span<const TokenId> prompt,
                              std::optional<size_t> diverged_message,
                              const model::Tokenizer& tokenizer);

class RecentRequests {
 public:
  explicit RecentRequests(size_t capacity) : capacity_(capacity) {}
  size_t capacity() const { return capacity_; }

  void Add(RecentRequest request);
  // Sets `data`: the tenant's newest `limit`, oldest first.
  void Write(const std::string& tenant, size_t limit, nlohmann::ordered_json* json) const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<RecentRequest> requests_;  // guarded by mutex_
};

}  // namespace kvlink::server
