#include "ckpt/chunk_codec.h"

#include <zstd.h>

#include <algorithm>

#include "base/check.h"
#include "base/endian.h"
#include "base/hash.h"

namespace kvlink::ckpt {
namespace {

constexpr std::string_view kMagic = "KVLKCHNK";
constexpr uint8_t kVersion = 1;
constexpr size_t kHashedHeaderBytes = 56;

std::string Compress(std::string_view bytes, int level) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level);
  KVLINK_CHECK(!ZSTD_isError(size)) << ZSTD_getErrorName(size);
  out.resize(size);
  return out;
}

// Byte p of element i goes to [p][i]; what does not fill an element stays at the end.
std::string ToPlanes(std::string_view bytes, size_t width) {
  const size_t count = bytes.size() / width;
  std::string planes(bytes);
  for (size_t p = 0; p < width; ++p) {
    char* out = planes.data() + p * count;
    for (size_t i = 0; i < count; ++i) out[i] = bytes[i * width + p];
  }
  return planes;
}

std::string FromPlanes(std::string_view planes, size_t width) {
  const size_t count = planes.size() / width;
  std::string bytes(planes);
  for (size_t p = 0; p < width; ++p) {
    const char* in = planes.data() + p * count;
    for (size_t i = 0; i < count; ++i) bytes[i * width + p] = in[i];
  }
  return bytes;
}

std::string Xor(std::string_view a, std::string_view b) {
  std::string out(a);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(out[i] ^ b[i]);
  return out;
}

std::string HeaderBytes(const ChunkHeader& header) {
  std::string out(kMagic);
  out.push_back(static_cast<char>(kVersion));
  out.push_back(static_cast<char>(header.encoding));
  out.push_back(static_cast<char>(header.element_bytes));
  out.append(5, '\0');
  base::PutLe(out, header.size);
  const Digest base = header.base.value_or(Digest{});
  out.append(reinterpret_cast<const char*>(base.bytes.data()), base.bytes.size());
  base::PutLe(out, base::Hash64(out));
  return out;
}

Status Corrupt(const std::string& what) { return {StatusCode::kDataLoss, what}; }

bool IsWidth(uint32_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8; }

}  // namespace

std::string EncodeChunk(std::string_view bytes, uint32_t element_bytes,
                        const std::optional<ChunkBase>& base, int level) {
  KVLINK_CHECK(IsWidth(element_bytes) && bytes.size() <= kMaxChunkBytes)
      << element_bytes << " bytes an element, " << bytes.size() << " in all";
  ChunkHeader header{.element_bytes = element_bytes, .size = bytes.size()};
  std::string best(bytes);
  const auto offer = [&](Encoding encoding, std::string payload, size_t less_than) {
    if (payload.size() >= less_than) return;
    header.encoding = encoding;
    best = std::move(payload);
  };
  const size_t worth_it = bytes.size() - bytes.size() / 32;
  if (base && base->bytes.size() == bytes.size()) {
    offer(Encoding::kDifference, Compress(ToPlanes(Xor(bytes, base->bytes), element_bytes), level),
          worth_it);
  }
  if (best.size() > bytes.size() / 4) {  // else it cannot get much smaller, and costs another pass
    const bool planes = element_bytes > 1;
    offer(planes ? Encoding::kPlanes : Encoding::kZstd,
          Compress(planes ? ToPlanes(bytes, element_bytes) : std::string(bytes), level),
          std::min(worth_it, best.size()));
  }
  if (header.encoding == Encoding::kDifference) header.base = base->digest;
  return HeaderBytes(header) + best;
}

Result<ChunkHeader> ParseChunkHeader(std::string_view file) {
  if (file.size() < kChunkHeaderBytes) {
    return Corrupt("only " + std::to_string(file.size()) + " bytes, a chunk's header has " +
                   std::to_string(kChunkHeaderBytes));
  }
  if (!file.starts_with(kMagic)) return Corrupt("it does not start as a chunk does");
  std::string_view hash = file.substr(kHashedHeaderBytes);
  if (base::GetLe<uint64_t>(hash) != base::Hash64(file.substr(0, kHashedHeaderBytes))) {
    return Corrupt("its header's hash does not fit");
  }
  const auto version = static_cast<uint8_t>(file[8]), encoding = static_cast<uint8_t>(file[9]);
  if (version != kVersion || encoding > static_cast<uint8_t>(Encoding::kDifference)) {
    return Corrupt("version " + std::to_string(version) + ", encoding " + std::to_string(encoding) +
                   " is not known here");
  }
  ChunkHeader header{.encoding = static_cast<Encoding>(encoding),
                     .element_bytes = static_cast<uint8_t>(file[10]),
                     .size = base::GetLe<uint64_t>(file.substr(16))};
  if (!IsWidth(header.element_bytes) || header.size > kMaxChunkBytes) {
    return Corrupt(std::to_string(header.size) + " bytes in elements of " +
                   std::to_string(header.element_bytes));
  }
  if (header.encoding == Encoding::kDifference) {
    Digest base;
    std::memcpy(base.bytes.data(), file.data() + 24, base.bytes.size());
    header.base = base;
  }
  return header;
}

Result<std::string> DecodeChunk(std::string_view file, std::string_view base) {
  const Result<ChunkHeader> header = ParseChunkHeader(file);
  if (!header.ok()) return header.status();
  std::string bytes(file.substr(kChunkHeaderBytes));
  if (header->encoding != Encoding::kRaw) {
    std::string decoded(header->size, '\0');
    const size_t size = ZSTD_decompress(decoded.data(), decoded.size(), bytes.data(), bytes.size());
    if (ZSTD_isError(size)) return Corrupt(std::string("zstd: ") + ZSTD_getErrorName(size));
    decoded.resize(size);
    bytes = std::move(decoded);
  }
  if (bytes.size() != header->size) {
    return Corrupt(std::to_string(bytes.size()) + " bytes, its header says " +
                   std::to_string(header->size));
  }
  if (header->encoding == Encoding::kPlanes || header->encoding == Encoding::kDifference) {
    bytes = FromPlanes(bytes, header->element_bytes);
  }
  if (header->encoding != Encoding::kDifference) return bytes;
  if (base.size() != bytes.size()) {
    return Corrupt("its base has " + std::to_string(base.size()) + " bytes, it has " +
                   std::to_string(bytes.size()));
  }
  return Xor(bytes, base);
}

}  // namespace kvlink::ckpt
