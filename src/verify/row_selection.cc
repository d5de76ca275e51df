#include "verify/row_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvlink::verify {
namespace {

// Rows [exact_tokens, num_tokens) of the new prompt, with what is picked of them.
class Rows {
 public:
  explicit Rows(const SelectRequest& request)
      : request_(request),
        picked_(request.num_tokens),
        donor_row_(request.num_tokens, kNone),
        behind_edit_(request.num_tokens) {
    for (const ReuseSpan& span : request.spans) {
      KVLINK_CHECK(span.position >= request.exact_tokens && span.end() <= request.num_tokens)
          << "span at " << span.position;
      for (uint32_t i = 0; i < span.num_rows; ++i) {
        donor_row_[span.position + i] = span.donor_position + i;
        behind_edit_[span.position + i] = i + 1;
      }
      num_in_spans_ += span.num_rows;
    }
    double sum = 0;
    for (uint32_t row = request.exact_tokens; row < request.num_tokens; ++row) {
      if (InSpan(row)) sum += RawReceived(row);
    }
    mean_received_ = num_in_spans_ > 0 ? sum / num_in_spans_ : 0;
  }

  void Pick(uint32_t row) {
    if (row < request_.exact_tokens || row >= request_.num_tokens || picked_[row]) return;
    picked_[row] = true;
    ++num_picked_;
    if (InSpan(row)) ++num_picked_in_spans_;
  }
  bool IsPicked(uint32_t row) const { return picked_[row]; }
  bool InSpan(uint32_t row) const { return donor_row_[row] != kNone; }
  uint32_t behind_edit(uint32_t row) const { return behind_edit_[row]; }
  uint32_t num_in_spans() const { return num_in_spans_; }
  uint32_t num_picked() const { return num_picked_; }
  uint32_t num_picked_in_spans() const { return num_picked_in_spans_; }

  bool has_received() const { return mean_received_ > 0; }
  // In units of the mean; 1 where nothing was recorded.
  double Received(uint32_t row) const {
    return has_received() ? RawReceived(row) / mean_received_ : 1;
  }
  double RawReceived(uint32_t row) const {
    const uint32_t donor = donor_row_[row];
    return donor < request_.received.size() ? std::max(request_.received[donor], 0.0f) : 0;
  }

  // Picks rows of the spans by falling score until `target` of them are picked.
  template <typename Score>
  void PickBest(uint32_t target, Score score) {
    if (num_picked_in_spans_ >= target) return;
    std::vector<std::pair<double, uint32_t>> candidates;
    for (uint32_t row = request_.exact_tokens; row < request_.num_tokens; ++row) {
      if (InSpan(row) && !picked_[row]) candidates.push_back({-score(row), row});
    }
    const size_t count = std::min<size_t>(candidates.size(), target - size_t{num_picked_in_spans_});
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                      candidates.end());
    for (size_t i = 0; i < count; ++i) Pick(candidates[i].second);
  }

  // Gaps of unpicked rows up to `gap` between picked ones.
  void CloseGaps(uint32_t gap) {
    uint32_t last = kNone;
    for (uint32_t row = request_.exact_tokens; row < request_.num_tokens; ++row) {
      if (!picked_[row]) continue;
      if (last != kNone && row - last - 1 <= gap) {
        for (uint32_t between = last + 1; between < row; ++between) Pick(between);
      }
      last = row;
    }
  }

