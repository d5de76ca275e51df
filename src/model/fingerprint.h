// Fingerprint: what K and V depend on besides tokens, as one short text. It is part of every block
// key, so that caches of different models, settings or arithmetic never share a block, in memory,
// on disk or in Redis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernel/paged_attention.h"
#include "kvlink/kv_shape.h"

namespace kvlink::model {

// Counts up when the bytes of a page mean something else, and when our graphs or kernels compute
// other bits from the same file on the same processor.
constexpr uint32_t kLayoutVersion = 1;

// XXH3 of every byte of the file (weights, hyper-parameters, tokenizer), in hex. Reads it with up
// to 8 threads: about a second per GB from a disk, a tenth of that from the page cache. `progress`
// is called from the calling thread.
std::string DigestOf(std::span<const std::byte> file,
                     const std::function<void(double fraction)>& progress);

struct FingerprintInputs {
  std::string file_digest;  // DigestOf: weights, hyper-parameters, tokenizer
  std::string architecture;
  // Of all layers or of each: from the file, and some from the longest sequence (LoadOptions).
  std::vector<kernel::LayerParams> attention;
  uint32_t layout = kLayoutVersion;
  uint32_t tokens_per_block = 0;
  KvType kv_type = KvType::kF16;
  std::string kernels;       // kernel::NumericPath
  bool packed = false;       // products by our own kernels, where ggml's would round otherwise
  std::string ggml;          // its version
  std::string cpu_features;  // of ggml's kernels
};

std::string Fingerprint(const FingerprintInputs& inputs);

}  // namespace kvlink::model
