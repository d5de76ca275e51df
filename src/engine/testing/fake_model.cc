#include "engine/testing/fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace kvlink::engine {
namespace {

constexpr uint32_t kLayers = 2, kKvHeads = 2, kHeadDim = 4;  // a row of a head is 8 bytes
constexpr uint64_t kNoRow = 0x1234567;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t state = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u);
  return base::SplitMix64(state);
}
uint64_t RowValue(TokenId token, uint32_t position, uint64_t previous) {
  return Mix(Mix(static_cast<uint64_t>(token), position), previous);
}

// One row of one block, wherever it lies: in the page or in a difference cell.
class RowCells {
 public:
  RowCells(const KvShape& shape, const BlockView& block, uint32_t row)
      : shape_(shape), block_(block), row_(row) {}

  void Write(uint64_t value) const {
    ForEach([&](uint64_t salt, std::byte* cell, size_t stride) {
      const uint64_t bits = Cell(value, salt);
      for (uint32_t d = 0; d < kHeadDim; ++d) {
        const auto part = static_cast<uint16_t>(bits >> (16 * d));
        std::memcpy(cell + d * stride, &part, sizeof(part));
      }
    });
  }
  uint64_t Read() const {
    uint64_t value = 0;
    ForEach([&](uint64_t salt, std::byte* cell, size_t stride) {
      uint64_t bits = 0;
      for (uint32_t d = 0; d < kHeadDim; ++d) {
        uint16_t part = 0;
        std::memcpy(&part, cell + d * stride, sizeof(part));
        bits |= uint64_t{part} << (16 * d);
      }
      value = Mix(value, bits ^ salt);
    });
    return value;
  }
  // Four halves below 2 in magnitude: what similar reuse compares must be finite.
  static uint64_t Cell(uint64_t value, uint64_t salt) {
    return Mix(value, salt) & ~uint64_t{0x4000400040004000};
  }
  // What Read returns after Write(value).
  static uint64_t Written(uint64_t value) {
    uint64_t read = 0;
    for (uint64_t salt = 0; salt < 2 * kLayers * kKvHeads; ++salt) {
      read = Mix(read, Cell(value, salt) ^ salt);
    }
    return read;
  }

 private:
  template <typename Visit>
  void ForEach(Visit visit) const {
    const size_t row_bytes = shape_.row_bytes();
    uint64_t salt = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const DifferenceView* difference = block_.difference;
      const int slot = difference == nullptr
                           ? -1
                           : difference->slots[size_t{layer} * difference->slot_stride + row_];
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        if (slot >= 0) {  // rows of a cell array are token-major
          std::byte* cells = difference->cells + difference->HeadOffset(shape_, layer, head);
          const size_t at = static_cast<size_t>(slot) * row_bytes;
          visit(salt++, cells + at, shape_.element_bytes());
          visit(salt++, cells + difference->capacity * row_bytes + at, shape_.element_bytes());
        } else {  // K of a page is dimension-major
          std::byte* tile = block_.page + shape_.TileOffset(layer, head);
          visit(salt++, tile + row_ * shape_.element_bytes(),
                shape_.tokens_per_block * shape_.element_bytes());
          visit(salt++, tile + shape_.v_offset() + row_ * row_bytes, shape_.element_bytes());
        }
      }
    }
  }

  const KvShape& shape_;
  const BlockView& block_;
  uint32_t row_;
};

RowCells CellsAt(const KvShape& shape, const SpanTable& table, uint32_t position) {
  for (const Span& span : table.spans) {
    if (position < span.position || position >= span.position + span.num_rows) continue;
    const uint32_t row = span.first_row + (position - span.position);
    const size_t block = span.first_block + row / shape.tokens_per_block;
    KVLINK_CHECK(block < table.blocks.size()) << "position " << position;
    return {shape, table.blocks[block], row % shape.tokens_per_block};
  }
  KVLINK_CHECK(false) << "no span covers position " << position;
  std::abort();
}

void FillLogits(uint64_t context, float eos_bias, float* logits) {
  for (uint32_t token = 0; token < FakeModel::kVocabulary; ++token) {
    logits[token] = static_cast<float>(Mix(context, token) >> 44) * 0x1p-17f;  // [0, 8)
  }
  logits[FakeModel::kEos] += eos_bias;
}

class FakeRunner final : public model::Runner {
 public:
  FakeRunner(const FakeModel& model, uint32_t max_rows) : model_(model), max_rows_(max_rows) {}

