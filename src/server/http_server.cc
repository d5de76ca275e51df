#include "server/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/http_connection.h"
#include "server/http_shared.h"
#include "server/http_socket.h"

namespace kvlink::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kPartingTime{1};  // for the errors of what a stop cuts off
constexpr size_t kClosing = 64;      // connections beyond the limit that are about to make room
constexpr size_t kOtherFiles = 512;  // model, tiers, logs

// As far as the system lets us; a connection is a file.
void RaiseFileLimit(size_t files) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= files) return;
  limit.rlim_cur = std::min<rlim_t>(files, limit.rlim_max);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

class BeastServer : public HttpServer {
 public:
  BeastServer(int threads, const Limits& limits, Handler handler, FailureHandler on_failure,
              TlsContext tls)
      : threads_(threads),
        strand_(asio::make_strand(shared_.io)),
        acceptor_(strand_),
        accept_timer_(strand_),
        grace_timer_(strand_),
        tls_(std::move(tls)) {
    shared_.limits = limits;
    shared_.handler = std::move(handler);
    shared_.on_failure = std::move(on_failure);
    // All threads but one.
    if (threads > 2) shared_.heavy.Add(static_cast<size_t>(threads) - 2);
    shared_.on_empty = [this] { asio::post(strand_, [this] { OnEmpty(); }); };
  }

  Status Listen(const std::string& host, uint16_t port) {
    const auto fail = [&](const char* what, const error_code& ec) {
      return Status(StatusCode::kUnavailable, std::string(what) + " " + host + ":" +
                                                  std::to_string(port) + ": " + ec.message());
    };
    error_code ec;
    const auto found =
        tcp::resolver(shared_.io).resolve(host, std::to_string(port), tcp::resolver::passive, ec);
    if (ec || found.empty()) return fail("--host: cannot resolve", ec);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) return fail("--port: cannot listen on", ec);
    RaiseFileLimit(shared_.limits.max_connections + kOtherFiles);
    port_ = acceptor_.local_endpoint(ec).port();
    return Status::Ok();
  }

  void Run() override {
    Accept();
    std::vector<std::thread> others;
    for (int i = 1; i < threads_; ++i) others.emplace_back([this] { shared_.io.run(); });
    shared_.io.run();
    for (std::thread& thread : others) thread.join();
    // Only after a hard stop is anything left. Whoever still works for a connection is told here,
    // and by what was posted and has not run: the engine's thread must not find the server gone.
    for (const auto& connection : shared_.connections.TakeAll()) connection->Abandon();
    shared_.io.restart();
    shared_.io.poll();
  }

  void Stop() override {
    asio::post(strand_, [this] {
      const bool again = shared_.stopping.exchange(true);
      error_code ignored;
      acceptor_.close(ignored);
      accept_timer_.cancel();
      if (again) return is_cut_off_ ? CloseAll(true) : CutOffAll();
      CloseAll(false);
      grace_timer_.expires_after(shared_.limits.shutdown_grace);
      grace_timer_.async_wait([this](error_code ec) {
        if (ec) return;
        CutOffAll();
      });
      OnEmpty();
    });
  }

  uint16_t port() const override { return port_; }
  Figures figures() const override {
    const OpenConnections::Counts counts = shared_.connections.counts();
    return {.open = counts.open,
            .idle = counts.idle,
            .refused = shared_.refused,
            .made_room = shared_.made_room,
            .failed_handshakes = shared_.failed_handshakes,
            .slow_senders = shared_.slow_senders};
  }
  void UseTls(TlsContext tls) override {
    const std::lock_guard lock(tls_mutex_);
    KVLINK_CHECK(tls_ != nullptr && tls != nullptr);
    tls_.swap(tls);
  }

 private:
  void Accept() {
    acceptor_.async_accept(shared_.io, [this](error_code ec, tcp::socket socket) {
      if (shared_.stopping || ec == asio::error::operation_aborted) return;
      if (ec) {
        // Out of file descriptors, usually: wait for some to come back.
        accept_timer_.expires_after(kAcceptPause);
        accept_timer_.async_wait([this](error_code cancelled) {
          if (!cancelled) Accept();
        });
        return;
      }
      Admit(std::move(socket));
      Accept();
    });
  }

  void Admit(tcp::socket socket) {
    const size_t open = shared_.connections.counts().open, most = shared_.limits.max_connections;
    const auto idle = open >= most ? shared_.connections.TakeLongestIdle() : nullptr;
    const TlsContext tls = CurrentTls();
    if (idle != nullptr) idle->MakeRoom();
    if (open >= most && (idle == nullptr || open >= most + kClosing)) {
      return RefuseOverload(socket, tls != nullptr);
    }
    const auto connection = std::make_shared<HttpConnection>(shared_, std::move(socket), tls.get());
    shared_.connections.Add(connection);
    connection->Start();
  }

  // Without waiting for anything: what does not fit into the socket's buffer is not sent.
  void RefuseOverload(tcp::socket& socket, bool speaks_tls) {
    shared_.refused += 1;
    if (speaks_tls) return;  // a handshake is what it has no room for
    HttpFailure failure{
        503, "too_many_connections",
        "more than " + std::to_string(shared_.limits.max_connections) + " connections are open"};
    failure.retry_after_s = shared_.drain.RetryAfter(1);
    SendLastAnswer(socket, shared_.on_failure(std::move(failure)));
  }

  void CloseAll(bool at_once) {
    for (const auto& connection : shared_.connections.All()) connection->Shutdown(at_once);
  }

  // What still runs is answered with an error, which its client has a moment to take.
  void CutOffAll() {
    is_cut_off_ = true;
    for (const auto& connection : shared_.connections.All()) connection->CutOff();
    grace_timer_.expires_after(kPartingTime);
    grace_timer_.async_wait([this](error_code ec) {
      if (ec) return;
      CloseAll(true);
      // Whatever does not end now is ours, not a client's.
      grace_timer_.expires_after(std::chrono::seconds(2));
      grace_timer_.async_wait([this](error_code expired) {
        if (!expired) shared_.io.stop();
      });
      OnEmpty();
    });
    OnEmpty();
  }

  void OnEmpty() {
    if (shared_.connections.counts().open == 0) grace_timer_.cancel();
  }

  TlsContext CurrentTls() {
    const std::lock_guard lock(tls_mutex_);
    return tls_;
  }

  HttpShared shared_;
  const int threads_;
  // Accepting and stopping.
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_, grace_timer_;
  bool is_cut_off_ = false;
  uint16_t port_ = 0;
  std::mutex tls_mutex_;
  TlsContext tls_;  // guarded by tls_mutex_; null: plain HTTP
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const std::string& host, uint16_t port,
                                                       int threads, const Limits& limits,
                                                       Handler handler, FailureHandler on_failure,
                                                       TlsContext tls) {
  auto server = std::make_unique<BeastServer>(threads, limits, std::move(handler),
                                              std::move(on_failure), std::move(tls));
  if (Status status = server->Listen(host, port); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace kvlink::server
