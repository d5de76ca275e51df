#include "server/tenants.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"

namespace kvlink::server {
namespace {

constexpr std::string_view kGroupPrefix = "group:", kSensitivePrefix = "sensitive:";

}  // namespace

std::string ScopeOf(const std::string& tenant, const TenantSettings& settings) {
  if (settings.sensitive) return std::string(kSensitivePrefix) + tenant;
  if (settings.sharing == TenantSharing::kGroup) return std::string(kGroupPrefix) + settings.group;
  return tenant;
}

bool MayLeaveRam(const Namespace& ns) {
  return !std::string_view(ns.tenant).starts_with(kSensitivePrefix);
}

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

struct TenantGate::Counts {
  mutable std::mutex mutex;
  std::map<std::string, size_t> of_tenant;  // without zeros; guarded by mutex
  size_t total = 0;                         // guarded by mutex

  size_t Of(const std::string& tenant) const {
    const auto found = of_tenant.find(tenant);
    return found == of_tenant.end() ? 0 : found->second;
  }
  void Leave(const std::string& tenant, size_t prompts) {
    const std::lock_guard lock(mutex);
    const auto found = of_tenant.find(tenant);
    KVLINK_CHECK(found != of_tenant.end() && found->second >= prompts && total >= prompts);
    total -= prompts;
    found->second -= prompts;
    if (found->second == 0) of_tenant.erase(found);
  }
};

TenantGate::TenantGate(size_t capacity)
    : capacity_(capacity), counts_(std::make_shared<Counts>()) {}
TenantGate::~TenantGate() = default;

std::variant<TenantGate::Place, ApiError> TenantGate::Enter(const std::string& tenant,
                                                            const TenantSettings& settings,
                                                            uint32_t prompts,
                                                            bool several_tenants) {
  const auto limit = std::to_string(settings.max_requests);
  if (settings.max_requests > 0 && prompts > settings.max_requests) {
    return ApiError{400,
                    "prompt: " + std::to_string(prompts) +
                        " prompts at once; max_requests of the tenant \"" + tenant + "\" is " +
                        limit,
                    "prompt", "tenant_max_requests"};
  }
  const std::lock_guard lock(counts_->mutex);
  const size_t own = counts_->Of(tenant);
  if (settings.max_requests > 0 && own + prompts > settings.max_requests) {
    return ApiError{429,
                    "the tenant \"" + tenant + "\" has " + std::to_string(own) +
                        " requests in flight, and its max_requests is " + limit,
                    "", "tenant_max_requests"};
  }
  const size_t free = capacity_ - std::min(capacity_, counts_->total);
  if (several_tenants && own + prompts > free) {
    return ApiError{429,
                    "the tenant \"" + tenant + "\" has " + std::to_string(own) +
                        " requests in flight; of the server's " + std::to_string(capacity_) +
                        " places " + std::to_string(free) +
                        " are free, and these are kept for other tenants",
                    "", "tenant_share"};
  }
  counts_->total += prompts;
  counts_->of_tenant[tenant] += prompts;
  // Only the address matters: the place goes when its last copy does.
  return Place(counts_.get(),
               [counts = counts_, tenant, prompts](void*) { counts->Leave(tenant, prompts); });
}

size_t TenantGate::in_flight(const std::string& tenant) const {
  const std::lock_guard lock(counts_->mutex);
  return counts_->Of(tenant);
}

}  // namespace kvlink::server
