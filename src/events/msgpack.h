// MessagePack, as much of it as KV events need to write: every value in its shortest form.
// https://github.com/msgpack/msgpack/blob/master/spec.md
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace kvlink::events {

class MsgpackWriter {
 public:
  void Nil() { Byte(0xc0); }
  void Unsigned(uint64_t value) {
    if (value < 0x80) {
      Byte(static_cast<uint8_t>(value));
    } else if (value <= 0xff) {
      Tagged<uint8_t>(0xcc, value);
    } else if (value <= 0xffff) {
      Tagged<uint16_t>(0xcd, value);
    } else if (value <= 0xffffffff) {
      Tagged<uint32_t>(0xce, value);
    } else {
      Tagged<uint64_t>(0xcf, value);
    }
  }
  void Double(double value) { Tagged<uint64_t>(0xcb, std::bit_cast<uint64_t>(value)); }
  void Text(std::string_view text) {
    Head(text.size(), 0xa0, 32, 0xd9, 0xda, 0xdb);
    bytes_.append(text);
  }
  void Array(size_t size) { Head(size, 0x90, 16, 0, 0xdc, 0xdd); }
  void Map(size_t size) { Head(size, 0x80, 16, 0, 0xde, 0xdf); }

  const std::string& bytes() const& { return bytes_; }
  std::string bytes() && { return std::move(bytes_); }

 private:
  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  template <typename T>
  void Tagged(uint8_t tag, uint64_t value) {
    Byte(tag);
    for (int shift = static_cast<int>(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) {
      Byte(static_cast<uint8_t>(value >> shift));
    }
  }
  // `fixed` + size below `limit`, then 8 (0: there is none), 16 and 32 bits.
  void Head(size_t size, uint8_t fixed, size_t limit, uint8_t tag8, uint8_t tag16, uint8_t tag32) {
    if (size < limit) {
      Byte(static_cast<uint8_t>(fixed + size));
    } else if (tag8 != 0 && size <= 0xff) {
      Tagged<uint8_t>(tag8, size);
    } else if (size <= 0xffff) {
      Tagged<uint16_t>(tag16, size);
    } else {
      Tagged<uint32_t>(tag32, size);
    }
  }

  std::string bytes_;
};

}  // namespace kvlink::events
