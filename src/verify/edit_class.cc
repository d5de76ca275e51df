#include "verify/edit_class.h"

namespace kvlink::verify {

EditClass ClassOfEdits(std::span<const ReuseSpan> spans, bool values_only) {
  uint64_t inserted = 0, deleted = 0;
  uint32_t places = 0, end = 0, donor_end = 0;
  for (const ReuseSpan& span : spans) {
    inserted += span.position - end;
    deleted += span.donor_position - donor_end;
    places += span.position > end || span.donor_position > donor_end ? 1 : 0;
    end = span.end();
    donor_end = span.donor_end();
  }
  if (places > kFewPlaces) return EditClass::kMany;
  if (inserted > kFewWords || deleted > kFewWords) return EditClass::kPassage;
  return values_only ? EditClass::kValues : EditClass::kWords;
}

}  // namespace kvlink::verify
