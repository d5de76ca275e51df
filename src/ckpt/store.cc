#include "ckpt/store.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "ckpt/adding.h"
#include "ckpt/file_io.h"
#include "ckpt/store_lock.h"

namespace kvlink::ckpt {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFormat = "kvlink checkpoints 1\n";
constexpr uint64_t kMinChunkBytes = 4096;

Status NoSuchCheckpoint(const std::string& name) {
  return {StatusCode::kNotFound, "no checkpoint '" + name + "' in the store"};
}

Status CheckName(const std::string& name) {
  if (IsCheckpointName(name)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "'" + name + "' is no checkpoint name: letters, digits, '.', '_', '-', at most 128"};
}

Status CheckOptions(const AddOptions& options) {
  if (options.level < 1 || options.level > 19) {
    return {StatusCode::kInvalidArgument,
            "the compression level must be 1 to 19, not " + std::to_string(options.level)};
  }
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % 8 != 0) {
    return {StatusCode::kInvalidArgument, "a chunk must have " + std::to_string(kMinChunkBytes) +
                                              " to " + std::to_string(kMaxChunkBytes) +
                                              " bytes, a multiple of 8, not " +
                                              std::to_string(options.chunk_bytes)};
  }
  return Status::Ok();
}

// Path in the file system and in the manifest, by the latter.
Result<std::vector<std::pair<std::string, std::string>>> FilesOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  std::vector<std::pair<std::string, std::string>> files;
  if (fs::is_regular_file(path, error)) {
    files.emplace_back(path, fs::path(path).filename().string());
    return files;
  }
  if (!fs::is_directory(path, error)) {
    return Status(StatusCode::kNotFound, "no file or folder '" + path + "'");
  }
  for (auto entry = fs::recursive_directory_iterator(path, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_regular_file(error)) {
      files.emplace_back(entry->path().string(),
                         entry->path().lexically_relative(path).generic_string());
    } else if (!error && !entry->is_directory(error)) {
      return Status(StatusCode::kInvalidArgument,
                    "'" + entry->path().string() + "' is neither a file nor a folder");
    }
  }
  if (error) {
    return Status(StatusCode::kUnavailable, "cannot list '" + path + "': " + error.message());
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  return files;
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return Status::Ok();
  return {StatusCode::kUnavailable, "cannot make the folder '" + path + "': " + error.message()};
}

// Folders first, FORMAT last: a half-made store is made again.
Status MakeStore(const std::string& folder) {
  std::error_code error;
  if (fs::exists(folder, error)) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name == "chunks" || name == "checkpoints" || name.starts_with("FORMAT")) continue;
      return {StatusCode::kFailedPrecondition,
              "'" + folder + "' is not empty and no checkpoint store: it has '" + name + "'"};
    }
    if (error) {
      return {StatusCode::kUnavailable, "cannot list '" + folder + "': " + error.message()};
    }
  }
  for (const char* part : {"/chunks", "/checkpoints"}) {
    if (const Status status = MakeFolder(folder + part); !status.ok()) return status;
  }
  return WriteAtomically(folder + "/FORMAT", kFormat, /*sync=*/true);
}

// Removes what is at `path` unless it was kept.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  ~Temporary() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& path() const { return path_; }
  Status MoveTo(const std::string& target) {
    std::error_code error;
    fs::rename(path_, target, error);
    if (error) {
      return {StatusCode::kUnavailable, "cannot rename to '" + target + "': " + error.message()};
    }
    path_.clear();
    return Status::Ok();
  }

 private:
  std::string path_;
};

}  // namespace

Result<CheckpointStore> CheckpointStore::Open(const std::string& folder, bool create, bool wait) {
  std::error_code error;
  if (!fs::is_regular_file(folder + "/FORMAT", error)) {
    if (!create) {
      return Status(StatusCode::kNotFound, "no checkpoint store in '" + folder + "'");
    }
    if (const Status status = MakeStore(folder); !status.ok()) return status;
  }
  const Result<std::string> format = ReadWhole(folder + "/FORMAT");
  if (!format.ok()) return format.status();
  if (*format != kFormat) {
    return Status(StatusCode::kFailedPrecondition,
                  "'" + folder + "/FORMAT' says '" + format->substr(0, 40) +
                      "', this program knows '" + std::string(kFormat.substr(0, 20)) + "'");
  }
  return CheckpointStore(folder, wait);
}

