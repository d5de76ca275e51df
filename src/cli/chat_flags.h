// Options that `kvlink run` and `kvlink chat` have in common, and what is done with them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string>

#include "cli/chat_answerer.h"
#include "cli/chat_engine.h"
#include "cli/chat_remote.h"

namespace kvlink::cli {

struct ChatFlags {
  ChatEngineOptions engine;
  ChatRemoteOptions remote;  // a URL: in place of an engine
  AnswerOptions answer;
  std::string system;
};

void AddChatFlags(CLI::App& app, ChatFlags& flags);

// kInvalidArgument: options that do not go together; else what loading a model or asking a server
// may say.
Result<std::unique_ptr<Answerer>> OpenAnswerer(const ChatFlags& flags);

// "212 prompt tokens, 180 cached (85 %); first token after 0.12 s; 34 tokens, 41.2 a second"
std::string FiguresText(const AnswerFigures& figures);

// A chat's answer or a completion, printed on standard output while it comes, with a bar on
// standard error while a long prompt is computed. `printed` gets the text.
struct Question {
  std::span<const model::ChatMessage> messages;
  const std::string* raw_prompt = nullptr;  // not null: in place of the messages
};
Result<AnswerFigures> PrintAnswer(Answerer& answerer, const Question& question,
                                  const AnswerOptions& options, const std::atomic<bool>& stop,
                                  bool quiet, std::string* printed);

}  // namespace kvlink::cli
