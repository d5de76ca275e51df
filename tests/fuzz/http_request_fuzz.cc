// HTTP requests, by the server's own connection over a pair of sockets: any bytes, cut anywhere,
// are requests within the limits and refusals; the cuts do not matter, every request gets an
// answer, and nothing of a connection is left when its client is gone.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "server/http_connection.h"
#include "server/http_shared.h"
#include "server/request_trace.h"

namespace kvlink::server {
namespace {

using boost::asio::ip::tcp;

// Small, so that inputs reach them.
Limits SmallLimits() {
  Limits limits;
  limits.max_header_bytes = 1024;
  limits.max_body_bytes = 2048;
  return limits;
}

bool IsHex(const std::string& text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// What is passed on to answers and logs is what its grammar allows, and no line's end.
void CheckTrace(const HttpRequest& request) {
  if (IsRequestId(request.request_id)) {
    KVLINK_CHECK(request.request_id.size() <= 128 &&
                 request.request_id.find_first_of(" \r\n\"") == std::string::npos);
  }
  const auto trace = ParseTraceContext(request.traceparent, request.tracestate, 7);
  if (!trace) return;
  KVLINK_CHECK(IsHex(trace->trace_id, 32) && IsHex(trace->parent_id, 16) &&
               IsHex(trace->span_id, 16))
      << request.traceparent;
  KVLINK_CHECK(trace->state.empty() || IsTraceState(trace->state)) << trace->state;
  KVLINK_CHECK(trace->Response().find_first_of("\r\n") == std::string::npos);
}

// One connection, its client, and what came out on both sides.
class Exchange {
 public:
  Exchange() {
    shared_.limits = SmallLimits();
    shared_.on_failure = [](const HttpFailure& failure) {
      KVLINK_CHECK(failure.status >= 400 && failure.status < 600) << failure.status;
      KVLINK_CHECK(!failure.message.empty() && !failure.code.empty());
      CheckTrace(failure.request);
      HttpResponse response;
      response.status = failure.status;
      response.body = failure.message;
      return response;
    };
    shared_.on_empty = [] {};
    shared_.handler = [this](HttpRequest request, std::shared_ptr<Responder> responder) {
      Handle(std::move(request), *responder);
    };
    int ends[2];
    KVLINK_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    client_ = ends[1];
    tcp::socket socket(shared_.io);
    socket.assign(tcp::v4(), ends[0]);
    const auto connection = std::make_shared<HttpConnection>(shared_, std::move(socket), nullptr);
    connection_ = connection;
    shared_.connections.Add(connection);
    connection->Start();
    Settle();
  }

  void Send(std::string_view bytes) {
    // What does not fit is not read: the server has closed, or throws it away for a while.
    (void)::send(client_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    Settle();
  }

  void Leave() {
    ::close(client_);
    client_ = -1;
    Settle();
    KVLINK_CHECK(connection_.expired()) << "a connection outlives its client";
    KVLINK_CHECK(shared_.incoming_bytes == 0)
        << shared_.incoming_bytes << " bytes still on their way";
    const OpenConnections::Counts counts = shared_.connections.counts();
    KVLINK_CHECK(counts.open == 0 && counts.idle == 0);
  }

  const std::vector<HttpRequest>& requests() const { return requests_; }
  const std::string& answers() const { return answers_; }

 private:
  void Handle(HttpRequest request, Responder& responder) {
    const Limits limits = SmallLimits();
    KVLINK_CHECK(request.body.size() <= limits.max_body_bytes) << request.body.size();
    const size_t head = request.method.size() + request.path.size() + request.query.size() +
                        request.authorization.size();
    KVLINK_CHECK(head <= limits.max_header_bytes + std::string("Bearer ").size()) << head;
    KVLINK_CHECK(!request.method.empty());
    CheckTrace(request);
    requests_.push_back(request);
    HttpResponse response;
    response.body = request.body;
    switch (request.path.size() % 4) {
      case 0:
        return responder.Send(std::move(response));
      case 1:
        responder.BeginStream(std::move(response));
        responder.Write("more");
        return responder.EndStream();
      case 2:
        return;  // dropped: the connection answers
      default:
        throw std::runtime_error("a library's");
    }
  }

  // Until neither side has anything to do.
  void Settle() {
    std::array<char, 4096> buffer;
    for (bool busy = true; busy;) {
      shared_.io.restart();
      busy = shared_.io.poll() > 0;
      if (client_ < 0) continue;
      const ssize_t got = ::recv(client_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) continue;
      answers_.append(buffer.data(), static_cast<size_t>(got));
      busy = true;
    }
  }

  HttpShared shared_;
  std::weak_ptr<HttpConnection> connection_;
  int client_ = -1;
  std::vector<HttpRequest> requests_;
  std::string answers_;
};

size_t Count(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<HttpRequest> Serve(std::string_view bytes, size_t piece) {
  Exchange exchange;
  while (!bytes.empty()) {
    exchange.Send(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  exchange.Leave();
  const std::string& answers = exchange.answers();
  KVLINK_CHECK(answers.empty() || answers.starts_with("HTTP/1.1 ")) << answers;
  KVLINK_CHECK(Count(answers, "HTTP/1.1 ") >= exchange.requests().size()) << answers;
  return exchange.requests();
}

bool Same(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.path == b.path && a.query == b.query &&
         a.authorization == b.authorization && a.body == b.body && a.request_id == b.request_id &&
         a.traceparent == b.traceparent && a.tracestate == b.tracestate;
}

}  // namespace
}  // namespace kvlink::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using kvlink::server::Serve;
  kvlink::fuzz::FuzzInput input(bytes, size);
  const size_t piece = 1 + input.Below(64);
  const std::string_view stream = input.Take(32 << 10);
  const auto whole = Serve(stream, std::max<size_t>(stream.size(), 1));
  const auto pieces = Serve(stream, piece);
  KVLINK_CHECK(whole.size() == pieces.size())
      << whole.size() << " requests at once, " << pieces.size() << " in pieces of " << piece;
  for (size_t i = 0; i < whole.size(); ++i) {
    KVLINK_CHECK(kvlink::server::Same(whole[i], pieces[i])) << "request " << i;
  }
  return 0;
}
