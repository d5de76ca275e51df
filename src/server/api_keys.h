// ApiKeys: who may ask, as which tenant, and what a tenant is.
//
// A file with a JSON object a line; empty lines and lines that start with # are skipped. A line
// with "name" is a key:
//   {"name": "alice", "hash": "SHA-256 of the key in hex", "tenant": "acme",
//    "rights": ["inference"]}
// and one without is what holds for a tenant (all but "tenant" may be left out):
//   {"tenant": "acme", "sharing": "none|tenant|group", "group": "g", "sensitive": false,
//    "max_requests": 8, "requests_per_minute": 600, "cache_bytes": 1073741824, "weight": 3}
// Weight and cache_bytes are the group's where there is one: its lines must not differ in them.
// The file never holds a key. Keys are 256 random bits, so a plain hash is enough: there is nothing
// to guess. Looking a key up compares with every line and takes the same time wherever it stands.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "server/tenants.h"

namespace kvlink::server {

// What a key permits. kNone is what needs no key.
enum class Right : uint8_t { kNone, kInference, kMetrics, kAdmin };
const char* RightName(Right right);  // "inference"

class Rights {
 public:
  static Rights All() {
    return Rights().Add(Right::kInference).Add(Right::kMetrics).Add(Right::kAdmin);
  }
  Rights& Add(Right right) {
    bits_ |= uint8_t(1u << static_cast<unsigned>(right));
    return *this;
  }
  bool Has(Right right) const { return (bits_ >> static_cast<unsigned>(right) & 1) != 0; }

 private:
  uint8_t bits_ = 0;
};

class ApiKeys {
 public:
  struct Key {
    std::string name, tenant;
    Rights rights;
    std::array<uint8_t, 32> hash{};
  };

  ApiKeys() = default;
  // kNotFound: the file; kInvalidArgument: "FILE:LINE: what, value seen" (never a key, should one
  // stand where its hash belongs), and a file without a key.
  static Result<ApiKeys> Load(const std::string& path);
  static Result<ApiKeys> Parse(const std::string& text, const std::string& source);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  size_t num_tenants() const { return tenants_.size(); }
  // `authorization` is the header's value, "Bearer KEY". Null: no such key.
  const Key* Find(std::string_view authorization) const;
  // What the file says about a tenant, or the defaults.
  const TenantSettings& SettingsOf(const std::string& tenant) const;
  // Scopes whose blocks may hold only so many bytes.
  std::map<std::string, uint64_t> CacheQuotas() const;

 private:
  // Empty, or what is wrong.
  std::string JoinGroup(TenantSettings* settings);

  std::vector<Key> keys_;
  std::map<std::string, TenantSettings> tenants_;  // all that have keys or settings
  std::map<std::string, TenantSettings> groups_;   // by their first line
};

// A new key: `secret` is for its user alone, `line` for the file. `rights` are their names; random
// bytes come from OpenSSL. kInvalidArgument: a name, a tenant, a right.
struct NewApiKey {
  std::string secret, line;
};
Result<NewApiKey> MakeApiKey(const std::string& name, const std::string& tenant,
                             const std::vector<std::string>& rights);

std::array<uint8_t, 32> Sha256(std::string_view bytes);

}  // namespace kvlink::server
