#include "server/tenants.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/drain_rate.h"

namespace kvlink::server {
namespace {

constexpr std::string_view kGroupPrefix = "group:", kSensitivePrefix = "sensitive:";
constexpr std::string_view kTextSuffix = "\ntext";

}  // namespace

std::string ScopeOf(const std::string& tenant, const TenantSettings& settings) {
  if (settings.sensitive) return std::string(kSensitivePrefix) + tenant;
  if (settings.sharing == TenantSharing::kGroup) return std::string(kGroupPrefix) + settings.group;
  return tenant;
}

Namespace TextScopeOf(const Namespace& ns) {
  return {ns.tenant + std::string(kTextSuffix), ns.salt};
}

std::vector<std::string> OwnScopes(const std::string& tenant, const std::string& scope) {
  std::vector<std::string> scopes;
  for (std::string own : {tenant, std::string(kSensitivePrefix) + tenant}) {
    if (own != scope) scopes.push_back(std::move(own));
  }
  return scopes;
}

bool MayLeaveRam(const Namespace& ns) {
  const std::string_view scope = ns.tenant;
  return !scope.starts_with(kSensitivePrefix) && !scope.ends_with(kTextSuffix);
}

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

struct TenantGate::Tenant {
  explicit Tenant(const base::Clock& clock) : drain(clock) {}
  size_t in_flight = 0;
  // A bucket that a minute fills: what may be asked at once.
  double allowance = 0;
  std::optional<base::TimePoint> filled;  // nothing: never, it is full
  DrainRate drain;
};

struct TenantGate::Counts {
  explicit Counts(base::Clock gate_clock) : clock(std::move(gate_clock)), drain(clock) {}

  const base::Clock clock;
  DrainRate drain;
  mutable std::mutex mutex;
  std::map<std::string, Tenant> tenants;  // all that ever asked; guarded by mutex
  size_t total = 0;                       // in flight; guarded by mutex

  Tenant& Of(const std::string& tenant) { return tenants.try_emplace(tenant, clock).first->second; }
  void Leave(const std::string& tenant, size_t prompts) {
    const std::lock_guard lock(mutex);
    Tenant& of = Of(tenant);
    KVLINK_CHECK(of.in_flight >= prompts && total >= prompts);
    total -= prompts;
    of.in_flight -= prompts;
  }
};

namespace {

std::string Str(uint64_t value) { return std::to_string(value); }

// What can never fit, however long somebody waits.
std::optional<ApiError> CheckSize(const std::string& tenant, const char* name, uint32_t limit,
                                  uint32_t prompts) {
  if (limit == 0 || prompts <= limit) return std::nullopt;
  return ApiError{400,
                  "prompt: " + Str(prompts) + " prompts at once; " + name + " of the tenant \"" +
                      tenant + "\" is " + Str(limit),
                  "prompt", std::string("tenant_") + name};
}

}  // namespace

TenantGate::TenantGate(size_t capacity, base::Clock clock)
    : capacity_(capacity), counts_(std::make_shared<Counts>(std::move(clock))) {}
TenantGate::~TenantGate() = default;

std::variant<TenantGate::Place, ApiError> TenantGate::Enter(const std::string& tenant,
                                                            const TenantSettings& settings,
                                                            uint32_t prompts,
                                                            bool several_tenants) {
  const uint32_t most = settings.max_requests, rate = settings.requests_per_minute;
  if (auto error = CheckSize(tenant, "max_requests", most, prompts)) return *error;
  if (auto error = CheckSize(tenant, "requests_per_minute", rate, prompts)) return *error;
  const base::TimePoint now = counts_->clock();
  const std::lock_guard lock(counts_->mutex);
  Tenant& of = counts_->Of(tenant);
  const size_t own = of.in_flight;
  const std::string who = "the tenant \"" + tenant + "\" has " + Str(own) + " requests in flight";
  if (most > 0 && own + prompts > most) {
    return ApiError{429, who + ", and its max_requests is " + Str(most), "", "tenant_max_requests",
                    of.drain.RetryAfter(static_cast<uint32_t>(own + prompts - most))};
  }
  const size_t free = capacity_ - std::min(capacity_, counts_->total);
  if (several_tenants && own + prompts > free) {
    return ApiError{429,
                    who + "; of the server's " + Str(capacity_) + " places " + Str(free) +
                        " are free, and these are kept for other tenants",
                    "", "tenant_share",
                    counts_->drain.RetryAfter(static_cast<uint32_t>(own + prompts - free))};
  }
  if (rate > 0) {
    const double per_second = rate / 60.0;
    const double seconds =
        of.filled ? std::chrono::duration<double>(now - *of.filled).count() : 60.0;
    of.allowance = std::min<double>(rate, of.allowance + seconds * per_second);
    of.filled = now;
    if (of.allowance + 1e-6 < prompts) {
      const double wait = std::ceil((prompts - of.allowance) / per_second);
      return ApiError{
          429, "the tenant \"" + tenant + "\" has used up its requests_per_minute of " + Str(rate),
          "", "tenant_requests_per_minute", std::max(1, static_cast<int>(wait))};
    }
    of.allowance -= prompts;
  }
  counts_->total += prompts;
  of.in_flight += prompts;
  // Only the address matters: the place goes when its last copy does.
  return Place(counts_.get(),
               [counts = counts_, tenant, prompts](void*) { counts->Leave(tenant, prompts); });
}

void TenantGate::Served(const std::string& tenant, uint32_t prompts) {
  counts_->drain.Left(prompts);
  const std::lock_guard lock(counts_->mutex);
  counts_->Of(tenant).drain.Left(prompts);
}

int TenantGate::RetryAfter(uint32_t prompts) { return counts_->drain.RetryAfter(prompts); }

size_t TenantGate::in_flight(const std::string& tenant) const {
  const std::lock_guard lock(counts_->mutex);
  return counts_->Of(tenant).in_flight;
}

}  // namespace kvlink::server
