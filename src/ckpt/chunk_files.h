// ChunkFiles: chunks by the SHA-256 of what they decode to, a file each: chunks/ab/abcdef....
//
// A chunk that is read is decoded and hashed again, so that what comes out is what went in, or an
// error. The base of a difference is never itself a difference: reading one chunk opens at most two
// files.
// Threads: const members may run at the same time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/chunk_codec.h"
#include "ckpt/digest.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

class ChunkFiles {
 public:
  explicit ChunkFiles(std::string folder) : folder_(std::move(folder)) {}

  bool Contains(const Digest& digest) const;
  // Replaces one that is there. It survives a power failure once the file system is synced.
  Status Write(const Digest& digest, std::string_view file) const;
  // The decoded bytes. kDataLoss names the file and what is wrong with it.
  Result<std::string> Read(const Digest& digest) const;

  struct Stored {
    ChunkHeader header;
    uint64_t file_bytes = 0;
  };
  Result<Stored> Inspect(const Digest& digest) const;

  // What lies in the folder: chunks, and files that are none (of interrupted writes).
  struct Listing {
    std::vector<Digest> chunks;
    std::vector<std::string> leftovers;  // paths
  };
  Result<Listing> List() const;
  Status Remove(const Digest& digest) const;

  std::string PathOf(const Digest& digest) const;

 private:
  std::string folder_;
};

}  // namespace kvlink::ckpt
