#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "model/ggml_log.h"

namespace kvlink::model {
namespace {

Status Error(StatusCode code, const std::string& path, const std::string& message) {
  return Status(code, path + ": " + message);
}

}  // namespace

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile(path));
  for (const auto step : {&GgufFile::Map, &GgufFile::Parse, &GgufFile::PointTensorsIntoMap}) {
    if (Status status = (file.get()->*step)(); !status.ok()) return status;
  }
  return file;
}

GgufFile::~GgufFile() {
  if (tensors_ != nullptr) ggml_free(tensors_);
  if (keys_ != nullptr) gguf_free(keys_);
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void GgufFile::DropResidentPages(std::span<const std::byte> range) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(range.data() - bytes_.data());
  const size_t begin = (offset + page - 1) / page * page;
  size_t end = offset + range.size();
  if (end < bytes_.size()) end = end / page * page;
  if (begin >= end) return;
  madvise(const_cast<std::byte*>(bytes_.data() + begin), end - begin, MADV_DONTNEED);
}

Status GgufFile::Map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument, path_,
                 std::strerror(errno));
  }
  struct stat info {};
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  void* map = MAP_FAILED;
  if (regular && info.st_size > 0) {
    map = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  }
  const int map_error = errno;
  close(fd);
  if (!regular) return Error(StatusCode::kInvalidArgument, path_, "not a regular file");
  if (info.st_size == 0) return Error(StatusCode::kDataLoss, path_, "the file is empty");
  if (map == MAP_FAILED)
    return Error(StatusCode::kInternal, path_, std::string("mmap: ") + std::strerror(map_error));
  bytes_ = {static_cast<const std::byte*>(map), static_cast<size_t>(info.st_size)};
  return Status::Ok();
}

Status GgufFile::Parse() {
  LogCapture errors;
  const gguf_init_params params = {/*.no_alloc=*/true, /*.ctx=*/&tensors_};
  keys_ = gguf_init_from_buffer(bytes_.data(), bytes_.size(), params);
  if (keys_ == nullptr || tensors_ == nullptr) {
    return Error(StatusCode::kDataLoss, path_, "not a readable GGUF file: " + errors.text());
  }
  const int64_t split = gguf_find_key(keys_, "split.count");
  if (split >= 0 && gguf_get_kv_type(keys_, split) == GGUF_TYPE_UINT16 &&
      gguf_get_val_u16(keys_, split) > 1) {
    return Error(StatusCode::kUnimplemented, path_,
                 "one of " + std::to_string(gguf_get_val_u16(keys_, split)) +
                     " parts of a split model; merge them first (llama-gguf-split --merge)");
  }
  return Status::Ok();
}

Status GgufFile::PointTensorsIntoMap() {
  const size_t data = gguf_get_data_offset(keys_);
  const size_t alignment = gguf_get_alignment(keys_);
  if (alignment < sizeof(double)) {
    return Error(StatusCode::kUnimplemented, path_,
                 "general.alignment: " + std::to_string(alignment) + " is below 8");
  }
  for (ggml_tensor* t = ggml_get_first_tensor(tensors_); t != nullptr;
       t = ggml_get_next_tensor(tensors_, t)) {
    const int64_t index = gguf_find_tensor(keys_, t->name);
    const size_t offset = gguf_get_tensor_offset(keys_, index);
    const size_t size = ggml_nbytes(t);
    if (size == 0)
      return Error(StatusCode::kDataLoss, path_, std::string("tensor '") + t->name + "' is empty");
    if (data > bytes_.size() || offset > bytes_.size() - data ||
        size > bytes_.size() - data - offset) {
      return Error(StatusCode::kDataLoss, path_,
                   std::string("cut off: tensor '") + t->name + "' needs bytes " +
                       std::to_string(data + offset) + " to " +
                       std::to_string(data + offset + size) + ", the file has " +
                       std::to_string(bytes_.size()));
    }
    t->data = const_cast<std::byte*>(bytes_.data()) + data + offset;
  }
  return Status::Ok();
}

std::string GgufFile::Text(const char* key) const {
  const int64_t id = gguf_find_key(keys_, key);
  if (id < 0 || gguf_get_kv_type(keys_, id) != GGUF_TYPE_STRING) return "";
  return gguf_get_val_str(keys_, id);
}

}  // namespace kvlink::model
