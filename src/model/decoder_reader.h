// DecoderReader: reads one GGUF file into the parts of a Decoder. What families share is here, one
// method a group of keys or tensors; a family file calls those that it has, in order, and sets what
// is its own. The first error sticks and makes the methods after it do nothing.
//
// Finish refuses, by name and value, hyper-parameters that would change the computation and that
// the family did not ask for, and tensors that nobody asked for. Names and defaults of keys are
// llama.cpp's.
#pragma once

#include <memory>
#include <string>

#include "kernel/paged_attention.h"
#include "model/decoder.h"
#include "model/gguf_reader.h"

namespace kvlink::model {

// Which tensors a layer has beside those that all families have.
struct LayerForm {
  bool head_norms = false;  // of Q and K
  bool post_norms = false;  // of attention and feed-forward
  bool gate_in_up = false;  // the tensor ffn_up holds gate and up
};

class DecoderReader {
 public:
  DecoderReader(const GgufFile& file, const std::string& architecture,
                const NetworkOptions& options);

  GgufReader& keys() { return keys_; }
  DecoderParts& parts() { return parts_; }
  bool ok() const { return keys_.status().ok(); }

  // Layers, heads, widths, norm epsilon.
  void ReadSizes();
  // Experts a layer, and how many of them a row takes.
  void ReadExperts();
  // The attention of every layer: scale 1 / sqrt(head_dim), and the rotation with its scaling.
  // `neox`: pairs (i, i + n / 2).
  void ReadAttention(bool neox);
  // The key attention.scale, where it is given and not 0.
  void ReadAttentionScale();
  void ReadTensors(const LayerForm& form);

  Result<std::unique_ptr<Network>> Finish();

 private:
  void ReadRope(kernel::RopeParams& rope);
  void ReadYarn(kernel::RopeParams& rope);
  void ReadRopeFactors(kernel::RopeParams& rope);
  void ReadLayer(uint32_t index, const LayerForm& form, DecoderLayer& layer);
  void ReadExpertTensors(const std::string& prefix, DecoderLayer& layer);
  Linear ReadLinear(const std::string& name, uint32_t inputs, uint32_t outputs);
  // Elements [first, first + count) along an axis, as a tensor of its own.
  ggml_tensor* Slice(const ggml_tensor* whole, int axis, uint32_t first, uint32_t count);
  Linear Slice(const Linear& fused, uint32_t first, uint32_t rows);
  Stack ReadQkv(const std::string& prefix);
  Stack ReadGateUp(const std::string& prefix, bool gate_in_up);

  GgufReader keys_;
  const NetworkOptions options_;
  DecoderParts parts_;
};

}  // namespace kvlink::model
