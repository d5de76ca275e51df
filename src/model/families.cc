#include "model/families.h"

#include "model/network.h"

namespace kvlink::model {
namespace {

constexpr Family kFamilies[] = {
    {"llama", LoadLlama},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<std::unique_ptr<Network>> LoadNetwork(const GgufFile& file) {
  const std::string architecture = file.Text("general.architecture");
  if (architecture.empty()) {
    return Status(StatusCode::kDataLoss,
                  file.path() + ": the key 'general.architecture' is missing");
  }
  std::string supported;
  for (const Family& family : Families()) {
    if (architecture == family.architecture) return family.load(file);
    supported += (supported.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return Status(StatusCode::kUnimplemented, file.path() + ": the architecture '" + architecture +
                                                "' is not supported (supported: " + supported +
                                                ")");
}

}  // namespace kvlink::model
