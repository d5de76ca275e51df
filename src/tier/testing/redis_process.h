// RedisProcess: a real redis-server of a test's own, on a free port of the loopback, that can be
// stopped, killed, frozen and started again. It dies with the test. Also: certificates made by
// openssl, and a proxy that is slow.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tier/redis_connection.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {

uint16_t FreePort();

// A self-signed certificate for 127.0.0.1 and localhost, which is its own authority.
struct Certificate {
  explicit Certificate(const TempDirectory& directory, const std::string& name = "server");
  std::string certificate, key;  // files
};

struct RedisSetup {
  std::string password;
  const Certificate* certificate = nullptr;  // TLS only, when given
  bool cluster = false;
  std::vector<std::string> more;  // words of the command line
};

class RedisProcess {
 public:
  explicit RedisProcess(RedisSetup setup = {});  // and Start
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  void Start();  // on the same port; waits until it answers
  void Stop();   // SIGTERM, and waits
  void Kill();   // SIGKILL, and waits
  void Freeze();
  void Thaw();

  uint16_t port() const { return port_; }
  uint16_t bus_port() const { return bus_port_; }
  RemoteEndpoint endpoint() const { return {"127.0.0.1", port_}; }
  RemoteTierOptions options() const;
  // One command on a connection of its own.
  RedisReply Run(const RedisCommand& command) const;

 private:
  bool TryStart();  // false: it ended by itself (another test took the port)
  void End(int signal);
  std::vector<std::string> CommandLine() const;

  const RedisSetup setup_;
  const TempDirectory directory_;
  uint16_t port_ = 0, bus_port_ = 0;
  pid_t pid_ = 0;
};

// Forwards connections to `target`, each answer `delay` later.
class SlowProxy {
 public:
  SlowProxy(uint16_t target, std::chrono::milliseconds delay);
  ~SlowProxy();
  uint16_t port() const { return port_; }

 private:
  void Serve(int client);

  const uint16_t target_;
  const std::chrono::milliseconds delay_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> connections_;  // of acceptor_
  std::thread acceptor_;
};

}  // namespace kvlink::tier
