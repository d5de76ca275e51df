// Must-find fixtures, one a finding, each beside a healthy twin in which it must not be found.
#include "cli/doctor_diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/doctor_report.h"
#include "cli/doctor_server.h"

namespace kvlink::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Requests of one application: 600 tokens, of which `own` at the end are the request's own.
class Traffic {
 public:
  explicit Traffic(uint64_t seed = 1) : random_(seed) {
    text_.resize(600);
    for (TokenId& token : text_) token = static_cast<TokenId>(random_.Below(40'000));
  }

  // As a healthy cache answers: everything but the request's own tokens hits.
  RequestFacts Hit(uint32_t own = 20) {
    RequestFacts request = Like(own);
    request.exact = 576;
    request.miss_reason = "diverged";
    request.diverged_at = 576;
    request.message = 1;
    return request;
  }
  // A clock at token 12 has changed.
  RequestFacts Clock(uint32_t at = 12) {
    RequestFacts request = Like(20, /*edited=*/true);
    request.partial = at;
    request.miss_reason = "diverged";
    request.diverged_at = at;
    request.message = 0;
    request.token = std::to_string(random_.Below(10));
    request.after = "Current time: 2026-11-0";
    return request;
  }
  RequestFacts Missed(const char* reason) {
    RequestFacts request = Like(20);
    request.miss_reason = reason;
    return request;
  }
  RequestFacts Stranger() {
    RequestFacts request = Missed("cold");
    request.sketch = Traffic(random_.Next()).Like(20).sketch;
    return request;
  }

 private:
  RequestFacts Like(uint32_t own, bool edited = false) {
    std::vector<TokenId> tokens = text_;
    if (edited) tokens[12] = static_cast<TokenId>(random_.Below(40'000));
    for (uint32_t i = 0; i < own; ++i) {
      tokens[tokens.size() - 1 - i] = static_cast<TokenId>(random_.Below(40'000));
    }
    RequestFacts request;
    request.prompt_tokens = static_cast<uint32_t>(tokens.size());
    request.match_ms = 0.05;
    request.first_token_ms = 60;
    request.sketch = server::SketchPrompt(tokens);
    return request;
  }

  base::Random random_;
  std::vector<TokenId> text_;
};

DoctorFacts Healthy(size_t requests = 20) {
  Traffic traffic;
  DoctorFacts facts;
  facts.is_server = true;
  facts.num_requests = requests;
  facts.requests.push_back(traffic.Missed("cold"));
  while (facts.requests.size() < requests) facts.requests.push_back(traffic.Hit());
  return facts;
}

std::vector<std::string> Ids(const DoctorFacts& facts) {
  std::vector<std::string> ids;
  for (const Finding& finding : Diagnose(facts).findings) ids.push_back(finding.id);
  return ids;
}

Finding Only(const DoctorFacts& facts) {
  const Diagnosis diagnosis = Diagnose(facts);
  EXPECT_EQ(diagnosis.findings.size(), 1u) << DiagnosisText(facts, diagnosis);
  return diagnosis.findings.empty() ? Finding{} : diagnosis.findings.front();
}

double Number(const Finding& finding, const std::string& name) {
  for (const auto& [key, number] : finding.numbers) {
    if (key == name) return number;
  }
  ADD_FAILURE() << "no number " << name;
  return -1;
}

// Healthy traffic whose last `count` requests are changed by `edit`.
template <typename Edit>
DoctorFacts With(size_t count, Edit edit) {
  DoctorFacts facts = Healthy();
  for (size_t i = facts.requests.size() - count; i < facts.requests.size(); ++i) {
    edit(facts.requests[i]);
  }
  return facts;
}

// --- must not find ---

TEST(Doctor, FindsNothingInHealthyTraffic) {
  EXPECT_THAT(Ids(Healthy()), IsEmpty());
  const Diagnosis diagnosis = Diagnose(Healthy());
  EXPECT_GT(diagnosis.hit_rate, 0.85);
  EXPECT_THAT(diagnosis.notes, IsEmpty());
}

TEST(Doctor, FindsNothingInTrafficThatSharesNothingAndSaysSo) {
  Traffic traffic;
  DoctorFacts facts;
  for (int i = 0; i < 20; ++i) facts.requests.push_back(traffic.Stranger());
  EXPECT_THAT(Ids(facts), IsEmpty());
  EXPECT_THAT(Diagnose(facts).notes, ElementsAre(HasSubstr("no fault of the cache")));
}

TEST(Doctor, JudgesNothingByTwoRequests) {
  Traffic traffic;
  DoctorFacts facts;
  facts.requests = {traffic.Clock(), traffic.Clock()};
  EXPECT_THAT(Ids(facts), IsEmpty());
  EXPECT_THAT(Diagnose(facts).notes, ElementsAre(HasSubstr("Too few")));
  EXPECT_THAT(Ids(DoctorFacts{}), IsEmpty());
}

TEST(Doctor, ANewQuestionBehindASharedPolicyIsNoMutatingHead) {
  Traffic traffic;
  DoctorFacts facts;
  for (int i = 0; i < 20; ++i) facts.requests.push_back(traffic.Hit(/*own=*/60));
  EXPECT_THAT(Ids(facts), IsEmpty());
}

TEST(Doctor, OneOddRequestIsNoFinding) {
  for (const char* reason : {"evicted", "salt", "policy"}) {
    EXPECT_THAT(Ids(With(1, [&](RequestFacts& request) { request.miss_reason = reason; })),
                IsEmpty())
        << reason;
  }
}

// --- hits ---

DoctorFacts MutatingHead() {
  Traffic traffic;
  DoctorFacts facts;
  facts.is_server = true;
  for (uint32_t i = 0; i < 20; ++i) facts.requests.push_back(traffic.Clock(12 + i % 5));
  return facts;
}

TEST(Doctor, FindsAMutatingHeadAndSaysWhichTokenInWhichMessageAndHowOften) {
  const Finding finding = Only(MutatingHead());
  EXPECT_EQ(finding.id, "mutating_head");
  EXPECT_EQ(Number(finding, "message"), 0);
  EXPECT_EQ(Number(finding, "first_token"), 12);
  EXPECT_EQ(Number(finding, "last_token"), 16);
  EXPECT_EQ(Number(finding, "requests"), 19);  // the first one has no earlier one
  EXPECT_NEAR(Number(finding, "lost_tokens"), 19 * 580, 19 * 120);
  EXPECT_THAT(finding.what, HasSubstr("after \"Current time: 2026-11-0\""));
  EXPECT_THAT(finding.setting, HasSubstr("--similar on"));
}

TEST(Doctor, PlacesFarApartAreTwoHeads) {
  DoctorFacts facts = MutatingHead();
  for (size_t i = 10; i < 20; ++i) facts.requests[i].diverged_at = 200;
  EXPECT_THAT(Ids(facts), ElementsAre("mutating_head", "mutating_head"));
}

TEST(Doctor, AHeadThatSimilarReuseCoversIsANoteAndNoFinding) {
  DoctorFacts facts = MutatingHead();
  facts.similar = "on";
  for (RequestFacts& request : facts.requests) {
    request.verdict = "accepted";
    request.edit = "values";
    request.similar = 550;
  }
  EXPECT_THAT(Ids(facts), IsEmpty());
  EXPECT_THAT(Diagnose(facts).notes, ElementsAre(HasSubstr("stand in")));
}

TEST(Doctor, FindsSaltsThatPartWhatIsAlike) {
  DoctorFacts facts = Healthy();
  for (size_t i = 0; i < facts.requests.size(); ++i) {
    RequestFacts& request = facts.requests[i];
    request.space = "salt " + std::to_string(i);
    request.exact = request.partial = 0;
    request.miss_reason = "cold";
  }
  EXPECT_EQ(Only(facts).id, "salts");
  facts.is_server = false;  // in a log the spaces are tenants
  EXPECT_EQ(Only(facts).id, "tenants");
}

TEST(Doctor, FindsEvictionsAndNamesTheMemory) {
  DoctorFacts facts = With(4, [](RequestFacts& request) {
    request.miss_reason = "evicted";
    request.exact = request.partial = 0;
  });
  facts.budget_bytes = uint64_t{64} << 20;
  facts.stored_blocks = 19;
  facts.evicted_blocks = 24;  // partial blocks are evicted, too, and stored under no key
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.id, "evictions");
  EXPECT_THAT(finding.what, HasSubstr("24 blocks went, 19 full ones were stored"));
  EXPECT_THAT(finding.setting, HasSubstr("--kv-memory above 64.0 MiB"));
}

TEST(Doctor, FindsABudgetThatPreemptsOrCannotHoldAPrompt) {
  DoctorFacts facts = Healthy();
  facts.preemptions = 5;
  EXPECT_EQ(Only(facts).id, "small_budget");
  facts.num_requests = 1000;
  EXPECT_THAT(Ids(facts), IsEmpty());
  facts.too_long = 2;
  EXPECT_EQ(Only(facts).id, "small_budget");
}

TEST(Doctor, FindsThatReuseIsOff) {
  const Finding finding = Only(With(5, [](RequestFacts& request) {
    request.miss_reason = "policy";
    request.exact = request.partial = 0;
  }));
  EXPECT_EQ(finding.id, "reuse_off");
}

TEST(Doctor, FindsAWindowTooWideForThePrompts) {
  DoctorFacts facts = MutatingHead();
  facts.similar = "on";
  facts.settings["fingerprint_window"] = 32;
  for (RequestFacts& request : facts.requests) request.verdict = "no_donor";
  EXPECT_THAT(Ids(facts), ElementsAre("mutating_head", "window"));
  const Finding window = Diagnose(facts).findings.back();
  EXPECT_EQ(Number(window, "window"), 32);
  EXPECT_EQ(Number(window, "median_tokens"), 600);
  // A replay knows better: no window finds one.
  facts.is_server = false;
  facts.narrow_window = 4;
  EXPECT_THAT(Ids(facts), ElementsAre("mutating_head"));
  facts.found_only_narrow = 12;
  EXPECT_THAT(Ids(facts), ElementsAre("mutating_head", "window"));
}

TEST(Doctor, FindsPromptsTooShortForADonor) {
  DoctorFacts facts = MutatingHead();
  facts.similar = "on";
  for (RequestFacts& request : facts.requests) request.verdict = "nothing_to_gain";
  EXPECT_THAT(Ids(facts), ElementsAre("mutating_head", "short_prompts"));
}

DoctorFacts Verdicts(size_t count, const char* verdict, const char* edit = "") {
  DoctorFacts facts = Healthy();
  facts.similar = "on";
  for (size_t i = 0; i < facts.requests.size(); ++i) {
    const bool is_one = i + count >= facts.requests.size();
    facts.requests[i].verdict = is_one ? verdict : "accepted";
    facts.requests[i].edit = is_one ? edit : "values";
  }
  return facts;
}

TEST(Doctor, FindsWhatTheForwardCheckRefusesAndNamesItsSetting) {
  const Finding masks = Only(Verdicts(8, "mask_mismatch"));
  EXPECT_EQ(masks.id, "forward_check");
  EXPECT_THAT(masks.setting, HasSubstr("mask_similarity (now 0.85)"));
  EXPECT_THAT(Only(Verdicts(8, "reordered")).setting, HasSubstr("one order"));
  EXPECT_THAT(Ids(Verdicts(2, "mask_mismatch")), IsEmpty());
}

TEST(Doctor, FindsClassesThatAreClosed) {
  EXPECT_EQ(Only(Verdicts(6, "cluster_closed")).id, "similar_closed");
  EXPECT_THAT(Only(Verdicts(6, "uncalibrated")).setting, HasSubstr("kvlink calibrate"));
}

// --- quality ---

TEST(Doctor, FindsWhichCheckGivesUpAndForWhichClass) {
  const Finding finding = Only(Verdicts(5, "blast_radius", "passage"));
  EXPECT_EQ(finding.id, "fallbacks");
  EXPECT_EQ(finding.about, "quality");
  EXPECT_THAT(finding.what, HasSubstr("blast_radius 5; by class of edits: passage 5"));
  EXPECT_THAT(finding.setting, HasSubstr("seam_rows"));
  EXPECT_THAT(Only(Verdicts(5, "stale", "values")).setting, HasSubstr("decide the answer"));
  EXPECT_THAT(Ids(Verdicts(1, "diverged", "many")), IsEmpty());
}

TEST(Doctor, FindsWrongAcceptsOfAClassWhenTheBoundIsBroken) {
  DoctorFacts facts = Healthy();
  facts.shadows["words"] = {200, 0};
  facts.shadows["values"] = {200, 1};  // bound 2.4 %
  EXPECT_THAT(Ids(facts), IsEmpty());
  facts.shadows["values"] = {60, 4};
  const Finding finding = Only(facts);
  EXPECT_EQ(finding.id, "wrong_accepts");
  EXPECT_THAT(finding.what, HasSubstr("class values"));
  EXPECT_THAT(finding.setting, HasSubstr("--similar strict"));
}

TEST(Doctor, FindsThatAttemptsHaveUsedUpTheirShare) {
  EXPECT_EQ(Only(Verdicts(5, "budget")).id, "attempt_budget");
}

// --- time ---

TEST(Doctor, FindsMatchingThatTakesLong) {
  const Finding finding = Only(With(20, [](RequestFacts& request) { request.match_ms = 3; }));
  EXPECT_EQ(finding.id, "matching_time");
  EXPECT_THAT(finding.what, HasSubstr("5.0 % of the time"));
}

// --- reports and what comes from a server ---

TEST(DoctorReport, TextAndJsonSayTheSame) {
  const DoctorFacts facts = MutatingHead();
  const Diagnosis diagnosis = Diagnose(facts);
  const std::string text = DiagnosisText(facts, diagnosis);
  EXPECT_THAT(text, HasSubstr("1. mutating_head (hits)"));
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    EXPECT_LE(end - at, 100u) << text.substr(at, end - at);
  }
  const auto json = DiagnosisJson(facts, diagnosis);
  EXPECT_EQ(json["healthy"], false);
  EXPECT_EQ(json["findings"][0]["id"], "mutating_head");
  EXPECT_EQ(json["findings"][0]["evidence"]["message"], 0);
  EXPECT_EQ(json["findings"][0]["setting"], diagnosis.findings[0].setting);
  const DoctorFacts healthy = Healthy();
  EXPECT_THAT(DiagnosisText(healthy, Diagnose(healthy)), HasSubstr("Nothing to change."));
  EXPECT_EQ(DiagnosisJson(healthy, Diagnose(healthy))["healthy"], true);
}

nlohmann::json ServedRequest() {
  return {{"id", "r"},
          {"prompt_tokens", 100},
          {"exact", 32},
          {"partial", 5},
          {"similar", 40},
          {"computed", 23},
          {"verdict", "accepted"},
          {"edit", "values"},
          {"mask_similarity", 0.9},
          {"miss_reason", "diverged"},
          {"diverged_at", 37},
          {"diverged_message", 1},
          {"diverged_token", " x"},
          {"diverged_after", "y"},
          {"salt", nullptr},
          {"single_flight", false},
          {"match_ms", 0.5},
          {"queue_ms", 0},
          {"first_token_ms", 12.5},
          {"sketch", std::vector<int>(16, 7)}};
}

TEST(DoctorServer, ReadsRequestsAndMetrics) {
  const nlohmann::json answer = {{"similar", "on"},
                                 {"settings", {{"fingerprint_window", 8}}},
                                 {"data", nlohmann::json::array({ServedRequest()})}};
  const auto facts = FactsOf(answer.dump(),
                             "# HELP kvlink_preemptions_total x\n"
                             "kvlink_preemptions_total{model_name=\"m\"} 3\n"
                             "kvlink_kv_bytes{model_name=\"m\",state=\"budget\"} 1024\n"
                             "kvlink_kv_bytes{model_name=\"m\",state=\"cached\"} 7\n"
                             "kvlink_class_shadows_total{model_name=\"m\",class=\"many\"} 60\n");
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->similar, "on");
  EXPECT_EQ(facts->preemptions, 3u);
  EXPECT_EQ(facts->budget_bytes, 1024u);
  EXPECT_EQ(facts->shadows.at("many").trials, 60u);
  EXPECT_EQ(facts->setting("fingerprint_window", 0), 8);
  ASSERT_EQ(facts->requests.size(), 1u);
  const RequestFacts& request = facts->requests[0];
  EXPECT_EQ(request.covered(), 37u);
  EXPECT_EQ(request.similar, 40u);
  EXPECT_EQ(request.message, 1u);
  EXPECT_EQ(request.token, " x");
  EXPECT_EQ(request.space, "");
  EXPECT_EQ(request.first_token_ms, 12.5);
}

TEST(DoctorServer, NamesTheFieldThatIsNotAsExpected) {
  EXPECT_FALSE(FactsOf("not json", "").ok());
  EXPECT_FALSE(FactsOf("{}", "").ok());
  for (const char* field : {"prompt_tokens", "match_ms", "sketch", "verdict"}) {
    nlohmann::json request = ServedRequest();
    request[field] = nlohmann::json::object();
    const nlohmann::json answer = {{"similar", "on"}, {"data", nlohmann::json::array({request})}};
    const auto facts = FactsOf(answer.dump(), "");
    ASSERT_FALSE(facts.ok()) << field;
    EXPECT_THAT(facts.status().message(), HasSubstr(field));
  }
}

}  // namespace
}  // namespace kvlink::cli
