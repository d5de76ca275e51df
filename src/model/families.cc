#include "model/families.h"

#include "model/network.h"

namespace kvlink::model {
namespace {

constexpr Family kFamilies[] = {
    {"llama", LoadLlama},       {"qwen2", LoadQwen2},     {"qwen3", LoadQwen3},
    {"qwen3moe", LoadQwen3Moe}, {"gemma2", LoadGemma2},   {"gemma3", LoadGemma3},
    {"phi3", LoadPhi3},         {"granite", LoadGranite},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<std::unique_ptr<Network>> LoadNetwork(const GgufFile& file, const NetworkOptions& options) {
  const std::string architecture = file.Text("general.architecture");
  if (architecture.empty()) {
    return Status(StatusCode::kDataLoss,
                  file.path() + ": the key 'general.architecture' is missing");
  }
  std::string supported;
  for (const Family& family : Families()) {
    if (architecture == family.architecture) return family.load(file, options);
    supported += (supported.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return Status(StatusCode::kUnimplemented, file.path() + ": the architecture '" + architecture +
                                                "' is not supported (supported: " + supported +
                                                ")");
}

}  // namespace kvlink::model
