#include "cli/bench_ops.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "cli/machine.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"

namespace kvlink::cli {
namespace {

constexpr uint32_t kMostTokens = 1u << 20;
constexpr uint32_t kMostSequences = 1024;

std::optional<uint32_t> ReadCount(std::string_view text, uint32_t most) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > most) {
    return std::nullopt;
  }
  return number;
}

std::optional<OpSpec> ParseOp(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, colon);
  std::string_view context = text.substr(colon + 1);
  OpSpec op;
  op.name = text;
  if (kind == "shared" || kind == "distinct") {
    op.kind = kind == "shared" ? OpSpec::Kind::kShared : OpSpec::Kind::kDistinct;
    const size_t times = context.find('x');
    if (times == std::string_view::npos) return std::nullopt;
    const auto sequences = ReadCount(context.substr(0, times), kMostSequences);
    if (!sequences) return std::nullopt;
    op.sequences = *sequences;
    context = context.substr(times + 1);
  } else if (kind == "prefill" || kind == "decode") {
    op.kind = kind == "prefill" ? OpSpec::Kind::kPrefill : OpSpec::Kind::kDecode;
  } else {
    return std::nullopt;
  }
  const auto tokens = ReadCount(context, kMostTokens);
  if (!tokens) return std::nullopt;
  op.context = *tokens;
  return op;
}

// One operation on a cache of its own. Start computes the context that decoding needs; each Round
// is timed inside.
class Operation {
 public:
  struct Timing {
    double wall_s = 0, cpu_s = 0;
    uint64_t tokens = 0;
  };

  Operation(const model::Model& model, model::Runner& runner, const OpSpec& op,
            const OpsOptions& options)
      : model_(model), runner_(runner), op_(op), options_(options), prompt_(op.context) {
    std::mt19937 random(1);
    for (TokenId& token : prompt_) token = RandomToken(random);
    for (uint32_t i = 0; i < options.decode_tokens; ++i) decoded_.push_back(RandomToken(random));
  }

  Status Start() {
    const KvShape& shape = model_.kv_shape();
    const uint64_t pages_each = (op_.context + options_.decode_tokens) / shape.tokens_per_block + 2;
    CacheOptions cache_options;
    cache_options.shape = shape;
    // With sharing off a fork copies: that is what makes contexts distinct.
    cache_options.sharing = op_.kind == OpSpec::Kind::kShared ? Sharing::kExact : Sharing::kOff;
    cache_options.budget_bytes = (op_.sequences + 1) * pages_each * shape.page_bytes();
    cache_options.model_fingerprint = model_.fingerprint();
    auto cache = CreateCache(cache_options);
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    if (op_.kind == OpSpec::Kind::kPrefill) return Status::Ok();
    auto base = Begin();
    if (!base.ok()) return base.status();
    base_ = *std::move(base);
    return Prefill(*base_);
  }

  Result<Timing> Round() {
    return op_.kind == OpSpec::Kind::kPrefill ? PrefillRound() : DecodeRound();
  }

 private:
  TokenId RandomToken(std::mt19937& random) const {
    return static_cast<TokenId>(random() % model_.tokenizer().vocab_size());
  }

  Result<std::unique_ptr<Sequence>> Begin() {
    LookupRequest request;
    request.tokens = prompt_;
    request.reuse = false;
    request.max_new_tokens = options_.decode_tokens;
    return cache_->Begin(request, cache_->Lookup(request));
  }

  // Computes the prompt in chunks; logits of the last token only.
  Status Prefill(Sequence& sequence) {
    const uint32_t total = op_.context;
    if (Status status = sequence.Reserve(total); !status.ok()) return status;
    for (uint32_t first = sequence.num_ready(); first < total;) {
      const uint32_t count = std::min(options_.chunk, total - first);
      std::vector<kernel::BatchRow> rows(count);
      for (uint32_t i = 0; i < count; ++i) rows[i] = {0, first + i, true};
      const SpanTable* table = &sequence.table();
      const uint32_t last = count - 1;
      const bool is_end = first + count == total;
      const std::span<const TokenId> tokens = std::span(prompt_).subspan(first, count);
      const auto logits = runner_.Run(
          {tokens, rows, {&table, 1}, std::span(&last, is_end ? size_t{1} : size_t{0})});
      if (!logits.ok()) return logits.status();
      sequence.Commit(tokens);
      first += count;
    }
    return Status::Ok();
  }

