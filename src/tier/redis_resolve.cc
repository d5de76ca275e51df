#include "tier/redis_resolve.h"

#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace kvlink::tier {
namespace {

using Answer = std::pair<int, std::vector<ResolvedAddress>>;  // getaddrinfo's code

Answer Ask(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Answer answer;
  answer.first = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  for (const addrinfo* at = list; answer.first == 0 && at != nullptr; at = at->ai_next) {
    ResolvedAddress address;
    if (at->ai_addrlen > sizeof(address.address)) continue;
    std::memcpy(&address.address, at->ai_addr, at->ai_addrlen);
    address.length = at->ai_addrlen;
    answer.second.push_back(address);
  }
  if (list != nullptr) ::freeaddrinfo(list);
  return answer;
}

}  // namespace

Failure Resolve(const RemoteEndpoint& endpoint, TimePoint deadline,
                std::vector<ResolvedAddress>* addresses) {
  const std::string port = std::to_string(endpoint.port);
  Answer answer = Ask(endpoint.host, port, AI_NUMERICHOST);
  if (answer.first != 0) {
    auto task = std::make_shared<std::packaged_task<Answer()>>(
        [host = endpoint.host, port] { return Ask(host, port, 0); });
    std::future<Answer> future = task->get_future();
    std::thread([task] { (*task)(); }).detach();
    if (future.wait_until(deadline) != std::future_status::ready) {
      return {ErrorReason::kTimeout, "no address for '" + endpoint.host + "' in time"};
    }
    answer = future.get();
  }
  if (answer.first != 0) {
    return {ErrorReason::kUnavailable,
            "no address for '" + endpoint.host + "': " + ::gai_strerror(answer.first)};
  }
  *addresses = std::move(answer.second);
  return {};
}

}  // namespace kvlink::tier
