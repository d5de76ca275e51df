#include "model/fingerprint.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/key_builder.h"

namespace kvlink::model {
namespace {

constexpr size_t kChunkBytes = size_t{16} << 20;  // part of the digest's definition
constexpr unsigned kMaxThreads = 8;

std::string Hex(const base::BlockKey& key) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(key.hi),
                static_cast<unsigned long long>(key.lo));
  return text;
}

std::string Bits(float value) { return std::to_string(std::bit_cast<uint32_t>(value)); }

void AddRope(const kernel::RopeParams& rope, base::KeyBuilder& key) {
  key.AddNumber("neox", rope.neox)
      .AddNumber("num_rot", rope.num_rot)
      .AddNumber("orig_context", rope.orig_context);
  key.Add("freq_base", Bits(rope.freq_base)).Add("freq_scale", Bits(rope.freq_scale));
  key.Add("ext_factor", Bits(rope.ext_factor)).Add("attn_factor", Bits(rope.attn_factor));
  key.Add("beta_fast", Bits(rope.beta_fast)).Add("beta_slow", Bits(rope.beta_slow));
  for (const float factor : rope.freq_factors) key.Add("freq_factor", Bits(factor));
}

// Of every layer: what attention computes changes the K and V of the layers above.
std::string AttentionSettings(const std::vector<kernel::LayerParams>& layers) {
  base::KeyBuilder key;
  for (const kernel::LayerParams& layer : layers) {
    key.Add("scale", Bits(layer.scale)).Add("softcap", Bits(layer.softcap));
    key.AddNumber("window", layer.window);
    AddRope(layer.rope, key);
  }
  return std::move(key).bytes();
}

}  // namespace

std::string DigestOf(std::span<const std::byte> file,
                     const std::function<void(double fraction)>& progress) {
  const size_t num_chunks = (file.size() + kChunkBytes - 1) / kChunkBytes;
  std::vector<base::BlockKey> digests(num_chunks);
  std::atomic<size_t> next = 0, done = 0;
  const auto work = [&](bool report) {
    for (size_t i = next++; i < num_chunks; i = next++) {
      digests[i] = base::Hash128(
          file.subspan(i * kChunkBytes, std::min(kChunkBytes, file.size() - i * kChunkBytes)));
      const size_t finished = ++done;
      if (report && progress)
        progress(static_cast<double>(finished) / static_cast<double>(num_chunks));
    }
  };
  const size_t num_threads = std::min<size_t>(
      std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads), num_chunks);
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work, false);
  work(true);
  threads.clear();
  if (progress) progress(1.0);

  base::KeyBuilder key;
  key.AddNumber("size", file.size());
  for (const base::BlockKey& digest : digests)
    key.AddNumber("lo", digest.lo).AddNumber("hi", digest.hi);
  return Hex(base::Hash128(key.bytes()));
}

std::string Fingerprint(const FingerprintInputs& inputs) {
  base::KeyBuilder key;
  key.Add("file", inputs.file_digest)
      .Add("architecture", inputs.architecture)
      .Add("attention", AttentionSettings(inputs.attention));
  key.AddNumber("layout", inputs.layout).AddNumber("tokens_per_block", inputs.tokens_per_block);
  key.AddNumber("kv_type", static_cast<uint64_t>(inputs.kv_type));
  key.Add("kernels", inputs.kernels)
      .Add("product", inputs.packed ? "packed 2" : "ggml")
      .Add("ggml", inputs.ggml)
      .Add("ggml_cpu", inputs.cpu_features);
  return Hex(base::Hash128(key.bytes()));
}

}  // namespace kvlink::model
