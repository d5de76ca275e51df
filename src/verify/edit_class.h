// Which kind of edit lies between a prompt and its donor. Calibration and the bound on wrong
// accepts are kept per kind, so it sees only what is known before anything runs.
#pragma once

#include <cstdint>
#include <span>

#include "kvlink/similar.h"

namespace kvlink::verify {

constexpr uint32_t kFewWords = 64;  // tokens put in or taken out
constexpr uint32_t kFewPlaces = 8;

// `spans` is the whole alignment. What follows the last span is the request's own question, not an
// edit. `values_only`: every edit has the same kinds of tokens on both sides (match::OnlyValues).
EditClass ClassOfEdits(std::span<const ReuseSpan> spans, bool values_only);

}  // namespace kvlink::verify
