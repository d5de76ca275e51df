// LlamaTokenizer: Tokenizer on libllama's vocabulary and llama-common's chat templates.
//
// libllama loads the vocabulary alone (no weights). Every call is const in libllama as well, so any
// thread may call; a chat template is parsed once, and rendering makes its own state. Exceptions of
// both libraries stop here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat.h"
#include "grammar/library.h"
#include "llama.h"
#include "model/gguf_file.h"
#include "model/model.h"

namespace kvlink::model {

class LlamaTokenizer : public Tokenizer {
 public:
  // kDataLoss: the vocabulary in the file is missing, corrupt or not of `vocab_size` tokens.
  // kUnimplemented names a kind of tokenizer that the supported architectures do not have.
  static Result<std::unique_ptr<LlamaTokenizer>> Load(const GgufFile& file, uint32_t vocab_size);

  std::vector<TokenId> Encode(std::string_view text, bool add_special,
                              bool parse_special) const override;
  std::string Decode(std::span<const TokenId> tokens, bool special) const override;
  std::string Piece(TokenId token, bool special) const override;
  bool IsEndOfGeneration(TokenId token) const override;
  bool AddsBos() const override;
  TokenId bos() const override;
  TokenId eos() const override;
  uint32_t vocab_size() const override;
  grammar::Library* grammars() const override { return grammars_.get(); }
  FillTokens fill_tokens() const override;
  Result<std::string> ApplyChatTemplate(std::span<const ChatMessage> messages,
                                        const std::string& tools_json,
                                        bool add_generation_prompt) const override;

  const llama_vocab* vocabulary() const { return vocabulary_; }

 private:
  struct FreeModel {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  LlamaTokenizer() = default;
  Status LoadVocabulary(const GgufFile& file);
  Status CheckAddedTokens(const std::string& path) const;
  Status LoadChatTemplate(const std::string& path);
  std::vector<std::string> GrammarPieces() const;

  std::unique_ptr<llama_model, FreeModel> model_;
  const llama_vocab* vocabulary_ = nullptr;
  common_chat_templates_ptr chat_templates_;  // null: the file has none
  std::unique_ptr<grammar::Library> grammars_;
};

}  // namespace kvlink::model
