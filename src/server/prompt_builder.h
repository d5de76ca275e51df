// PromptBuilder: messages or text -> token ids, with what this server generated before as the very
// ids it was generated as.
//
// Re-tokenising an answer that a client sends back need not give the ids that were generated
// (Chinese, emoji, white space, code), and the cached rows belong to those ids. So outputs are
// remembered by their text, and spliced:
//
//     rendered   <|user|>hi<|end|><|assistant|> Hello <|end|><|user|>...
//     tokens     Encode(----------------------) ids   Encode(----------...
//
// Where an answer stands in the rendered text is proved, not searched for: the template is rendered
// a second time with a marker in place of each remembered answer, and putting the answers (as sent,
// or trimmed as the template trims) back in place of the markers must give the first rendering.
// And the remembered ids must spell the answer, special tokens included: ids come back from disks
// and peers as well. Otherwise nothing is spliced: fewer hits, never another prompt. Thread-safe if
// the cache's Remember and Recall are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "kvlink/cache.h"
#include "kvlink/status.h"

namespace kvlink::server {

struct BuiltPrompt {
  std::vector<TokenId> tokens;
  std::string text;      // as rendered; when the client sent ids: empty, or what they spell
  bool is_text = false;  // the client sent text: `tokens` are what it is tokenised as
  uint32_t spliced_tokens = 0;
  std::vector<size_t> message_end;  // chat: byte in `text` where each message's content ends
};

class PromptBuilder {
 public:
  PromptBuilder(const model::Tokenizer& tokenizer, Cache& cache);

  // Errors are the template's.
  Result<BuiltPrompt> FromChat(const Namespace& ns, std::span<const model::ChatMessage> messages,
                               const std::string& tools_json, bool add_generation_prompt) const;
  BuiltPrompt FromText(const Namespace& ns, const std::string& text, bool add_special) const;
  static BuiltPrompt FromTokens(std::vector<TokenId> tokens);

  // Remembers an answer beyond what the engine does itself: a chat answer whose end no token spells
  // exactly (a stop string cut one), and the whole text of a completion.
  void Remember(const Namespace& ns, const BuiltPrompt& prompt, const engine::BranchResult& answer,
                bool chat) const;

  // The chat message that token `index` lies in or before; nothing past the last message.
  std::optional<size_t> MessageAt(const BuiltPrompt& prompt, uint32_t index) const;

 private:
  struct Splice {
    size_t begin, end;  // in the rendered text
    std::vector<TokenId> tokens;
  };
  std::vector<Splice> FindSplices(const Namespace& ns, std::span<const model::ChatMessage> messages,
                                  const std::string& tools_json, bool add_generation_prompt,
                                  const std::string& rendered) const;
  std::vector<TokenId> IdsOf(const engine::BranchResult& answer) const;
  // Text that goes on behind other tokens.
  std::vector<TokenId> EncodeRest(std::string_view text, bool parse_special) const;
  // Whether the ids are of exactly this text; `special`: as of Encode, with the BOS that it adds.
  bool Spell(std::span<const TokenId> ids, std::string_view text, bool special) const;

  const model::Tokenizer& tokenizer_;
  Cache& cache_;
  std::string bos_text_;
  bool adds_space_ = false;  // Encode puts one in front of what it takes for the start of a text
};

}  // namespace kvlink::server
