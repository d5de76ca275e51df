// Log: events to stderr and to a rotated file, as text or as JSON, one line each. Never what a
// client wrote in a body or was answered.
//
//   2026-11-30 01:02:03.456 info answered request_id=4f0c method=POST status=200 ...
//   {"time":"2026-11-30T01:02:03.456+00:00","level":"info","message":"answered","status":200,...}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvlink/status.h"

namespace kvlink::server {

enum class LogFormat : uint8_t { kText, kJson };

struct LogField {
  std::string name;
  std::variant<std::string, int64_t, double> value;
};
using LogFields = std::vector<LogField>;

class Log {
 public:
  // `dir` empty: no file. kInvalidArgument: the folder cannot be written to.
  static Result<std::shared_ptr<Log>> Create(const std::string& dir, bool to_stderr,
                                             LogFormat format = LogFormat::kText);
  virtual ~Log() = default;
  virtual void Note(std::string_view message, const LogFields& fields = {}) = 0;
  virtual void Warning(std::string_view message, const LogFields& fields = {}) = 0;
  virtual void Error(std::string_view message, const LogFields& fields = {}) = 0;
};

// What stands behind time and level. Text: the message, then `name=value`, with quotes where the
// value is empty or has white space, quotes, "=" or control characters (which become escapes).
// JSON: the members of the object.
std::string LogLine(LogFormat format, std::string_view message, const LogFields& fields);

}  // namespace kvlink::server
