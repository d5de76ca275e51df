// Fingerprint: what K and V depend on besides tokens, as one short text. It is part of every block
// key, so that caches of different models, settings or arithmetic never share a block, in memory,
// on disk or in Redis.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "kvlink/kv_shape.h"
#include "model/network.h"

namespace kvlink::model {

// Counts up when the bytes of a page mean something else.
constexpr uint32_t kLayoutVersion = 1;

// XXH3 of every byte of the file (weights, hyper-parameters, tokenizer), in hex. Reads it with up
// to 8 threads: about a second per GB from a disk, a tenth of that from the page cache. `progress`
// is called from the calling thread.
std::string DigestOf(std::span<const std::byte> file,
                     const std::function<void(double fraction)>& progress);

std::string Fingerprint(const std::string& file_digest, const std::string& architecture,
                        const Network& network, const KvShape& shape,
                        const std::string& cpu_features, bool packed);

}  // namespace kvlink::model
