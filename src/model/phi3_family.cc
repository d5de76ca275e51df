// The architecture `phi3`: Phi-3 and Phi-4 (dense).
//
// As Llama, with Q, K and V in one tensor and gate and up in another, pairs (i, i + n / 2) in the
// rotation, which may leave a part of each head alone, and two lists of factors for it, of which
// the longest sequence to be run chooses one.
// As in llama.cpp, the sliding window that some files name (attention.sliding_window) is not
// applied, since converters are known to have written wrong ones.
#include "model/decoder_reader.h"
#include "model/families.h"

namespace kvlink::model {

Result<std::unique_ptr<Network>> LoadPhi3(const GgufFile& file, const NetworkOptions& options) {
  DecoderReader reader(file, "phi3", options);
  reader.ReadSizes();
  reader.ReadAttention(/*neox=*/true);
  reader.keys().UintOr("attention.sliding_window", 0, 0, UINT32_MAX);
  reader.ReadTensors({.gate_in_up = true});
  return reader.Finish();
}

}  // namespace kvlink::model
