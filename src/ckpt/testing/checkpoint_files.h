// Small checkpoint files for tests, byte by byte.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/endian.h"

namespace kvlink::ckpt {

struct NamedTensor {
  std::string name, dtype, bytes;
};

inline std::string Safetensors(const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", {tensor.bytes.size()}},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string file;
  base::PutLe(file, uint64_t{text.size()});
  return file + text + data;
}

struct GgufTensor {
  std::string name;
  uint32_t type;
  std::string bytes;
};

inline void PutGgufString(std::string& out, const std::string& text) {
  base::PutLe(out, uint64_t{text.size()});
  out += text;
}

// Version 3, with a string, an array of strings and the alignment among its pairs.
inline std::string Gguf(const std::vector<GgufTensor>& tensors) {
  std::string file = "GGUF";
  base::PutLe(file, uint32_t{3});
  base::PutLe(file, uint64_t{tensors.size()});
  base::PutLe(file, uint64_t{3});
  PutGgufString(file, "general.architecture");
  base::PutLe(file, uint32_t{8});
  PutGgufString(file, "llama");
  PutGgufString(file, "tokenizer.ggml.tokens");
  base::PutLe(file, uint32_t{9});
  base::PutLe(file, uint32_t{8});
  base::PutLe(file, uint64_t{2});
  PutGgufString(file, "<s>");
  PutGgufString(file, "hello");
  PutGgufString(file, "general.alignment");
  base::PutLe(file, uint32_t{4});
  base::PutLe(file, uint32_t{32});
  std::string data;
  for (const GgufTensor& tensor : tensors) {
    PutGgufString(file, tensor.name);
    base::PutLe(file, uint32_t{1});
    base::PutLe(file, uint64_t{tensor.bytes.size()});
    base::PutLe(file, tensor.type);
    base::PutLe(file, uint64_t{data.size()});
    data += tensor.bytes;
    data.append((32 - data.size() % 32) % 32, '\0');
  }
  file.append((32 - file.size() % 32) % 32, '\0');
  return file + data;
}

}  // namespace kvlink::ckpt
