#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kScheme = "bearer ";
constexpr const char* kRightNames[] = {"none", "inference", "metrics", "admin"};
constexpr size_t kMaxName = 200;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool ParseHex(const std::string& text, std::array<uint8_t, 32>* out) {
  if (text.size() != 64) return false;
  for (size_t i = 0; i < out->size(); ++i) {
    const int high = HexDigit(text[2 * i]), low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*out)[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

std::string Hex(const std::array<uint8_t, 32>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Right> ParseRight(const std::string& name) {
  for (const Right right : {Right::kInference, Right::kMetrics, Right::kAdmin}) {
    if (name == RightName(right)) return right;
  }
  return std::nullopt;
}

Json KeyLine(const std::string& name, const std::string& hash, const std::string& tenant,
             const std::vector<std::string>& rights) {
  return {{"name", name}, {"hash", hash}, {"tenant", tenant}, {"rights", rights}};
}

// A value in a message: short, and on one line.
std::string Shown(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
}

// One line's fields. Each reader answers what is wrong, or nothing.
class Line {
 public:
  using Error = std::optional<std::string>;
  explicit Line(Json json) : json_(std::move(json)) {}

  bool Has(const char* field) const { return json_.contains(field); }
  Error CheckFields(std::initializer_list<std::string_view> known) const {
    for (const auto& [field, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), field) == known.end()) {
        return "the field \"" + field.substr(0, 80) + "\" is not known";
      }
    }
    return std::nullopt;
  }
  Error Read(const char* field, bool (*valid)(std::string_view), const char* wanted,
             std::string* out) const {
    const auto found = json_.find(field);
    if (found == json_.end()) return std::string(field) + ": is missing";
    if (!found->is_string() || !valid(found->get_ref<const std::string&>())) {
      return std::string(field) + ": must be " + wanted + ", not " + Shown(*found);
    }
    *out = found->get<std::string>();
    return std::nullopt;
  }
  Error ReadTenant(const char* field, std::string* out) const {
    return Read(field, IsTenantName, "1 to 64 letters, digits, '.', '_' or '-'", out);
  }
  Error ReadHash(std::array<uint8_t, 32>* out) const {
    // The value itself is not shown: it may be a key that was put here by mistake.
    const auto found = json_.find("hash");
    if (found == json_.end() || !found->is_string() || !ParseHex(found->get<std::string>(), out)) {
      return "hash: must be the SHA-256 of the key as 64 hexadecimal digits";
    }
    return std::nullopt;
  }
  Error ReadRights(Rights* out) const {
    const auto found = json_.find("rights");
    if (found == json_.end() || !found->is_array() || found->empty()) {
      return "rights: must be an array of \"inference\", \"metrics\", \"admin\"";
    }
    for (const Json& name : *found) {
      const auto right = name.is_string() ? ParseRight(name.get<std::string>()) : std::nullopt;
      if (!right) {
        return "rights: must be \"inference\", \"metrics\" or \"admin\", not " + Shown(name);
      }
      out->Add(*right);
    }
    return std::nullopt;
  }
  // A whole number from 1 to `most`, if it is there.
  template <typename Number>
  Error ReadCount(const char* field, uint64_t most, Number* out) const {
    const auto found = json_.find(field);
    if (found == json_.end()) return std::nullopt;
    if (!found->is_number_unsigned() || found->get<uint64_t>() < 1 ||
        found->get<uint64_t>() > most) {
      return std::string(field) + ": must be a whole number from 1 to " + std::to_string(most) +
             ", not " + Shown(*found);
    }
    *out = static_cast<Number>(found->get<uint64_t>());
    return std::nullopt;
  }
  Error ReadSettings(TenantSettings* out) const;

 private:
  Json json_;
};

Line::Error Line::ReadSettings(TenantSettings* out) const {
  if (const auto found = json_.find("sharing"); found != json_.end()) {
    if (*found == "none") {
      out->sharing = TenantSharing::kNone;
    } else if (*found == "tenant") {
      out->sharing = TenantSharing::kTenant;
    } else if (*found == "group") {
      out->sharing = TenantSharing::kGroup;
    } else {
      return "sharing: must be \"none\", \"tenant\" or \"group\", not " + Shown(*found);
    }
  }
  if (const auto found = json_.find("sensitive"); found != json_.end()) {
    if (!found->is_boolean()) return "sensitive: must be true or false, not " + Shown(*found);
    out->sensitive = found->get<bool>();
  }
  if (auto error = ReadCount("max_requests", 1'000'000, &out->max_requests)) return error;
  if (auto error = ReadCount("requests_per_minute", 1'000'000, &out->requests_per_minute)) {
    return error;
  }
  if (auto error = ReadCount("weight", 1000, &out->weight)) return error;
  if (auto error = ReadCount("cache_bytes", uint64_t{1} << 50, &out->cache_bytes)) return error;
  if (out->sharing != TenantSharing::kGroup) {
    if (Has("group")) return "group: needs \"sharing\": \"group\"";
    return std::nullopt;
  }
  if (out->sensitive) return "sharing: a sensitive tenant shares with no group";
  return ReadTenant("group", &out->group);
}

// A line of the format before JSON, told as it is written now.
std::string OldFormat(const std::string& line) {
  std::istringstream words(line);
  std::string name, hash, tenant;
  std::array<uint8_t, 32> bytes{};
  const std::string what = "a line must be a JSON object";
  if (!(words >> name >> hash >> tenant) || !ParseHex(hash, &bytes)) return what;
  return what + "; this one is now written " +
         KeyLine(name, hash, tenant, {"inference"})
             .dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

const char* RightName(Right right) { return kRightNames[static_cast<size_t>(right)]; }

std::array<uint8_t, 32> Sha256(std::string_view bytes) {
  std::array<uint8_t, 32> hash{};
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), hash.data(), &size, EVP_sha256(), nullptr);
  return hash;
}

