// Options of KV events, and the publisher that they ask for.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "events/publisher.h"
#include "kvlink/status.h"

namespace kvlink::cli {

struct KvEventFlags {
  std::string endpoint, replay;  // empty: off
};

void AddKvEventOptions(CLI::App& app, KvEventFlags& flags);

// "5557" is tcp://127.0.0.1:5557. kInvalidArgument: neither that nor tcp:// with a port nor ipc://.
Result<std::string> ParseEventEndpoint(const std::string& text);

// Null: they are off. kInvalidArgument, kUnavailable: an endpoint cannot be used.
Result<std::unique_ptr<events::Publisher>> StartKvEvents(const KvEventFlags& flags);

// "tcp://127.0.0.1:5557, replay tcp://127.0.0.1:5558"
std::string DescribeKvEvents(const events::Publisher& publisher);

}  // namespace kvlink::cli
