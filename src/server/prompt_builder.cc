#include "server/prompt_builder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "server/tenants.h"

namespace kvlink::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view TrimLeft(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

std::string_view TrimRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// Bytes of `content`, in one of the forms in which templates show it, at the start of `text`, such
// that `next` follows.
std::optional<size_t> MatchContent(std::string_view text, std::string_view content,
                                   std::string_view next) {
  const std::array<std::string_view, 4> forms = {content, TrimLeft(TrimRight(content)),
                                                 TrimRight(content), TrimLeft(content)};
  for (const std::string_view form : forms) {
    if (text.substr(0, form.size()) == form && text.substr(form.size(), next.size()) == next)
      return form.size();
  }
  return std::nullopt;
}

void Append(std::vector<TokenId>& to, const std::vector<TokenId>& tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// Where messages end in the rendered text: a guess by searching in order, good enough to name a
// message.
std::vector<size_t> MessageEnds(std::span<const model::ChatMessage> messages,
                                const std::string& rendered) {
  std::vector<size_t> ends;
  size_t position = 0;
  for (const model::ChatMessage& message : messages) {
    const std::string_view content = TrimLeft(TrimRight(message.content));
    const size_t found = rendered.find(content, position);
    if (found != std::string::npos) position = found + content.size();
    ends.push_back(position);
  }
  return ends;
}

}  // namespace

PromptBuilder::PromptBuilder(const model::Tokenizer& tokenizer, Cache& cache)
    : tokenizer_(tokenizer), cache_(cache) {
  if (tokenizer.bos() >= 0) bos_text_ = tokenizer.Piece(tokenizer.bos(), true);
  adds_space_ = tokenizer.Decode(tokenizer.Encode("a", false, false), false) == " a";
}

// Behind a line feed there is no start of a text. Where that line feed does not stay for itself the
// text gets its space: the prompt is tokenised as one that begins there would be.
std::vector<TokenId> PromptBuilder::EncodeRest(std::string_view text, bool parse_special) const {
  std::vector<TokenId> plain = tokenizer_.Encode(text, false, parse_special);
  if (!adds_space_) return plain;
  const std::vector<TokenId> before = tokenizer_.Encode("\n", false, parse_special);
  std::string whole = "\n";
  whole.append(text);
  const std::vector<TokenId> both = tokenizer_.Encode(whole, false, parse_special);
  if (before.size() > both.size() || !std::equal(before.begin(), before.end(), both.begin())) {
    return plain;
  }
  return {both.begin() + static_cast<ptrdiff_t>(before.size()), both.end()};
}

bool PromptBuilder::Spell(std::span<const TokenId> ids, std::string_view text, bool special) const {
  const std::string spelled = tokenizer_.Decode(ids, true);
  std::string_view rest = spelled;
  if (special && tokenizer_.AddsBos()) {
    if (!rest.starts_with(bos_text_)) return false;
    rest.remove_prefix(bos_text_.size());
  }
  return rest == text || (adds_space_ && rest.starts_with(' ') && rest.substr(1) == text);
}

Result<BuiltPrompt> PromptBuilder::FromChat(const Namespace& ns,
                                            std::span<const model::ChatMessage> messages,
                                            const std::string& tools_json,
                                            bool add_generation_prompt) const {
  Result<std::string> rendered =
      tokenizer_.ApplyChatTemplate(messages, tools_json, add_generation_prompt);
  if (!rendered.ok()) return rendered.status();
  BuiltPrompt built;
  built.text = *std::move(rendered);
  built.is_text = true;
  built.message_end = MessageEnds(messages, built.text);

  const std::string_view text = built.text;
  // Templates that write BOS themselves get no second one.
  bool add_special = bos_text_.empty() || !text.starts_with(bos_text_);
  size_t position = 0;
  for (const Splice& splice :
       FindSplices(ns, messages, tools_json, add_generation_prompt, built.text)) {
    const std::string_view literal = text.substr(position, splice.begin - position);
    Append(built.tokens, position == 0 ? tokenizer_.Encode(literal, add_special, true)
                                       : EncodeRest(literal, true));
    Append(built.tokens, splice.tokens);
    built.spliced_tokens += static_cast<uint32_t>(splice.tokens.size());
    add_special = false;
    position = splice.end;
  }
  if (position < text.size()) {
    const std::string_view literal = text.substr(position);
    Append(built.tokens, position == 0 ? tokenizer_.Encode(literal, add_special, true)
                                       : EncodeRest(literal, true));
  }
  return built;
}

std::vector<PromptBuilder::Splice> PromptBuilder::FindSplices(
    const Namespace& ns, std::span<const model::ChatMessage> messages,
    const std::string& tools_json, bool add_generation_prompt, const std::string& rendered) const {
  std::vector<model::ChatMessage> marked;
  std::vector<Splice> splices;
  std::vector<std::string_view> contents;
  std::vector<std::string> markers;
  for (size_t i = 0; i < messages.size(); ++i) {
    const model::ChatMessage& message = messages[i];
    if (message.role != "assistant" || message.content.empty() || !message.extra_json.empty())
      continue;
    std::optional<std::vector<TokenId>> tokens = cache_.Recall(ns, message.content);
    if (!tokens || tokens->empty() || !Spell(*tokens, message.content, false)) continue;
    if (marked.empty()) marked.assign(messages.begin(), messages.end());
    markers.push_back("kvlink:own-output:" + std::to_string(i) + ":");
    marked[i].content = markers.back();
    contents.push_back(message.content);
    splices.push_back({0, 0, *std::move(tokens)});
  }
  if (splices.empty()) return {};
  const Result<std::string> probe =
      tokenizer_.ApplyChatTemplate(marked, tools_json, add_generation_prompt);
  if (!probe.ok()) return {};

  // Literal text around the markers, in order; each marker must stand there exactly once.
  const std::string_view probe_text = *probe;
  std::vector<std::string_view> literals;
  size_t position = 0;
  for (const std::string& marker : markers) {
    const size_t found = probe_text.find(marker, position);
    if (found == std::string_view::npos) return {};
    literals.push_back(probe_text.substr(position, found - position));
    position = found + marker.size();
  }
  literals.push_back(probe_text.substr(position));
  for (const std::string_view literal : literals) {
    if (literal.find("kvlink:own-output:") != std::string_view::npos) return {};
  }

  const std::string_view text = rendered;
  if (!text.starts_with(literals[0])) return {};
  position = literals[0].size();
  for (size_t i = 0; i < splices.size(); ++i) {
    const std::string_view next = literals[i + 1];
    const std::optional<size_t> length = MatchContent(text.substr(position), contents[i], next);
    if (!length) return {};
    splices[i].begin = position;
    splices[i].end = position + *length;
    position = splices[i].end + next.size();
  }
  if (position != text.size()) return {};
  return splices;
}

BuiltPrompt PromptBuilder::FromText(const Namespace& ns, const std::string& text,
                                    bool add_special) const {
  BuiltPrompt built;
  built.text = text;
  built.is_text = true;
  const bool special =
      add_special && (bos_text_.empty() || !std::string_view(text).starts_with(bos_text_));
  std::optional<Cache::Recalled> recalled = cache_.RecallPrefix(TextScopeOf(ns), text);
  if (!recalled || recalled->text_bytes == 0 || recalled->text_bytes > text.size() ||
      !Spell(recalled->tokens, std::string_view(text).substr(0, recalled->text_bytes), special)) {
    built.tokens = tokenizer_.Encode(text, special, true);
    return built;
  }
  built.tokens = std::move(recalled->tokens);
  built.spliced_tokens = static_cast<uint32_t>(built.tokens.size());
  if (recalled->text_bytes < text.size()) {
    Append(built.tokens, EncodeRest(std::string_view(text).substr(recalled->text_bytes), true));
  }
  return built;
}

BuiltPrompt PromptBuilder::FromTokens(std::vector<TokenId> tokens) {
  BuiltPrompt built;
  built.tokens = std::move(tokens);
  return built;
}

// The ids for exactly the text shown: those generated as far as they spell it, the rest tokenised.
std::vector<TokenId> PromptBuilder::IdsOf(const engine::BranchResult& answer) const {
  const size_t known = std::min<size_t>(answer.text_tokens, answer.tokens.size());
  std::vector<TokenId> ids(answer.tokens.begin(),
                           answer.tokens.begin() + static_cast<ptrdiff_t>(known));
  if (answer.text_bytes < answer.text.size()) {
    const std::string_view rest = std::string_view(answer.text).substr(answer.text_bytes);
    Append(ids, ids.empty() ? tokenizer_.Encode(rest, false, false) : EncodeRest(rest, false));
  }
  return ids;
}

void PromptBuilder::Remember(const Namespace& ns, const BuiltPrompt& prompt,
                             const engine::BranchResult& answer, bool chat) const {
  if (answer.text.empty()) return;
  if (chat) {
    if (answer.text_bytes < answer.text.size()) cache_.Remember(ns, answer.text, IdsOf(answer));
    return;
  }
  // Ids that a client chose need not be those of their text.
  if (prompt.text.empty() || !prompt.is_text) return;
  std::vector<TokenId> ids = prompt.tokens;
  Append(ids, IdsOf(answer));
  cache_.Remember(TextScopeOf(ns), prompt.text + answer.text, ids);
}

std::optional<size_t> PromptBuilder::MessageAt(const BuiltPrompt& prompt, uint32_t index) const {
  if (prompt.message_end.empty() || index >= prompt.tokens.size()) return std::nullopt;
  size_t offset = 0;
  for (uint32_t i = 0; i < index; ++i) offset += tokenizer_.Piece(prompt.tokens[i], true).size();
  // A BOS that the tokenizer added stands in no message.
  const bool added_bos = tokenizer_.bos() >= 0 && index > 0 &&
                         prompt.tokens[0] == tokenizer_.bos() &&
                         !std::string_view(prompt.text).starts_with(bos_text_);
  if (added_bos) offset -= std::min(offset, bos_text_.size());
  const auto found = std::upper_bound(prompt.message_end.begin(), prompt.message_end.end(), offset);
  if (found == prompt.message_end.end()) return std::nullopt;
  return static_cast<size_t>(std::distance(prompt.message_end.begin(), found));
}

}  // namespace kvlink::server
