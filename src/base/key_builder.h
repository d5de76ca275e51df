// KeyBuilder: the bytes of a composite key, such that two different lists of fields never give the
// same bytes.
//
// Every field is {type byte, u32 length of the name, name, u32 length of the value, value},
// integers little-endian. So ("org_1", "2345") is not ("org_12345", ""), salt "X" is not adapter
// "X", and the number 1 is not the text "1".
//   KeyBuilder().Add("salt", "X").bytes()  ==  's' 04000000 "salt" 01000000 'X'
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/endian.h"

namespace kvlink::base {

class KeyBuilder {
 public:
  KeyBuilder& Add(std::string_view name, std::string_view value) {
    Field('s', name);
    PutLe(bytes_, static_cast<uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  KeyBuilder& AddNumber(std::string_view name, uint64_t value) {
    Field('u', name);
    PutLe(bytes_, uint32_t{8});
    PutLe(bytes_, value);
    return *this;
  }
  const std::string& bytes() const& { return bytes_; }
  std::string bytes() && { return std::move(bytes_); }

 private:
  void Field(char type, std::string_view name) {
    bytes_.push_back(type);
    PutLe(bytes_, static_cast<uint32_t>(name.size()));
    bytes_.append(name);
  }
  std::string bytes_;
};

}  // namespace kvlink::base
