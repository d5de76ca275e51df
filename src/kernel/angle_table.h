// AngleTable: cos and sin of one batch's positions and shifts, for layers of one kind of rope.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernel/batch_rows.h"
#include "kernel/rope.h"

namespace kvlink::kernel {

class AngleTable {
 public:
  explicit AngleTable(const RopeParams& rope) : rope_(rope) {}
  const RopeParams& rope() const { return rope_; }

  void Build(const BatchRows& rows) {
    const std::span<const RowPlace> places = rows.places();
    angles_.clear();
    of_query_.resize(places.size());
    of_key_.resize(places.size());
    for (size_t r = 0; r < places.size(); r++) {
      const RowPlace& place = places[r];
      of_query_[r] = Add(static_cast<float>(place.position), true);
      of_key_[r] = of_query_[r];
      if (place.shift != 0 && place.write) {
        of_key_[r] =
            Add(static_cast<float>(static_cast<int64_t>(place.position) - place.shift), true);
      }
    }
    shifts_.clear();
    for (const SequenceRows& sequence : rows.sequences()) {
      for (const Span& span : sequence.table->spans) AddShift(span.shift);
    }
  }

  const float* OfQuery(size_t row) const { return angles_.data() + of_query_[row]; }
  const float* OfKey(size_t row) const { return angles_.data() + of_key_[row]; }
  // Moves a rotated query by -shift.
  const float* OfShift(int32_t shift) const {
    for (const auto& [known, offset] : shifts_) {
      if (known == shift) return angles_.data() + offset;
    }
    KVLINK_CHECK(false) << "shift " << shift << " is in no table of the batch";
    return nullptr;
  }

 private:
  size_t Add(float position, bool magnitude) {
    const size_t offset = angles_.size();
    angles_.resize(offset + rope_.num_rot);
    if (rope_.num_rot > 0) RopeAngles(rope_, position, magnitude, angles_.data() + offset);
    return offset;
  }
  void AddShift(int32_t shift) {
    if (shift == 0) return;
    for (const auto& [known, offset] : shifts_) {
      if (known == shift) return;
    }
    shifts_.emplace_back(shift, Add(-static_cast<float>(shift), false));
  }

  const RopeParams rope_;
  std::vector<float> angles_;
  std::vector<size_t> of_query_, of_key_;  // offsets in angles_, by row
  std::vector<std::pair<int32_t, size_t>> shifts_;
};

}  // namespace kvlink::kernel
