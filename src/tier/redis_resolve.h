// Addresses of a host, within a deadline. getaddrinfo has none, so a name (not a numeric address)
// is resolved by a thread of its own, which may outlive the call.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <vector>

#include "tier/redis_socket.h"

namespace kvlink::tier {

struct ResolvedAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
};

Failure Resolve(const RemoteEndpoint& endpoint, TimePoint deadline,
                std::vector<ResolvedAddress>* addresses);

}  // namespace kvlink::tier
