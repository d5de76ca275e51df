// Validate: what Submit refuses, with the values seen and the limits. Any thread: it reads only
// what never changes.
#include <algorithm>
#include <string>

#include "engine/core.h"
#include "engine/utf8_stream.h"

namespace kvlink::engine {
namespace {

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Str(uint64_t value) { return std::to_string(value); }

Status ValidatePrompt(const Core& core, const std::vector<TokenId>& prompt) {
  if (prompt.empty()) return Invalid("the prompt is empty");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || static_cast<uint32_t>(prompt[i]) >= core.vocab_size) {
      return Invalid("prompt[" + Str(i) + "] is token " + std::to_string(prompt[i]) +
                     "; the vocabulary has " + Str(core.vocab_size));
    }
  }
  const uint64_t needed = uint64_t{prompt.size()} + 1;
  if (needed > core.options.context) {
    return Invalid("the prompt has " + Str(prompt.size()) + " tokens; the context holds " +
                   Str(core.options.context) + ", of which the answer needs at least 1");
  }
  if (needed > core.budget_tokens) {
    const uint64_t token_bytes = core.cache.shape().token_bytes();
    return Invalid("the prompt has " + Str(prompt.size()) + " tokens, " +
                   Str(needed * token_bytes) + " bytes of KV with one token of answer; the KV " +
                   "budget holds " + Str(core.budget_tokens) + " tokens, " +
                   Str(core.budget_tokens * token_bytes) + " bytes");
  }
  return {};
}

Status ValidateQuota(const Core& core, const GenerationRequest& request) {
  if (request.weight == 0) return Invalid("weight is 0; it must be at least 1");
  const uint64_t quota = request.max_kv_tokens;
  const uint64_t needed = uint64_t{request.prompt.size()} + 1;
  if (quota == 0 || needed <= quota) return {};
  return Invalid("the prompt has " + Str(request.prompt.size()) +
                 " tokens; the quota of its tenant holds " + Str(quota) + " tokens of KV, " +
                 Str(quota * core.cache.shape().token_bytes()) +
                 " bytes, of which the answer needs at least 1 token");
}

Status ValidateBranches(const Core& core, const GenerationRequest& request) {
  if (request.n == 0) return Invalid("n is 0; it must be at least 1");
  if (request.best_of != 0 && request.best_of < request.n) {
    return Invalid("best_of is " + Str(request.best_of) + ", less than n = " + Str(request.n));
  }
  const uint32_t width = std::max(request.n, request.best_of);
  if (width > core.options.max_branches) {
    return Invalid("n or best_of is " + Str(width) + "; a request has at most " +
                   Str(core.options.max_branches) + " branches");
  }
  if (request.beam_search && width > core.options.max_sequences) {
    return Invalid("n or best_of is " + Str(width) + " beams, which advance together; at most " +
                   Str(core.options.max_sequences) + " sequences run at once");
  }
  if (!request.branch_seeds.empty() && request.branch_seeds.size() != width) {
    return Invalid("branch_seeds has " + Str(request.branch_seeds.size()) + " entries for " +
                   Str(width) + " branches");
  }
  return {};
}

Status ValidateLogprobs(const Core& core, const char* name, int value) {
  if (value >= -1 && value <= static_cast<int64_t>(core.vocab_size)) return {};
  return Invalid(std::string(name) + " is " + std::to_string(value) +
                 "; it must be -1 (none) or 0 to " + Str(core.vocab_size));
}

}  // namespace

Status Validate(const Core& core, const GenerationRequest& request) {
  if (Status status = ValidatePrompt(core, request.prompt); !status.ok()) return status;
  if (Status status = ValidateQuota(core, request); !status.ok()) return status;
  if (Status status = ValidateBranches(core, request); !status.ok()) return status;
  if (Status status = ValidateLogprobs(core, "logprobs", request.logprobs); !status.ok()) {
    return status;
  }
  if (Status status = ValidateLogprobs(core, "prompt_logprobs", request.prompt_logprobs);
      !status.ok()) {
    return status;
  }
  if (request.beam_search && !request.sampling.grammar.empty()) {
    return Invalid("a grammar cannot be combined with beam search");
  }
  if (request.deadline.count() < 0) {
    return Invalid("the deadline is " + std::to_string(request.deadline.count()) + " ms");
  }
  for (size_t i = 0; i < request.stop.size(); ++i) {
    if (!IsValidUtf8(request.stop[i])) return Invalid("stop[" + Str(i) + "] is not valid UTF-8");
  }
  return {};
}

}  // namespace kvlink::engine
