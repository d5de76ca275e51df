#include "server/open_connections.h"

#include <utility>

namespace kvlink::server {

void OpenConnections::Add(std::shared_ptr<HttpConnection> connection) {
  const std::lock_guard lock(mutex_);
  connections_.insert(std::move(connection));
}

bool OpenConnections::Remove(const std::shared_ptr<HttpConnection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_.erase(connection);
  return connections_.empty();
}

OpenConnections::Set OpenConnections::All() const {
  const std::lock_guard lock(mutex_);
  return connections_;
}

OpenConnections::Set OpenConnections::TakeAll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(connections_, {});
}

OpenConnections::Counts OpenConnections::counts() const {
  const std::lock_guard lock(mutex_);
  return {connections_.size(), idle_.size()};
}

uint64_t OpenConnections::AddIdle(std::weak_ptr<HttpConnection> connection) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(++last_idle_, std::move(connection));
  return last_idle_;
}

void OpenConnections::RemoveIdle(uint64_t since) {
  const std::lock_guard lock(mutex_);
  idle_.erase(since);
}

std::shared_ptr<HttpConnection> OpenConnections::TakeLongestIdle() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  const auto longest = idle_.begin();
  auto connection = longest->second.lock();
  idle_.erase(longest);
  return connection;
}

}  // namespace kvlink::server
