#include "ckpt/chunk_files.h"

#include <filesystem>

#include "ckpt/file_io.h"

namespace kvlink::ckpt {

namespace fs = std::filesystem;

namespace {

Status Corrupt(const std::string& path, const std::string& what) {
  return {StatusCode::kDataLoss, "the chunk '" + path + "' is corrupt: " + what};
}

}  // namespace

std::string ChunkFiles::PathOf(const Digest& digest) const {
  const std::string hex = ToHex(digest);
  return folder_ + "/" + hex.substr(0, 2) + "/" + hex;
}

bool ChunkFiles::Contains(const Digest& digest) const {
  std::error_code error;
  return fs::is_regular_file(PathOf(digest), error);
}

Status ChunkFiles::Write(const Digest& digest, std::string_view file) const {
  const std::string path = PathOf(digest);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    return {StatusCode::kUnavailable,
            "cannot make the folder of '" + path + "': " + error.message()};
  }
  return WriteAtomically(path, file, /*sync=*/false);
}

Result<std::string> ChunkFiles::Read(const Digest& digest) const {
  const std::string path = PathOf(digest);
  const Result<std::string> file = ReadWhole(path);
  if (!file.ok()) {
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    return Status(StatusCode::kDataLoss, "the chunk '" + path + "' is missing");
  }
  const Result<ChunkHeader> header = ParseChunkHeader(*file);
  if (!header.ok()) return Corrupt(path, header.status().message());
  std::string base_bytes;
  if (header->base) {
    const Result<Stored> stored = Inspect(*header->base);
    if (!stored.ok()) return stored.status();
    if (stored->header.base) return Corrupt(path, "its base is a difference");
    Result<std::string> base = Read(*header->base);
    if (!base.ok()) return base.status();
    base_bytes = std::move(base).value();
  }
  Result<std::string> bytes = DecodeChunk(*file, base_bytes);
  if (!bytes.ok()) return Corrupt(path, bytes.status().message());
  if (Sha256(*bytes) != digest) return Corrupt(path, "its content does not have its SHA-256");
  return bytes;
}

Result<ChunkFiles::Stored> ChunkFiles::Inspect(const Digest& digest) const {
  const std::string path = PathOf(digest);
  const Result<File> file = OpenForReading(path);
  if (!file.ok()) {
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    return Status(StatusCode::kDataLoss, "the chunk '" + path + "' is missing");
  }
  const Result<uint64_t> size = SizeOf(*file, path);
  if (!size.ok()) return size.status();
  if (*size < kChunkHeaderBytes) return Corrupt(path, "it is shorter than a header");
  const Result<std::string> start = ReadAt(*file, path, 0, kChunkHeaderBytes);
  if (!start.ok()) return start.status();
  const Result<ChunkHeader> header = ParseChunkHeader(*start);
  if (!header.ok()) return Corrupt(path, header.status().message());
  return Stored{*header, *size};
}

Result<ChunkFiles::Listing> ChunkFiles::List() const {
  Listing listing;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder_, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (!entry->is_regular_file(error)) continue;
    const auto digest = ParseHex(entry->path().filename().string());
    if (digest && PathOf(*digest) == entry->path().string()) {
      listing.chunks.push_back(*digest);
    } else {
      listing.leftovers.push_back(entry->path().string());
    }
  }
  if (error) {
    return Status(StatusCode::kUnavailable,
                  "cannot list the folder '" + folder_ + "': " + error.message());
  }
  return listing;
}

Status ChunkFiles::Remove(const Digest& digest) const {
  std::error_code error;
  fs::remove(PathOf(digest), error);
  if (!error) return Status::Ok();
  return {StatusCode::kUnavailable, "cannot remove '" + PathOf(digest) + "': " + error.message()};
}

}  // namespace kvlink::ckpt
