#include "server/answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/dump.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNoProbability = -9999.0;

double Finite(float logprob) { return std::isfinite(logprob) ? logprob : kNoProbability; }

std::string Event(const Json& json) { return "data: " + Dump(json) + "\n\n"; }

// Length of the valid UTF-8 sequence at `text[i]`, 0: none.
size_t CharacterBytes(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) {
    return static_cast<unsigned char>(k < text.size() ? text[k] : 0);
  };
  const unsigned char lead = byte(i);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(i + 1) < 0xA0) return 0;
  if (lead == 0xED && byte(i + 1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(i + 1) < 0x90) return 0;
  if (lead == 0xF4 && byte(i + 1) > 0x8F) return 0;
  return length;
}

size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Json Bytes(const std::string& piece) {
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

struct Sums {
  uint64_t prompt = 0, generated = 0, cached = 0, partial = 0, similar = 0, computed = 0;
  double prompt_ms = 0, predicted_ms = 0;
};

Sums Sum(const std::vector<PromptOutcome>& prompts) {
  Sums sums;
  for (const PromptOutcome& outcome : prompts) {
    const engine::RequestReport& report = *outcome.report;
    sums.prompt += report.prompt_tokens;
    if (!outcome.hide_generated) sums.generated += report.generated_tokens;
    sums.cached += report.cached_tokens;
    sums.partial += report.partial_tokens;
    sums.similar += report.similar_tokens;
    sums.computed += report.computed_tokens;
    sums.prompt_ms += report.prompt_ms;
    sums.predicted_ms += report.predicted_ms;
  }
  return sums;
}

Json Usage(const Sums& sums) {
  return {{"prompt_tokens", sums.prompt},
          {"completion_tokens", sums.generated},
          {"total_tokens", sums.prompt + sums.generated},
          {"prompt_tokens_details", {{"cached_tokens", sums.cached}}}};
}

// llama.cpp's object: the rates are 0 where nothing was done.
Json Timings(const Sums& sums) {
  const uint64_t computed = sums.prompt - std::min(sums.cached, sums.prompt);
  const auto per = [](double value, double count) { return count > 0 ? value / count : 0.0; };
  const auto count = [](uint64_t n) { return static_cast<double>(n); };
  return {{"cache_n", sums.cached},
          {"prompt_n", computed},
          {"prompt_ms", sums.prompt_ms},
          {"prompt_per_token_ms", per(sums.prompt_ms, count(computed))},
          {"prompt_per_second", per(1e3 * count(computed), sums.prompt_ms)},
          {"predicted_n", sums.generated},
          {"predicted_ms", sums.predicted_ms},
          {"predicted_per_token_ms", per(sums.predicted_ms, count(sums.generated))},
          {"predicted_per_second", per(1e3 * count(sums.generated), sums.predicted_ms)}};
}

// The cached rows by where they were when the request came.
Json TierTokens(const engine::RequestReport& report) {
  Json tokens = {
      {"ram", report.cached_tokens - std::min(report.loaded_tokens(), report.cached_tokens)}};
  for (const auto& of_tier : report.loaded) tokens[of_tier.tier] = of_tier.tokens;
  return tokens;
}

Json Reuse(const PromptOutcome& outcome) {
  const engine::RequestReport& report = *outcome.report;
  const bool complete = report.miss_reason == MissReason::kNone;
  const char* verdict = VerdictName(report);
  return {{"exact", report.cached_tokens - std::min(report.partial_tokens, report.cached_tokens)},
          {"partial", report.partial_tokens},
          {"similar", report.similar_tokens},
          {"computed", report.computed_tokens},
          {"tier", report.cached_tokens > 0 ? Json(TierName(report)) : Json(nullptr)},
          {"tier_tokens", TierTokens(report)},
          {"verdict", verdict != nullptr ? Json(verdict) : Json(nullptr)},
          {"mask_similarity",
           report.mask_similarity > 0 ? Json(report.mask_similarity) : Json(nullptr)},
          {"miss_reason", MissReasonName(report.miss_reason)},
          {"miss_detail", report.miss_reason == MissReason::kDiverged && outcome.tool_keys_reordered
                              ? Json("tool_key_order")
                              : Json(nullptr)},
          {"diverged_at", complete ? Json(nullptr) : Json(report.diverged_at)},
          {"diverged_message",
           outcome.diverged_message ? Json(*outcome.diverged_message) : Json(nullptr)},
          {"single_flight", report.waited_for_leader},
          {"preemptions", report.preemptions},
          {"queue_ms", report.queue_ms},
          {"match_ms", report.match_ms}};
}

// One prompt: its object. Several: the sums, and one object a prompt.
Json Reuse(const std::vector<PromptOutcome>& prompts) {
  if (prompts.size() == 1) return Reuse(prompts.front());
  const Sums sums = Sum(prompts);
  Json all = {{"exact", sums.cached - std::min(sums.partial, sums.cached)},
              {"partial", sums.partial},
              {"similar", sums.similar},
              {"computed", sums.computed},
              {"prompts", Json::array()}};
  for (const PromptOutcome& outcome : prompts) all["prompts"].push_back(Reuse(outcome));
  return all;
}

}  // namespace

