// The remote tier: blocks in Redis 7 or Redis Cluster, shared by every server that uses the same
// one.
//
// A block is one string value under prefix + 32 hex digits of the key, set with a time to live that
// a load renews. Redis evicts by its own maxmemory policy (docs/tiers.md says which to set); a
// missing parent makes its children unreachable for us and they expire.
// Batches are pipelined; a cluster's slots are learnt (CLUSTER SLOTS) and MOVED and ASK followed.
// Nothing here waits longer than the call's deadline, connecting included. Open does not connect.
// Threads: any; calls share two connections a node (one for reading, one for writing).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

struct RemoteEndpoint {
  std::string host;
  uint16_t port = 6379;
  bool operator==(const RemoteEndpoint&) const = default;
};

struct RemoteTierOptions {
  std::vector<RemoteEndpoint> endpoints;  // of one Redis, or some nodes of one cluster
  std::string user, password;             // empty: none
  bool tls = false;
  std::string ca_file;  // PEM; empty: the system's authorities
  // The name the certificate must be for; empty: the host of the endpoint.
  std::string tls_server_name;
  std::string key_prefix = "kvlink:1:";
  std::chrono::seconds time_to_live{24 * 3600};  // 0: blocks do not expire
  std::chrono::milliseconds connect_timeout{250};
};

// redis://[[user]:password@]host[:port][,host[:port]...] or rediss:// (TLS); [::1] in brackets;
// %XX in user and password. More than one host means a cluster's nodes. kInvalidArgument says what
// is wrong; messages never contain the password.
Result<RemoteTierOptions> ParseRemoteUrl(std::string_view url);

// kInvalidArgument: the options, among them a CA file that cannot be read.
Result<std::unique_ptr<BlockTier>> OpenRemoteTier(const RemoteTierOptions& options);

}  // namespace kvlink::tier
