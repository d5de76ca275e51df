#include "ckpt/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace kvlink::ckpt {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kSeal = "\nsha256:";
constexpr int kVersion = 1;

Status Corrupt(const std::string& what) { return {StatusCode::kDataLoss, what}; }

// As JSON needs valid UTF-8 and a tensor's name may be any bytes.
std::string Escaped(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '%') {
      out.push_back(c);
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool Unescape(std::string_view text, std::string* bytes) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes->push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = DigitOf(text[i + 1]), low = DigitOf(text[i + 2]);
    if (high < 0 || low < 0) return false;
    bytes->push_back(static_cast<char>(high << 4 | low));
    i += 2;
  }
  return true;
}

bool TakeText(const Json& object, const char* name, std::string* text) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() &&
         Unescape(found->get_ref<const std::string&>(), text);
}

bool TakeNumber(const Json& object, const char* name, uint64_t* value) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return false;
  *value = found->get<uint64_t>();
  return true;
}

bool ParsePart(const Json& json, uint64_t chunk_bytes, ManifestPart* part) {
  const auto chunks = json.find("chunks");
  if (!TakeText(json, "name", &part->name) || !TakeNumber(json, "size", &part->size) ||
      chunks == json.end() || !chunks->is_array()) {
    return false;
  }
  for (const Json& hex : *chunks) {
    const auto digest =
        hex.is_string() ? ParseHex(hex.get_ref<const std::string&>()) : std::nullopt;
    if (!digest) return false;
    part->chunks.push_back(*digest);
  }
  return part->chunks.size() == part->size / chunk_bytes + (part->size % chunk_bytes > 0 ? 1 : 0);
}

bool ParseFile(const Json& json, uint64_t chunk_bytes, ManifestFile* file) {
  const auto parts = json.find("parts");
  if (!TakeText(json, "path", &file->path) || !IsSafePath(file->path) ||
      !TakeText(json, "format", &file->format) || parts == json.end() || !parts->is_array()) {
    return false;
  }
  for (const Json& part : *parts) {
    if (!part.is_object() || !ParsePart(part, chunk_bytes, &file->parts.emplace_back())) {
      return false;
    }
  }
  return true;
}

}  // namespace

uint64_t ManifestFile::size() const {
  uint64_t total = 0;
  for (const ManifestPart& part : parts) total += part.size;
  return total;
}

uint64_t Manifest::size() const {
  uint64_t total = 0;
  for (const ManifestFile& file : files) total += file.size();
  return total;
}

std::string ToText(const Manifest& manifest) {
  Json json = {{"kvlink_checkpoint", kVersion},       {"name", Escaped(manifest.name)},
               {"base", Escaped(manifest.base)},      {"folder", manifest.is_folder},
               {"chunk_bytes", manifest.chunk_bytes}, {"files", Json::array()}};
  for (const ManifestFile& file : manifest.files) {
    Json parts = Json::array();
    for (const ManifestPart& part : file.parts) {
      Json chunks = Json::array();
      for (const Digest& digest : part.chunks) chunks.push_back(ToHex(digest));
      parts.push_back({{"name", Escaped(part.name)}, {"size", part.size}});
      parts.back()["chunks"] = std::move(chunks);
    }
    json["files"].push_back({{"path", Escaped(file.path)}, {"format", Escaped(file.format)}});
    json["files"].back()["parts"] = std::move(parts);
  }
  const std::string line = json.dump();
  return line + std::string(kSeal) + ToHex(Sha256(line)) + "\n";
}

Result<Manifest> ParseManifest(std::string_view text) {
  const size_t end = text.rfind(kSeal);
  if (end == std::string_view::npos) return Corrupt("it has no digest");
  const std::string_view line = text.substr(0, end);
  if (text.substr(end) != std::string(kSeal) + ToHex(Sha256(line)) + "\n") {
    return Corrupt("its digest does not fit");
  }
  const Json json = Json::parse(line, nullptr, false);
  uint64_t version = 0;
  if (!json.is_object() || !TakeNumber(json, "kvlink_checkpoint", &version)) {
    return Corrupt("it is not a checkpoint's");
  }
  if (version != kVersion) return Corrupt("version " + std::to_string(version) + " is not known");
  Manifest manifest;
  const auto files = json.find("files"), folder = json.find("folder");
  if (!TakeText(json, "name", &manifest.name) || !TakeText(json, "base", &manifest.base) ||
      !TakeNumber(json, "chunk_bytes", &manifest.chunk_bytes) || manifest.chunk_bytes == 0 ||
      folder == json.end() || !folder->is_boolean() || files == json.end() || !files->is_array()) {
    return Corrupt("a field is missing or of the wrong type");
  }
  manifest.is_folder = folder->get<bool>();
  for (const Json& file : *files) {
    if (!file.is_object() ||
        !ParseFile(file, manifest.chunk_bytes, &manifest.files.emplace_back())) {
      return Corrupt("file " + std::to_string(manifest.files.size()) + " is not described as one");
    }
  }
  if (!manifest.is_folder && manifest.files.size() != 1) return Corrupt("it is not of one file");
  return manifest;
}

bool IsCheckpointName(std::string_view name) {
  if (name.empty() || name.size() > 128 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

bool IsSafePath(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos) {
    return false;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view step = path.substr(begin, end - begin);
    if (step.empty() || step == "." || step == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace kvlink::ckpt
