// OpenConnections: which connections there are, and which of them wait for a request, since when.
//
// Thread-safe; nothing is called with the lock held. Cost: O(log of the connections), but All and
// TakeAll, which copy and move them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace kvlink::server {

class HttpConnection;

class OpenConnections {
 public:
  using Set = std::set<std::shared_ptr<HttpConnection>>;
  struct Counts {
    size_t open = 0, idle = 0;
  };

  void Add(std::shared_ptr<HttpConnection> connection);
  // True: none is left.
  bool Remove(const std::shared_ptr<HttpConnection>& connection);
  Set All() const;
  Set TakeAll();
  Counts counts() const;

  // From now on it is idle; the answer, never 0, stands for that.
  uint64_t AddIdle(std::weak_ptr<HttpConnection> connection);
  void RemoveIdle(uint64_t since);
  // Who has been idle longest, and no longer counts as idle, so that who asks next gets another.
  // Null: nobody, or one that is going.
  std::shared_ptr<HttpConnection> TakeLongestIdle();

 private:
  mutable std::mutex mutex_;
  Set connections_;                                         // guarded by mutex_
  std::map<uint64_t, std::weak_ptr<HttpConnection>> idle_;  // since when; guarded by mutex_
  uint64_t last_idle_ = 0;                                  // guarded by mutex_
};

}  // namespace kvlink::server
