// Options that mean the same in every subcommand that computes with a model itself.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace kvlink::cli {

void AddModelOption(CLI::App& app, std::string& model);     // as FindModelFile takes it
void AddThreadsOption(CLI::App& app, int& threads);         // 0: as ChooseThreads
void AddContextOption(CLI::App& app, uint32_t& context);    // tokens; 0: the model's
void AddChunkOption(CLI::App& app, uint32_t& chunk);        // tokens
void AddKvTypeOption(CLI::App& app, std::string& kv_type);  // as OpenModel takes it

}  // namespace kvlink::cli
