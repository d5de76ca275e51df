// Answerer: who answers for `kvlink run` and `kvlink chat`: an engine in this process, or a server
// behind a URL. One answer at a time, streamed.
//
// Threads: Answer and Complete block on one thread and call back there; whoever wants to stop them
// sets a flag.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

struct AnswerOptions {
  uint32_t max_tokens = 0;  // 0: as many as the context leaves
  double temperature = 0, top_p = 1;
  uint32_t top_k = 0;            // 0: all
  std::optional<uint64_t> seed;  // none: another one each time
  std::vector<std::string> stop;
};

struct AnswerFigures {
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double first_token_s = 0, total_s = 0;  // from the question on
  bool stopped = false;                   // by the flag
  bool cut = false;                       // by max_tokens or the context
};

struct AnswerEvents {
  // How much of the prompt is computed, from 0 to 1; only an engine of our own tells.
  std::function<void(double fraction)> on_prefill;
  std::function<void(std::string_view text)> on_text;  // whole UTF-8 characters
  // Once true, the answer ends within a second with what there is of it. Null: it runs to its end.
  const std::atomic<bool>* stop = nullptr;
};

class Answerer {
 public:
  virtual ~Answerer() = default;
  // The next message of a chat, in the model's template.
  virtual Result<AnswerFigures> Answer(std::span<const model::ChatMessage> messages,
                                       const AnswerOptions& options,
                                       const AnswerEvents& events) = 0;
  // What follows a text as it is.
  virtual Result<AnswerFigures> Complete(const std::string& prompt, const AnswerOptions& options,
                                         const AnswerEvents& events) = 0;
  virtual std::string Name() const = 0;  // of the model
  // More to say in /stats: names and values.
  virtual std::vector<std::pair<std::string, std::string>> Facts() const { return {}; }
};

}  // namespace kvlink::cli