Result<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status(StatusCode::kNotFound,
                  "--api-keys: cannot read \"" + path + "\", or it is empty");
  }
  return Parse(text.str(), path);
}

Result<ApiKeys> ApiKeys::Parse(const std::string& text, const std::string& source) {
  ApiKeys keys;
  std::set<std::string> names, described;
  const auto read_key = [&](const Line& line) -> Line::Error {
    Key key;
    const auto is_name = [](std::string_view name) {
      return !name.empty() && name.size() <= kMaxName;
    };
    if (auto error = line.CheckFields({"name", "hash", "tenant", "rights"})) return error;
    if (auto error = line.Read("name", is_name, "1 to 200 characters", &key.name)) return error;
    if (auto error = line.ReadHash(&key.hash)) return error;
    if (auto error = line.ReadTenant("tenant", &key.tenant)) return error;
    if (auto error = line.ReadRights(&key.rights)) return error;
    if (!names.insert(key.name).second) return "name: \"" + key.name + "\" is used twice";
    for (const Key& other : keys.keys_) {
      if (other.hash == key.hash) {
        return "hash: \"" + key.name + "\" has the same key as \"" + other.name + "\"";
      }
    }
    keys.tenants_[key.tenant];
    keys.keys_.push_back(std::move(key));
    return std::nullopt;
  };
  const auto read_tenant = [&](const Line& line) -> Line::Error {
    std::string tenant;
    TenantSettings settings;
    if (auto error = line.CheckFields({"tenant", "sharing", "group", "sensitive", "max_requests",
                                       "requests_per_minute", "weight", "cache_bytes"})) {
      return error;
    }
    if (auto error = line.ReadTenant("tenant", &tenant)) return error;
    if (auto error = line.ReadSettings(&settings)) return error;
    if (!described.insert(tenant).second) return "tenant: \"" + tenant + "\" is described twice";
    if (std::string error = keys.JoinGroup(&settings); !error.empty()) return error;
    keys.tenants_[tenant] = settings;
    return std::nullopt;
  };
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos || line[start] == '#') continue;
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    Line::Error error;
    if (json.is_object()) {
      const Line fields(std::move(json));
      error = fields.Has("name") || fields.Has("hash") ? read_key(fields) : read_tenant(fields);
    } else {
      error = OldFormat(line);
    }
    if (error) {
      return Status(StatusCode::kInvalidArgument,
                    "--api-keys: " + source + ":" + std::to_string(number) + ": " + *error);
    }
  }
  if (keys.empty()) {
    return Status(StatusCode::kInvalidArgument, "--api-keys: " + source + ": holds no key");
  }
  return keys;
}

std::string ApiKeys::JoinGroup(TenantSettings* settings) {
  if (settings->sharing != TenantSharing::kGroup) return "";
  const auto [known, is_first] = groups_.emplace(settings->group, *settings);
  if (is_first) return "";
  const auto differs = [&](const char* field, uint64_t before, uint64_t now) {
    return std::string(field) + ": is " + std::to_string(now) + ", but " + std::to_string(before) +
           " in another line of the group \"" + settings->group + "\", which has it in common";
  };
  const TenantSettings& first = known->second;
  if (first.weight != settings->weight) return differs("weight", first.weight, settings->weight);
  if (first.cache_bytes != settings->cache_bytes) {
    return differs("cache_bytes", first.cache_bytes, settings->cache_bytes);
  }
  return "";
}

std::map<std::string, uint64_t> ApiKeys::CacheQuotas() const {
  std::map<std::string, uint64_t> quotas;
  for (const auto& [tenant, settings] : tenants_) {
    if (settings.cache_bytes > 0) quotas[ScopeOf(tenant, settings)] = settings.cache_bytes;
  }
  return quotas;
}

const ApiKeys::Key* ApiKeys::Find(std::string_view authorization) const {
  if (authorization.size() <= kScheme.size()) return nullptr;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return nullptr;
  }
  const std::array<uint8_t, 32> hash = Sha256(authorization.substr(kScheme.size()));
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (CRYPTO_memcmp(key.hash.data(), hash.data(), hash.size()) == 0) found = &key;
  }
  return found;
}

const TenantSettings& ApiKeys::SettingsOf(const std::string& tenant) const {
  static const TenantSettings defaults;
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? defaults : found->second;
}

Result<NewApiKey> MakeApiKey(const std::string& name, const std::string& tenant,
                             const std::vector<std::string>& rights) {
  std::array<uint8_t, 32> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
    return Status(StatusCode::kUnavailable, "the system gives no random bytes");
  }
  NewApiKey made;
  made.secret = "kvl_" + Hex(random);
  made.line = KeyLine(name, Hex(Sha256(made.secret)), tenant, rights)
                  .dump(-1, ' ', true, Json::error_handler_t::replace);
  // What the server would refuse is refused here.
  if (const auto parsed = ApiKeys::Parse(made.line, "key"); !parsed.ok()) {
    const std::string& message = parsed.status().message();
    constexpr std::string_view kWhere = "--api-keys: key:1: ";
    return Status(StatusCode::kInvalidArgument, "--" + message.substr(kWhere.size()));
  }
  return made;
}

}  // namespace kvlink::server
