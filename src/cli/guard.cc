#include "cli/guard.h"

#include <CLI/CLI.hpp>

#include "cli/byte_size.h"
#include "cli/machine.h"
#include "server/tls.h"

namespace kvlink::cli {

void AddGuardOptions(CLI::App& app, GuardFlags& flags) {
  app.add_option("--tls-cert", flags.tls_cert,
                 "Certificate (PEM, with its chain) for HTTPS; read again on SIGHUP")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.tls_key, "Its private key (PEM, without a passphrase)")
      ->type_name("FILE");
  app.add_option("--max-connections", flags.max_connections,
                 "Open connections; beyond, the longest idle one makes room")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--memory-reserve", flags.memory_reserve,
                 "Memory to be left in the machine or control group: below, cached KV is given "
                 "back; below half of it, requests are refused; 0: do not look")
      ->check(IsByteSize())
      ->capture_default_str();
}

Status CheckGuard(const GuardFlags& flags) {
  if (flags.tls_cert.empty() && flags.tls_key.empty()) return Status::Ok();
  return server::LoadTls({flags.tls_cert, flags.tls_key}).status();
}

void ApplyGuard(const GuardFlags& flags, server::ServerOptions* options) {
  options->tls = {flags.tls_cert, flags.tls_key};
  options->limits.max_connections = flags.max_connections;
  options->memory.reserve_bytes = *ParseByteSize(flags.memory_reserve);
  options->memory.available = [] { return AvailableMemory(); };
}

}  // namespace kvlink::cli
