#include "engine/band_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace kvlink::engine {

BandRun::BandRun(Sequence& sequence, std::span<const TokenId> prompt, const model::ModelInfo& model)
    : sequence_(sequence),
      prompt_(prompt),
      embedding_(model.embedding),
      num_layers_(model.num_layers),
      vocab_size_(model.vocab_size),
      first_(sequence.num_ready()) {
  stream_.resize((prompt.size() - first_) * embedding_);
  at_layer_.resize(prompt.size() - first_);
  auto band = sequence_.NextBand();
  KVLINK_CHECK(band.has_value()) << "sequence " << sequence.id() << " runs in no bands";
  BeginBand(*std::move(band));
}

void BandRun::BeginBand(LayerBand band) {
  positions_.clear();
  next_ = 0;
  for (const Selection::Range& range : band.rows) {
    for (uint32_t i = 0; i < range.num_rows; ++i) positions_.push_back(range.position + i);
  }
  KVLINK_CHECK(!positions_.empty() && positions_.front() >= first_)
      << "a band of sequence " << sequence_.id() << " has no rows";
  band_ = std::move(band);
}

Status BandRun::FillInput(std::span<const uint32_t> positions) {
  input_.resize(positions.size() * embedding_);
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint32_t position = positions[i];
    const std::span<float> to(input_.data() + i * embedding_, embedding_);
    if (at_layer_[position - first_] == band_->first_layer) {
      std::copy_n(Stream(position), embedding_, to.data());
    } else if (!sequence_.ReadCheckpoint(band_->first_layer, position, to)) {
      return Status(StatusCode::kInternal, "no residual stream of layer " +
                                               std::to_string(band_->first_layer) +
                                               " for the row at " + std::to_string(position));
    }
  }
  return Status::Ok();
}

void BandRun::KeepOutput(std::span<const uint32_t> positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    std::copy_n(output_.data() + i * embedding_, embedding_, Stream(positions[i]));
    at_layer_[positions[i] - first_] = band_->end_layer;
  }
}

Result<BandRun::Progress> BandRun::Run(model::Runner& runner, uint32_t most, TailObserver* tail) {
  if (next_ == positions_.size()) {
    auto band = sequence_.NextBand();
    KVLINK_CHECK(band.has_value()) << "sequence " << sequence_.id() << " has no band left";
    BeginBand(*std::move(band));
  }
  const size_t count = std::min<size_t>(most, positions_.size() - next_);
  const auto positions = std::span<const uint32_t>(positions_).subspan(next_, count);
  next_ += count;
  const bool ends = band_->end_layer == num_layers_;
  std::vector<TokenId> tokens;
  std::vector<kernel::BatchRow> rows;
  std::vector<uint32_t> outputs;
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(prompt_[positions[i]]);
    rows.push_back({0, positions[i], true});
    if (ends && positions[i] >= tail->first_output()) outputs.push_back(i);
  }
  const SpanTable* table = &sequence_.table();
  model::LayerBatch run;
  run.batch = {tokens, rows, {&table, 1}, outputs};
  run.first_layer = band_->first_layer;
  run.end_layer = band_->end_layer;
  run.writes_next = band_->writes_next;
  if (run.first_layer > 0) {
    if (Status status = FillInput(positions); !status.ok()) return status;
    run.input = input_.data();
  }
  if (!ends) {
    output_.resize(count * embedding_);
    run.output = output_.data();
  }
  const auto logits = runner.RunLayers(run);
  if (!logits.ok()) return logits.status();
  Progress progress;
  progress.rows = static_cast<uint32_t>(count);
  progress.layer_rows = uint64_t{count} * (run.end_layer - run.first_layer);
  if (!ends) {
    KeepOutput(positions);
    return progress;
  }
  const auto num_outputs = static_cast<uint32_t>(outputs.size());
  const uint32_t end = positions.back() + 1;
  tail->AddLogits(prompt_, end, num_outputs, *logits, vocab_size_);
  if (end == prompt_.size()) progress.logits = *logits + size_t{num_outputs - 1} * vocab_size_;
  return progress;
}

}  // namespace kvlink::engine
