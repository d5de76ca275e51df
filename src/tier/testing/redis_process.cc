#include "tier/testing/redis_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"

namespace kvlink::tier {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int Listen(uint16_t* port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  KVLINK_CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
               ::listen(listener, 16) == 0 &&
               ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  *port = ntohs(address.sin_port);
  return listener;
}

}  // namespace

uint16_t FreePort() {
  uint16_t port = 0;
  ::close(Listen(&port));
  return port;
}

Certificate::Certificate(const TempDirectory& directory, const std::string& name)
    : certificate(directory / (name + ".crt")), key(directory / (name + ".key")) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
      "-subj /CN=kvlink-test -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout '" +
      key + "' -out '" + certificate + "' >/dev/null 2>&1";
  KVLINK_CHECK(std::system(command.c_str()) == 0) << command;
}

RedisProcess::RedisProcess(RedisSetup setup) : setup_(std::move(setup)) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    port_ = FreePort();
    bus_port_ = FreePort();
    if (TryStart()) return;
  }
  KVLINK_CHECK(false) << "redis-server does not start (is the package redis-server there?)";
}

RedisProcess::~RedisProcess() {
  Thaw();
  Kill();
}

std::vector<std::string> RedisProcess::CommandLine() const {
  const std::string port = std::to_string(port_);
  std::vector<std::string> words = {
      "redis-server",    "--bind",    "127.0.0.1",       "--save", "",
      "--appendonly",    "no",        "--daemonize",     "no",     "--dir",
      directory_.path(), "--logfile", directory_ / "log"};
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (setup_.certificate != nullptr) {
    add({"--port", "0", "--tls-port", port, "--tls-cert-file", setup_.certificate->certificate,
         "--tls-key-file", setup_.certificate->key, "--tls-ca-cert-file",
         setup_.certificate->certificate, "--tls-auth-clients", "no"});
  } else {
    add({"--port", port});
  }
  if (!setup_.password.empty()) add({"--requirepass", setup_.password});
  if (setup_.cluster) {
    add({"--cluster-enabled", "yes", "--cluster-port", std::to_string(bus_port_),
         "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"});
  }
  words.insert(words.end(), setup_.more.begin(), setup_.more.end());
  return words;
}

void RedisProcess::Start() { KVLINK_CHECK(TryStart()) << "port " << port_; }

bool RedisProcess::TryStart() {
  KVLINK_CHECK(pid_ == 0);
  const std::vector<std::string> words = CommandLine();
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  KVLINK_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the test's thread that started it
    const int nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, 1);
    ::dup2(nowhere, 2);
    ::execvp("redis-server", arguments.data());
    ::_exit(127);
  }
  bool ended = false;
  const bool answers = Eventually([this, &ended] {
    ended = ::waitpid(pid_, nullptr, WNOHANG) != 0;
    const RedisReply reply = Run({"PING"});
    return ended || (reply.ok() && reply.text == "PONG");
  });
  if (ended) pid_ = 0;
  return answers && !ended;
}

void RedisProcess::End(int signal) {
  if (pid_ == 0) return;
  ::kill(pid_, signal);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void RedisProcess::Stop() { End(SIGTERM); }
void RedisProcess::Kill() { End(SIGKILL); }
void RedisProcess::Freeze() { ::kill(pid_, SIGSTOP); }
void RedisProcess::Thaw() {
  if (pid_ != 0) ::kill(pid_, SIGCONT);
}

RemoteTierOptions RedisProcess::options() const {
  RemoteTierOptions options;
  options.endpoints = {endpoint()};
  options.password = setup_.password;
  if (setup_.certificate != nullptr) {
    options.tls = true;
    options.ca_file = setup_.certificate->certificate;
  }
  return options;
}

RedisReply RedisProcess::Run(const RedisCommand& command) const {
  const RemoteTierOptions options = this->options();
  std::shared_ptr<TlsContext> tls;
  if (options.tls) tls = *TlsContext::Create(options.ca_file, "");
  RedisConnection connection(endpoint());
  std::vector<RedisReply> replies;
  Failure failure = connection.Connect(options, tls, In(std::chrono::seconds(5)));
  if (failure.ok()) failure = connection.Send({&command, 1}, In(std::chrono::seconds(5)));
  if (failure.ok()) failure = connection.Receive(1, &replies, In(std::chrono::seconds(5)));
  if (failure.ok()) return std::move(replies[0]);
  RedisReply reply;
  reply.failure = std::move(failure);
  return reply;
}

SlowProxy::SlowProxy(uint16_t target, std::chrono::milliseconds delay)
    : target_(target), delay_(delay), listener_(Listen(&port_)) {
  acceptor_ = std::thread([this] {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      connections_.emplace_back([this, client] { Serve(client); });
    }
  });
}

SlowProxy::~SlowProxy() {
  stop_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  ::close(listener_);
}

void SlowProxy::Serve(int client) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_);
  bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  std::vector<char> buffer(1 << 16);
  while (open && !stop_) {
    pollfd ready[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    if (::poll(ready, 2, 20) <= 0) continue;
    for (int side = 0; side < 2; ++side) {
      if (ready[side].revents == 0) continue;
      const ssize_t size = ::recv(ready[side].fd, buffer.data(), buffer.size(), 0);
      if (size <= 0) {
        open = false;
        break;
      }
      if (side == 1) std::this_thread::sleep_for(delay_);
      open &= ::send(ready[1 - side].fd, buffer.data(), static_cast<size_t>(size), MSG_NOSIGNAL) ==
              size;
    }
  }
  ::close(server);
  ::close(client);
}

}  // namespace kvlink::tier
