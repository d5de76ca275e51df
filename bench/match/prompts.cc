#include "prompts.h"

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#ifdef KVLINK_BENCH_MODEL
#include "model/model.h"
#endif

namespace kvlink::bench {
namespace {

class WordTokenizer final : public PromptTokenizer {
 public:
  std::string name() const override { return "words"; }

  Tokens Encode(std::string_view text) override {
    Tokens tokens;
    for (size_t i = 0; i < text.size();) {
      size_t end = i + 1;
      const auto is_letter = [&](size_t at) {
        return at < text.size() && (std::isalpha(static_cast<unsigned char>(text[at])) != 0 ||
                                    static_cast<unsigned char>(text[at]) >= 0x80);
      };
      if (is_letter(i) || (text[i] == ' ' && is_letter(i + 1))) {
        while (is_letter(end)) ++end;
      }
      tokens.push_back(IdOf(text.substr(i, end - i), false));
      i = end;
    }
    return tokens;
  }

  Tokens EncodeChat(const std::vector<Message>& messages) override {
    Tokens tokens;
    const auto append = [&](const Tokens& more) {
      tokens.insert(tokens.end(), more.begin(), more.end());
    };
    for (const Message& message : messages) {
      tokens.push_back(IdOf("<|start|>", true));
      append(Encode(message.role + "\n" + message.content));
      tokens.push_back(IdOf("<|end|>", true));
    }
    tokens.push_back(IdOf("<|start|>", true));
    append(Encode("assistant\n"));
    return tokens;
  }

  std::vector<std::string> Texts() const override { return texts_; }
  std::vector<uint8_t> Special() const override { return special_; }

 private:
  TokenId IdOf(std::string_view piece, bool special) {
    const auto [known, is_new] =
        ids_.try_emplace(std::string(piece), static_cast<TokenId>(texts_.size()));
    if (is_new) {
      texts_.emplace_back(piece);
      special_.push_back(special ? 1 : 0);
    }
    return known->second;
  }
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<std::string> texts_;
  std::vector<uint8_t> special_;
};

#ifdef KVLINK_BENCH_MODEL
class ModelTokenizer final : public PromptTokenizer {
 public:
  explicit ModelTokenizer(std::unique_ptr<model::Model> model) : model_(std::move(model)) {}
  std::string name() const override { return model_->info().name; }
  Tokens Encode(std::string_view text) override {
    return model_->tokenizer().Encode(text, true, false);
  }
  Tokens EncodeChat(const std::vector<Message>& messages) override {
    std::vector<model::ChatMessage> chat;
    for (const Message& message : messages) chat.push_back({message.role, message.content, ""});
    const auto text = model_->tokenizer().ApplyChatTemplate(chat, "", true);
    if (!text.ok()) return {};
    return model_->tokenizer().Encode(*text, true, true);
  }
  std::vector<std::string> Texts() const override {
    std::vector<std::string> texts;
    for (uint32_t id = 0; id < model_->tokenizer().vocab_size(); ++id) {
      texts.push_back(model_->tokenizer().Piece(static_cast<TokenId>(id), true));
    }
    return texts;
  }
  // A token that shows only when special tokens are shown.
  std::vector<uint8_t> Special() const override {
    std::vector<uint8_t> special;
    for (uint32_t id = 0; id < model_->tokenizer().vocab_size(); ++id) {
      const auto token = static_cast<TokenId>(id);
      special.push_back(model_->tokenizer().Piece(token, false).empty() &&
                                !model_->tokenizer().Piece(token, true).empty()
                            ? 1
                            : 0);
    }
    return special;
  }

 private:
  std::unique_ptr<model::Model> model_;
};
#endif

Status Bad(const std::string& path, size_t line, const std::string& what) {
  return {StatusCode::kInvalidArgument, path + ":" + std::to_string(line) + ": " + what};
}

}  // namespace

std::unique_ptr<PromptTokenizer> MakeWordTokenizer() { return std::make_unique<WordTokenizer>(); }

Result<std::unique_ptr<PromptTokenizer>> LoadModelTokenizer(const std::string& path) {
#ifdef KVLINK_BENCH_MODEL
  auto model = model::Model::Load({.path = path, .pack_weights = false, .progress = {}});
  if (!model.ok()) return model.status();
  std::unique_ptr<PromptTokenizer> tokenizer =
      std::make_unique<ModelTokenizer>(std::move(model.value()));
  return tokenizer;
#else
  return Status(StatusCode::kUnimplemented,
                "--model " + path + ": this build has no engine, and so no tokenizer of models");
#endif
}

Result<std::vector<Tokens>> ReadPrompts(const std::string& path, PromptTokenizer& tokenizer) {
  std::ifstream in(path);
  if (!in) return Status(StatusCode::kNotFound, path + ": cannot be read");
  std::vector<Tokens> prompts;
  std::string text;
  for (size_t line = 1; std::getline(in, text); ++line) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object() || !json.contains("turns") ||
        !json["turns"].is_array()) {
      return Bad(path, line, "no JSON object with a list `turns`");
    }
    std::vector<Message> history;
    for (const auto& turn : json["turns"]) {
      if (!turn.is_object() || !turn.contains("messages") || !turn["messages"].is_array()) {
        return Bad(path, line, "a turn without `messages`");
      }
      for (const auto& message : turn["messages"]) {
        if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
            !message.contains("content") || !message["content"].is_string()) {
          return Bad(path, line, "a message without text in `role` and `content`");
        }
        history.push_back({message["role"], message["content"]});
      }
      prompts.push_back(tokenizer.EncodeChat(history));
      if (turn.contains("assistant") && turn["assistant"].is_string()) {
        history.push_back({"assistant", turn["assistant"]});
      }
    }
  }
  return prompts;
}

}  // namespace kvlink::bench
