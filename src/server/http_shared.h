// HttpShared: what the connections of one server share; outlives them.
//
// Members that are not constant after the first connection are thread-safe by themselves.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>

#include "server/drain_rate.h"
#include "server/heavy_turns.h"
#include "server/http.h"
#include "server/open_connections.h"
#include "server/server.h"

namespace kvlink::server {

struct HttpShared {
  boost::asio::io_context io;
  Limits limits;
  Handler handler;
  FailureHandler on_failure;
  std::atomic<bool> stopping{false};
  std::function<void()> on_empty;           // the last connection is gone
  std::atomic<uint64_t> incoming_bytes{0};  // of bodies that are not complete, or wait for a turn
  HeavyTurns heavy;                         // of requests with bodies that are large
  std::atomic<uint64_t> refused{0}, made_room{0}, failed_handshakes{0}, slow_senders{0};
  DrainRate drain{base::SteadyClock()};  // of connections
  OpenConnections connections;
};

}  // namespace kvlink::server
