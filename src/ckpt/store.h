// CheckpointStore: training checkpoints that share what they have in common.
//
//   DIR/FORMAT               "kvlink checkpoints 1"
//   DIR/checkpoints/NAME     manifests; a checkpoint is there when its manifest is
//   DIR/chunks/ab/abcd...    chunks, named by the SHA-256 of their content
//   DIR/write.lock, read.lock
//
// A file is cut into its tensors and each tensor into chunks of chunk_bytes, so that equal tensors,
// and equal ranges at the same place of a tensor, are one chunk. With a base, a new chunk is stored
// as the difference from the base's chunk at the same place of the tensor of the same name, where
// that is smaller.
//
// Invariants
//   1. A visible checkpoint is complete: its chunks were written and synced before its manifest.
//   2. A difference's base is a chunk of its own, never a difference. An existing chunk is never
//      written again as a difference, so differences make no cycles.
//   3. How many checkpoints need a chunk is counted from the manifests whenever it is asked for:
//      no count is stored that a crash could leave wrong.
// Threads and processes: any number of stores may be open on one folder; see store_lock.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ckpt/chunk_files.h"
#include "ckpt/layout.h"
#include "ckpt/manifest.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

struct AddOptions {
  std::string base;                          // a checkpoint in the store; empty: none
  int level = 3;                             // zstd's, 1 to 19
  uint64_t chunk_bytes = uint64_t{1} << 20;  // of a checkpoint without a base
};

struct AddReport {
  uint64_t bytes = 0, chunks = 0;
  uint64_t new_chunks = 0, new_bytes = 0;  // as stored
  uint64_t differences = 0;                // of the new chunks
};

struct CheckpointInfo {
  std::string name, base, format;  // format of the files: "mixed" when they differ
  uint64_t files = 0, tensors = 0, bytes = 0;
  uint64_t stored_bytes = 0;  // of all chunks it needs
  uint64_t own_bytes = 0;     // of those that no other checkpoint needs: what removing it frees
};

struct StoreListing {
  std::vector<CheckpointInfo> checkpoints;  // by name
  uint64_t bytes = 0, stored_bytes = 0;     // of all; chunks that nothing needs are not in it
};

struct CollectReport {
  uint64_t removed_checkpoints = 0, removed_chunks = 0, leftovers = 0, freed_bytes = 0;
};

class CheckpointStore {
 public:
  // `create`: makes the store when the folder is empty or not there. `wait`: operations wait for
  // other processes rather than fail with kUnavailable.
  static Result<CheckpointStore> Open(const std::string& folder, bool create, bool wait);

  // Stores the file, or all files below the folder, `path`. kFailedPrecondition: the name is taken.
  Result<AddReport> Add(const std::string& name, const std::string& path,
                        const AddOptions& options);
  // Writes the checkpoint to `path`, which must not be there; all of it or nothing. kDataLoss names
  // the tensor whose chunk is corrupt. Returns the bytes.
  Result<uint64_t> Get(const std::string& name, const std::string& path) const;
  // Reads all of a checkpoint as Get does, and writes nothing.
  Result<uint64_t> Verify(const std::string& name) const;
  Result<StoreListing> List() const;
  // Removes checkpoints, then chunks that no checkpoint needs and what interrupted writes left.
  Result<CollectReport> Collect(const std::vector<std::string>& remove);

 private:
  CheckpointStore(std::string folder, bool wait)
      : folder_(std::move(folder)), wait_(wait), chunks_(folder_ + "/chunks") {}

  struct Need {
    uint64_t stored_bytes = 0;
    uint32_t checkpoints = 0;
  };
  using Needs = std::unordered_map<Digest, Need, DigestHash>;
  using DigestSet = std::unordered_set<Digest, DigestHash>;

  Result<File> Lock(const char* name, bool exclusive) const;
  std::string ManifestPath(const std::string& name) const {
    return folder_ + "/checkpoints/" + name;
  }
  Result<Manifest> ReadManifest(const std::string& name) const;
  Result<std::vector<Manifest>> ReadManifests() const;
  // The chunks of a checkpoint and their bases.
  Result<DigestSet> ChunksOf(const Manifest& manifest, Needs* needs) const;
  Status CopyOut(const ManifestFile& file, const File* out, const std::string& path) const;
  Status GetFiles(const Manifest& manifest, const std::string& path) const;
  Status RemoveCheckpoints(const std::vector<std::string>& names, CollectReport* report);

  std::string folder_;
  bool wait_;
  ChunkFiles chunks_;
};

}  // namespace kvlink::ckpt
