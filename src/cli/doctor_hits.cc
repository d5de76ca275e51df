// Why hits are low: text that changes near the head, namespaces that part what is alike, memory.
#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "cli/byte_size.h"
#include "cli/doctor_checks.h"
#include "cli/kv_budget.h"

namespace kvlink::cli {
namespace {

constexpr size_t kShownTokens = 4;
constexpr double kPreemptedShare = 0.02;  // of the requests since the start

// Requests whose first token without a cached row lies in about the same place.
struct Head {
  std::optional<uint32_t> message;
  uint32_t first = 0, last = 0;
  std::vector<size_t> requests;
  double lost_tokens = 0;
};

std::vector<Head> HeadsOf(const DoctorCase& c, bool with_similar) {
  std::vector<std::tuple<std::optional<uint32_t>, uint32_t, size_t>> places;
  for (size_t i = 0; i < c.size(); ++i) {
    const RequestFacts& request = c.facts.requests[i];
    if (c.LosesAlike(i, with_similar)) places.emplace_back(request.message, request.diverged_at, i);
  }
  std::ranges::sort(places);
  std::vector<Head> heads;
  for (const auto& [message, at, index] : places) {
    const bool joins = !heads.empty() && heads.back().message == message &&
                       at - heads.back().last <= c.limits.cluster_gap;
    if (!joins) heads.push_back({message, at, at, {}, 0});
    Head& head = heads.back();
    head.last = at;
    head.requests.push_back(index);
    const RequestFacts& request = c.facts.requests[index];
    head.lost_tokens += c.like[index].own * request.prompt_tokens - request.covered() -
                        (with_similar ? request.similar : 0);
  }
  std::erase_if(heads, [&](const Head& head) {
    return !c.IsMany(head.requests.size(), c.limits.request_share);
  });
  std::ranges::sort(heads, std::greater(), &Head::lost_tokens);
  return heads;
}

// The commonest text of `member` among the head's requests, and others that were seen.
std::vector<std::string> TextsOf(const DoctorCase& c, const Head& head,
                                 std::string RequestFacts::*member) {
  std::map<std::string, size_t> counts;
  for (const size_t index : head.requests) ++counts[c.facts.requests[index].*member];
  std::vector<std::pair<size_t, std::string>> order;
  for (const auto& [text, count] : counts) order.emplace_back(count, text);
  std::ranges::stable_sort(order, std::greater(), [](const auto& entry) { return entry.first; });
  std::vector<std::string> texts;
  for (const auto& [count, text] : order) {
    if (texts.size() < kShownTokens) texts.push_back(text);
  }
  return texts;
}

// What similar reuse could do about it, or why it does not.
std::string SimilarAdvice(const DoctorCase& c, const Head& head) {
  if (c.facts.similar == "off") {
    std::string advice = "start the server with --similar on (docs/similar.md)";
    if (c.facts.lendable_rows && *c.facts.lendable_rows > 0) {
      advice += ", with which donors would lend " + Grouped(*c.facts.lendable_rows) + " rows here";
    }
    return advice;
  }
  std::map<std::string, size_t> verdicts;
  for (const size_t index : head.requests) ++verdicts[c.facts.requests[index].verdict];
  const auto most =
      std::ranges::max_element(verdicts, {}, [](const auto& entry) { return entry.second; });
  return "similar reuse, which is " + c.facts.similar + ", refused most of them: " +
         (most->first.empty() ? "off for these requests" : most->first);
}

Finding HeadFinding(const DoctorCase& c, const Head& head) {
  const std::vector<std::string> tokens = TextsOf(c, head, &RequestFacts::token);
  const std::string after = TextsOf(c, head, &RequestFacts::after).front();
  Finding finding{"mutating_head", "hits", "", "", "", {}, {}};
  finding.what = "In " + CountText(head.requests.size(), c.size(), "prompts") +
                 " the text changes at token " + std::to_string(head.first);
  if (head.last != head.first) finding.what += " to " + std::to_string(head.last);
  if (head.message) finding.what += ", in message " + std::to_string(*head.message);
  finding.what += ": ";
  for (size_t i = 0; i < tokens.size(); ++i) {
    finding.what += (i == 0 ? "" : ", ") + Quoted(tokens[i]);
    finding.texts.emplace_back("token", tokens[i]);
  }
  if (!after.empty()) finding.what += " after " + Quoted(after);
  const auto lost = static_cast<uint64_t>(std::max(head.lost_tokens, 0.0));
  finding.what += ". About " + Grouped(lost) +
                  " tokens behind it were computed although an earlier prompt has them.";
  finding.why = "Exact reuse ends at the first token that differs.";
  finding.setting =
      "Put what changes (a clock, a session, an id) behind what stays, best into the last message, "
      "or leave it out; or " +
      SimilarAdvice(c, head) + ".";
  finding.texts.emplace_back("after", after);
  finding.numbers = {
      {"requests", static_cast<double>(head.requests.size())},
      {"share", static_cast<double>(head.requests.size()) / static_cast<double>(c.size())},
      {"first_token", head.first},
      {"last_token", head.last},
      {"lost_tokens", static_cast<double>(lost)}};
  if (head.message) finding.numbers.emplace_back("message", *head.message);
  return finding;
}

size_t CountReason(const DoctorCase& c, const char* reason) {
  return static_cast<size_t>(
      std::ranges::count(c.facts.requests, reason, &RequestFacts::miss_reason));
}

Finding Counted(const DoctorCase& c, const char* id, size_t count) {
  Finding finding{id, "hits", "", "", "", {}, {}};
  finding.numbers = {
      {"requests", static_cast<double>(count)},
      {"share", static_cast<double>(count) / static_cast<double>(std::max<size_t>(c.size(), 1))}};
  return finding;
}

void CheckNamespaces(const DoctorCase& c, std::vector<Finding>* findings) {
  size_t parted = 0;
  for (size_t i = 0; i < c.size(); ++i) {
    const RequestFacts& request = c.facts.requests[i];
    const bool alone = c.like[i].own < c.limits.alike && c.like[i].other >= c.limits.alike;
    const bool missed =
        request.covered() + request.similar < (1 - c.limits.lost_share) * request.prompt_tokens;
    parted += (alone && missed) || request.miss_reason == "salt" ? 1 : 0;
  }
  if (!c.IsMany(parted, c.limits.request_share)) return;
  Finding finding = Counted(c, c.facts.is_server ? "salts" : "tenants", parted);
  const char* what = c.facts.is_server ? "salt" : "tenant";
  finding.what = CountText(parted, c.size(), "prompts") + " are like an earlier one of another " +
                 what + ", and share nothing with it.";
  finding.why = std::string("Blocks are shared within one ") + what + " only.";
  finding.setting =
      c.facts.is_server
          ? "Send the same \"cache_salt\" for requests that may share, or none."
          : "Give keys that may share the same tenant in the file of --api-keys; where they may "
            "not, this is the price.";
  findings->push_back(std::move(finding));
}

void CheckMemory(const DoctorCase& c, std::vector<Finding>* findings) {
  const std::string budget =
      c.facts.budget_bytes > 0 ? FormatByteSize(c.facts.budget_bytes) : "what it is";
  const size_t evicted = CountReason(c, "evicted");
  if (c.IsMany(evicted, c.limits.evicted_share)) {
    Finding finding = Counted(c, "evictions", evicted);
    finding.what =
        CountText(evicted, c.size(), "prompts") + " miss blocks that were here and were evicted";
    if (c.facts.evicted_blocks > 0) {
      finding.what += "; " + Grouped(c.facts.evicted_blocks) + " blocks went, " +
                      Grouped(c.facts.stored_blocks) + " full ones were stored";
    }
    finding.what += ".";
    finding.why = "What is used in turn does not fit the KV memory.";
    finding.setting =
        "Raise --kv-memory above " + budget + ", or halve what a token takes with --kv-type q8_0.";
    finding.numbers.emplace_back("budget_bytes", static_cast<double>(c.facts.budget_bytes));
    findings->push_back(std::move(finding));
  }
  const bool preempts =
      c.facts.preemptions > 0 && static_cast<double>(c.facts.preemptions) >=
                                     kPreemptedShare * static_cast<double>(c.facts.num_requests);
  if (!preempts && c.facts.too_long == 0) return;
  Finding finding{"small_budget", "hits", "", "", "", {}, {}};
  if (preempts) {
    finding.what = Grouped(c.facts.preemptions) +
                   " times a request gave its pages back and was computed again.";
  } else {
    finding.what = CountText(c.facts.too_long, c.size() + c.facts.too_long, "prompts") +
                   " do not fit the KV memory at all.";
  }
  finding.why = "Live requests fill the KV memory, so nothing stays for later ones.";
  finding.setting = "Raise --kv-memory above " + budget + ", or lower --max-seqs.";
  finding.numbers = {{"preemptions", static_cast<double>(c.facts.preemptions)},
                     {"too_long", c.facts.too_long}};
  findings->push_back(std::move(finding));
}

}  // namespace

std::vector<Finding> FindHeads(const DoctorCase& c, std::vector<std::string>* notes) {
  std::vector<Finding> findings;
  for (const Head& head : HeadsOf(c, /*with_similar=*/true)) {
    findings.push_back(HeadFinding(c, head));
  }
  if (!findings.empty()) return findings;
  for (const Head& head : HeadsOf(c, /*with_similar=*/false)) {
    notes->push_back("In " + CountText(head.requests.size(), c.size(), "prompts") +
                     " the text changes at token " + std::to_string(head.first) +
                     "; rows of similar prompts stand in for what follows.");
  }
  return findings;
}

std::vector<Finding> FindOtherMisses(const DoctorCase& c) {
  std::vector<Finding> findings;
  CheckNamespaces(c, &findings);
  CheckMemory(c, &findings);
  const size_t off = CountReason(c, "policy");
  if (c.IsMany(off, c.limits.request_share)) {
    Finding finding = Counted(c, "reuse_off", off);
    finding.what = CountText(off, c.size(), "requests") + " were not looked up.";
    finding.why = "Reuse is off for the server or the requests.";
    finding.setting =
        "Start with --sharing exact, and send no \"cache_prompt\": false or \"kvlink\": "
        "{\"reuse\": "
        "false}; prompt_logprobs are always computed.";
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace kvlink::cli
