#include "cli/doctor_diagnose.h"

#include <algorithm>
#include <iterator>

#include "cli/doctor_checks.h"

namespace kvlink::cli {
namespace {

std::vector<Likeness> LikenessOf(const DoctorFacts& facts, const DoctorLimits& limits) {
  std::vector<Likeness> like(facts.requests.size());
  for (size_t i = 0; i < like.size(); ++i) {
    const RequestFacts& request = facts.requests[i];
    for (size_t j = i - std::min(i, limits.looked_back); j < i; ++j) {
      const RequestFacts& before = facts.requests[j];
      double& most = before.space == request.space ? like[i].own : like[i].other;
      most = std::max(most, server::SketchSimilarity(before.sketch, request.sketch));
    }
  }
  return like;
}

Diagnosis FiguresOf(const DoctorCase& c) {
  Diagnosis diagnosis;
  std::vector<uint32_t> lengths;
  uint64_t covered = 0, similar = 0;
  double match_ms = 0, first_token_ms = 0;
  size_t alike = 0;
  for (size_t i = 0; i < c.size(); ++i) {
    const RequestFacts& request = c.facts.requests[i];
    lengths.push_back(request.prompt_tokens);
    diagnosis.prompt_tokens += request.prompt_tokens;
    covered += request.covered();
    similar += request.similar;
    match_ms += request.match_ms;
    first_token_ms += request.first_token_ms;
    alike += c.like[i].own >= c.limits.alike ? 1 : 0;
  }
  diagnosis.requests = c.size();
  if (lengths.empty()) return diagnosis;
  std::ranges::sort(lengths);
  diagnosis.shortest_prompt = lengths.front();
  diagnosis.median_prompt = lengths[lengths.size() / 2];
  diagnosis.longest_prompt = lengths.back();
  const auto tokens = static_cast<double>(std::max<uint64_t>(diagnosis.prompt_tokens, 1));
  diagnosis.hit_rate = static_cast<double>(covered) / tokens;
  diagnosis.similar_rate = static_cast<double>(similar) / tokens;
  diagnosis.alike_share = static_cast<double>(alike) / static_cast<double>(c.size());
  if (first_token_ms > 0) diagnosis.match_share = match_ms / first_token_ms;
  return diagnosis;
}

void Append(std::vector<Finding>* findings, std::vector<Finding> more) {
  std::ranges::move(more, std::back_inserter(*findings));
}

}  // namespace

bool DoctorCase::LosesAlike(size_t index, bool with_similar) const {
  const RequestFacts& request = facts.requests[index];
  if (request.prompt_tokens == 0) return false;
  if (request.miss_reason != "diverged" && request.miss_reason != "cold") return false;
  const double found =
      static_cast<double>(request.covered() + (with_similar ? request.similar : 0));
  return like[index].own >= limits.alike &&
         like[index].own - found / request.prompt_tokens >= limits.lost_share;
}

std::string CountText(size_t count, size_t of, const char* things) {
  char text[96];
  std::snprintf(text, sizeof text, "%zu of %zu %s (%.0f %%)", count, of, things,
                of > 0 ? 100.0 * static_cast<double>(count) / static_cast<double>(of) : 0.0);
  return text;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    if (byte == '\n') {
      quoted += "\\n";
    } else if (byte == '"' || byte == '\\') {
      quoted += {'\\', byte};
    } else {
      quoted += static_cast<unsigned char>(byte) < 0x20 ? ' ' : byte;
    }
  }
  return quoted + '"';
}

Diagnosis Diagnose(const DoctorFacts& facts, const DoctorLimits& limits) {
  const DoctorCase c{facts, limits, LikenessOf(facts, limits)};
  Diagnosis diagnosis = FiguresOf(c);
  Append(&diagnosis.findings, FindHeads(c, &diagnosis.notes));
  Append(&diagnosis.findings, FindOtherMisses(c));
  Append(&diagnosis.findings, FindRefusals(c));
  Append(&diagnosis.findings, FindQuality(c));
  Append(&diagnosis.findings, FindMatchingTime(c, diagnosis.match_share));
  if (c.size() < limits.min_requests) {
    diagnosis.notes.push_back("Too few requests to judge by: " + std::to_string(c.size()) + ".");
  } else if (diagnosis.alike_share < limits.request_share &&
             diagnosis.hit_rate < limits.lost_share) {
    diagnosis.notes.push_back(
        "Hardly any prompt is like an earlier one, so there is little to reuse; that is no fault "
        "of the cache.");
  }
  return diagnosis;
}

}  // namespace kvlink::cli
