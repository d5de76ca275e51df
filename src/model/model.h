// Model: the weights of one GGUF file, mapped, with what is needed to run it: vocabulary, chat
// template, graph.
//
// A Model is immutable after Load and may be used from any thread; a Runner (the graph with its
// buffers) belongs to one thread. Cost of Load: maps the file, reads the header and the vocabulary;
// reports progress.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/paged_attention.h"
#include "kvlink/kv_shape.h"
#include "kvlink/status.h"
#include "kvlink/view.h"

namespace kvlink::grammar {
class Library;
}

namespace kvlink::model {

struct ModelInfo {
  // weight_type: the commonest type of the matrices, "Q4_1".
  std::string path, name, architecture, weight_type;
  uint32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, embedding = 0,
           feed_forward = 0;
  uint32_t vocab_size = 0, context_train = 0;
  uint64_t file_bytes = 0, num_parameters = 0;
  std::string digest;           // of the file's bytes, in hex
  uint32_t sliding_window = 0;  // of the narrowest layer; 0: every layer sees all rows
};

struct LoadOptions {
  std::string path;
  uint32_t tokens_per_block = 32;
  // None: BF16 where the weights are coarser than that (block-quantised or BF16) and the processor
  // has a BF16 dot product, which is faster and no less exact then; otherwise F16.
  std::optional<KvType> kv_type;
  // The longest sequence that will be run; 0: as trained. Phi-3's rotation depends on it.
  uint32_t context = 0;
  bool pack_weights = true;  // false: every product through ggml (to compare)
  std::function<void(double fraction)> progress;
};

struct ChatMessage {
  std::string role, content;
  // The whole message object as JSON when it has more than role and content (tool calls, name).
  std::string extra_json;
};

// Tokens that ask for the middle between two texts (filling in the middle); -1: there is none.
struct FillTokens {
  TokenId prefix = -1, suffix = -1, middle = -1;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // add_special: BOS as the model wants it; parse_special: "<|im_end|>" in the text becomes the
  // special token.
  virtual std::vector<TokenId> Encode(std::string_view text, bool add_special,
                                      bool parse_special) const = 0;
  // The pieces of all tokens, one after the other.
  virtual std::string Decode(std::span<const TokenId> tokens, bool special) const = 0;
  // Raw bytes, may be part of a UTF-8 character.
  virtual std::string Piece(TokenId token, bool special) const = 0;
  virtual bool IsEndOfGeneration(TokenId token) const = 0;
  virtual bool AddsBos() const = 0;
  virtual TokenId bos() const = 0;  // -1: none
  virtual TokenId eos() const = 0;
  virtual uint32_t vocab_size() const = 0;
  // Grammars over this vocabulary, compiled; null: it cannot be held to grammars.
  virtual grammar::Library* grammars() const { return nullptr; }
  virtual FillTokens fill_tokens() const { return {}; }
  // Renders the chat template of the GGUF, to be encoded with add_special and parse_special: a BOS
  // that Encode adds is not in the text. tools_json: "" or a JSON array. kInvalidArgument: the
  // template refuses the messages (its own words), kUnimplemented: no template.
  virtual Result<std::string> ApplyChatTemplate(std::span<const ChatMessage> messages,
                                                const std::string& tools_json,
                                                bool add_generation_prompt) const = 0;
};

// One step of the engine. All spans have one entry a row, except `tables`.
struct Batch {
  std::span<const TokenId> tokens;
  std::span<const kernel::BatchRow> rows;
  std::span<const SpanTable* const> tables;
  std::span<const uint32_t> outputs;  // row indices whose logits are wanted, ascending
  // Rows whose attention is wanted: what they pay to each position is added to `received`, 1 a row.
  std::span<const kernel::ObservedRows> observed = {};
  // Layers whose input is left in the pages of the rows that are written: Sequence::
  // checkpoint_layers, ascending, none of them the first. The pages must have room for them.
  std::span<const uint32_t> checkpoints = {};
};

// Some layers only, for rows that enter and leave the network at different ones (selective
// recomputation). A row that runs all layers in several such runs, one behind the other, gets the
// bits that one run gives.
struct LayerBatch {
  Batch batch;  // outputs: with end_layer the last one only
  uint32_t first_layer = 0, end_layer = 0;
  // The residual stream [rows, embedding]: what first_layer reads (null: the tokens, with
  // first_layer 0), and where to put what end_layer would read (null: nowhere).
  const float* input = nullptr;
  float* output = nullptr;
  // K and V of layer end_layer are written as well: they depend on what it reads alone.
  bool writes_next = false;
};

class Runner {
 public:
  virtual ~Runner() = default;
  // Logits [outputs, vocab_size], valid until the next Run. A row's bits do not depend on the rest
  // of the batch.
  virtual Result<const float*> Run(const Batch& batch) = 0;
  // As Run, for some layers; null unless the last one is among them. kUnimplemented: this runner
  // knows whole networks only.
  virtual Result<const float*> RunLayers(const LayerBatch& batch);
};

class Model {
 public:
  virtual ~Model() = default;
  // kNotFound / kInvalidArgument / kDataLoss with the path and the value; kUnimplemented names the
  // architecture and lists the supported ones.
  static Result<std::unique_ptr<Model>> Load(const LoadOptions& options);
  virtual const ModelInfo& info() const = 0;
  virtual const KvShape& kv_shape() const = 0;
  // Weights digest, architecture, rope settings, KV type, layout version, numeric path, tokenizer.
  virtual const std::string& fingerprint() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual Result<std::unique_ptr<Runner>> NewRunner(int num_threads,
                                                    uint32_t max_batch_rows) const = 0;
};

}  // namespace kvlink::model
