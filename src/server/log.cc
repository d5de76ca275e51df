#include "server/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/dump.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFileBytes = 16 << 20;
constexpr size_t kFiles = 4;
constexpr const char* kTextPattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v";
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})";

// A tenth is enough for times in milliseconds, and reads well.
std::string NumberText(double number) {
  char text[64];
  const auto [end, error] =
      std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed, 1);
  return error == std::errc() ? std::string(text, end) : "0";
}

bool NeedsQuotes(const std::string& text) {
  if (text.empty()) return true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f || c == '"' || c == '=' || c == '\\') return true;
  }
  return false;
}

std::string TextOf(const LogField& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) {
    return NeedsQuotes(*text) ? Dump(Json(*text)) : *text;
  }
  if (const auto* number = std::get_if<int64_t>(&field.value)) return std::to_string(*number);
  return NumberText(std::get<double>(field.value));
}

Json JsonOf(const LogField& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  if (const auto* number = std::get_if<int64_t>(&field.value)) return *number;
  return std::round(std::get<double>(field.value) * 10) / 10;
}

class SpdLog : public Log {
 public:
  SpdLog(std::vector<spdlog::sink_ptr> sinks, LogFormat format)
      : format_(format), logger_("kvlink", sinks.begin(), sinks.end()) {
    logger_.set_pattern(format == LogFormat::kJson ? kJsonPattern : kTextPattern);
    logger_.flush_on(spdlog::level::warn);
  }
  ~SpdLog() override { logger_.flush(); }
  void Note(std::string_view message, const LogFields& fields) override {
    logger_.info("{}", LogLine(format_, message, fields));
    logger_.flush();
  }
  void Warning(std::string_view message, const LogFields& fields) override {
    logger_.warn("{}", LogLine(format_, message, fields));
  }
  void Error(std::string_view message, const LogFields& fields) override {
    logger_.error("{}", LogLine(format_, message, fields));
  }

 private:
  const LogFormat format_;
  spdlog::logger logger_;
};

}  // namespace

std::string LogLine(LogFormat format, std::string_view message, const LogFields& fields) {
  if (format == LogFormat::kText) {
    std::string line(message);
    for (const LogField& field : fields) line += " " + field.name + "=" + TextOf(field);
    return line;
  }
  Json json = {{"message", message}};
  for (const LogField& field : fields) json[field.name] = JsonOf(field);
  const std::string object = Dump(json);
  return object.substr(1, object.size() - 2);
}

Result<std::shared_ptr<Log>> Log::Create(const std::string& dir, bool to_stderr, LogFormat format) {
  std::vector<spdlog::sink_ptr> sinks;
  if (to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  try {
    if (!dir.empty()) {
      std::filesystem::create_directories(dir);
      const std::string path = (std::filesystem::path(dir) / "kvlink.log").string();
      sinks.push_back(
          std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, kFileBytes, kFiles));
    }
  } catch (const std::exception& e) {
    return Status(StatusCode::kInvalidArgument,
                  "--log-dir: cannot write to \"" + dir + "\": " + e.what());
  }
  return std::shared_ptr<Log>(std::make_shared<SpdLog>(std::move(sinks), format));
}

}  // namespace kvlink::server
