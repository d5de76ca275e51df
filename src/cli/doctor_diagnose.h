// Diagnose: from facts to findings: why hits are low, why quality fell, and the setting to change.
//
//   hits     mutating_head, salts, tenants, evictions, small_budget, reuse_off, window,
//            short_prompts, forward_check, similar_closed
//   quality  fallbacks, wrong_accepts, attempt_budget
//   time     matching_time
//
// A finding needs a share of the requests (DoctorLimits), so that a single odd request is none. Two
// prompts count as alike when their sketches are (server/recent_requests.h): a prompt that has
// nothing in common with those before it could not have hit, and is nobody's fault. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/doctor_facts.h"

namespace kvlink::cli {

struct DoctorLimits {
  size_t min_requests = 3;      // that a finding rests on
  double request_share = 0.10;  // of the requests, from which something is a finding
  double evicted_share = 0.05;
  double alike = 0.5;            // similarity of sketches from which prompts are much the same
  double lost_share = 0.25;      // of a prompt: what a like one has and the exact hit has not
  uint32_t cluster_gap = 24;     // tokens between places that count as one
  double refused_share = 0.25;   // of those with a donor: refused by the forward check
  double fallback_share = 0.10;  // of the attempts: given up by the backward check
  double match_share = 0.01;     // of the time to the first token, and
  double match_ms = 0.1;         //   a request, median
  double wrong_accepts = 0.05;   // upper bound, at
  double confidence = 0.95;
  size_t looked_back = 256;  // earlier requests that one is compared with
};

struct Finding {
  std::string id;       // as above
  std::string about;    // "hits", "quality" or "time"
  std::string what;     // what is wrong, with the figures
  std::string why;      // what that means; may be empty
  std::string setting;  // what to change
  // The figures again, for programs: texts as they are, numbers as numbers.
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, double>> numbers;
};

struct Diagnosis {
  size_t requests = 0;
  uint64_t prompt_tokens = 0;
  uint32_t median_prompt = 0, shortest_prompt = 0, longest_prompt = 0;
  double hit_rate = 0, similar_rate = 0;  // of the prompt tokens
  double alike_share = 0;                 // of the requests: much like an earlier one
  double match_share = 0;                 // of the time to the first token; 0: not known
  std::vector<Finding> findings;          // about hits first, then quality, then time
  std::vector<std::string> notes;         // nothing to change, but worth knowing
};

Diagnosis Diagnose(const DoctorFacts& facts, const DoctorLimits& limits = {});

}  // namespace kvlink::cli
