// What the checkpoints of a store need, and what they share.
#include <algorithm>
#include <optional>
#include <utility>

#include "ckpt/file_io.h"
#include "ckpt/store.h"

namespace kvlink::ckpt {

Result<CheckpointStore::DigestSet> CheckpointStore::ChunksOf(const Manifest& manifest,
                                                             Needs* needs) const {
  DigestSet chunks;
  const auto need = [&](const Digest& digest, std::optional<Digest>* base) {
    if (!chunks.insert(digest).second) return Status::Ok();
    const auto stored = chunks_.Inspect(digest);
    if (!stored.ok()) return stored.status();
    Need& entry = (*needs)[digest];
    entry.stored_bytes = stored->file_bytes;
    ++entry.checkpoints;
    *base = stored->header.base;
    return Status::Ok();
  };
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestPart& part : file.parts) {
      for (const Digest& digest : part.chunks) {
        std::optional<Digest> base, none;
        Status status = need(digest, &base);
        if (status.ok() && base) status = need(*base, &none);
        if (status.ok()) continue;
        return Status(status.code(), "'" + part.name + "' of checkpoint '" + manifest.name +
                                         "': " + status.message());
      }
    }
  }
  return chunks;
}

Result<StoreListing> CheckpointStore::List() const {
  const auto lock = Lock("read.lock", false);
  if (!lock.ok()) return lock.status();
  const auto manifests = ReadManifests();
  if (!manifests.ok()) return manifests.status();
  Needs needs;
  std::vector<DigestSet> chunks;
  for (const Manifest& manifest : *manifests) {
    auto of_this = ChunksOf(manifest, &needs);
    if (!of_this.ok()) return of_this.status();
    chunks.push_back(std::move(of_this).value());
  }
  StoreListing listing;
  for (size_t i = 0; i < manifests->size(); ++i) {
    const Manifest& manifest = (*manifests)[i];
    CheckpointInfo info{.name = manifest.name,
                        .base = manifest.base,
                        .files = manifest.files.size(),
                        .bytes = manifest.size()};
    for (const ManifestFile& file : manifest.files) {
      if (!info.format.empty() && info.format != file.format) info.format = "mixed";
      if (info.format.empty()) info.format = file.format;
      info.tensors += static_cast<uint64_t>(
          std::count_if(file.parts.begin(), file.parts.end(),
                        [](const ManifestPart& part) { return !part.name.starts_with('('); }));
    }
    for (const Digest& digest : chunks[i]) {
      const Need& need = needs[digest];
      info.stored_bytes += need.stored_bytes;
      if (need.checkpoints == 1) info.own_bytes += need.stored_bytes;
    }
    listing.bytes += info.bytes;
    listing.checkpoints.push_back(std::move(info));
  }
  for (const auto& [digest, need] : needs) listing.stored_bytes += need.stored_bytes;
  return listing;
}

}  // namespace kvlink::ckpt
