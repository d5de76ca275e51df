// The checks behind Diagnose, one a possible finding, and what they share.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "cli/doctor_diagnose.h"

namespace kvlink::cli {

// A request beside those before it: the greatest similarity, among those it may share with and
// among the others.
struct Likeness {
  double own = 0, other = 0;
};

struct DoctorCase {
  const DoctorFacts& facts;
  const DoctorLimits& limits;
  std::vector<Likeness> like;  // by request

  size_t size() const { return facts.requests.size(); }
  // So many requests are worth a finding.
  bool IsMany(size_t count, double share) const {
    return count >= limits.min_requests &&
           static_cast<double>(count) >= share * static_cast<double>(size());
  }
  // An earlier prompt has much of it that was computed again all the same. `with_similar`: rows of
  // donors count as found.
  bool LosesAlike(size_t request, bool with_similar) const;
};

std::vector<Finding> FindHeads(const DoctorCase& c, std::vector<std::string>* notes);
std::vector<Finding> FindOtherMisses(const DoctorCase& c);
std::vector<Finding> FindRefusals(const DoctorCase& c);
std::vector<Finding> FindQuality(const DoctorCase& c);
std::vector<Finding> FindMatchingTime(const DoctorCase& c, double match_share);

// "58 of 60 prompts (97 %)".
std::string CountText(size_t count, size_t of, const char* things);
// A piece of text in quotes, on one line.
std::string Quoted(const std::string& text);

}  // namespace kvlink::cli
