// Adding: one checkpoint on its way into a store. Writes its chunks and makes its manifest; what
// makes that visible is the store.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ckpt/chunk_files.h"
#include "ckpt/layout.h"
#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

class Adding {
 public:
  // `trusted`: chunks of visible checkpoints, which were synced. `base`: null, or read from the
  // store. All outlive this.
  Adding(const ChunkFiles& chunks, const std::unordered_set<Digest, DigestHash>& trusted,
         const Manifest* base, int level, uint64_t chunk_bytes);

  // `as`: its path in the manifest.
  Status AddFile(const std::string& path, const std::string& as, ManifestFile* file);
  const AddReport& report() const { return report_; }

 private:
  Result<Digest> AddChunk(const Part& part, std::string_view bytes, const Digest* base_chunk);
  // The chunk is there and good; of an add that was interrupted it may be there and bad.
  bool IsThere(const Digest& digest, bool* is_bad) const;
  Result<std::string> ReadBase(const Digest& chunk, Digest* base) const;
  const ManifestPart* BasePart(const std::string& file, const std::string& part) const;

  const ChunkFiles& chunks_;
  const std::unordered_set<Digest, DigestHash>& trusted_;
  const int level_;
  const uint64_t chunk_bytes_;
  std::map<std::pair<std::string, std::string>, const ManifestPart*> base_parts_;  // by file, part
  std::map<std::string, const ManifestPart*> base_tensors_;  // by name alone; null: not unique
  std::unordered_set<Digest, DigestHash> written_;
  AddReport report_;
};

}  // namespace kvlink::ckpt
