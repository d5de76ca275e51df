#include "server/response_store.h"

#include <iterator>
#include <utility>

namespace kvlink::server {

size_t ResponseStore::BytesOf(const Order::value_type& item) {
  return item.first.size() + item.second.tenant.size() + item.second.messages.size() +
         item.second.response.size() + 256;
}

void ResponseStore::Drop(Order::iterator at) {
  bytes_ -= BytesOf(*at);
  known_.erase(at->first);
  order_.erase(at);
}

void ResponseStore::Put(const std::string& id, Entry entry) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(id);
  if (found != known_.end()) Drop(found->second);
  order_.emplace_back(id, std::move(entry));
  known_[id] = std::prev(order_.end());
  bytes_ += BytesOf(order_.back());
  while (!order_.empty() && (order_.size() > limits_.entries || bytes_ > limits_.bytes)) {
    Drop(order_.begin());
  }
}

std::optional<ResponseStore::Entry> ResponseStore::Get(const std::string& tenant,
                                                       const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(id);
  if (found == known_.end() || found->second->second.tenant != tenant) return std::nullopt;
  return found->second->second;
}

bool ResponseStore::Remove(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(id);
  if (found == known_.end() || found->second->second.tenant != tenant) return false;
  Drop(found->second);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return order_.size();
}

}  // namespace kvlink::server
