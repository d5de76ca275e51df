// Guard: the options of `kvlink serve` that protect it: TLS, connections, memory.
#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"
#include "kvlink/status.h"
#include "server/server.h"

namespace kvlink::cli {

struct GuardFlags {
  std::string tls_cert, tls_key, memory_reserve = "256M";
  uint32_t max_connections = 1024;
  bool speaks_tls() const { return !tls_cert.empty(); }
};

void AddGuardOptions(CLI::App& app, GuardFlags& flags);
// What can be said before a model is loaded for a minute: the files of TLS are read.
Status CheckGuard(const GuardFlags& flags);
void ApplyGuard(const GuardFlags& flags, server::ServerOptions* options);

}  // namespace kvlink::cli