  std::vector<Selection::Range> Ranges() const {
    std::vector<Selection::Range> ranges;
    for (uint32_t row = request_.exact_tokens; row < request_.num_tokens; ++row) {
      if (!picked_[row]) continue;
      if (!ranges.empty() && ranges.back().position + ranges.back().num_rows == row) {
        ++ranges.back().num_rows;
      } else {
        ranges.push_back({row, 1});
      }
    }
    return ranges;
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  const SelectRequest& request_;
  std::vector<bool> picked_;
  std::vector<uint32_t> donor_row_;
  std::vector<uint32_t> behind_edit_;  // 1: the first row behind an edit
  double mean_received_ = 0;
  uint32_t num_in_spans_ = 0, num_picked_ = 0, num_picked_in_spans_ = 0;
};

// All of the first `dense` rows behind the edit, then dense / t of those at distance t: the k-th
// further one stands at dense * e^(k / dense).
void PickSeam(const ReuseSpan& span, const SimilarOptions& options, Rows* rows) {
  const uint32_t dense = span.shift() == 0 ? options.seam_rows : options.shifted_seam_rows;
  for (uint32_t i = 0; i < std::min(dense, span.num_rows); ++i) rows->Pick(span.position + i);
  if (dense == 0) return;
  const double reach = std::min<double>(span.num_rows, double{1} * dense * options.seam_reach);
  for (uint32_t k = 1;; ++k) {
    const double distance = dense * std::exp(double{1} * k / dense);
    if (distance >= reach) break;
    rows->Pick(span.position + static_cast<uint32_t>(distance));
  }
}

void PickNotes(const SelectRequest& request, const SimilarOptions& options, bool is_seam,
               double growth, Rows* rows) {
  if (!rows->has_received()) return;
  const uint32_t behind = request.num_tokens - request.exact_tokens;
  const double notes = growth * std::max<double>(options.min_notes, options.note_share * behind);
  double target = rows->num_picked_in_spans() + notes;
  if (is_seam) {
    target = std::min(target, growth * options.seam_compute_share * rows->num_in_spans());
  }
  rows->PickBest(static_cast<uint32_t>(target), [&](uint32_t row) { return rows->Received(row); });
}

double Measured(const SelectRequest& request, uint32_t row) {
  return row < request.deviation.size() ? request.deviation[row]
                                        : std::numeric_limits<double>::quiet_NaN();
}

void Summarise(const SelectRequest& request, const LayerPlan& layers, const Rows& rows,
               Selection* selection) {
  selection->computed = rows.Ranges();
  selection->num_computed = rows.num_picked();
  selection->reentry_layer = layers.reentry_layer;
  selection->full_layers = layers.full_layers;
  selection->refreshed_layers = layers.refreshed_layers;
  const double others_run = double{1} * layers.layers_run() / layers.num_layers;
  const uint32_t behind = request.num_tokens - request.exact_tokens;
  const auto share = [&](uint32_t whole, uint32_t of) {
    return of == 0 ? 0 : (whole + (of - whole) * others_run) / of;
  };
  selection->compute_share = share(rows.num_picked(), behind);
  selection->modified_share = share(rows.num_picked_in_spans(), rows.num_in_spans());
}

}  // namespace

Selection SelectRows(const SelectRequest& request, const LayerPlan& layers,
                     const SimilarOptions& options, const Selection* before) {
  Rows rows(request);
  const double growth = before == nullptr ? 1 : options.enlarge_factor;
  const bool is_seam = options.mode == ReuseMode::kSeam;
  uint32_t before_in_spans = 0;
  if (before != nullptr) {
    for (const Selection::Range& range : before->computed) {
      for (uint32_t i = 0; i < range.num_rows; ++i) rows.Pick(range.position + i);
    }
    before_in_spans = rows.num_picked_in_spans();
  }
  for (uint32_t row = request.exact_tokens; row < request.num_tokens; ++row) {
    if (!rows.InSpan(row)) rows.Pick(row);
  }
  const uint32_t tail = std::max(options.tail_rows, 1u);
  for (uint32_t i = 1; i <= std::min(tail, request.num_tokens); ++i) {
    rows.Pick(request.num_tokens - i);
  }
  for (const ReuseSpan& span : request.spans) PickSeam(span, options, &rows);
  PickNotes(request, options, is_seam, growth, &rows);
  double target = growth * before_in_spans;
  if (!is_seam) {
    const uint32_t behind = request.num_tokens - request.exact_tokens;
    const uint32_t edited = behind - rows.num_in_spans();
    target = std::max(target, growth * options.compute_share * behind - edited);
  }
  rows.PickBest(static_cast<uint32_t>(std::max(target, 0.0)), [&](uint32_t row) {
    const double measured = Measured(request, row);
    const double deviation =
        std::isnan(measured) ? 1.0 / rows.behind_edit(row) : std::max(measured, 0.0);
    return rows.Received(row) * std::pow(deviation, options.deviation_exponent);
  });
  rows.CloseGaps(options.close_gap);
  Selection selection;
  Summarise(request, layers, rows, &selection);
  return selection;
}

std::optional<double> BlastRadius(const SelectRequest& request, const Selection& selection) {
  Rows rows(request);
  if (!rows.has_received()) return std::nullopt;
  for (const Selection::Range& range : selection.computed) {
    for (uint32_t i = 0; i < range.num_rows; ++i) rows.Pick(range.position + i);
  }
  double blast = 0, all = 0;
  bool measured_any = false;
  for (const ReuseSpan& span : request.spans) {
    double deviation = std::numeric_limits<double>::quiet_NaN();
    for (uint32_t row = span.position; row < span.end() && std::isnan(deviation); ++row) {
      deviation = Measured(request, row);
    }
    const bool measured = !std::isnan(deviation);
    measured_any |= measured;
    for (uint32_t row = span.position; row < span.end(); ++row) {
      if (!std::isnan(Measured(request, row))) deviation = Measured(request, row);
      all += rows.RawReceived(row);
      // A span of which nothing is known may have changed altogether.
      if (!rows.IsPicked(row)) blast += rows.RawReceived(row) * (measured ? deviation : 1);
    }
  }
  if (!measured_any || all <= 0) return std::nullopt;
  return blast / all;
}

}  // namespace kvlink::verify