// Loads fall through to slower tiers towards the end of a prompt: the last is the slowest.
std::string TierName(const engine::RequestReport& report) {
  return report.loaded.empty() ? "ram" : report.loaded.back().tier;
}

const char* VerdictName(const engine::RequestReport& report) {
  if (report.similar_reason == SimilarReason::kPolicy) return nullptr;
  if (report.similar_tokens == 0) return SimilarReasonName(report.similar_reason);
  return report.enlarged ? "enlarged" : "accepted";
}

const char* FinishReasonName(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "abort";
    case engine::FinishReason::kDeadline:
      return "timeout";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

std::string TokenText(const std::string& piece) {
  for (size_t i = 0; i < piece.size();) {
    const size_t length = CharacterBytes(piece, i);
    if (length == 0) {
      static const char kHex[] = "0123456789abcdef";
      std::string out = "bytes:";
      for (const char c : piece) {
        const auto byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
      return out;
    }
    i += length;
  }
  return piece;
}

struct AnswerFormat::Writer {
  const Head& head;
  const model::Tokenizer& tokenizer;

  Json Envelope(const char* object) const {
    return {{"id", head.id},
            {"object", object},
            {"created", head.created},
            {"model", head.model},
            {"system_fingerprint", head.fingerprint}};
  }
  Json Chunk() const { return Envelope(head.chat ? "chat.completion.chunk" : "text_completion"); }

  // --- log-probabilities ---

  Json ChatToken(TokenId token, float logprob) const {
    const std::string piece = tokenizer.Piece(token, true);
    return {{"token", TokenText(piece)}, {"logprob", Finite(logprob)}, {"bytes", Bytes(piece)}};
  }

  Json ChatEntry(const engine::TokenEvent& event) const {
    Json entry = ChatToken(event.token, event.logprob);
    entry["top_logprobs"] = Json::array();
    for (size_t i = 0; i < event.top.size() && i < static_cast<size_t>(head.logprobs); ++i) {
      entry["top_logprobs"].push_back(ChatToken(event.top[i].token, event.top[i].logprob));
    }
    return entry;
  }

  static Json EmptyTextLogprobs() {
    return {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  }

  // `top` may be longer than asked for; the token itself is always among what is shown.
  void AddText(Json& logprobs, TokenId token, std::optional<float> logprob,
               const std::vector<engine::TokenLogprob>& top, size_t* offset) const {
    const std::string piece = tokenizer.Piece(token, true);
    logprobs["tokens"].push_back(TokenText(piece));
    logprobs["token_logprobs"].push_back(logprob ? Json(Finite(*logprob)) : Json(nullptr));
    Json alternatives = nullptr;
    if (logprob) {
      alternatives = Json::object();
      for (size_t i = 0; i < top.size() && i < static_cast<size_t>(head.logprobs); ++i) {
        alternatives[TokenText(tokenizer.Piece(top[i].token, true))] = Finite(top[i].logprob);
      }
      alternatives[TokenText(piece)] = Finite(*logprob);
    }
    logprobs["top_logprobs"].push_back(std::move(alternatives));
    logprobs["text_offset"].push_back(*offset);
    *offset += Characters(piece);
  }

  Json ChoiceLogprobs(const PromptOutcome& outcome, uint32_t branch) const {
    if (head.logprobs < 0) return nullptr;
    const size_t tokens = outcome.report->branches[branch].tokens.size();
    static const std::vector<engine::TokenEvent> kNone;
    const auto& events = branch < outcome.events.size() ? outcome.events[branch] : kNone;
    Json logprobs =
        head.chat ? Json{{"content", Json::array()}, {"refusal", nullptr}} : EmptyTextLogprobs();
    size_t offset = 0;
    if (!head.chat && head.echo) AddPrompt(logprobs, outcome, &offset);
    if (outcome.hide_generated) return logprobs;
    size_t shown = 0;
    for (const engine::TokenEvent& event : events) {
      // Text alone, or the end-of-generation token.
      if (event.token < 0 || shown == tokens) continue;
      ++shown;
      if (head.chat) {
        logprobs["content"].push_back(ChatEntry(event));
      } else {
        AddText(logprobs, event.token, event.logprob, event.top, &offset);
      }
    }
    return logprobs;
  }

  void AddPrompt(Json& logprobs, const PromptOutcome& outcome, size_t* offset) const {
    const auto& rows = outcome.report->prompt_logprobs;
    for (size_t i = 0; i < outcome.prompt.size(); ++i) {
      const bool known = i < rows.size() && !rows[i].empty();
      AddText(logprobs, outcome.prompt[i],
              known ? std::optional<float>(rows[i][0].logprob) : std::nullopt,
              known ? std::vector<engine::TokenLogprob>(rows[i].begin() + 1, rows[i].end())
                    : std::vector<engine::TokenLogprob>(),
              offset);
    }
  }

  // vLLM's form: [null, {"id": {logprob, rank, decoded_token}, ...}, ...].
  Json PromptLogprobs(const PromptOutcome& outcome) const {
    Json list = Json::array();
    for (const auto& row : outcome.report->prompt_logprobs) {
      if (row.empty()) {
        list.push_back(nullptr);
        continue;
      }
      Json entries = Json::object();
      for (size_t i = 1; i < row.size() && i <= static_cast<size_t>(head.prompt_logprobs); ++i) {
        entries[std::to_string(row[i].token)] = {
            {"logprob", Finite(row[i].logprob)},
            {"rank", i},
            {"decoded_token", TokenText(tokenizer.Piece(row[i].token, true))}};
      }
      const std::string own = std::to_string(row[0].token);
      if (!entries.contains(own)) {
        entries[own] = {{"logprob", Finite(row[0].logprob)},
                        {"rank", nullptr},  // below the alternatives that were asked for
                        {"decoded_token", TokenText(tokenizer.Piece(row[0].token, true))}};
      }
      list.push_back(std::move(entries));
    }
    return list;
  }

  // --- choices ---

  Json Choice(const PromptOutcome& outcome, uint32_t branch, uint32_t index) const {
    const engine::BranchResult& result = outcome.report->branches[branch];
    const std::string text = outcome.hide_generated ? "" : result.text;
    Json choice = {{"index", index}};
    if (head.chat) {
      choice["message"] = Message(outcome, branch, index, text);
    } else {
      choice["text"] = (head.echo ? outcome.prompt_text : "") + text;
    }
    choice["logprobs"] = ChoiceLogprobs(outcome, branch);
    const bool called = branch < outcome.messages.size() && !outcome.messages[branch].calls.empty();
    AddFinish(choice, result, called);
    if (outcome.hide_generated) choice["finish_reason"] = "length";
    if (head.prompt_logprobs >= 0) choice["prompt_logprobs"] = PromptLogprobs(outcome);
    return choice;
  }

  // Reasoning and calls beside the content, where the text was taken apart.
  Json Message(const PromptOutcome& outcome, uint32_t branch, uint32_t index,
               const std::string& text) const {
    Json message = {{"role", "assistant"}, {"content", text}};
    if (branch >= outcome.messages.size()) return message;
    const ParsedMessage& parsed = outcome.messages[branch];
    message["content"] = parsed.content;
    if (!parsed.reasoning.empty()) message["reasoning_content"] = parsed.reasoning;
    if (parsed.calls.empty()) return message;
    if (parsed.content.empty()) message["content"] = nullptr;
    message["tool_calls"] = Json::array();
    for (uint32_t i = 0; i < parsed.calls.size(); ++i) {
      message["tool_calls"].push_back(
          {{"id", CallId(index, i)},
           {"type", "function"},
           {"function",
            {{"name", parsed.calls[i].name}, {"arguments", parsed.calls[i].arguments}}}});
    }
    return message;
  }

  std::string CallId(uint32_t index, uint32_t call) const {
    return "call_" + head.id.substr(head.id.find('-') + 1) + "_" + std::to_string(index) + "_" +
           std::to_string(call);
  }

  static void AddFinish(Json& choice, const engine::BranchResult& result, bool called) {
    choice["finish_reason"] = called && result.reason == engine::FinishReason::kStop
                                  ? "tool_calls"
                                  : FinishReasonName(result.reason);
    choice["stop_reason"] = result.stop_text.empty() ? Json(nullptr) : Json(result.stop_text);
  }

  static void AddTotals(Json& answer, const std::vector<PromptOutcome>& prompts) {
    const Sums sums = Sum(prompts);
    answer["usage"] = Usage(sums);
    answer["timings"] = Timings(sums);
    answer["kvlink"] = Reuse(prompts);
  }

  Json StreamChoice(uint32_t index, const std::string& text, Json logprobs) const {
    Json choice = {{"index", index}};
    if (head.chat) {
      choice["delta"] = {{"content", text}};
    } else {
      choice["text"] = text;
    }
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] = nullptr;
    return choice;
  }

  std::string Streamed(Json choice, const std::vector<PromptOutcome>* last = nullptr) const {
    Json chunk = Chunk();
    chunk["choices"] = Json::array({std::move(choice)});
    if (head.include_usage) {
      chunk["usage"] = nullptr;
    } else if (last != nullptr) {
      AddTotals(chunk, *last);
    }
    return Event(chunk);
  }
};

std::string AnswerFormat::Whole(const std::vector<PromptOutcome>& prompts) {
  const Writer writer{head_, tokenizer_};
  Json answer = writer.Envelope(head_.chat ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (const PromptOutcome& outcome : prompts) {
    for (uint32_t branch = 0; branch < outcome.report->branches.size(); ++branch) {
      const auto index = static_cast<uint32_t>(answer["choices"].size());
      answer["choices"].push_back(writer.Choice(outcome, branch, index));
    }
  }
  Writer::AddTotals(answer, prompts);
  return Dump(answer);
}

std::string AnswerFormat::Begin(uint32_t index, const std::string& echo,
                                const engine::RequestReport*) {
  if (!head_.chat && !head_.echo) return "";
  const Writer writer{head_, tokenizer_};
  Json choice = writer.StreamChoice(index, echo, nullptr);
  if (head_.chat) choice["delta"] = {{"role", "assistant"}, {"content", ""}};
  return writer.Streamed(std::move(choice));
}

std::string AnswerFormat::Token(uint32_t index, const engine::TokenEvent& event,
                                const std::vector<MessagePart>& parts, size_t* text_offset) {
  const Writer writer{head_, tokenizer_};
  Json logprobs = nullptr;
  if (head_.logprobs >= 0 && event.token >= 0) {
    if (head_.chat) {
      logprobs = {{"content", Json::array({writer.ChatEntry(event)})}, {"refusal", nullptr}};
    } else {
      logprobs = Writer::EmptyTextLogprobs();
      writer.AddText(logprobs, event.token, event.logprob, event.top, text_offset);
    }
  }
  std::string out;
  for (const MessagePart& part : parts) {
    if (part.kind == MessagePart::Kind::kCallEnd) continue;
    Json choice = writer.StreamChoice(index, part.text, std::exchange(logprobs, nullptr));
    if (part.kind == MessagePart::Kind::kReasoning) {
      choice["delta"] = {{"reasoning_content", part.text}};
    } else if (part.kind == MessagePart::Kind::kCallBegin) {
      choice["delta"] = {
          {"tool_calls", Json::array({{{"index", part.call},
                                       {"id", writer.CallId(index, part.call)},
                                       {"type", "function"},
                                       {"function", {{"name", part.text}, {"arguments", ""}}}}})}};
    } else if (part.kind == MessagePart::Kind::kCallArguments) {
      choice["delta"] = {{"tool_calls", Json::array({{{"index", part.call},
                                                      {"function", {{"arguments", part.text}}}}})}};
    }
    out += writer.Streamed(std::move(choice));
  }
  if (out.empty() && !logprobs.is_null())
    out = writer.Streamed(writer.StreamChoice(index, "", std::move(logprobs)));
  return out;
}

std::string AnswerFormat::Finish(uint32_t index, const engine::BranchResult& branch, uint32_t calls,
                                 const std::vector<PromptOutcome>* last) {
  const Writer writer{head_, tokenizer_};
  Json choice = writer.StreamChoice(index, "", nullptr);
  if (head_.chat) choice["delta"] = Json::object();
  Writer::AddFinish(choice, branch, calls > 0);
  return writer.Streamed(std::move(choice), last);
}

std::string AnswerFormat::End(const std::vector<PromptOutcome>& prompts) {
  const std::string done = "data: [DONE]\n\n";
  if (!head_.include_usage) return done;
  const Writer writer{head_, tokenizer_};
  Json chunk = writer.Chunk();
  chunk["choices"] = Json::array();
  Writer::AddTotals(chunk, prompts);
  return Event(chunk) + done;
}

std::string AnswerFormat::StreamError(const ApiError& error) {
  return "data: " + ErrorBody(error) + "\n\ndata: [DONE]\n\n";
}

AnswerTotals TotalsOf(const std::vector<PromptOutcome>& prompts) {
  const Sums sums = Sum(prompts);
  return {sums.prompt, sums.generated, sums.cached, sums.computed};
}

std::string TimingsText(const std::vector<PromptOutcome>& prompts) {
  return Dump(Timings(Sum(prompts)));
}

std::string ReuseText(const std::vector<PromptOutcome>& prompts) { return Dump(Reuse(prompts)); }

}  // namespace kvlink::server
