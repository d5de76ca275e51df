// What compression of blocks does to real KV: size, and CPU time to encode and decode.
//
//   codec_bench [MODEL [TOKENS]]
//
// Runs prompts (English and Chinese prose, lists, code; at most 1024 tokens each) through the
// model, the default one unless given, once per KV type, and encodes every full page. Prints a
// Markdown row per KV type and compression: stored bytes as a share of the payload, MB of payload
// per second of CPU time, and the rate of a device or network below which it pays: where writing
// and reading the saved bytes takes longer than encoding and decoding.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/prompts.h"
#include "tier/block_codec.h"

namespace kvlink {
namespace {

using Page = std::vector<std::byte>;

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<Page> PagesOf(const std::string& path, KvType type, size_t num_tokens) {
  model::LoadOptions load;
  load.path = path;
  load.kv_type = type;
  auto loaded = model::Model::Load(load);
  auto runner = loaded.ok() ? (*loaded)->NewRunner(1, 256)
                            : Result<std::unique_ptr<model::Runner>>(loaded.status());
  if (!runner.ok()) {
    std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    std::exit(1);
  }
  const KvShape shape = (*loaded)->kv_shape();
  std::vector<Page> pages;
  for (uint64_t seed = 1; pages.size() * shape.tokens_per_block < num_tokens; ++seed) {
    auto tokens = (*loaded)->tokenizer().Encode(model::MakePrompt(seed, 1024), true, false);
    tokens.resize(std::min<size_t>(tokens.size(), 1024));
    const model::PlainContext context(shape, static_cast<uint32_t>(tokens.size()));
    model::RunPrompt(**runner, context, tokens, 0, 256, 1, (*loaded)->info().vocab_size);
    for (uint32_t i = 0; i < tokens.size() / shape.tokens_per_block; ++i) {
      pages.emplace_back(context.page(i), context.page(i) + shape.page_bytes());
    }
  }
  return pages;
}

void Measure(const char* type, const std::vector<Page>& pages, tier::Compression compression) {
  double payload = 0, stored = 0;
  std::vector<std::string> encoded;
  const double start = CpuSeconds();
  for (const Page& page : pages) {
    tier::PutBlock block;
    block.payload = page;
    encoded.push_back(tier::EncodeBlock(block, {}, compression));
    payload += static_cast<double>(page.size());
    stored += static_cast<double>(encoded.back().size());
  }
  const double middle = CpuSeconds();
  Page target(pages[0].size());
  for (size_t i = 0; i < pages.size(); ++i) {
    tier::BlockHeader header;
    tier::DecodeError error;
    if (!tier::ReadBlock(encoded[i], &header, &error) ||
        !tier::ReadPayload(encoded[i], header, target, &error) || target != pages[i]) {
      std::fprintf(stderr, "page %zu: %s\n", i, error.message.c_str());
      std::exit(1);
    }
  }
  const double end = CpuSeconds();
  const double saved = payload - stored;
  const double break_even = saved > 0 ? 2 * saved / (end - start) / 1e6 : 0;
  std::printf("| %s | %s | %.1f %% | %.0f | %.0f | %.0f |\n", type,
              tier::CompressionName(compression), 100 * stored / payload,
              payload / (middle - start) / 1e6, payload / (end - middle) / 1e6, break_even);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : model::DefaultModelPath();
  const size_t num_tokens = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 2048;
  if (path.empty()) {
    std::fputs("no default model: run the set-up, or name one\n", stderr);
    return 1;
  }
  std::puts("| KV type | compression | stored | encode MB/s | decode MB/s | pays below MB/s |");
  std::puts("|---|---|---|---|---|---|");
  for (const KvType type : kKvTypes) {
    const std::vector<Page> pages = PagesOf(path, type, num_tokens);
    for (const tier::Compression compression :
         {tier::Compression::kNone, tier::Compression::kLz4, tier::Compression::kZstd,
          tier::Compression::kZstdPlanes}) {
      Measure(KvTypeName(type), pages, compression);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvlink

int main(int argc, char** argv) { return kvlink::Main(argc, argv); }
