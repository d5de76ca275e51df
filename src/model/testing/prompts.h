// Prompts for tests: English and Chinese prose, lists and code, put together by seed.
#pragma once

#include <cstdint>
#include <string>

namespace kvlink::model {

// About `num_words` words; the same for the same seed.
std::string MakePrompt(uint64_t seed, uint32_t num_words);

}  // namespace kvlink::model
