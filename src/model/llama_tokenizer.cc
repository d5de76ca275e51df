#include "model/llama_tokenizer.h"

#include <exception>
#include <string_view>
#include <unordered_set>

#include "json.h"
#include "model/ggml_log.h"

namespace kvlink::model {
namespace {

// libllama trusts a few things about the vocabulary with assertions that end the process; they are
// checked here first.
Status CheckVocabulary(const GgufFile& file, uint32_t vocab_size) {
  const auto corrupt = [&](const std::string& message) {
    return Status(StatusCode::kDataLoss, file.path() + ": " + message);
  };
  const std::string kind = file.Text("tokenizer.ggml.model");
  if (kind != "llama" && kind != "gpt2") {
    return Status(StatusCode::kUnimplemented, file.path() + ": 'tokenizer.ggml.model': '" + kind +
                                                  "' is not supported (supported: llama, gpt2)");
  }
  const int64_t id = gguf_find_key(file.keys(), "tokenizer.ggml.tokens");
  if (id < 0 || gguf_get_kv_type(file.keys(), id) != GGUF_TYPE_ARRAY ||
      gguf_get_arr_type(file.keys(), id) != GGUF_TYPE_STRING) {
    return corrupt("the key 'tokenizer.ggml.tokens' is missing or not an array of strings");
  }
  const size_t count = gguf_get_arr_n(file.keys(), id);
  if (count != vocab_size) {
    return corrupt("'tokenizer.ggml.tokens' has " + std::to_string(count) +
                   " tokens, the embeddings have " + std::to_string(vocab_size));
  }
  std::unordered_set<std::string_view> seen;
  seen.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view text = gguf_get_arr_str(file.keys(), id, i);
    // libllama gives an empty token a name of its own.
    if (!text.empty() && !seen.insert(text).second) {
      return corrupt("'tokenizer.ggml.tokens' has '" + std::string(text) +
                     "' twice, the second time at " + std::to_string(i));
    }
    if (text.starts_with("[EMPTY_"))
      return corrupt("'tokenizer.ggml.tokens': '" + std::string(text) + "' is reserved");
  }
  return Status::Ok();
}

common_chat_msg ToCommon(const ChatMessage& message) {
  if (!message.extra_json.empty()) {
    common_json list = common_json::array();
    list.push_back(common_json::parse(message.extra_json));
    return common_chat_msgs_parse_oaicompat(list).at(0);
  }
  common_chat_msg result;
  result.role = message.role;
  result.content = message.content;
  return result;
}

}  // namespace

Result<std::unique_ptr<LlamaTokenizer>> LlamaTokenizer::Load(const GgufFile& file,
                                                             uint32_t vocab_size) {
  if (Status status = CheckVocabulary(file, vocab_size); !status.ok()) return status;
  std::unique_ptr<LlamaTokenizer> tokenizer(new LlamaTokenizer);
  if (Status status = tokenizer->LoadVocabulary(file); !status.ok()) return status;
  if (tokenizer->vocab_size() != vocab_size) {
    return Status(StatusCode::kDataLoss, file.path() + ": libllama reads " +
                                             std::to_string(tokenizer->vocab_size()) +
                                             " tokens, expected " + std::to_string(vocab_size));
  }
  if (Status status = tokenizer->LoadChatTemplate(file.path()); !status.ok()) return status;
  tokenizer->grammars_ = std::make_unique<grammar::Library>(
      [vocabulary = tokenizer.get()] { return vocabulary->GrammarPieces(); });
  return tokenizer;
}

Status LlamaTokenizer::LoadVocabulary(const GgufFile& file) {
  LogCapture errors;
  try {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    model_.reset(llama_model_load_from_file(file.path().c_str(), params));
  } catch (const std::exception& e) {
    return Status(StatusCode::kDataLoss, file.path() + ": vocabulary: " + e.what());
  }
  if (model_ == nullptr)
    return Status(StatusCode::kDataLoss, file.path() + ": vocabulary: " + errors.text());
  vocabulary_ = llama_model_get_vocab(model_.get());
  return CheckAddedTokens(file.path());
}

// libllama asserts, with the first text, that a token which it is told to add exists.
Status LlamaTokenizer::CheckAddedTokens(const std::string& path) const {
  const auto missing = [&](const char* key, const char* name) {
    return Status(StatusCode::kDataLoss, path + ": '" + key + "': the vocabulary of " +
                                             std::to_string(vocab_size()) + " tokens has no " +
                                             name + " token to add");
  };
  if (llama_vocab_get_add_bos(vocabulary_) && bos() < 0)
    return missing("tokenizer.ggml.add_bos_token", "BOS");
  if (llama_vocab_get_add_eos(vocabulary_) && eos() < 0)
    return missing("tokenizer.ggml.add_eos_token", "EOS");
  return Status::Ok();
}