  Result<Timing> PrefillRound() {
    const Stopwatch watch;
    auto sequence = Begin();
    if (!sequence.ok()) return sequence.status();
    if (Status status = Prefill(**sequence); !status.ok()) return status;
    return watch.Read(op_.context);
  }

  Result<Timing> DecodeRound() {
    std::vector<std::unique_ptr<Sequence>> branches;
    for (uint32_t i = 0; i < op_.sequences; ++i) {
      auto branch = base_->Fork(op_.context, options_.decode_tokens);
      if (!branch.ok()) return branch.status();
      const Status status = (*branch)->Reserve(op_.context + options_.decode_tokens);
      if (!status.ok()) return status;
      branches.push_back(*std::move(branch));
    }
    std::vector<kernel::BatchRow> rows(op_.sequences);
    std::vector<uint32_t> outputs(op_.sequences);
    std::iota(outputs.begin(), outputs.end(), 0);
    std::vector<const SpanTable*> tables(op_.sequences);
    std::vector<TokenId> tokens(op_.sequences);
    const Stopwatch watch;
    for (uint32_t step = 0; step < options_.decode_tokens; ++step) {
      for (uint32_t i = 0; i < op_.sequences; ++i) {
        rows[i] = {i, op_.context + step, true};
        tables[i] = &branches[i]->table();
        // Branches differ, as they would: nothing of them may be shared again.
        tokens[i] = decoded_[(step + i) % decoded_.size()];
      }
      const auto logits = runner_.Run({tokens, rows, tables, outputs});
      if (!logits.ok()) return logits.status();
      for (uint32_t i = 0; i < op_.sequences; ++i) branches[i]->Commit({&tokens[i], 1});
    }
    return watch.Read(uint64_t{op_.sequences} * options_.decode_tokens);
  }

  class Stopwatch {
   public:
    Timing Read(uint64_t tokens) const {
      const auto now = std::chrono::steady_clock::now();
      return {std::chrono::duration<double>(now - start_).count(), ProcessCpuSeconds() - cpu_start_,
              tokens};
    }

   private:
    double cpu_start_ = ProcessCpuSeconds();
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  const model::Model& model_;
  model::Runner& runner_;
  const OpSpec op_;
  const OpsOptions options_;
  std::vector<TokenId> prompt_, decoded_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Sequence> base_;  // before the cache goes
};

}  // namespace

Result<std::vector<OpSpec>> ParseOps(std::string_view list) {
  std::vector<OpSpec> ops;
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view part = list.substr(0, comma);
    auto op = ParseOp(part);
    if (!op) {
      return Status(StatusCode::kInvalidArgument,
                    "--synthetic: '" + std::string(part) +
                        "' is none of prefill:N, decode:N, shared:BxN, distinct:BxN");
    }
    ops.push_back(*std::move(op));
    if (comma == std::string_view::npos) return ops;
    list.remove_prefix(comma + 1);
  }
}

Result<std::vector<OpFigures>> MeasureOps(const model::Model& model, const std::vector<OpSpec>& ops,
                                          const OpsOptions& options,
                                          const std::function<void(size_t)>& done) {
  uint32_t most_rows = options.chunk;
  for (const OpSpec& op : ops) most_rows = std::max(most_rows, op.sequences);
  auto runner = model.NewRunner(options.threads, most_rows);
  if (!runner.ok()) return runner.status();
  std::vector<OpFigures> all;
  size_t rounds_done = 0;
  for (const OpSpec& op : ops) {
    OpFigures figures{op.name, {}, {}};
    Operation operation(model, **runner, op, options);
    if (Status status = operation.Start(); !status.ok()) return status;
    // One round more than asked for: the first faults pages in and is left out.
    for (uint32_t round = 0; round <= options.rounds; ++round) {
      const auto timing = operation.Round();
      if (!timing.ok()) return timing.status();
      if (round == 0) continue;
      const auto tokens = static_cast<double>(timing->tokens);
      figures.tok_per_s.push_back(tokens / timing->wall_s);
      figures.cpu_us_per_tok.push_back(timing->cpu_s * 1e6 / tokens);
      done(++rounds_done);
    }
    all.push_back(std::move(figures));
  }
  return all;
}

}  // namespace kvlink::cli
