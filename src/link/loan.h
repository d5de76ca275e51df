// Loan: where the rows of a sequence lie when some of them are a donor's.
//
//   positions    [ exact ........ | own | donor's | own | donor's | own ........ generated ]
//   own pages                     [ 0 1 2 ........  3 4 ......... 5 6 7 8 9 ... ]
//
// Rows that run lie in the sequence's own pages, packed one behind the other; all others are read
// where they lie, exact ones and the donor's, through spans that begin and end at any row. So a
// sequence costs the rows that it computes, and nothing is written into a shared page.
//
// Where some layers of a row are the donor's and others its own, there is no such place: then all
// rows behind the exact ones are own, and begin as copies of the donor's. What was shifted stays
// so: K is written for the donor's frame, and nothing is rotated again.
#pragma once

#include <cstdint>
#include <vector>

#include "kvlink/similar.h"
#include "kvlink/view.h"

namespace kvlink::link {

struct Loan {
  uint32_t exact_rows = 0;
  uint32_t num_tokens = 0;                 // of the prompt; all rows from there on are own
  std::vector<ReuseSpan> spans;            // of the donor, behind the exact rows
  std::vector<Selection::Range> computed;  // own rows of the prompt; the spans cover all others
  bool is_copied = false;                  // all are own; `computed` is empty

  // Own rows at positions below `position`.
  uint32_t OwnRowsBefore(uint32_t position) const;
  // The loan of a branch that shares rows [0, position) and owns all behind.
  Loan CutAt(uint32_t position) const;
  // Donor rows [0, this) are read, or compared with what was computed in their place.
  uint32_t DonorRows() const { return spans.empty() ? 0 : spans.back().donor_end(); }

  // Spans over positions [0, capacity), for a table whose blocks are those with the exact rows,
  // from `donor_block` on the donor's and from `own_block` on the own ones.
  std::vector<Span> SpansOf(uint32_t capacity, uint32_t donor_block, uint32_t own_block,
                            uint32_t tokens_per_block) const;

 private:
  std::vector<Span> CopiedSpansOf(uint32_t capacity, uint32_t own_block,
                                  uint32_t tokens_per_block) const;
};

}  // namespace kvlink::link
