// What Python holds of a block store. Whatever may wait runs without the GIL, on a share of the
// store: it stays until that call ends, whoever closes it meanwhile.
#pragma once

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
      : pace_(options.pace) {
    for (const auto& tier : tiers) names_.emplace_back(tier->name());
    store_ = tier::TierStore::Create(std::move(options), std::move(tiers));
  }
  ~StoreHandle() {
    const py::gil_scoped_release released;  // its threads end
    store_.reset();
  }
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;

  std::shared_ptr<tier::TierStore> share() const {
    if (store_ == nullptr) Throw(StatusCode::kFailedPrecondition, "the block store is closed");
    return store_;
  }
  bool is_closed() const { return store_ == nullptr; }
  const std::vector<std::string>& names() const { return names_; }
  tier::WritePace& pace() const { return *pace_; }
  void Close(double drain_s);

 private:
  const std::shared_ptr<tier::WritePace> pace_;
  std::shared_ptr<tier::TierStore> store_;
  std::vector<std::string> names_;  // by tier
};

using StorePointer = std::shared_ptr<StoreHandle>;

}  // namespace kvlink::python
