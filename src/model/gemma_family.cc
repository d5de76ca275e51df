// The architectures `gemma2` and `gemma3`: Gemma 2 and 3 (text).
//
// Embeddings scaled by sqrt(n), norms before and after each block, GELU, tied output. Sliding
// windows in most layers: in every group of `pattern` layers all but the last (2 in Gemma 2, 6 in
// Gemma 3). Gemma 2 caps scores and logits; Gemma 3 has norms on the heads of Q and K instead, and
// another base for the rotation of its windowed layers. Norm weights are 1 + w already in the file.
#include <cmath>

#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {
namespace {

// The largest of each generation scales scores by the width of the embedding, not of the head.
constexpr uint32_t kLayersOf27B[] = {46, 62};  // Gemma 2, 3

void ReadScales(DecoderReader& reader, uint32_t layers_of_27b) {
  if (!reader.ok()) return;
  DecoderParts& parts = reader.parts();
  const Dimensions& d = parts.dimensions;
  parts.embedding_scale = std::sqrt(static_cast<float>(d.embedding));
  parts.activation = Activation::kGelu;
  if (d.num_layers == layers_of_27b) {
    parts.attention.front().scale = 1.0f / std::sqrt(static_cast<float>(d.embedding / d.num_heads));
  }
}

// One LayerParams a layer: `windowed` for the layers with a window, the reader's for the others.
void SpreadOverLayers(DecoderReader& reader, const kernel::LayerParams& windowed,
                      uint32_t default_pattern) {
  if (!reader.ok()) return;
  const uint32_t num_layers = reader.parts().dimensions.num_layers;
  const std::vector<bool> has_window =
      reader.keys().LayerPattern("attention.sliding_window_pattern", num_layers, default_pattern);
  std::vector<kernel::LayerParams>& layers = reader.parts().attention;
  layers.resize(num_layers, kernel::LayerParams(layers.front()));
  for (uint32_t i = 0; i < num_layers && reader.ok(); ++i) {
    if (has_window[i]) layers[i] = windowed;
  }
}

}  // namespace

Result<std::unique_ptr<Network>> LoadGemma2(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "gemma2", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/true);
  ReadScales(reader, kLayersOf27B[0]);
  if (reader.ok()) {
    GgufReader& keys = reader.keys();
    kernel::LayerParams& layer = reader.parts().attention.front();
    layer.softcap = keys.FloatOr("attn_logit_softcapping", 50.0f, 1e-3f, 1e6f);
    reader.parts().logit_softcap = keys.FloatOr("final_logit_softcapping", 30.0f, 1e-3f, 1e6f);
    kernel::LayerParams windowed = layer;
    windowed.window = keys.UintOr("attention.sliding_window", 4096, 1, 1u << 30);
    windowed.rope.freq_base = keys.FloatOr("rope.freq_base_swa", layer.rope.freq_base, 1.0f, 1e12f);
    SpreadOverLayers(reader, windowed, 2);
  }
  reader.ReadTensors({.post_norms = true});
  return reader.Finish();
}

Result<std::unique_ptr<Network>> LoadGemma3(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "gemma3", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/true);
  ReadScales(reader, kLayersOf27B[1]);
  if (reader.ok()) {
    GgufReader& keys = reader.keys();
    reader.parts().logit_softcap = keys.FloatOr("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
    kernel::LayerParams windowed = reader.parts().attention.front();
    windowed.window = keys.UintOr("attention.sliding_window", 0, 0, 1u << 30);
    // Windowed layers keep their own base and are not scaled with the others.
    windowed.rope.freq_base = keys.FloatOr("rope.freq_base_swa", 10000.0f, 1.0f, 1e12f);
    windowed.rope.freq_scale = 1.0f;
    if (windowed.window > 0) SpreadOverLayers(reader, windowed, 6);
  }
  reader.ReadTensors({.head_norms = true, .post_norms = true});
  return reader.Finish();
}

}  // namespace kvlink::model
