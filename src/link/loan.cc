#include "link/loan.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::link {
namespace {

class SpanWriter {
 public:
  SpanWriter(const Loan& loan, uint32_t donor_block, uint32_t own_block, uint32_t tokens_per_block)
      : loan_(loan),
        donor_block_(donor_block),
        own_block_(own_block),
        tokens_per_block_(tokens_per_block) {}

  void Exact() {
    if (loan_.exact_rows > 0) spans_.push_back({.num_rows = loan_.exact_rows});
    position_ = loan_.exact_rows;
  }
  void OwnUpTo(uint32_t end) {
    if (end == position_) return;
    const uint32_t num_rows = end - position_;
    if (last_is_own_) {
      spans_.back().num_rows += num_rows;
    } else {
      Write(own_block_, own_rows_, num_rows, 0);
    }
    last_is_own_ = true;
    own_rows_ += num_rows;
    position_ = end;
  }
  void BorrowedUpTo(uint32_t end) {
    while (position_ < end) {
      while (next_ < loan_.spans.size() && loan_.spans[next_].end() <= position_) ++next_;
      KVLINK_CHECK(next_ < loan_.spans.size() && loan_.spans[next_].position <= position_)
          << "nobody has the row at " << position_;
      const ReuseSpan& span = loan_.spans[next_];
      const uint32_t num_rows = std::min(end, span.end()) - position_;
      Write(donor_block_, span.donor_position + (position_ - span.position), num_rows,
            span.shift());
      last_is_own_ = false;
      position_ += num_rows;
    }
  }
  std::vector<Span> Take() { return std::move(spans_); }

 private:
  void Write(uint32_t first_block, uint32_t row, uint32_t num_rows, int32_t shift) {
    spans_.push_back({.first_block = first_block + row / tokens_per_block_,
                      .first_row = row % tokens_per_block_,
                      .num_rows = num_rows,
                      .position = position_,
                      .shift = shift});
  }

  const Loan& loan_;
  const uint32_t donor_block_, own_block_, tokens_per_block_;
  std::vector<Span> spans_;
  uint32_t position_ = 0, own_rows_ = 0;
  size_t next_ = 0;  // of loan_.spans
  bool last_is_own_ = false;
};

}  // namespace

uint32_t Loan::OwnRowsBefore(uint32_t position) const {
  if (is_copied) return position > exact_rows ? position - exact_rows : 0;
  uint32_t rows = position > num_tokens ? position - num_tokens : 0;
  for (const Selection::Range& range : computed) {
    if (range.position >= position) break;
    rows += std::min(range.num_rows, position - range.position);
  }
  return rows;
}

Loan Loan::CutAt(uint32_t position) const {
  Loan cut = *this;
  cut.num_tokens = std::min(num_tokens, position);
  cut.exact_rows = std::min(exact_rows, position);
  for (ReuseSpan& span : cut.spans) {
    span.num_rows =
        position > span.position ? std::min(span.num_rows, position - span.position) : 0;
  }
  std::erase_if(cut.spans, [](const ReuseSpan& span) { return span.num_rows == 0; });
  for (Selection::Range& range : cut.computed) {
    range.num_rows =
        position > range.position ? std::min(range.num_rows, position - range.position) : 0;
  }
  std::erase_if(cut.computed, [](const Selection::Range& range) { return range.num_rows == 0; });
  return cut;
}

std::vector<Span> Loan::SpansOf(uint32_t capacity, uint32_t donor_block, uint32_t own_block,
                                uint32_t tokens_per_block) const {
  if (is_copied) return CopiedSpansOf(capacity, own_block, tokens_per_block);
  SpanWriter writer(*this, donor_block, own_block, tokens_per_block);
  writer.Exact();
  for (const Selection::Range& range : computed) {
    writer.BorrowedUpTo(range.position);
    writer.OwnUpTo(range.position + range.num_rows);
  }
  writer.BorrowedUpTo(num_tokens);
  writer.OwnUpTo(capacity);
  return writer.Take();
}

std::vector<Span> Loan::CopiedSpansOf(uint32_t capacity, uint32_t own_block,
                                      uint32_t tokens_per_block) const {
  std::vector<Span> written;
  if (exact_rows > 0) written.push_back({.num_rows = exact_rows});
  uint32_t position = exact_rows;
  const auto write = [&](uint32_t end, int32_t shift) {
    if (end <= position) return;
    const uint32_t row = position - exact_rows;
    written.push_back({.first_block = own_block + row / tokens_per_block,
                       .first_row = row % tokens_per_block,
                       .num_rows = end - position,
                       .position = position,
                       .shift = shift});
    position = end;
  };
  for (const ReuseSpan& span : spans) {
    write(span.position, 0);
    write(span.end(), span.shift());
  }
  write(capacity, 0);
  return written;
}

}  // namespace kvlink::link
