#include "cli/model_options.h"

#include <CLI/CLI.hpp>

#include "cli/model_file.h"

namespace kvlink::cli {

void AddModelOption(CLI::App& app, std::string& model) {
  app.add_option("--model", model, "GGUF file; default: the model that the set-up fetched")
      ->type_name("FILE");
}

void AddThreadsOption(CLI::App& app, int& threads) {
  app.add_option("--threads", threads,
                 "Threads that compute; default: physical cores that this process may use")
      ->check(CLI::Range(1, 1024));
}

void AddContextOption(CLI::App& app, uint32_t& context) {
  app.add_option("--ctx", context, "Most tokens of prompt and answer; default: the model's")
      ->check(CLI::Range(16, 1 << 24));
}

void AddChunkOption(CLI::App& app, uint32_t& chunk) {
  app.add_option("--chunk", chunk, "Prompt tokens computed in a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
}

void AddKvTypeOption(CLI::App& app, std::string& kv_type) {
  app.add_option("--kv-type", kv_type, kKvTypeHelp)
      ->check(CheckKvType, "{auto,f16,bf16,q8_0}")
      ->capture_default_str();
}

}  // namespace kvlink::cli
