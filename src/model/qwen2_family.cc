// The architecture `qwen2`: Qwen2, Qwen2.5 and models distilled into them.
//
// As Llama, with biases on Q, K and V, and pairs (i, i + n / 2) in the rotation.
#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadQwen2(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "qwen2", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/true);
  reader.ReadTensors({});
  return reader.Finish();
}

}  // namespace kvlink::model
