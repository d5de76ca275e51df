#include "server/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <filesystem>
#include <utility>
#include <vector>

namespace kvlink::server {
namespace {

constexpr size_t kFileBytes = 16 << 20;
constexpr size_t kFiles = 4;

class SpdLog : public Log {
 public:
  explicit SpdLog(std::vector<spdlog::sink_ptr> sinks)
      : logger_("kvlink", sinks.begin(), sinks.end()) {
    logger_.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    logger_.flush_on(spdlog::level::warn);
  }
  ~SpdLog() override { logger_.flush(); }
  void Note(std::string_view line) override {
    logger_.info("{}", line);
    logger_.flush();
  }
  void Warning(std::string_view line) override { logger_.warn("{}", line); }

 private:
  spdlog::logger logger_;
};

}  // namespace

Result<std::shared_ptr<Log>> Log::Create(const std::string& dir, bool to_stderr) {
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
  return std::shared_ptr<Log>(std::make_shared<SpdLog>(std::move(sinks)));
}

}  // namespace kvlink::server
