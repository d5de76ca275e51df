// FakeRedis: a peer on the loopback that answers as a test says, well or ill.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvlink::tier {

class FakeRedis {
 public:
  struct Reply {
    std::string bytes;     // as they go over the wire
    std::string for_ever;  // sent again and again behind them, until the other side closes
  };
  // Called by a thread of a connection's own, one command at a time.
  using Answer = std::function<Reply(const std::vector<std::string>& command)>;

  explicit FakeRedis(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    KVLINK_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                 ::listen(listener_, 16) == 0 &&
                 ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] {
      for (;;) {
        const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) return;
        connections_.emplace_back([this, client] { Serve(client); });
      }
    });
  }
  ~FakeRedis() {
    stop_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& connection : connections_) connection.join();
    ::close(listener_);
  }
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  uint16_t port() const { return port_; }
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  void Serve(int client) {
    std::string pending;
    std::vector<char> buffer(1 << 16);
    bool open = true;
    while (open && !stop_) {
      std::vector<std::string> command;
      while (open && TakeCommand(&pending, &command)) open = Send(client, answer_(command));
      pollfd ready{client, POLLIN, 0};
      if (!open || ::poll(&ready, 1, 20) <= 0) continue;
      const ssize_t size = ::recv(client, buffer.data(), buffer.size(), 0);
      open = size > 0;
      if (open) pending.append(buffer.data(), static_cast<size_t>(size));
    }
    ::close(client);
  }

  bool Send(int client, const Reply& reply) {
    std::string_view bytes = reply.bytes;
    for (;;) {
      while (!bytes.empty()) {
        pollfd ready{client, POLLOUT, 0};
        if (stop_) return false;
        if (::poll(&ready, 1, 20) <= 0) continue;
        const ssize_t sent =
            ::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) return false;
        bytes_sent_ += static_cast<uint64_t>(sent);
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
      if (reply.for_ever.empty()) return true;
      bytes = reply.for_ever;
    }
  }

  // "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
  static bool TakeCommand(std::string* pending, std::vector<std::string>* command) {
    size_t at = 0;
    const auto number = [&](char type, size_t* value) {
      const size_t end = pending->find("\r\n", at);
      if (end == std::string::npos) return false;
      KVLINK_CHECK((*pending)[at] == type);
      *value = std::stoul(pending->substr(at + 1, end - at - 1));
      at = end + 2;
      return true;
    };
    size_t count = 0;
    if (!number('*', &count)) return false;
    command->clear();
    while (command->size() < count) {
      size_t size = 0;
      if (!number('$', &size) || pending->size() < at + size + 2) return false;
      command->push_back(pending->substr(at, size));
      at += size + 2;
    }
    pending->erase(0, at);
    return true;
  }

  const Answer answer_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> bytes_sent_{0};
  std::vector<std::thread> connections_;  // of acceptor_
  std::thread acceptor_;
};

}  // namespace kvlink::tier
