#include "options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <type_traits>

namespace kvlink::simulate {

const char* const kUsage =
    "usage: simulate TRACE [--option VALUE]...\n"
    "Replays a block trace (Mooncake's JSON lines, plain or gzipped) through KVLink's eviction\n"
    "policy, LRU and Belady, in one cache, in tiers, and on machines behind a router.\n"
    "  --max-input N            leave out requests of more tokens (0: none)\n"
    "  --sizes N,N,...          cache sizes, in blocks of 512 tokens\n"
    "  --cold-factor N          blocks of the cold tier for one in RAM (0: no such tier)\n"
    "  --remote-factor N        blocks of the remote tier for one in RAM, of all machines\n"
    "  --machine-sizes N,N,...  RAM of one machine, in blocks (none: leave the machines out)\n"
    "  --baseline-machines N    machines that do without reuse what the others must match\n"
    "  --baseline-load X        their load, in (0, 1): sets how dense arrivals are\n"
    "  --prefill-rate X         tokens/s at the start of a prompt\n"
    "  --dear-position X        where a row costs twice as much\n"
    "  --decode-rate X          tokens/s of all sequences that run together\n"
    "  --kv-bytes-per-token X   bytes of K and V\n"
    "  --disk-rate X, --network-rate X   bytes/s\n"
    "  --json FILE, --markdown FILE      also write the figures there\n";

namespace {

bool ParsePositive(const std::string& text, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && std::isfinite(*value) && *value > 0;
}

bool ParseCount(const std::string& text, uint64_t most, uint64_t* value) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *value = std::strtoull(text.c_str(), nullptr, 10);
  return text.size() <= 18 && *value <= most;
}

bool ParseCounts(const std::string& text, std::vector<uint64_t>* values) {
  values->clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    uint64_t value = 0;
    if (!ParseCount(text.substr(begin, end - begin), 1u << 30, &value) || value == 0) return false;
    values->push_back(value);
    begin = end + 1;
  }
  return true;
}

using Setter = std::function<bool(const std::string&)>;

std::map<std::string, Setter> SettersOf(Options* options) {
  const auto number = [](double* target) {
    return [target](const std::string& text) { return ParsePositive(text, target); };
  };
  const auto count = [](auto* target, uint64_t least, uint64_t most) {
    return [=](const std::string& text) {
      uint64_t value = 0;
      if (!ParseCount(text, most, &value) || value < least) return false;
      *target = static_cast<std::remove_pointer_t<decltype(target)>>(value);
      return true;
    };
  };
  const auto text = [](std::string* target) {
    return [target](const std::string& value) {
      *target = value;
      return !value.empty();
    };
  };
  Machine& machine = options->machine;
  return {
      {"--max-input", count(&options->max_input, 0, 0xffffffffu)},
      {"--sizes", [=](const std::string& list) { return ParseCounts(list, &options->sizes); }},
      {"--machine-sizes",
       [=](const std::string& list) {
         options->run_machines = list != "none";
         return !options->run_machines || ParseCounts(list, &options->machine_sizes);
       }},
      {"--cold-factor", count(&options->cold_factor, 0, 100000)},
      {"--remote-factor", count(&options->remote_factor, 0, 100000)},
      {"--baseline-machines", count(&options->baseline_machines, 1, 100000)},
      {"--baseline-load",
       [=](const std::string& value) {
         return ParsePositive(value, &options->baseline_load) && options->baseline_load < 1;
       }},
      {"--prefill-rate", number(&machine.prefill_rate)},
      {"--dear-position", number(&machine.dear_position)},
      {"--decode-rate", number(&machine.decode_rate)},
      {"--kv-bytes-per-token", number(&machine.kv_bytes_per_token)},
      {"--disk-rate", number(&machine.disk_bytes_per_s)},
      {"--network-rate", number(&machine.network_bytes_per_s)},
      {"--json", text(&options->json)},
      {"--markdown", text(&options->markdown)},
  };
}

}  // namespace

Result<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  const std::map<std::string, Setter> setters = SettersOf(&options);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name.empty() || name[0] != '-') {
      if (!options.trace.empty()) {
        return Status(StatusCode::kInvalidArgument, "a second trace: '" + name + "'");
      }
      options.trace = name;
      continue;
    }
    const auto setter = setters.find(name);
    if (setter == setters.end()) {
      return Status(StatusCode::kInvalidArgument, "unknown option '" + name + "'");
    }
    if (++i == arguments.size()) {
      return Status(StatusCode::kInvalidArgument, name + " needs a value");
    }
    if (!setter->second(arguments[i])) {
      return Status(StatusCode::kInvalidArgument, name + ": bad value '" + arguments[i] + "'");
    }
  }
  if (options.trace.empty()) return Status(StatusCode::kInvalidArgument, "give a trace");
  return options;
}

}  // namespace kvlink::simulate
