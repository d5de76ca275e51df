// `kvlink chat`: a conversation in the terminal, with an engine of its own or with a server.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "cli/chat_conversation.h"
#include "cli/chat_flags.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/kv_budget.h"
#include "cli/nearest_name.h"
#include "cli/signal_watch.h"

namespace kvlink::cli {
namespace {

struct Flags {
  ChatFlags chat;
  std::string load;
};

constexpr std::string_view kFence = "\"\"\"";  // around a message of several lines

constexpr const char* kHelp =
    "/help            this\n"
    "/reset           forget the conversation; /reset all: the system message too\n"
    "/system [TEXT]   set the system message, or show it\n"
    "/stats           tokens, hits and speed so far\n"
    "/save FILE       write the conversation as JSON, which --load reads\n"
    "/quit            end; so does the end of input (Ctrl-D)\n"
    "\"\"\"              begins and ends a message of several lines\n"
    "//TEXT           a message that begins with a slash\n"
    "Ctrl-C           stops an answer; a second time: ends\n";

// Sums over the answers of a chat.
struct Totals {
  uint64_t answers = 0;
  AnswerFigures figures;
  double decoding_s = 0;

  void Add(const AnswerFigures& answer) {
    ++answers;
    figures.prompt_tokens += answer.prompt_tokens;
    figures.cached_tokens += answer.cached_tokens;
    figures.generated_tokens += answer.generated_tokens;
    if (answer.generated_tokens > 0) decoding_s += answer.total_s - answer.first_token_s;
  }
};

class Chat {
 public:
  Chat(const Flags& flags, Answerer& answerer, ChatInput& input, Conversation conversation)
      : flags_(flags),
        answerer_(answerer),
        input_(input),
        conversation_(std::move(conversation)),
        interactive_(isatty(STDIN_FILENO) == 1) {}

  int Run() {
    if (interactive_ && !flags_.chat.engine.quiet) {
      std::fprintf(stderr, "%s; /help lists the commands, Ctrl-D ends\n", answerer_.Name().c_str());
    }
    while (true) {
      Prompt("> ");
      const ChatInput::Event event = input_.ReadLine();
      if (event.kind == ChatInput::Kind::kInterrupted) {
        std::fputs(interactive_ ? "\nCtrl-C again ends\n" : "", stderr);
      } else if (event.kind != ChatInput::Kind::kLine) {
        if (interactive_) std::fputc('\n', stderr);
        break;
      } else if (!OnLine(event.line)) {
        break;
      }
      if (input_.exit_code() != 0) break;
    }
    return input_.exit_code() != 0 ? input_.exit_code() : failed_ ? kExitFailed : 0;
  }

 private:
  void Prompt(const char* text) const {
    if (!interactive_) return;
    std::fputs(text, stderr);
    std::fflush(stderr);
  }

  // False: the end.
  bool OnLine(std::string line) {
    if (line.starts_with(kFence))
      line = ReadFenced(line.substr(kFence.size()));
    else if (line.starts_with("//"))
      line.erase(0, 1);
    else if (line.starts_with('/'))
      return OnCommand(line);
    if (line.find_first_not_of(" \t\n") != std::string::npos) Ask(line);
    return true;
  }

  // `line`: what stands behind the first fence.
  std::string ReadFenced(std::string line) {
    std::string text;
    while (true) {
      if (const size_t end = line.find(kFence); end != std::string::npos) {
        return text + line.substr(0, end);
      }
      if (!(text.empty() && line.empty())) text += line + "\n";
      Prompt("| ");
      const ChatInput::Event event = input_.ReadLine();
      if (event.kind == ChatInput::Kind::kInterrupted) return "";  // given up
      if (event.kind != ChatInput::Kind::kLine) return text;
      line = event.line;
    }
  }

  void Ask(const std::string& text) {
    conversation_.Ask(text);
    std::string answer;
    input_.BeginAnswer();
    const auto figures = PrintAnswer(answerer_, {conversation_.messages()}, flags_.chat.answer,
                                     input_.stop(), flags_.chat.engine.quiet, &answer);
    input_.EndAnswer();
    conversation_.Answered(answer);
    if (!figures.ok()) {
      failed_ = true;
      std::fprintf(stderr, "kvlink: %s\n", figures.status().message().c_str());
      if (figures.status().code() == StatusCode::kInvalidArgument && conversation_.turns() > 0) {
        std::fputs("/reset starts a new conversation\n", stderr);
      }
      return;
    }
    totals_.Add(*figures);
    if (!flags_.chat.engine.quiet) {
      std::fprintf(stderr, "[%s]\n", FiguresText(*figures).c_str());
    }
  }

