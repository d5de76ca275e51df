// Logs of ggml, libllama and llama-common: kept silent, except errors.
//
// These libraries report why a call failed through one process-wide log callback instead of a
// return value. LogCapture collects the errors that the calling thread causes while it lives, so
// that a Status can say them. Errors that nobody captures go to stderr.
#pragma once

#include <string>

namespace kvlink::model {

// Installs the callback; the first call in the process counts. Called before any other use of the
// libraries.
void RouteLogs();

class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  // The errors so far, one line each joined by "; ", without the libraries' own "function: "
  // prefixes.
  std::string text() const;

 private:
  std::string text_;
  std::string* outer_;
};

}  // namespace kvlink::model
