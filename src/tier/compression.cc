#include "tier/compression.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <limits>
#include <vector>

namespace kvlink::tier {
namespace {

constexpr int kZstdLevel = 1;

std::vector<std::byte> SplitPlanes(std::span<const std::byte> payload) {
  const size_t pairs = payload.size() / 2;
  std::vector<std::byte> planes(payload.begin(), payload.end());  // an odd last byte stays last
  for (size_t i = 0; i < pairs; ++i) {
    planes[i] = payload[2 * i];
    planes[pairs + i] = payload[2 * i + 1];
  }
  return planes;
}

void JoinPlanes(std::span<const std::byte> planes, std::span<std::byte> target) {
  const size_t pairs = planes.size() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    target[2 * i] = planes[i];
    target[2 * i + 1] = planes[pairs + i];
  }
  if (planes.size() % 2 != 0) target.back() = planes.back();
}

std::optional<std::string> CompressZstd(std::span<const std::byte> payload, size_t most) {
  std::string stored(most, '\0');
  const size_t size =
      ZSTD_compress(stored.data(), stored.size(), payload.data(), payload.size(), kZstdLevel);
  if (ZSTD_isError(size)) return std::nullopt;
  stored.resize(size);
  return stored;
}

bool DecompressZstd(std::span<const std::byte> stored, std::span<std::byte> target) {
  return ZSTD_decompress(target.data(), target.size(), stored.data(), stored.size()) ==
         target.size();
}

std::optional<std::string> CompressLz4(std::span<const std::byte> payload, size_t most) {
  if (payload.size() > static_cast<size_t>(LZ4_MAX_INPUT_SIZE)) return std::nullopt;
  std::string stored(most, '\0');
  const int size =
      LZ4_compress_default(reinterpret_cast<const char*>(payload.data()), stored.data(),
                           static_cast<int>(payload.size()), static_cast<int>(stored.size()));
  if (size <= 0) return std::nullopt;
  stored.resize(static_cast<size_t>(size));
  return stored;
}

bool DecompressLz4(std::span<const std::byte> stored, std::span<std::byte> target) {
  constexpr size_t kMost = static_cast<size_t>(std::numeric_limits<int>::max());
  if (stored.size() > kMost || target.size() > kMost) return false;
  const int size = LZ4_decompress_safe(
      reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(target.data()),
      static_cast<int>(stored.size()), static_cast<int>(target.size()));
  return size >= 0 && static_cast<size_t>(size) == target.size();
}

}  // namespace

std::optional<std::string> Compress(std::span<const std::byte> payload, Compression compression,
                                    size_t most) {
  switch (compression) {
    case Compression::kLz4:
      return CompressLz4(payload, most);
    case Compression::kZstd:
      return CompressZstd(payload, most);
    case Compression::kZstdPlanes:
      return CompressZstd(SplitPlanes(payload), most);
    case Compression::kNone:
      break;
  }
  return std::nullopt;
}

bool Decompress(std::span<const std::byte> stored, Compression compression,
                std::span<std::byte> target) {
  switch (compression) {
    case Compression::kNone:
      if (stored.size() != target.size()) return false;
      if (!target.empty()) std::memcpy(target.data(), stored.data(), stored.size());
      return true;
    case Compression::kLz4:
      return DecompressLz4(stored, target);
    case Compression::kZstd:
      return DecompressZstd(stored, target);
    case Compression::kZstdPlanes: {
      std::vector<std::byte> planes(target.size());
      if (!DecompressZstd(stored, planes)) return false;
      JoinPlanes(planes, target);
      return true;
    }
  }
  return false;
}

}  // namespace kvlink::tier
