// The model file a subcommand works on: --model, or the default that the set-up fetched.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

inline constexpr const char* kDefaultModelFile = "SmolLM2-135M-Instruct-Q4_1.gguf";

// Folder of this process's executable.
std::string ExecutableFolder();

// `given` if not empty; else `environment` (the value of KVLINK_MODEL); else .deps/models/<default
// model> in `folder` or one of its parents. kNotFound says where it looked. A file that was named
// must exist.
Result<std::string> FindModelFile(const std::string& given, const char* environment,
                                  const std::string& folder);

// FindModelFile with this process's environment and folder, then Model::Load with progress on
// stderr. kv_type: "auto" (see model::LoadOptions) or one of KvTypeNames(). context: most tokens of
// prompt and answer; 0: the model's.
Result<std::unique_ptr<model::Model>> OpenModel(const std::string& given,
                                                const std::string& kv_type, bool quiet,
                                                uint32_t context = 0);

// What --kv-type may be beside "auto": "f16", "bf16", "q8_0".
std::vector<std::string> KvTypeNames();
// For CLI::Option::check: empty for "auto" and these, otherwise what is wrong with it.
std::string CheckKvType(const std::string& name);
inline constexpr const char* kKvTypeHelp =
    "Type of K and V in the cache: f16; bf16, as large and faster where the processor multiplies "
    "it; q8_0, half as large; auto: bf16 where it is faster and no less exact than the weights";

}  // namespace kvlink::cli
