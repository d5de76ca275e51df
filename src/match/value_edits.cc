#include "match/value_edits.h"

#include <vector>

namespace kvlink::match {
namespace {

std::vector<uint32_t> KindsOf(std::span<const TokenId> tokens, const NormalTokens& classes) {
  std::vector<uint32_t> kinds;
  for (const TokenId token : tokens) {
    const uint32_t kind = classes.ClassOf(token);
    if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace

bool OnlyValues(std::span<const TokenId> tokens, std::span<const TokenId> donor,
                std::span<const ReuseSpan> spans, const NormalTokens& classes) {
  uint32_t end = 0, donor_end = 0;
  for (const ReuseSpan& span : spans) {
    if (KindsOf(tokens.subspan(end, span.position - end), classes) !=
        KindsOf(donor.subspan(donor_end, span.donor_position - donor_end), classes)) {
      return false;
    }
    end = span.end();
    donor_end = span.donor_end();
  }
  return true;
}

}  // namespace kvlink::match
