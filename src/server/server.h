// Server: the OpenAI-compatible HTTP front of one engine.
//
// Create reads the key file and binds the port, Run serves until Stop. A fixed number of threads
// carries any number of connections; requests of one connection are answered in order. The engine
// thread is never blocked by a client: its events go into bounded queues of values, and a client
// that reads too slowly loses its request.
//
// Invariants
//   1. Every well-formed HTTP request gets exactly one answer, or its connection is closed.
//   2. A client that goes away cancels what it asked for.
//   3. Usage in the answers and the counters of /metrics come from the same reports, so that sums
//      are equal.
// Threads: Run on one thread (it starts the others); Stop, port and address from any thread. Stop
// is not safe in a signal handler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kvlink/status.h"
#include "server/memory_watch.h"
#include "server/tls.h"

namespace kvlink::server {

struct Limits {
  size_t max_body_bytes = size_t{8} << 20;     // beyond: 413
  size_t max_header_bytes = size_t{16} << 10;  // beyond: 431
  // Beyond, whoever has been idle longest makes room; when nobody is idle: 503.
  size_t max_connections = 1024;
  size_t max_incoming_bytes = size_t{256} << 20;  // of bodies not yet complete; beyond: 503
  size_t max_pending_bytes = size_t{1} << 20;     // unsent; a reader slower than this is cut off
  size_t max_pending_events = 8192;               // of the engine, not yet taken, per HTTP request
  uint32_t max_choices = 128;                     // n and best_of
  uint32_t max_prompts = 256;                     // prompts of one /v1/completions
  std::chrono::milliseconds request_timeout{30000};  // from a request's first byte to its last
  std::chrono::milliseconds idle_timeout{75000};     // between requests
  // A client that takes less than `min_write_bytes` in `write_timeout`, while there is more, is cut
  // off.
  std::chrono::milliseconds write_timeout{30000};
  size_t min_write_bytes = 4096;
  std::chrono::milliseconds handshake_timeout{10000};  // of TLS
  // Without a packet: the peer is asked whether it is there.
  std::chrono::milliseconds keepalive{30000};
  std::chrono::milliseconds shutdown_grace{10000};  // what runs at Stop may finish within
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free port
  int threads = 2;
  // The first is the name in answers, the rest are aliases. Empty: the model file's name.
  std::vector<std::string> model_ids;
  std::string api_keys_file;  // see api_keys.h; empty: no keys, one tenant "default"
  TlsFiles tls;               // empty: plain HTTP
  MemoryWatchOptions memory;  // empty: nobody watches
  std::string log_dir;        // kvlink.log there, rotated; empty: no file
  bool log_to_stderr = true;
  bool log_as_json = false;  // else as text
  std::string version;       // of the program, as /version and the OpenAPI document show it
  Limits limits;
  // Of requests that do not say; they can ask for less, not for more.
  SimilarPolicy similar = SimilarPolicy::kOff;
  // Tools of requests that do not say are shown to the model with the keys of their schemas sorted,
  // so that clients that write them in changing order share one prefix.
  bool sort_tool_keys = false;
  // Requests that GET /kvlink/requests tells about; 0: it is not there.
  size_t recent_requests = 256;
  // What that answer says beside them, by name: parameters that whoever judges hits should know.
  std::vector<std::pair<std::string, double>> settings;
  // Seeds of requests that give none, asked for from several threads; default: the system's
  // randomness.
  std::function<uint64_t()> seed_source;
};

class Server {
 public:
  // kInvalidArgument: an option, a line of the key file; kNotFound: the key file; kUnavailable: the
  // address cannot be bound (the message has host, port and the system's words). The engine must
  // outlive the server.
  static Result<std::unique_ptr<Server>> Create(engine::Engine& engine, ServerOptions options);
  virtual ~Server() = default;

  // Serves until Stop; returns when every connection is closed.
  virtual void Run() = 0;
  // Stops accepting, closes idle connections, lets running requests finish for `shutdown_grace`,
  // then cancels them. A second call cancels at once.
  virtual void Stop() = 0;
  virtual uint16_t port() const = 0;
  virtual std::string address() const = 0;  // "127.0.0.1:8080"
};

}  // namespace kvlink::server
