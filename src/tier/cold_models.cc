#include "tier/cold_models.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

namespace kvlink::tier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "MODELS";
constexpr size_t kMostBytes = 64 << 10;  // of the file

std::string HexOf(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<std::string> BytesOf(const std::string& hex) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (hex.empty() || hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

std::vector<std::string> Read(const fs::path& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMostBytes) return {};
  std::vector<std::string> models;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    if (auto bytes = BytesOf(line)) models.push_back(*std::move(bytes));
  }
  return models;
}

void Write(const fs::path& path, const std::vector<std::string>& models) {
  const fs::path fresh = path.string() + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    for (const std::string& model : models) file << HexOf(model) << '\n';
    if (!file.flush()) return;
  }
  std::error_code ignored;
  fs::rename(fresh, path, ignored);
}

}  // namespace

std::vector<std::string> NoteColdModel(const std::string& directory,
                                       const std::string& fingerprint) {
  const fs::path path = fs::path(directory) / kName;
  const std::vector<std::string> before = Read(path);
  std::vector<std::string> others;
  for (const std::string& model : before) {
    const bool known = model == fingerprint || std::ranges::find(others, model) != others.end();
    if (!known && others.size() < kMostOtherModels) others.push_back(model);
  }
  std::vector<std::string> now = others;
  now.insert(now.begin(), fingerprint);
  if (now != before) Write(path, now);
  return others;
}

}  // namespace kvlink::tier