Result<File> CheckpointStore::Lock(const char* name, bool exclusive) const {
  return LockFile(folder_ + "/" + name, exclusive, wait_);
}

Result<Manifest> CheckpointStore::ReadManifest(const std::string& name) const {
  const Result<std::string> text = ReadWhole(ManifestPath(name));
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return NoSuchCheckpoint(name);
    return text.status();
  }
  Result<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) {
    return Status(StatusCode::kDataLoss, "the manifest '" + ManifestPath(name) +
                                             "' is corrupt: " + manifest.status().message());
  }
  if (manifest->name == name) return manifest;
  return Status(StatusCode::kDataLoss,
                "the manifest '" + ManifestPath(name) + "' is that of '" + manifest->name + "'");
}

Result<std::vector<Manifest>> CheckpointStore::ReadManifests() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_ + "/checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kTemporarySuffix)) names.push_back(name);
  }
  if (error) {
    return Status(StatusCode::kUnavailable,
                  "cannot list '" + folder_ + "/checkpoints': " + error.message());
  }
  std::sort(names.begin(), names.end());
  std::vector<Manifest> manifests;
  for (const std::string& name : names) {
    Result<Manifest> manifest = ReadManifest(name);
    if (!manifest.ok()) return manifest.status();
    manifests.push_back(std::move(manifest).value());
  }
  return manifests;
}

Result<AddReport> CheckpointStore::Add(const std::string& name, const std::string& path,
                                       const AddOptions& options) {
  if (const Status status = CheckName(name); !status.ok()) return status;
  if (name.ends_with(kTemporarySuffix)) {
    return Status(StatusCode::kInvalidArgument,
                  "a checkpoint's name must not end in '" + std::string(kTemporarySuffix) + "'");
  }
  if (const Status status = CheckOptions(options); !status.ok()) return status;
  const auto files = FilesOf(path);
  if (!files.ok()) return files.status();
  const auto lock = Lock("write.lock", true);
  if (!lock.ok()) return lock.status();
  const auto manifests = ReadManifests();
  if (!manifests.ok()) return manifests.status();
  const Manifest* base = nullptr;
  DigestSet trusted;
  for (const Manifest& manifest : *manifests) {
    if (manifest.name == name) {
      return Status(StatusCode::kFailedPrecondition,
                    "a checkpoint '" + name + "' is there already");
    }
    if (manifest.name == options.base) base = &manifest;
    for (const ManifestFile& file : manifest.files) {
      for (const ManifestPart& part : file.parts) {
        trusted.insert(part.chunks.begin(), part.chunks.end());
      }
    }
  }
  if (!options.base.empty() && base == nullptr) return NoSuchCheckpoint(options.base);

  std::error_code error;
  Manifest manifest{.name = name,
                    .base = options.base,
                    .is_folder = fs::is_directory(path, error),
                    .chunk_bytes = base != nullptr ? base->chunk_bytes : options.chunk_bytes,
                    .files = {}};
  Adding adding(chunks_, trusted, base, options.level, manifest.chunk_bytes);
  for (const auto& [from, as] : *files) {
    const Status status = adding.AddFile(from, as, &manifest.files.emplace_back());
    if (!status.ok()) return status;
  }
  if (const Status status = SyncFileSystem(folder_); !status.ok()) return status;
  const Status status = WriteAtomically(ManifestPath(name), ToText(manifest), /*sync=*/true);
  if (!status.ok()) return status;
  return adding.report();
}

// To nowhere with null.
Status CheckpointStore::CopyOut(const ManifestFile& file, const File* out,
                                const std::string& path) const {
  for (const ManifestPart& part : file.parts) {
    uint64_t size = 0;
    for (const Digest& digest : part.chunks) {
      const Result<std::string> bytes = chunks_.Read(digest);
      if (!bytes.ok()) {
        return {bytes.status().code(),
                "'" + part.name + "' of '" + file.path + "': " + bytes.status().message()};
      }
      size += bytes->size();
      if (out == nullptr) continue;
      if (const Status status = WriteAll(*out, path, *bytes); !status.ok()) return status;
    }
    if (size != part.size) {
      return {StatusCode::kDataLoss, "'" + part.name + "' of '" + file.path + "' has " +
                                         std::to_string(size) + " bytes, its manifest says " +
                                         std::to_string(part.size)};
    }
  }
  return Status::Ok();
}

