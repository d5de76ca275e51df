#include "events/zmq_socket.h"

#include <zmq.h>

#include <array>
#include <cerrno>

namespace kvlink::events {

void CloseZmqContext::operator()(void* context) const { zmq_ctx_term(context); }
void CloseZmqSocket::operator()(void* socket) const { zmq_close(socket); }

ZmqContext MakeZmqContext() { return ZmqContext(zmq_ctx_new()); }

namespace {

// `given`, with the port of `bound` where it left that to the system. libzmq itself tells 127.0.0.1
// as an IPv6 address.
std::string WithBoundPort(const std::string& given, const std::string& bound) {
  if (given == "ipc://*") return bound;
  const size_t port = given.rfind(':') + 1;
  const bool open =
      given.starts_with("tcp://") && given.find_first_not_of("0*", port) == given.npos;
  return open ? given.substr(0, port) + bound.substr(bound.rfind(':') + 1) : given;
}

}  // namespace

Result<ZmqSocket> BindZmqSocket(void* context, int type, int high_water_mark,
                                const std::string& endpoint, std::string* bound) {
  const auto failed = [&] {
    const StatusCode code = errno == EINVAL || errno == EPROTONOSUPPORT || errno == ENOTSUP
                                ? StatusCode::kInvalidArgument
                                : StatusCode::kUnavailable;
    return Status(code, "cannot listen on '" + endpoint + "': " + zmq_strerror(errno));
  };
  ZmqSocket socket(zmq_socket(context, type));
  if (!socket) return failed();
  const int linger_ms = 0, ipv6 = 1;
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
  zmq_setsockopt(socket.get(), ZMQ_IPV6, &ipv6, sizeof(ipv6));
  zmq_setsockopt(socket.get(), ZMQ_SNDHWM, &high_water_mark, sizeof(high_water_mark));
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return failed();
  std::array<char, 1024> text{};
  size_t size = text.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return failed();
  *bound = WithBoundPort(endpoint, text.data());
  return socket;
}

bool SendFrames(void* socket, const std::vector<std::string_view>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    int sent = 0;
    do {
      sent = zmq_send(socket, frames[i].data(), frames[i].size(), flags);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return false;  // only the first frame can be refused
  }
  return true;
}

std::vector<std::string> ReceiveFrames(void* socket) {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int received = 0;
    do {
      received = zmq_msg_recv(&message, socket, ZMQ_DONTWAIT);
    } while (received < 0 && errno == EINTR);
    if (received < 0) {
      zmq_msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

}  // namespace kvlink::events
