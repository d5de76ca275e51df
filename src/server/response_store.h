// ResponseStore: answers of /v1/responses that a later request may go on from.
//
// In memory, bounded by number and bytes, oldest first out; a tenant sees its own only.
// Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace kvlink::server {

class ResponseStore {
 public:
  struct Limits {
    size_t entries = 1024;
    size_t bytes = size_t{64} << 20;
  };
  struct Entry {
    std::string tenant;
    std::string messages;  // the conversation so far, a JSON array of chat messages
    std::string response;  // the answer, as it was told
  };

  explicit ResponseStore(const Limits& limits) : limits_(limits) {}
  ResponseStore() : ResponseStore(Limits()) {}

  void Put(const std::string& id, Entry entry);
  std::optional<Entry> Get(const std::string& tenant, const std::string& id) const;
  bool Remove(const std::string& tenant, const std::string& id);
  size_t size() const;

 private:
  using Order = std::list<std::pair<std::string, Entry>>;
  static size_t BytesOf(const Order::value_type& item);
  void Drop(Order::iterator at);

  const Limits limits_;
  mutable std::mutex mutex_;
  Order order_;  // oldest first; guarded by mutex_, as everything below
  std::unordered_map<std::string, Order::iterator> known_;
  size_t bytes_ = 0;
};

}  // namespace kvlink::server