Status LlamaTokenizer::LoadChatTemplate(const std::string& path) {
  if (llama_model_chat_template(model_.get(), nullptr) == nullptr) return Status::Ok();
  try {
    chat_templates_ = common_chat_templates_init(model_.get(), "");
  } catch (const std::exception& e) {
    return Status(StatusCode::kDataLoss, path + ": 'tokenizer.chat_template': " + e.what());
  }
  return Status::Ok();
}

std::vector<TokenId> LlamaTokenizer::Encode(std::string_view text, bool add_special,
                                            bool parse_special) const {
  const auto encode = [&](std::vector<TokenId>& tokens) {
    return llama_tokenize(vocabulary_, text.data(), static_cast<int32_t>(text.size()),
                          tokens.data(), static_cast<int32_t>(tokens.size()), add_special,
                          parse_special);
  };
  try {
    std::vector<TokenId> tokens(text.size() / 3 + 8);
    int32_t count = encode(tokens);
    if (count < 0) {
      tokens.resize(static_cast<size_t>(-static_cast<int64_t>(count)));
      count = encode(tokens);
    }
    tokens.resize(static_cast<size_t>(std::max(count, 0)));
    return tokens;
  } catch (const std::exception&) {
    return {};  // text that the vocabulary has no tokens for at all
  }
}

std::string LlamaTokenizer::Piece(TokenId token, bool special) const {
  if (token < 0 || static_cast<uint32_t>(token) >= vocab_size()) return "";
  std::string piece(32, '\0');
  const auto convert = [&] {
    return llama_token_to_piece(vocabulary_, token, piece.data(),
                                static_cast<int32_t>(piece.size()), /*lstrip=*/0, special);
  };
  try {
    int32_t size = convert();
    if (size < 0) {
      piece.resize(static_cast<size_t>(-size));
      size = convert();
    }
    piece.resize(static_cast<size_t>(std::max(size, 0)));
    return piece;
  } catch (const std::exception&) {
    return "";
  }
}

std::string LlamaTokenizer::Decode(std::span<const TokenId> tokens, bool special) const {
  std::string text;
  for (const TokenId token : tokens) text += Piece(token, special);
  return text;
}

bool LlamaTokenizer::IsEndOfGeneration(TokenId token) const {
  return token >= 0 && static_cast<uint32_t>(token) < vocab_size() &&
         llama_vocab_is_eog(vocabulary_, token);
}

bool LlamaTokenizer::AddsBos() const { return llama_vocab_get_add_bos(vocabulary_); }
TokenId LlamaTokenizer::bos() const { return llama_vocab_bos(vocabulary_); }
TokenId LlamaTokenizer::eos() const { return llama_vocab_eos(vocabulary_); }

FillTokens LlamaTokenizer::fill_tokens() const {
  return {llama_vocab_fim_pre(vocabulary_), llama_vocab_fim_suf(vocabulary_),
          llama_vocab_fim_mid(vocabulary_)};
}

// As answers show them: what a grammar accepts is what a client reads.
std::vector<std::string> LlamaTokenizer::GrammarPieces() const {
  std::vector<std::string> pieces(vocab_size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    if (!IsEndOfGeneration(token)) pieces[i] = Piece(token, /*special=*/false);
  }
  return pieces;
}

uint32_t LlamaTokenizer::vocab_size() const {
  return static_cast<uint32_t>(llama_vocab_n_tokens(vocabulary_));
}

Result<std::string> LlamaTokenizer::ApplyChatTemplate(std::span<const ChatMessage> messages,
                                                      const std::string& tools_json,
                                                      bool add_generation_prompt) const {
  if (chat_templates_ == nullptr) {
    return Status(StatusCode::kUnimplemented,
                  "the model file has no chat template ('tokenizer.chat_template')");
  }
  try {
    common_chat_templates_inputs inputs;
    for (const ChatMessage& message : messages) inputs.messages.push_back(ToCommon(message));
    if (!tools_json.empty())
      inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(tools_json));
    inputs.add_generation_prompt = add_generation_prompt;
    // Only the prompt is wanted: without this, llama-common derives a parser for the answers from
    // the template, for every request, by rendering it many times.
    inputs.force_pure_content = true;
    return common_chat_templates_apply(chat_templates_.get(), inputs).prompt;
  } catch (const std::exception& e) {
    return Status(StatusCode::kInvalidArgument, std::string("chat template: ") + e.what());
  }
}

}  // namespace kvlink::model
