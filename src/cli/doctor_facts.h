// What `kvlink doctor` knows of a server or of a log of prompts: a line a request and some totals.
// Read from a running server (doctor_server.h) or found by replaying prompts (doctor_prompts.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvlink/options.h"
#include "server/recent_requests.h"

namespace kvlink::cli {

struct RequestFacts {
  std::string space;  // who may share with whom: equal ones
  uint32_t prompt_tokens = 0, exact = 0, partial = 0, similar = 0;
  std::string verdict, edit;         // names as in the API; empty: similar reuse was off
  std::string miss_reason = "none";  // likewise
  uint32_t diverged_at = 0;          // first token without an exact row
  std::optional<uint32_t> message;   // that it lies in
  std::string token, after;          // its text, and what stands before it
  double match_ms = 0, first_token_ms = 0;
  server::PromptSketch sketch{};
  uint32_t covered() const { return exact + partial; }
};

// Beside the requests. What a replay cannot know is 0 or empty.
struct DoctorFacts {
  std::string source;  // for people
  bool is_server = false;
  std::string similar = "off";         // policy
  std::vector<RequestFacts> requests;  // oldest first

  std::map<std::string, double> settings;  // SettingsOf, where known
  // Since the server started.
  uint64_t num_requests = 0, preemptions = 0, refused = 0, evicted_blocks = 0, stored_blocks = 0;
  std::map<std::string, SimilarTrials> shadows;  // by class of edits
  uint64_t budget_bytes = 0;

  // Of a replay: with similar reuse on, rows that donors would lend; and prompts that find a donor
  // only with the window `narrow_window`.
  std::optional<uint64_t> lendable_rows;
  uint32_t narrow_window = 0, found_only_narrow = 0;
  uint32_t too_long = 0;  // prompts that the KV memory cannot hold

  double setting(const std::string& name, double otherwise) const {
    const auto found = settings.find(name);
    return found == settings.end() ? otherwise : found->second;
  }
};

// The parameters that findings speak of, by the names of the calibration file.
std::vector<std::pair<std::string, double>> SettingsOf(const CacheOptions& options);

}  // namespace kvlink::cli
