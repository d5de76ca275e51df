// Prompts of a workload file as token ids, with the model's tokenizer or, without a model, with one
// that splits words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvlink/kv_shape.h"
#include "kvlink/status.h"
#include "match/normal_tokens.h"

namespace kvlink::bench {

using Tokens = std::vector<TokenId>;

struct Message {
  std::string role, content;
};

class PromptTokenizer {
 public:
  virtual ~PromptTokenizer() = default;
  virtual std::string name() const = 0;
  // Not const: a tokenizer of words learns them.
  virtual Tokens Encode(std::string_view text) = 0;
  virtual Tokens EncodeChat(const std::vector<Message>& messages) = 0;
  // Of all tokens there are by now.
  virtual std::vector<std::string> Texts() const = 0;
  virtual std::vector<uint8_t> Special() const = 0;
};

// Words with the blank before them, digits and other characters one by one; an id is given to every
// new piece. Chats as <|role|> content <|end|>.
std::unique_ptr<PromptTokenizer> MakeWordTokenizer();
// The tokenizer and chat template of a GGUF file. kUnimplemented in a build without the engine.
Result<std::unique_ptr<PromptTokenizer>> LoadModelTokenizer(const std::string& path);

// Every turn's prompt, in the order of the file: the history is what the workload itself says
// (messages, and the recorded answers where there are any).
Result<std::vector<Tokens>> ReadPrompts(const std::string& path, PromptTokenizer& tokenizer);

}  // namespace kvlink::bench
