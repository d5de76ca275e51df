#include "cli/kv_events.h"

#include <chrono>
#include <utility>

namespace kvlink::cli {
namespace {

double UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// "*", or 0 to 65535. libzmq takes larger numbers, and listens somewhere else.
bool IsPort(const std::string& text) {
  if (text == "*") return true;
  if (text.empty() || text.size() > 5) return false;
  return text.find_first_not_of("0123456789") == text.npos && std::stoi(text) <= 65535;
}

}  // namespace

void AddKvEventOptions(CLI::App& app, KvEventFlags& flags) {
  app.add_option("--kv-events", flags.endpoint,
                 "Publish over ZMQ which KV blocks come and go, as vLLM does: an endpoint such as "
                 "tcp://127.0.0.1:5557, or a port of 127.0.0.1; default: off")
      ->type_name("ENDPOINT");
  app.add_option("--kv-events-replay", flags.replay,
                 "Endpoint where subscribers ask for events that they missed; default: none")
      ->type_name("ENDPOINT");
}

Result<std::string> ParseEventEndpoint(const std::string& text) {
  if (text != "*" && IsPort(text)) return "tcp://127.0.0.1:" + text;
  if (text.starts_with("ipc://")) return text;
  if (text.starts_with("tcp://") && IsPort(text.substr(text.rfind(':') + 1))) return text;
  return Status(StatusCode::kInvalidArgument,
                "'" + text + "' is neither a port, nor tcp://ADDRESS:PORT, nor ipc://PATH");
}

Result<std::unique_ptr<events::Publisher>> StartKvEvents(const KvEventFlags& flags) {
  if (flags.endpoint.empty()) {
    if (flags.replay.empty()) return std::unique_ptr<events::Publisher>();
    return Status(StatusCode::kInvalidArgument, "--kv-events-replay needs --kv-events");
  }
  events::PublisherOptions options{.unix_time_s = UnixSeconds};
  auto endpoint = ParseEventEndpoint(flags.endpoint);
  if (!endpoint.ok()) {
    return Status(endpoint.status().code(), "--kv-events: " + endpoint.status().message());
  }
  options.endpoint = *std::move(endpoint);
  if (!flags.replay.empty()) {
    auto replay = ParseEventEndpoint(flags.replay);
    if (!replay.ok()) {
      return Status(replay.status().code(), "--kv-events-replay: " + replay.status().message());
    }
    options.replay_endpoint = *std::move(replay);
  }
  auto publisher = events::Publisher::Start(std::move(options));
  if (publisher.ok()) return publisher;
  return Status(publisher.status().code(), "--kv-events: " + publisher.status().message());
}

std::string DescribeKvEvents(const events::Publisher& publisher) {
  std::string text = publisher.endpoint();
  if (!publisher.replay_endpoint().empty()) text += ", replay " + publisher.replay_endpoint();
  return text;
}

}  // namespace kvlink::cli
