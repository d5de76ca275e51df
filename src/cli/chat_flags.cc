#include "cli/chat_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/byte_size.h"
#include "cli/chat_conversation.h"
#include "cli/command.h"
#include "cli/http_client.h"
#include "cli/kv_budget.h"
#include "cli/model_options.h"
#include "cli/progress.h"

namespace kvlink::cli {
namespace {

// A prompt that is computed sooner needs no bar.
constexpr std::chrono::milliseconds kBarAfter{300};

Status Bad(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

// The bar of one prompt: it appears late, and leaves before the answer.
class PrefillBar {
 public:
  explicit PrefillBar(bool quiet) : quiet_(quiet) {}
  void Update(double fraction) {
    if (quiet_ || std::chrono::steady_clock::now() - start_ < kBarAfter) return;
    if (!bar_) bar_ = std::make_unique<Progress>(stderr, "reading the prompt");
    bar_->Update(fraction);
  }
  void Remove() {
    if (bar_) bar_->Dismiss();
    bar_.reset();
  }

 private:
  const bool quiet_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<Progress> bar_;
};

void AddEngineFlags(CLI::App& app, ChatEngineOptions& engine) {
  AddModelOption(app, engine.model);
  AddThreadsOption(app, engine.threads);
  AddContextOption(app, engine.context);
  AddChunkOption(app, engine.chunk);
  app.add_option("--kv-memory", engine.kv_memory,
                 "RAM for KV, such as 1GiB; default: room for a few contexts, at most half of what "
                 "is free")
      ->check(IsByteSize());
  AddKvTypeOption(app, engine.kv_type);
  AddTierOptions(app, engine.tiers);
}

void AddRemoteFlags(CLI::App& app, ChatRemoteOptions& remote) {
  app.add_option("--url", remote.url,
                 "Ask this OpenAI-compatible server instead of loading a model")
      ->type_name("URL");
  app.add_option("--model-name", remote.model, "With --url: default is the server's first");
  app.add_option("--api-key", remote.api_key, "With --url: sent as a bearer token")
      ->envname("KVLINK_API_KEY");
  app.add_option("--tls-ca", remote.tls_ca, kTlsCaHelp)->type_name("FILE");
  app.add_option("--timeout", remote.timeout_s, "With --url: seconds an answer may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

void AddAnswerFlags(CLI::App& app, AnswerOptions& answer) {
  app.add_option("--max-tokens", answer.max_tokens,
                 "Most tokens of an answer; 0: as many as the context leaves")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--temperature", answer.temperature,
                 "0: the likeliest token always; higher: more variety")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app.add_option("--top-p", answer.top_p, "Draw from the likeliest tokens of this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", answer.top_k, "Draw from that many likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--seed", answer.seed, "Of what is drawn; default: another one each time");
  app.add_option("--stop", answer.stop, "Text before which an answer ends");
}

}  // namespace

void AddChatFlags(CLI::App& app, ChatFlags& flags) {
  app.add_option("--system", flags.system, "System message");
  AddAnswerFlags(app, flags.answer);
  AddEngineFlags(app, flags.engine);
  AddRemoteFlags(app, flags.remote);
  app.add_flag("--quiet", flags.engine.quiet, "No progress, and no figures");
  AddConfigOption(app);
}

Result<std::unique_ptr<Answerer>> OpenAnswerer(const ChatFlags& flags) {
  if (flags.remote.url.empty()) {
    if (!flags.remote.model.empty()) return Bad("--model-name: only with --url");
    if (!flags.remote.tls_ca.empty()) return Bad("--tls-ca: only with --url");
    return OpenChatEngine(flags.engine);
  }
  const TierFlags& tiers = flags.engine.tiers;
  for (const auto& [given, name] : {std::pair{!flags.engine.model.empty(), "--model"},
                                    std::pair{!flags.engine.kv_memory.empty(), "--kv-memory"},
                                    std::pair{flags.engine.threads != 0, "--threads"},
                                    std::pair{flags.engine.context != 0, "--ctx"},
                                    std::pair{!tiers.cold_dir.empty(), "--cold-dir"},
                                    std::pair{!tiers.remote.empty(), "--remote"}}) {
    if (given) return Bad(std::string(name) + ": not with --url");
  }
  return OpenChatRemote(flags.remote);
}

std::string FiguresText(const AnswerFigures& figures) {
  char text[256];
  std::string all;
  if (figures.prompt_tokens > 0) {
    std::snprintf(text, sizeof(text), "%s prompt tokens, %s cached (%.0f %%); ",
                  Grouped(figures.prompt_tokens).c_str(), Grouped(figures.cached_tokens).c_str(),
                  100.0 * static_cast<double>(figures.cached_tokens) /
                      static_cast<double>(figures.prompt_tokens));
    all += text;
  }
  if (figures.first_token_s > 0) {
    std::snprintf(text, sizeof(text), "first token after %.2f s; ", figures.first_token_s);
    all += text;
  }
  all += Grouped(figures.generated_tokens) + " tokens";
  // The first token belongs to the prompt's time.
  const double decoding_s = figures.total_s - figures.first_token_s;
  if (figures.generated_tokens > 1 && decoding_s > 0) {
    std::snprintf(text, sizeof(text), ", %.1f a second",
                  static_cast<double>(figures.generated_tokens - 1) / decoding_s);
    all += text;
  }
  if (figures.stopped) all += "; stopped";
  if (figures.cut) all += "; cut at the limit of tokens";
  return all;
}

Result<AnswerFigures> PrintAnswer(Answerer& answerer, const Question& question,
                                  const AnswerOptions& options, const std::atomic<bool>& stop,
                                  bool quiet, std::string* printed) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  PrefillBar bar(quiet);
  printed->clear();
  AnswerEvents events;
  events.stop = &stop;
  events.on_prefill = [&](double fraction) { bar.Update(fraction); };
  events.on_text = [&](std::string_view text) {
    bar.Remove();
    *printed += text;
    // A pipe gets the bytes as they are.
    const std::string shown = terminal ? PrintableText(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  };
  auto figures = question.raw_prompt != nullptr
                     ? answerer.Complete(*question.raw_prompt, options, events)
                     : answerer.Answer(question.messages, options, events);
  bar.Remove();
  if (!printed->empty() && !printed->ends_with('\n')) std::fputc('\n', stdout);
  if (std::fflush(stdout) != 0 && figures.ok()) {
    return Status(StatusCode::kUnavailable, "standard output cannot be written");
  }
  return figures;
}

}  // namespace kvlink::cli
