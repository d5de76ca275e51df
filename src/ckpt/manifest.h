// Manifest: what a checkpoint consists of: its files, their parts in order, and the chunks of each.
// Its file appears last when a checkpoint is added, so that what has one is complete.
//
// Text: one line of JSON, then "sha256:" and the digest of that line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/digest.h"
#include "kvlink/status.h"

namespace kvlink::ckpt {

struct ManifestPart {
  std::string name;
  uint64_t size = 0;
  std::vector<Digest> chunks;  // of chunk_bytes each, the last one of what is left
  bool operator==(const ManifestPart&) const = default;
};

struct ManifestFile {
  std::string path;    // in the folder that was added; of a single file its name
  std::string format;  // as Layout::format
  std::vector<ManifestPart> parts;
  uint64_t size() const;
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::string name;
  std::string base;        // the checkpoint whose chunks differences were made against; may be gone
  bool is_folder = false;  // false: one file
  uint64_t chunk_bytes = 0;
  std::vector<ManifestFile> files;
  uint64_t size() const;
  bool operator==(const Manifest&) const = default;
};

std::string ToText(const Manifest& manifest);
// kDataLoss: the text is not what ToText wrote.
Result<Manifest> ParseManifest(std::string_view text);

// Letters, digits, '.', '_' and '-', not first a '.'; at most 128.
bool IsCheckpointName(std::string_view name);
// Relative, and leads nowhere outside.
bool IsSafePath(std::string_view path);

}  // namespace kvlink::ckpt
