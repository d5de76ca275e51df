// The loaders of the architecture families; families.cc lists them under the names that files use.
// Each reads its keys and tensors with a DecoderReader; its own file says what it computes and what
// of llama.cpp's hyper-parameters it takes.
#pragma once

#include <memory>

#include "kvlink/status.h"
#include "model/network.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadLlama(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadQwen2(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadQwen3(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadQwen3Moe(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadGemma2(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadGemma3(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadPhi3(const GgufFile& file, const NetworkOptions& options);
Result<std::unique_ptr<Network>> LoadGranite(const GgufFile& file, const NetworkOptions& options);

}  // namespace kvlink::model
