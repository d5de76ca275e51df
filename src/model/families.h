// The loaders of the architecture families; families.cc lists them under the names that files use.
#pragma once

#include <memory>

#include "kvlink/status.h"
#include "model/network.h"

namespace kvlink::model {

// Llama, SmolLM2, TinyLlama, Mistral: RMS norm, rotary positions, grouped-query attention, SwiGLU.
Result<std::unique_ptr<Network>> LoadLlama(const GgufFile& file);

}  // namespace kvlink::model
