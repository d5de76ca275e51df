// The architecture `llama`: Llama 1 to 3, SmolLM2, TinyLlama, Mistral; with experts: Mixtral.
//
// The plain Decoder: pre-norms, grouped-query attention, SwiGLU. Rotates pairs (2i, 2i + 1), which
// the converters' reordered rows of Q and K are made for.
#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadLlama(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "llama", options);
  reader.ReadSizes();
  reader.ReadExperts();
  reader.ReadAttention(/*neox=*/false);
  reader.ReadTensors({});
  return reader.Finish();
}

}  // namespace kvlink::model
