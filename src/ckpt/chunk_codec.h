// Chunk: up to some megabytes of one tensor, as a file holds it: a header of 64 bytes, and the
// bytes in the smallest of these encodings.
//
//   raw         as they are (nothing else saves a 32nd)
//   zstd        compressed
//   planes      first bytes of all elements, then all second bytes, ...; compressed
//   difference  XOR with a base chunk of the same size; in planes; compressed
//
// Numbers of a tensor are close to each other in their exponents, and those of a fine-tuned one to
// the base's, so that planes and differences have long runs where the bytes themselves have none.
//
//   offset  bytes
//        0      8  "KVLKCHNK"
//        8      1  version, 1
//        9      1  encoding: 0 raw, 1 zstd, 2 planes, 3 difference
//       10      1  bytes an element: 1, 2, 4 or 8
//       11      5  0
//       16      8  size of the decoded bytes, little-endian
//       24     32  SHA-256 of the base; 0 without one
//       56      8  XXH3 (64 bits) of bytes 0 to 55, little-endian
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/digest.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

enum class Encoding : uint8_t { kRaw, kZstd, kPlanes, kDifference };

inline constexpr size_t kChunkHeaderBytes = 64;
inline constexpr uint64_t kMaxChunkBytes = uint64_t{64} << 20;

struct ChunkHeader {
  Encoding encoding = Encoding::kRaw;
  uint32_t element_bytes = 1;
  uint64_t size = 0;           // decoded
  std::optional<Digest> base;  // of a difference
};

struct ChunkBase {
  Digest digest;
  std::string_view bytes;
};

// The file of a chunk. `base` of another size is not used. `level` is zstd's, 1 to 19.
std::string EncodeChunk(std::string_view bytes, uint32_t element_bytes,
                        const std::optional<ChunkBase>& base, int level);

// kDataLoss: not a chunk's header.
Result<ChunkHeader> ParseChunkHeader(std::string_view file);

// The bytes; of a difference, over `base`. kDataLoss: not what the header says.
Result<std::string> DecodeChunk(std::string_view file, std::string_view base);

}  // namespace kvlink::ckpt
