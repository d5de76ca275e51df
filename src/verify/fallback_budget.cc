#include "verify/fallback_budget.h"

#include "base/check.h"

namespace kvlink::verify {

bool FallbackBudget::TryReserve(uint64_t amount) {
  const auto lost = static_cast<double>(wasted_ + reserved_ + amount);
  if (lost > share_ * (static_cast<double>(computed_) + lost)) return false;
  reserved_ += amount;
  return true;
}

void FallbackBudget::Settle(uint64_t reserved, uint64_t wasted) {
  KVLINK_CHECK(wasted <= reserved && reserved <= reserved_)
      << wasted << " wasted of " << reserved << ", of " << reserved_ << " in all";
  reserved_ -= reserved;
  wasted_ += wasted;
}

double FallbackBudget::wasted_share() const {
  const auto all = static_cast<double>(computed_ + wasted_);
  return all > 0 ? static_cast<double>(wasted_) / all : 0;
}

}  // namespace kvlink::verify
