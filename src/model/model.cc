#include "model/model.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "ggml.h"
#include "kernel/isa.h"
#include "kernel/paged_attention.h"
#include "kernel/tile_kernels.h"
#include "model/cpu_backend.h"
#include "model/fingerprint.h"
#include "model/gguf_file.h"
#include "model/graph_runner.h"
#include "model/llama_tokenizer.h"
#include "model/network.h"

namespace kvlink::model {
namespace {

// Shares of the progress: vocabulary, digest; packing takes the rest.
constexpr double kProgressVocabulary = 0.1;
constexpr double kProgressDigest = 0.5;

Status CheckOptions(const LoadOptions& options) {
  const uint32_t rows = options.tokens_per_block;
  if (!std::has_single_bit(rows) || rows < kMinTokensPerBlock || rows > kMaxTokensPerBlock) {
    return Status(StatusCode::kInvalidArgument, "tokens_per_block: " + std::to_string(rows) +
                                                    " is not a power of two between " +
                                                    std::to_string(kMinTokensPerBlock) + " and " +
                                                    std::to_string(kMaxTokensPerBlock));
  }
  return Status::Ok();
}

ModelInfo Describe(const GgufFile& file, const Dimensions& d) {
  ModelInfo info;
  info.path = file.path();
  info.name = file.Text("general.name");
  if (info.name.empty()) info.name = std::filesystem::path(file.path()).stem().string();
  info.architecture = file.Text("general.architecture");
  info.num_layers = d.num_layers;
  info.num_heads = d.num_heads;
  info.num_kv_heads = d.num_kv_heads;
  info.head_dim = d.head_dim;
  info.embedding = d.embedding;
  info.feed_forward = d.feed_forward;
  info.vocab_size = d.vocab_size;
  info.context_train = d.context_train;
  info.file_bytes = file.bytes().size();
  std::map<ggml_type, int> matrices;
  for (ggml_tensor* t = ggml_get_first_tensor(file.tensors()); t;
       t = ggml_get_next_tensor(file.tensors(), t)) {
    info.num_parameters += static_cast<uint64_t>(ggml_nelements(t));
    if (t->ne[1] > 1) ++matrices[t->type];
  }
  const auto commonest =
      std::max_element(matrices.begin(), matrices.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (commonest != matrices.end()) info.weight_type = ggml_type_name(commonest->first);
  std::transform(info.weight_type.begin(), info.weight_type.end(), info.weight_type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return info;
}

// See LoadOptions::kv_type. What BF16 rounds away of K and V is less than what such weights round
// away of them: the divergence from F16 is that of any change in the last bit (ADR 0010).
KvType BestKvType(const std::string& weight_type) {
  static_cast<void>(kernel::ApplyIsaEnvironment());  // a bad value is reported by NewRunner
  const bool finer = weight_type == "F32" || weight_type == "F16";
  return !finer && kernel::HasBf16Dot(kernel::CurrentIsa()) ? KvType::kBF16 : KvType::kF16;
}

// Copies the weights that the packed product knows, and gives the pages of the file that held them
// back to the system at once, so that no more than one stack is in memory twice. What is still read
// (embeddings, norms, other types) comes back on demand.
Status PackWeights(const GgufFile& file, Network& network, bool* packed,
                   const std::function<void(double)>& progress) {
  const std::vector<Stack*> stacks = network.Stacks();
  size_t total = 0, done = 0;
  for (const Stack* stack : stacks) total += stack->weight_bytes();
  const auto num_threads =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  kernel::WeightMemory memory(total + total / 32);  // some types take up to 3 % more when packed
  for (Stack* stack : stacks) {
    if (Status status = stack->Pack(num_threads, &memory); !status.ok()) return status;
    *packed |= stack->packed();
    for (const Stack::Group& group : stack->groups()) {
      for (const size_t i : group.layers) {
        const ggml_tensor* weight = stack->layers()[i].weight;
        file.DropResidentPages({static_cast<const std::byte*>(weight->data), ggml_nbytes(weight)});
      }
    }
    done += stack->weight_bytes();
    progress(static_cast<double>(done) / static_cast<double>(total));
  }
  if (*packed) file.DropResidentPages();
  return Status::Ok();
}

class LoadedModel : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const LoadOptions& options);

  const ModelInfo& info() const override { return info_; }
  const KvShape& kv_shape() const override { return shape_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }

  Result<std::unique_ptr<Runner>> NewRunner(int num_threads,
                                            uint32_t max_batch_rows) const override {
    auto runner = GraphRunner::Create(*network_, shape_, num_threads, max_batch_rows);
    if (!runner.ok()) return runner.status();
    return std::unique_ptr<Runner>(*std::move(runner));
  }

 private:
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<LlamaTokenizer> tokenizer_;
  ModelInfo info_;
  KvShape shape_;
  std::string fingerprint_;
};

Result<std::unique_ptr<Model>> LoadedModel::Load(const LoadOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  auto cpu = CpuBackend::Load();
  if (!cpu.ok()) return cpu.status();
  auto file = GgufFile::Open(options.path);
  if (!file.ok()) return file.status();
  auto network = LoadNetwork(**file, {.context = options.context});
  if (!network.ok()) return network.status();
  const Dimensions& d = (*network)->dimensions();
  auto tokenizer = LlamaTokenizer::Load(**file, d.vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto report = [&](double fraction) {
    if (options.progress) options.progress(fraction);
  };
  report(kProgressVocabulary);

  auto model = std::make_unique<LoadedModel>();
  model->info_ = Describe(**file, d);
  model->shape_ = {d.num_layers, d.num_kv_heads, d.head_dim, options.tokens_per_block,
                   options.kv_type.value_or(BestKvType(model->info_.weight_type))};
  const std::string digest = DigestOf((*file)->bytes(), [&](double fraction) {
    report(kProgressVocabulary + (kProgressDigest - kProgressVocabulary) * fraction);
  });
  model->info_.digest = digest;
  for (const kernel::LayerParams& layer : (*network)->attention()) {
    uint32_t& window = model->info_.sliding_window;
    if (layer.window > 0 && (window == 0 || layer.window < window)) window = layer.window;
  }
  bool packed = false;
  if (options.pack_weights) {
    const Status status = PackWeights(**file, **network, &packed, [&](double fraction) {
      report(kProgressDigest + (1 - kProgressDigest) * fraction);
    });
    if (!status.ok()) return status;
  }
  report(1.0);
  model->fingerprint_ = Fingerprint({.file_digest = digest,
                                     .architecture = model->info_.architecture,
                                     .attention = (*network)->attention(),
                                     .tokens_per_block = model->shape_.tokens_per_block,
                                     .kv_type = model->shape_.type,
                                     .kernels = kernel::NumericPath(model->shape_.type),
                                     .packed = packed,
                                     .ggml = ggml_version(),
                                     .cpu_features = (*cpu)->features()});
  model->file_ = *std::move(file);
  model->network_ = *std::move(network);
  model->tokenizer_ = *std::move(tokenizer);
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Result<const float*> Runner::RunLayers(const LayerBatch&) {
  return Status(StatusCode::kUnimplemented, "this runner runs whole networks only");
}

Result<std::unique_ptr<Model>> Model::Load(const LoadOptions& options) {
  return LoadedModel::Load(options);
}

}  // namespace kvlink::model
