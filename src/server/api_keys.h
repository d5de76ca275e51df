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

class ApiKeys {
 public:
  struct Key {
    std::string name, tenant;
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
