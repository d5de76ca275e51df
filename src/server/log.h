// Log: lines to stderr and to a rotated file. Never what a client wrote or was answered.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::server {

class Log {
 public:
  // `dir` empty: no file. kInvalidArgument: the folder cannot be written to.
  static Result<std::shared_ptr<Log>> Create(const std::string& dir, bool to_stderr);
  virtual ~Log() = default;
  virtual void Note(std::string_view line) = 0;
  virtual void Warning(std::string_view line) = 0;
};

}  // namespace kvlink::server
