// BandRun: runs a prompt on a donor's rows band of layers by band (Sequence::NextBand), in chunks.
//
//   band           layers    rows
//   0              [0, 1)    all                     tokens --> residual stream
//   1              [1, L)    those selected since    residual stream, or the donor's --> logits
//
// The residual stream of the rows lies here from band to band. Belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/tail_observer.h"
#include "kvlink/cache.h"
#include "model/model.h"

namespace kvlink::engine {

class BandRun {
 public:
  // Requires: sequence.runs_in_bands(), and none of them has run.
  BandRun(Sequence& sequence, std::span<const TokenId> prompt, const model::ModelInfo& model);

  struct Progress {
    uint32_t rows = 0;              // that ran now
    uint64_t layer_rows = 0;        // likewise, times their layers
    const float* logits = nullptr;  // [vocabulary] of the prompt's last row, when all is done
  };
  // Up to `most` rows of the band at work; `most` > 0. Nothing is committed. kInternal: the donor's
  // residual stream is not there.
  Result<Progress> Run(model::Runner& runner, uint32_t most, TailObserver* tail);

 private:
  void BeginBand(LayerBand band);
  Status FillInput(std::span<const uint32_t> positions);
  void KeepOutput(std::span<const uint32_t> positions);
  float* Stream(uint32_t position) {
    return stream_.data() + size_t{position - first_} * embedding_;
  }

  Sequence& sequence_;
  const std::span<const TokenId> prompt_;
  const uint32_t embedding_, num_layers_, vocab_size_;
  const uint32_t first_;  // row behind the exact ones
  std::optional<LayerBand> band_;
  std::vector<uint32_t> positions_;  // of the band
  size_t next_ = 0;                  // of positions_
  std::vector<float> stream_;        // [rows from first_ on][embedding]
  std::vector<uint32_t> at_layer_;   // that each of these rows enters next
  std::vector<float> input_, output_;
};

}  // namespace kvlink::engine
