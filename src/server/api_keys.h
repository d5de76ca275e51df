// ApiKeys: who may ask, and as which tenant.
//
// A file of lines "name sha256hex tenant" (# starts a comment): the name is for people, the hash is
// of the key (the file never holds a key), the tenant is whom blocks are shared with. Several keys
// may share a tenant. Looking a key up compares with every line and takes the same time wherever it
// stands.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"

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
    Rights rights = Rights::All();
    std::array<uint8_t, 32> hash{};
  };

  ApiKeys() = default;
  // kNotFound: the file; kInvalidArgument: "FILE:LINE: what, value seen", and a file without a key.
  static Result<ApiKeys> Load(const std::string& path);
  static Result<ApiKeys> Parse(const std::string& text, const std::string& source);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  // `authorization` is the header's value, "Bearer KEY". Null: no such key.
  const Key* Find(std::string_view authorization) const;

 private:
  std::vector<Key> keys_;
};

std::array<uint8_t, 32> Sha256(std::string_view bytes);

}  // namespace kvlink::server
