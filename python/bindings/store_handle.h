// What Python holds of a block store. Whatever may wait runs without the GIL, on a share of the
// store: it stays until that call ends, whoever closes it meanwhile. In a fork of the process there
// is a copy of its memory and none of its threads: there it is neither used nor ended.
#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "convert.h"
#include "tier/tier_store.h"

namespace kvlink::python {

// Seconds, from Python; `what` is the argument's name.
std::chrono::milliseconds Duration(double seconds, const char* what);
tier::Identity IdentityFrom(const py::handle& key, const char* what);
// Of an opaque block that `identity` names.
tier::BlockName NameOf(const tier::Identity& identity);

class StoreHandle {
 public:
  StoreHandle(tier::TierStoreOptions options, std::vector<std::unique_ptr<tier::BlockTier>> tiers)
      : process_(getpid()), pace_(options.pace) {
    for (const auto& tier : tiers) names_.emplace_back(tier->name());
    store_ = tier::TierStore::Create(std::move(options), std::move(tiers));
  }
  ~StoreHandle() {
    if (is_copy()) Abandon();
    const Released released;  // its threads end
    store_.reset();
  }
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;

  std::shared_ptr<tier::TierStore> share() const {
    if (store_ == nullptr) Throw(StatusCode::kFailedPrecondition, "the block store is closed");
    if (is_copy()) {
      Throw(StatusCode::kFailedPrecondition, "the block store belongs to process " +
                                                 std::to_string(process_) +
                                                 ", of which this one is a fork: make one here");
    }
    return store_;
  }
  bool is_closed() const { return store_ == nullptr; }
  const std::vector<std::string>& names() const { return names_; }
  tier::WritePace& pace() const { return *pace_; }
  void Close(double drain_s);

 private:
  bool is_copy() const { return getpid() != process_; }
  // Its destructor would wait for threads that are not here.
  void Abandon() { new std::shared_ptr<tier::TierStore>(std::move(store_)); }

  const pid_t process_;
  const std::shared_ptr<tier::WritePace> pace_;
  std::shared_ptr<tier::TierStore> store_;
  std::vector<std::string> names_;  // by tier
};

using StorePointer = std::shared_ptr<StoreHandle>;

}  // namespace kvlink::python