Status CheckpointStore::GetFiles(const Manifest& manifest, const std::string& path) const {
  for (const ManifestFile& file : manifest.files) {
    const std::string target = manifest.is_folder ? path + "/" + file.path : path;
    if (manifest.is_folder) {
      const Status made = MakeFolder(fs::path(target).parent_path().string());
      if (!made.ok()) return made;
    }
    const Result<File> out = CreateFile(target);
    if (!out.ok()) return out.status();
    if (const Status status = CopyOut(file, &*out, target); !status.ok()) return status;
  }
  return Status::Ok();
}

Result<uint64_t> CheckpointStore::Get(const std::string& name, const std::string& path) const {
  if (const Status status = CheckName(name); !status.ok()) return status;
  std::error_code error;
  if (fs::exists(path, error)) {
    return Status(StatusCode::kFailedPrecondition, "'" + path + "' is there already");
  }
  const auto lock = Lock("read.lock", false);
  if (!lock.ok()) return lock.status();
  const Result<Manifest> manifest = ReadManifest(name);
  if (!manifest.ok()) return manifest.status();
  Temporary temporary(path + "." + std::to_string(::getpid()) + std::string(kTemporarySuffix));
  if (manifest->is_folder) {
    if (const Status status = MakeFolder(temporary.path()); !status.ok()) return status;
  }
  if (const Status status = GetFiles(*manifest, temporary.path()); !status.ok()) return status;
  if (const Status status = temporary.MoveTo(path); !status.ok()) return status;
  return manifest->size();
}

Result<uint64_t> CheckpointStore::Verify(const std::string& name) const {
  if (const Status status = CheckName(name); !status.ok()) return status;
  const auto lock = Lock("read.lock", false);
  if (!lock.ok()) return lock.status();
  const Result<Manifest> manifest = ReadManifest(name);
  if (!manifest.ok()) return manifest.status();
  for (const ManifestFile& file : manifest->files) {
    if (const Status status = CopyOut(file, nullptr, ""); !status.ok()) return status;
  }
  return manifest->size();
}

// All names are known before the first is removed.
Status CheckpointStore::RemoveCheckpoints(const std::vector<std::string>& names,
                                          CollectReport* report) {
  std::error_code error;
  for (const std::string& name : names) {
    if (const Status status = CheckName(name); !status.ok()) return status;
    if (!fs::is_regular_file(ManifestPath(name), error)) return NoSuchCheckpoint(name);
  }
  for (const std::string& name : names) {
    if (!fs::remove(ManifestPath(name), error) && error) {
      return {StatusCode::kUnavailable,
              "cannot remove '" + ManifestPath(name) + "': " + error.message()};
    }
    ++report->removed_checkpoints;
  }
  return names.empty() ? Status::Ok() : SyncFileSystem(folder_);
}

Result<CollectReport> CheckpointStore::Collect(const std::vector<std::string>& remove) {
  const auto write_lock = Lock("write.lock", true);
  if (!write_lock.ok()) return write_lock.status();
  const auto read_lock = Lock("read.lock", true);
  if (!read_lock.ok()) return read_lock.status();
  CollectReport report;
  if (const Status status = RemoveCheckpoints(remove, &report); !status.ok()) return status;
  // A manifest or chunk that cannot be read ends it here: what it needs is not known.
  const auto manifests = ReadManifests();
  if (!manifests.ok()) return manifests.status();
  Needs needs;
  for (const Manifest& manifest : *manifests) {
    const auto chunks = ChunksOf(manifest, &needs);
    if (!chunks.ok()) return chunks.status();
  }
  const auto listing = chunks_.List();
  if (!listing.ok()) return listing.status();
  std::error_code error;
  for (const Digest& digest : listing->chunks) {
    if (needs.count(digest) > 0) continue;
    report.freed_bytes += fs::file_size(chunks_.PathOf(digest), error);
    if (const Status status = chunks_.Remove(digest); !status.ok()) return status;
    ++report.removed_chunks;
  }
  std::vector<std::string> leftovers = listing->leftovers;
  for (const auto& entry : fs::directory_iterator(folder_ + "/checkpoints", error)) {
    const std::string path = entry.path().string();
    if (path.ends_with(kTemporarySuffix)) leftovers.push_back(path);
  }
  for (const std::string& path : leftovers) {
    report.freed_bytes += fs::file_size(path, error);
    if (fs::remove(path, error)) ++report.leftovers;
  }
  return report;
}

}  // namespace kvlink::ckpt
