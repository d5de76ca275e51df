#include "ckpt/adding.h"

#include <algorithm>

#include "ckpt/file_io.h"

namespace kvlink::ckpt {

Adding::Adding(const ChunkFiles& chunks, const std::unordered_set<Digest, DigestHash>& trusted,
               const Manifest* base, int level, uint64_t chunk_bytes)
    : chunks_(chunks), trusted_(trusted), level_(level), chunk_bytes_(chunk_bytes) {
  if (base == nullptr) return;
  for (const ManifestFile& file : base->files) {
    for (const ManifestPart& part : file.parts) {
      base_parts_.try_emplace({file.path, part.name}, &part);
      const auto [at, is_new] = base_tensors_.try_emplace(part.name, &part);
      if (!is_new) at->second = nullptr;
    }
  }
}

// Of the file with the same name first: shards may have parts of one name ("(header)"). Else the
// tensor may have gone to another shard, or the file have another name.
const ManifestPart* Adding::BasePart(const std::string& file, const std::string& part) const {
  const auto same_file = base_parts_.find({file, part});
  if (same_file != base_parts_.end()) return same_file->second;
  const auto same_name = base_tensors_.find(part);
  return same_name == base_tensors_.end() ? nullptr : same_name->second;
}

Status Adding::AddFile(const std::string& path, const std::string& as, ManifestFile* file) {
  const Result<File> in = OpenForReading(path);
  if (!in.ok()) return in.status();
  const Result<uint64_t> size = SizeOf(*in, path);
  if (!size.ok()) return size.status();
  const Result<Layout> layout = ReadLayout(*in, path, *size);
  if (!layout.ok()) return layout.status();
  file->path = as;
  file->format = layout->format;
  for (const Part& part : layout->parts) {
    const ManifestPart* base = BasePart(as, part.name);
    ManifestPart& added = file->parts.emplace_back(ManifestPart{part.name, part.size, {}});
    for (uint64_t at = 0; at < part.size; at += chunk_bytes_) {
      const auto bytes =
          ReadAt(*in, path, part.offset + at, std::min(chunk_bytes_, part.size - at));
      if (!bytes.ok()) return bytes.status();
      const size_t index = added.chunks.size();
      const bool has_base = base != nullptr && index < base->chunks.size();
      const auto digest = AddChunk(part, *bytes, has_base ? &base->chunks[index] : nullptr);
      if (!digest.ok()) return digest.status();
      added.chunks.push_back(*digest);
    }
  }
  return Status::Ok();
}

bool Adding::IsThere(const Digest& digest, bool* is_bad) const {
  *is_bad = false;
  if (written_.count(digest) > 0) return true;
  if (!chunks_.Contains(digest)) return false;
  if (trusted_.count(digest) > 0) return true;
  *is_bad = !chunks_.Read(digest).ok();
  return !*is_bad;
}

// What a difference from `chunk` can be made against: itself, or what it is a difference from.
Result<std::string> Adding::ReadBase(const Digest& chunk, Digest* base) const {
  const auto stored = chunks_.Inspect(chunk);
  if (!stored.ok()) return stored.status();
  *base = stored->header.base.value_or(chunk);
  return chunks_.Read(*base);
}

Result<Digest> Adding::AddChunk(const Part& part, std::string_view bytes,
                                const Digest* base_chunk) {
  const Digest digest = Sha256(bytes);
  ++report_.chunks;
  report_.bytes += bytes.size();
  bool is_bad = false;
  if (IsThere(digest, &is_bad)) return digest;
  std::optional<ChunkBase> base;
  std::string base_bytes;
  // A bad chunk may be what others are differences from: it becomes a chunk of its own again.
  if (base_chunk != nullptr && !is_bad) {
    Digest base_digest;
    auto read = ReadBase(*base_chunk, &base_digest);
    if (!read.ok()) {
      return Status(read.status().code(),
                    "base of '" + part.name + "': " + read.status().message());
    }
    base_bytes = std::move(read).value();
    if (base_digest != digest) base = ChunkBase{base_digest, base_bytes};
  }
  const std::string file = EncodeChunk(bytes, part.element_bytes, base, level_);
  if (const Status status = chunks_.Write(digest, file); !status.ok()) return status;
  written_.insert(digest);
  ++report_.new_chunks;
  report_.new_bytes += file.size();
  const auto header = ParseChunkHeader(file);
  if (header.ok() && header->encoding == Encoding::kDifference) ++report_.differences;
  return digest;
}

}  // namespace kvlink::ckpt
