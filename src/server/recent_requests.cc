#include "server/recent_requests.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "server/answer.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kGram = 4;
constexpr uint32_t kTokensBefore = 8;  // shown in front of the first one without a cached row
constexpr size_t kMostTextBytes = 80;

// Cut at a whole character.
std::string Shortened(const std::string& text) {
  if (text.size() <= kMostTextBytes) return text;
  size_t size = kMostTextBytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return text.substr(0, size);
}

Json Name(const char* name) { return name != nullptr ? Json(name) : Json(nullptr); }

Json ToJson(const RecentRequest& request) {
  const bool complete = request.miss_reason == MissReason::kNone;
  const bool shows_text = !complete && !request.diverged_token.empty();
  char salt[20];
  std::snprintf(salt, sizeof salt, "%016llx", static_cast<unsigned long long>(request.salt));
  return {{"id", request.id},
          {"prompt_tokens", request.prompt_tokens},
          {"exact", request.exact},
          {"partial", request.partial},
          {"similar", request.similar},
          {"computed", request.computed},
          {"verdict", Name(request.verdict)},
          {"edit", Name(request.edit)},
          {"mask_similarity",
           request.mask_similarity > 0 ? Json(request.mask_similarity) : Json(nullptr)},
          {"miss_reason", MissReasonName(request.miss_reason)},
          {"diverged_at", complete ? Json(nullptr) : Json(request.diverged_at)},
          {"diverged_message",
           request.diverged_message ? Json(*request.diverged_message) : Json(nullptr)},
          {"diverged_token", shows_text ? Json(request.diverged_token) : Json(nullptr)},
          {"diverged_after", shows_text ? Json(request.diverged_after) : Json(nullptr)},
          {"salt", request.salt != 0 ? Json(salt) : Json(nullptr)},
          {"single_flight", request.waited},
          {"match_ms", request.match_ms},
          {"queue_ms", request.queue_ms},
          {"first_token_ms", request.first_token_ms},
          {"sketch", request.sketch}};
}

}  // namespace

PromptSketch SketchPrompt(std::span<const TokenId> tokens) {
  PromptSketch sketch{};
  for (size_t i = 0; i + kGram <= tokens.size(); ++i) {
    uint64_t state = 0;
    for (size_t k = 0; k < kGram; ++k) {
      state = (state ^ static_cast<uint32_t>(tokens[i + k])) * 0x9e3779b97f4a7c15u;
    }
    const uint64_t hash = base::SplitMix64(state);
    uint32_t& smallest = sketch[hash >> 60];
    const auto value = std::max(static_cast<uint32_t>(hash), 1u);
    if (smallest == 0 || value < smallest) smallest = value;
  }
  return sketch;
}

double SketchSimilarity(const PromptSketch& a, const PromptSketch& b) {
  size_t equal = 0, used = 0;
  for (size_t i = 0; i < kSketchBins; ++i) {
    used += a[i] != 0 || b[i] != 0 ? 1 : 0;
    equal += a[i] != 0 && a[i] == b[i] ? 1 : 0;
  }
  return used == 0 ? 0 : static_cast<double>(equal) / static_cast<double>(used);
}

RecentRequest DescribeRequest(std::string id, const Namespace& ns,
                              const engine::RequestReport& report, std::span<const TokenId> prompt,
                              std::optional<size_t> diverged_message,
                              const model::Tokenizer& tokenizer) {
  RecentRequest request;
  request.id = std::move(id);
  request.tenant = ns.tenant;
  request.salt = ns.salt.empty() ? 0 : std::max<uint64_t>(base::Hash64(ns.salt), 1);
  request.prompt_tokens = report.prompt_tokens;
  request.exact = report.cached_tokens - std::min(report.partial_tokens, report.cached_tokens);
  request.partial = std::min(report.partial_tokens, report.cached_tokens);
  request.similar = report.similar_tokens;
  request.computed = report.computed_tokens;
  request.verdict = VerdictName(report);
  if (report.similar_edit) request.edit = EditClassName(*report.similar_edit);
  request.mask_similarity = report.mask_similarity;
  request.miss_reason = report.miss_reason;
  request.diverged_at = report.diverged_at;
  request.diverged_message = diverged_message;
  if (report.miss_reason != MissReason::kNone && report.diverged_at < prompt.size()) {
    const uint32_t first = report.diverged_at - std::min(report.diverged_at, kTokensBefore);
    request.diverged_token =
        Shortened(TokenText(tokenizer.Piece(prompt[report.diverged_at], true)));
    request.diverged_after = Shortened(
        TokenText(tokenizer.Decode(prompt.subspan(first, report.diverged_at - first), true)));
  }
  request.waited = report.waited_for_leader;
  request.match_ms = report.match_ms;
  request.queue_ms = report.queue_ms;
  request.first_token_ms = report.first_token_ms;
  request.sketch = SketchPrompt(prompt);
  return request;
}

void RecentRequests::Add(RecentRequest request) {
  if (capacity_ == 0) return;
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  if (requests_.size() > capacity_) requests_.pop_front();
}

void RecentRequests::Write(const std::string& tenant, size_t limit,
                           nlohmann::ordered_json* json) const {
  Json data = Json::array();
  {
    const std::lock_guard lock(mutex_);
    for (auto request = requests_.rbegin(); request != requests_.rend() && data.size() < limit;
         ++request) {
      if (request->tenant == tenant) data.push_back(ToJson(*request));
    }
  }
  std::reverse(data.begin(), data.end());
  (*json)["data"] = std::move(data);
}

}  // namespace kvlink::server
