// Tenants: whose blocks a tenant shares, what may happen to them, and how much it may ask at once.
//
// The scope is the Namespace::tenant of its requests. A tenant's name has no colon, so that no name
// reads as another kind of scope:
//   acme             the tenant's own
//   group:retail     of all tenants with {"sharing": "group", "group": "retail"}
//   sensitive:acme   the tenant's own, and its blocks never leave RAM
// That a scope is sensitive can be seen by its name: what decides about tiers needs no table, and a
// tenant that becomes sensitive finds nothing that was stored before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "kvlink/cache.h"
#include "server/api_error.h"

namespace kvlink::server {

enum class TenantSharing : uint8_t {
  kNone,    // no request finds blocks of another
  kTenant,  // requests of the tenant share
  kGroup,   // and with the other tenants of the group
};

struct TenantSettings {
  TenantSharing sharing = TenantSharing::kTenant;
  std::string group;
  bool sensitive = false;            // own scope in RAM only, and no similar reuse
  uint32_t max_requests = 0;         // prompts in flight; 0: what the server has room for
  uint32_t requests_per_minute = 0;  // prompts, all of a minute's at once if it likes; 0: any
  uint32_t weight = 1;               // of the scope in fair turns
  uint64_t cache_bytes = 0;          // of RAM that the scope's blocks may hold; 0: any
};

std::string ScopeOf(const std::string& tenant, const TenantSettings& settings);

// Completed texts are a memory of their own, beside the answers alone: their ids hold the prompt
// and its BOS as well. (A tenant's name has no white space.) They are looked for in RAM only.
Namespace TextScopeOf(const Namespace& ns);

// The other scopes whose blocks are the tenant's own, whatever its settings were before: never a
// group's. Nothing there is shared with requests in `scope`; they are told that it is there.
std::vector<std::string> OwnScopes(const std::string& tenant, const std::string& scope);

// TierOptions::may_leave_ram of a server with tenants.
bool MayLeaveRam(const Namespace& ns);

// A name of a tenant or group: 1 to 64 letters, digits, '.', '_' and '-'.
bool IsTenantName(std::string_view name);

// Counts each tenant's prompts, in flight (waiting or running) and by the minute. Whoever is
// refused is told when to come back, by how fast prompts are served now. Thread-safe.
class TenantGate {
 public:
  // `capacity`: prompts that the engine runs and lets wait at most. With several tenants one may
  // hold at most as much as is still free (dynamic thresholds, Choudhury and Hahne 1998: alone half
  // of all, two of them a third each), so that a flood of one leaves room for others.
  explicit TenantGate(size_t capacity, base::Clock clock = base::SteadyClock());
  ~TenantGate();

  // Gives its prompts back when it goes; may outlive the gate.
  using Place = std::shared_ptr<void>;
  // 429 with the limit in words; 400 when `prompts` can never fit.
  std::variant<Place, ApiError> Enter(const std::string& tenant, const TenantSettings& settings,
                                      uint32_t prompts, bool several_tenants);
  // Prompts that had a place were answered, or their clients went away: places come free by it.
  void Served(const std::string& tenant, uint32_t prompts);
  // Seconds until so many more prompts should find room in the server.
  int RetryAfter(uint32_t prompts);
  size_t in_flight(const std::string& tenant) const;

 private:
  struct Tenant;
  struct Counts;
  const size_t capacity_;
  const std::shared_ptr<Counts> counts_;
};

}  // namespace kvlink::server
