// ZMQ sockets as values: a context, and sockets that are bound at an endpoint. libzmq's C API,
// which has no exceptions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"

namespace kvlink::events {

struct CloseZmqContext {
  void operator()(void* context) const;
};
struct CloseZmqSocket {
  void operator()(void* socket) const;
};
using ZmqContext = std::unique_ptr<void, CloseZmqContext>;
using ZmqSocket = std::unique_ptr<void, CloseZmqSocket>;

ZmqContext MakeZmqContext();

// `type`: ZMQ_PUB or ZMQ_ROUTER. At most `high_water_mark` messages wait for one peer; past it PUB
// drops. kInvalidArgument or kUnavailable with the endpoint and what the system said. `bound`:
// where it listens, with the port that the system chose for port 0.
Result<ZmqSocket> BindZmqSocket(void* context, int type, int high_water_mark,
                                const std::string& endpoint, std::string* bound);

// Sends one message of these frames, or none: false when a peer's queue is full or it is gone.
// Never waits.
bool SendFrames(void* socket, const std::vector<std::string_view>& frames);
// The frames of a message that is there; empty: none is.
std::vector<std::string> ReceiveFrames(void* socket);

}  // namespace kvlink::events
