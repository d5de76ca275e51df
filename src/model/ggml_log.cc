#include "model/ggml_log.h"

#include <cstdio>
#include <mutex>

#include "llama.h"
#include "log.h"

namespace kvlink::model {
namespace {

// The capture of this thread, and whether its last line was an error (continuations follow it).
thread_local std::string* capture = nullptr;
thread_local bool last_was_error = false;

void OnLog(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_CONT) last_was_error = level == GGML_LOG_LEVEL_ERROR;
  if (!last_was_error) return;
  if (capture != nullptr) {
    capture->append(text);
  } else {
    std::fputs(text, stderr);
  }
}

// "gguf_init: tensor 'x' is bad" -> "tensor 'x' is bad"
std::string WithoutFunction(const std::string& line) {
  const size_t colon = line.find(": ");
  if (colon == std::string::npos || line.substr(0, colon).find(' ') != std::string::npos)
    return line;
  return line.substr(colon + 2);
}

}  // namespace

void RouteLogs() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(OnLog, nullptr);  // ggml's log as well
    // llama-common writes to stderr from a thread of its own; what it has to say also comes as an
    // exception.
    common_log_set_verbosity_thold(-1);
  });
}

LogCapture::LogCapture() : outer_(capture) { capture = &text_; }

LogCapture::~LogCapture() { capture = outer_; }

std::string LogCapture::text() const {
  std::string joined;
  for (size_t begin = 0; begin < text_.size();) {
    const size_t end = std::min(text_.find('\n', begin), text_.size());
    if (end > begin) {
      if (!joined.empty()) joined += "; ";
      joined += WithoutFunction(text_.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return joined;
}

}  // namespace kvlink::model