  Result<const float*> Run(const model::Batch& batch) override {
    FakeModel::Counters& counters = model_.counters();
    if (counters.fail.exchange(false)) return Status(StatusCode::kInternal, "the fake failed");
    if (counters.on_run) counters.on_run();
    KVLINK_CHECK(batch.rows.size() <= max_rows_) << batch.rows.size();
    KVLINK_CHECK(batch.rows.size() == batch.tokens.size());
    counters.rows += batch.rows.size();
    counters.steps += 1;
    const KvShape& shape = model_.kv_shape();
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const kernel::BatchRow& row = batch.rows[i];
      if (!row.write) continue;
      const SpanTable& table = *batch.tables[row.sequence];
      const uint64_t previous =
          row.position == 0 ? kNoRow : CellsAt(shape, table, row.position - 1).Read();
      const RowCells cells = CellsAt(shape, table, row.position);
      const uint64_t value = RowValue(batch.tokens[i], row.position, previous);
      if (cells.Read() == RowCells::Written(value)) counters.rewrites += 1;
      cells.Write(value);
    }
    for (const kernel::ObservedRows& observed : batch.observed) {
      const uint32_t last = batch.rows[observed.first_row + observed.num_rows - 1].position;
      for (uint32_t p = 0; p <= last; ++p) observed.received[p] += 1.0f / 64;
    }
    logits_.resize(batch.outputs.size() * FakeModel::kVocabulary);
    for (size_t i = 0; i < batch.outputs.size(); ++i) {
      const kernel::BatchRow& row = batch.rows[batch.outputs[i]];
      const SpanTable& table = *batch.tables[row.sequence];
      uint64_t context = 0;
      for (uint32_t p = 0; p <= row.position && !model_.is_forgetful(); ++p) {
        context = Mix(context, CellsAt(shape, table, p).Read());
      }
      if (model_.is_forgetful()) {
        context = RowValue(batch.tokens[batch.outputs[i]], row.position, kNoRow);
      }
      FillLogits(context, model_.eos_bias(), logits_.data() + i * FakeModel::kVocabulary);
    }
    return logits_.data();
  }

 private:
  const FakeModel& model_;
  uint32_t max_rows_;
  std::vector<float> logits_;
};

std::string PieceOf(TokenId token) {
  // 2..27 letters, 28..35 pairs, 36.. parts of U+4F60 (E4 BD A0) and U+1F600 (F0 9F 98 80).
  static const char* const kParts[] = {"\xE4",     "\xBD", "\xA0",         "\xF0\x9F",
                                       "\x98\x80", " ",    "\xE4\xBD\xA0", "\n",
                                       "ab",       "bc",   "abc",          "x\xE4"};
  if (token < 2) return "";
  if (token < 28) return std::string(1, static_cast<char>('a' + token - 2));
  if (token < 36) return {static_cast<char>('a' + token - 28), static_cast<char>('h' - token + 28)};
  return kParts[token - 36];
}

class FakeTokenizer final : public model::Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, bool, bool) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) {
      if (c >= 'a' && c <= 'z') tokens.push_back(2 + c - 'a');
    }
    return tokens;
  }
  std::string Decode(std::span<const TokenId> tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += Piece(token, special);
    return text;
  }
  std::string Piece(TokenId token, bool) const override { return PieceOf(token); }
  bool IsEndOfGeneration(TokenId token) const override { return token == FakeModel::kEos; }
  bool AddsBos() const override { return false; }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return FakeModel::kEos; }
  uint32_t vocab_size() const override { return FakeModel::kVocabulary; }
  Result<std::string> ApplyChatTemplate(std::span<const model::ChatMessage>, const std::string&,
                                        bool) const override {
    return Status(StatusCode::kUnimplemented, "the fake has no chat template");
  }
};

class FakeSampler final : public model::Sampler {
 public:
  explicit FakeSampler(const model::SamplingParams& params)
      : params_(params), random_(params.seed), seen_(FakeModel::kVocabulary, false) {}

  TokenId Sample(const float* raw) override {
    std::vector<double> logits(raw, raw + FakeModel::kVocabulary);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (seen_[i]) logits[i] -= params_.repetition_penalty - 1.0f;
    }
    const TokenId token = params_.temperature == 0 ? Greedy(logits) : Draw(logits);
    Observe(token);
    return token;
  }
  void Observe(TokenId token) override { seen_[static_cast<size_t>(token)] = true; }

 private:
  static TokenId Greedy(const std::vector<double>& logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  TokenId Draw(const std::vector<double>& logits) {
    double sum = 0;
    for (const double x : logits) sum += std::exp(x / params_.temperature);
    double at = random_.Unit() * sum;
    for (size_t i = 0; i < logits.size(); ++i) {
      at -= std::exp(logits[i] / params_.temperature);
      if (at < 0) return static_cast<TokenId>(i);
    }
    return static_cast<TokenId>(logits.size() - 1);
  }

  model::SamplingParams params_;
  base::Random random_;
  std::vector<bool> seen_;
};

}  // namespace

FakeModel::FakeModel(const FakeModelOptions& options)
    : options_(options),
      tokenizer_(std::make_unique<FakeTokenizer>()),
      counters_(std::make_unique<Counters>()) {
  info_.name = "fake";
  info_.vocab_size = kVocabulary;
  info_.context_train = options.context;
  shape_ = {kLayers, kKvHeads, kHeadDim, options.tokens_per_block, KvType::kF16};
}

Result<std::unique_ptr<model::Runner>> FakeModel::NewRunner(int, uint32_t max_batch_rows) const {
  return std::unique_ptr<model::Runner>(std::make_unique<FakeRunner>(*this, max_batch_rows));
}

std::vector<float> FakeModel::Logits(std::span<const TokenId> tokens) const {
  uint64_t context = 0, previous = kNoRow;
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    previous = RowCells::Written(RowValue(tokens[p], p, previous));
    context = options_.is_forgetful ? RowValue(tokens[p], p, kNoRow) : Mix(context, previous);
  }
  std::vector<float> logits(kVocabulary);
  FillLogits(context, options_.eos_bias, logits.data());
  return logits;
}

Result<std::unique_ptr<model::Sampler>> NewFakeSampler(const model::Model&,
                                                       const model::SamplingParams& params) {
  return std::unique_ptr<model::Sampler>(std::make_unique<FakeSampler>(params));
}

}  // namespace kvlink::engine
