// `kvlink run`: one answer on standard output, while it is generated; for pipes and scripts.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/chat_conversation.h"
#include "cli/chat_flags.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/signal_watch.h"

namespace kvlink::cli {
namespace {

struct RunFlags {
  ChatFlags chat;
  std::string prompt;
  const CLI::Option* prompt_option = nullptr;
  bool raw = false, stats = false;
};

// The text of --prompt, or standard input.
Result<std::string> ReadPrompt(const RunFlags& flags, ChatInput& input) {
  if (flags.prompt.empty() && flags.prompt_option->count() > 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--prompt: is empty; give a text, or - and the text on standard input");
  }
  if (flags.prompt.empty() && isatty(STDIN_FILENO) == 1) {
    return Status(StatusCode::kInvalidArgument,
                  "--prompt: give a text, or - and the text on standard input");
  }
  if (!flags.prompt.empty() && flags.prompt != "-") return flags.prompt;
  std::string text = input.ReadAll();
  if (text.empty()) {
    return Status(StatusCode::kInvalidArgument, "--prompt: standard input is empty");
  }
  return text;
}

int Run(const RunFlags& flags) {
  SignalWatch signals;
  ChatInput input(STDIN_FILENO);
  if (flags.raw && !flags.chat.system.empty()) {
    return Fail(Status(StatusCode::kInvalidArgument, "--system: not with --raw"));
  }
  const auto prompt = ReadPrompt(flags, input);
  if (!prompt.ok()) return Fail(prompt.status());
  auto answerer = OpenAnswerer(flags.chat);
  if (!answerer.ok()) return Fail(answerer.status());

  Conversation conversation;
  conversation.SetSystem(flags.chat.system);
  conversation.Ask(*prompt);
  Question question{conversation.messages()};
  if (flags.raw) question.raw_prompt = &*prompt;
  signals.OnSignal([&input](int number) { input.OnSignal(number); });
  std::string printed;
  input.BeginAnswer();
  const auto figures = PrintAnswer(**answerer, question, flags.chat.answer, input.stop(),
                                   flags.chat.engine.quiet, &printed);
  input.EndAnswer();
  signals.OnSignal([](int) {});  // it ends already
  if (!figures.ok()) return Fail(figures.status());
  const bool show = flags.stats || (isatty(STDERR_FILENO) == 1 && !flags.chat.engine.quiet);
  if (show) std::fprintf(stderr, "[%s]\n", FiguresText(*figures).c_str());
  constexpr int kInterrupted = 130;  // as a shell has it for SIGINT
  if (!figures->stopped) return 0;
  return input.exit_code() != 0 ? input.exit_code() : kInterrupted;
}

}  // namespace

Command AddRun(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("run", "Answer one prompt on standard output");
  const auto flags = std::make_shared<RunFlags>();
  flags->prompt_option =
      app->add_option("--prompt", flags->prompt,
                      "The question; -, and the default where standard input is no terminal: "
                      "standard input")
          ->type_name("TEXT");
  app->add_flag("--raw", flags->raw, "Go on with the text as it is, without the chat's template");
  AddChatFlags(*app, flags->chat);
  app->add_flag("--stats", flags->stats,
                "Figures on standard error, even where that is no terminal");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace kvlink::cli
