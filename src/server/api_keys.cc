#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <fstream>
#include <set>
#include <sstream>

namespace kvlink::server {
namespace {

constexpr std::string_view kScheme = "bearer ";

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

}  // namespace

const char* RightName(Right right) {
  constexpr const char* kNames[] = {"none", "inference", "metrics", "admin"};
  return kNames[static_cast<size_t>(right)];
}

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
  std::istringstream lines(text);
  std::string line;
  std::set<std::string> names;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto fail = [&](const std::string& what) {
      return Status(StatusCode::kInvalidArgument,
                    "--api-keys: " + source + ":" + std::to_string(number) + ": " + what);
    };
    std::istringstream words(line.substr(0, line.find('#')));
    Key key;
    std::string hash, extra;
    if (!(words >> key.name)) continue;
    if (!(words >> hash >> key.tenant) || words >> extra) {
      return fail("a line must be \"name sha256hex tenant\"");
    }
    // The value itself is not shown: it may be a key that was put here by mistake.
    if (!ParseHex(hash, &key.hash)) {
      return fail("the second word must be the SHA-256 of the key as 64 hexadecimal digits, got " +
                  std::to_string(hash.size()) + " characters");
    }
    if (!names.insert(key.name).second) return fail("the name \"" + key.name + "\" is used twice");
    for (const Key& other : keys.keys_) {
      if (other.hash == key.hash)
        return fail("\"" + key.name + "\" has the same key as \"" + other.name + "\"");
    }
    keys.keys_.push_back(std::move(key));
  }
  if (keys.empty())
    return Status(StatusCode::kInvalidArgument, "--api-keys: " + source + ": holds no key");
  return keys;
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

}  // namespace kvlink::server
