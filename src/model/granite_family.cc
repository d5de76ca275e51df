// The architecture `granite`: Granite 3 and 4 (dense).
//
// As Llama, with scales on embeddings, attention scores, what each block adds, and logits.
#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadGranite(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "granite", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/false);
  reader.ReadAttentionScale();
  GgufReader& keys = reader.keys();
  // The key says whether there is a rotation at all.
  if (!keys.BoolOr("rope.scaling.finetuned", true))
    keys.Refuse(StatusCode::kUnimplemented, "rope.scaling.finetuned", "false",
                "is not supported (no rotation)");
  // 0 means 1, but for the logits, which are divided.
  const auto scale = [&](const char* key) {
    const float value = keys.FloatOr(key, 1.0f, 0.0f, 1e6f);
    return value == 0.0f ? 1.0f : value;
  };
  reader.parts().embedding_scale = scale("embedding_scale");
  reader.parts().residual_scale = scale("residual_scale");
  reader.parts().logit_scale = 1.0f / keys.Float("logit_scale", 1e-6f, 1e6f);
  reader.ReadTensors({});
  return reader.Finish();
}

}  // namespace kvlink::model
