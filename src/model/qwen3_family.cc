// The architectures `qwen3` and `qwen3moe`: Qwen3.
//
// As Llama, with a norm on each head of Q and K before the rotation, which works on pairs
// (i, i + n / 2). `qwen3moe` has experts in every layer; a row's weights over its experts add up to
// one.
#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadQwen3(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "qwen3", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/true);
  reader.ReadTensors({.head_norms = true});
  return reader.Finish();
}

Result<std::unique_ptr<Network>> LoadQwen3Moe(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "qwen3moe", options);
  reader.ReadSizes();
  reader.ReadExperts();
  if (reader.ok()) {
    // llama.cpp's rule for files without the key: the dense width, shared out.
    Dimensions& d = reader.parts().dimensions;
    if (reader.parts().num_experts == 0) {
      reader.keys().Refuse(StatusCode::kDataLoss, "expert_count", "0", "must be at least 1");
    } else {
      const uint32_t fallback = d.feed_forward / reader.parts().num_experts_used;
      d.feed_forward = reader.keys().UintOr("expert_feed_forward_length", fallback, 1, 1u << 22);
    }
  }
  reader.ReadAttention(/*neox=*/true);
  reader.ReadTensors({.head_norms = true});
  return reader.Finish();
}

}  // namespace kvlink::model
