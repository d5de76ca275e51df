// Model files: any bytes are a network and a vocabulary that can be used, or a Status; no file
// reaches an assertion of ours or of the third-party readers.
//
// The first byte says whether zeros follow the bytes, as much as the weights of a small model, so
// that an input is little more than its header.
#include <gguf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "fuzz_input.h"
#include "model/ggml_log.h"
#include "model/gguf_file.h"
#include "model/llama_tokenizer.h"
#include "model/network.h"

namespace kvlink::model {
namespace {

constexpr size_t kWeights = 1 << 20;
constexpr size_t kMostPacked = 1 << 20;

// A file in memory, with a path of its own.
class MemoryFile {
 public:
  MemoryFile(std::string_view bytes, size_t zeros)
      : descriptor_(::memfd_create("model", MFD_CLOEXEC)) {
    KVLINK_CHECK(descriptor_ >= 0);
    KVLINK_CHECK(::write(descriptor_, bytes.data(), bytes.size()) ==
                 static_cast<ssize_t>(bytes.size()));
    KVLINK_CHECK(::ftruncate(descriptor_, static_cast<off_t>(bytes.size() + zeros)) == 0);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

void CheckRefused(const Status& status) {
  KVLINK_CHECK(!status.ok() && !status.message().empty());
  KVLINK_CHECK(status.code() != StatusCode::kInternal) << status.message();
}

void UseVocabulary(const LlamaTokenizer& tokenizer) {
  const auto size = static_cast<TokenId>(tokenizer.vocab_size());
  for (const bool special : {false, true}) {
    for (const TokenId token :
         tokenizer.Encode("Hello 1\n<|im_end|> \xF0\x9F\x98\x80", special, special)) {
      KVLINK_CHECK(token >= 0 && token < size) << token << " of " << size;
    }
    for (TokenId token = -1; token <= size; ++token) (void)tokenizer.Piece(token, special);
  }
  for (const TokenId token : {tokenizer.bos(), tokenizer.eos()}) {
    KVLINK_CHECK(token >= -1 && token < size) << token << " of " << size;
    (void)tokenizer.IsEndOfGeneration(token);
  }
}

uint32_t TokensNamed(const GgufFile& file) {
  const int64_t id = gguf_find_key(file.keys(), "tokenizer.ggml.tokens");
  if (id < 0 || gguf_get_kv_type(file.keys(), id) != GGUF_TYPE_ARRAY) return 1;
  return static_cast<uint32_t>(gguf_get_arr_n(file.keys(), id));
}

void Load(const std::string& path) {
  auto file = GgufFile::Open(path);
  if (!file.ok()) return CheckRefused(file.status());
  uint32_t vocabulary = TokensNamed(**file);
  auto network = LoadNetwork(**file, {});
  if (!network.ok()) {
    CheckRefused(network.status());
  } else {
    const Dimensions& d = (*network)->dimensions();
    KVLINK_CHECK(d.num_layers > 0 && d.num_heads > 0 && d.num_kv_heads > 0 && d.head_dim > 0 &&
                 d.embedding > 0 && d.vocab_size > 0 && !(*network)->attention().empty());
    vocabulary = d.vocab_size;
    size_t bytes = 0;
    for (const Stack* stack : (*network)->Stacks()) bytes += stack->weight_bytes();
    for (Stack* stack : (*network)->Stacks()) {
      if (bytes > kMostPacked) break;
      const Status packed = stack->Pack(1);
      KVLINK_CHECK(packed.ok()) << packed.message();
    }
  }
  // Also where the network was refused: the vocabulary has checks of its own.
  auto tokenizer = LlamaTokenizer::Load(**file, vocabulary);
  if (!tokenizer.ok()) return CheckRefused(tokenizer.status());
  UseVocabulary(**tokenizer);
}

}  // namespace
}  // namespace kvlink::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  kvlink::model::RouteLogs();
  kvlink::fuzz::FuzzInput input(bytes, size);
  const bool zeros = input.Below(4) != 0;
  const kvlink::model::MemoryFile file(input.Rest(), zeros ? kvlink::model::kWeights : 0);
  kvlink::model::Load(file.path());
  return 0;
}