  bool OnCommand(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    value.erase(0, value.find_first_not_of(' '));
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      std::fputs(kHelp, stderr);
    } else if (name == "/reset") {
      if (value == "all") conversation_.SetSystem("");
      conversation_.Reset();
    } else if (name == "/system") {
      System(value);
    } else if (name == "/stats") {
      Stats();
    } else if (name == "/save") {
      Save(value);
    } else {
      std::fprintf(
          stderr,
          "kvlink: %s is no command%s (/help lists them; // begins a message "
          "with a slash)\n",
          name.c_str(),
          DidYouMean(name, {"/help", "/reset", "/system", "/stats", "/save", "/quit"}).c_str());
      failed_ |= !interactive_;
    }
    return true;
  }

  void System(const std::string& text) {
    if (!text.empty()) return conversation_.SetSystem(text);
    const std::string system = conversation_.System();
    std::fprintf(stderr, "%s\n", system.empty() ? "(no system message)" : system.c_str());
  }

  void Stats() const {
    const AnswerFigures& sum = totals_.figures;
    const double prompt = static_cast<double>(sum.prompt_tokens);
    std::fprintf(stderr, "model            %s\n", answerer_.Name().c_str());
    std::fprintf(stderr, "turns            %zu in this conversation, %s answers in all\n",
                 conversation_.turns(), Grouped(totals_.answers).c_str());
    std::fprintf(stderr, "prompt tokens    %s, %s cached (%.1f %%)\n",
                 Grouped(sum.prompt_tokens).c_str(), Grouped(sum.cached_tokens).c_str(),
                 prompt > 0 ? 100 * static_cast<double>(sum.cached_tokens) / prompt : 0.0);
    std::fprintf(stderr, "generated tokens %s", Grouped(sum.generated_tokens).c_str());
    if (totals_.decoding_s > 0) {
      std::fprintf(stderr, ", %.1f a second",
                   static_cast<double>(sum.generated_tokens) / totals_.decoding_s);
    }
    std::fputc('\n', stderr);
    for (const auto& [name, value] : answerer_.Facts()) {
      std::fprintf(stderr, "%-16s %s\n", name.c_str(), value.c_str());
    }
  }

  void Save(const std::string& path) {
    if (path.empty()) {
      std::fputs("kvlink: /save needs the name of a file\n", stderr);
      return;
    }
    std::ofstream file(path, std::ios::binary);
    file << conversation_.ToJson();
    file.close();
    if (file) {
      std::fprintf(stderr, "%zu turns are in %s\n", conversation_.turns(), path.c_str());
    } else {
      failed_ |= !interactive_;
      std::fprintf(stderr, "kvlink: /save: cannot write '%s'\n", path.c_str());
    }
  }

  const Flags& flags_;
  Answerer& answerer_;
  ChatInput& input_;
  Conversation conversation_;
  const bool interactive_;
  Totals totals_;
  bool failed_ = false;
};

Result<Conversation> StartOf(const Flags& flags) {
  Conversation conversation;
  if (!flags.load.empty()) {
    std::ifstream file(flags.load, std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) {
      return Status(StatusCode::kNotFound, "--load: cannot read '" + flags.load + "'");
    }
    auto loaded = Conversation::FromJson(text.str(), "--load: '" + flags.load + "'");
    if (!loaded.ok()) return loaded.status();
    conversation = *std::move(loaded);
  }
  if (!flags.chat.system.empty()) conversation.SetSystem(flags.chat.system);
  return conversation;
}

int RunChat(const Flags& flags) {
  SignalWatch signals;  // before any other thread
  auto conversation = StartOf(flags);
  if (!conversation.ok()) return Fail(conversation.status());
  auto answerer = OpenAnswerer(flags.chat);
  if (!answerer.ok()) return Fail(answerer.status());
  ChatInput input(STDIN_FILENO);
  signals.OnSignal([&input](int number) { input.OnSignal(number); });
  const int code = Chat(flags, **answerer, input, *std::move(conversation)).Run();
  signals.OnSignal([](int) {});  // it ends already
  return code;
}

}  // namespace

Command AddChat(CLI::App& kvlink) {
  CLI::App* app = kvlink.add_subcommand("chat", "Talk with a model in the terminal");
  const auto flags = std::make_shared<Flags>();
  constexpr double kTemperature = 0.7;
  flags->chat.answer.temperature = kTemperature;
  app->add_option("--load", flags->load, "Go on with a conversation that /save wrote")
      ->type_name("FILE");
  AddChatFlags(*app, flags->chat);
  return {app, [flags] { return RunChat(*flags); }};
}

}  // namespace kvlink::cli
