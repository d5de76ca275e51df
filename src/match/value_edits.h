// OnlyValues: whether a prompt differs from its donor in values alone: numbers, times, case, white
// space. Between the spans, and before the first, both sides have the same classes of tokens when a
// run of one class counts once ("7" and "2026" are the same kind, whatever their number of tokens).
// What follows the last span is the request's own question and is not looked at.
#pragma once

#include <span>

#include "kvlink/similar.h"
#include "match/normal_tokens.h"

namespace kvlink::match {

bool OnlyValues(std::span<const TokenId> tokens, std::span<const TokenId> donor,
                std::span<const ReuseSpan> spans, const NormalTokens& classes);

}  // namespace kvlink::match
