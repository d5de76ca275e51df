// Finish: reports what has ended, remembers its text as own output, and removes it.
#include <algorithm>

#include "base/check.h"
#include "engine/branch_set.h"
#include "engine/core.h"

namespace kvlink::engine {
namespace {

double Milliseconds(base::TimePoint from, base::TimePoint to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// One branch as it is returned, with what a replay needs.
struct Answer {
  BranchResult result;
  std::vector<ScoredToken> scored;
};

Answer OfLane(Lane& lane, const Ending& ending) {
  Answer answer;
  BranchResult& result = answer.result;
  result.reason = lane.ended ? lane.reason : ending.reason;
  result.cumulative_logprob = lane.sum;
  result.tokens = std::move(lane.generated);
  if (lane.text) {
    const TextStream::Spelling spelled = lane.text->Spelled();
    result.text = lane.text->text();
    result.stop_text = lane.text->stop_text();
    result.text_tokens = spelled.tokens;
    result.text_bytes = spelled.bytes;
  }
  answer.scored = std::move(lane.scored);
  return answer;
}

Answer OfHypothesis(const BeamSearch::Hypothesis& hypothesis) {
  Answer answer;
  answer.result.reason = hypothesis.reason;
  answer.result.stop_text = hypothesis.stop_text;
  answer.result.cumulative_logprob = hypothesis.beam.sum;
  answer.result.tokens = hypothesis.beam.tokens;
  for (size_t i = 0; i < hypothesis.beam.tokens.size(); ++i) {
    answer.scored.push_back(
        {hypothesis.beam.tokens[i], hypothesis.beam.logprobs[i], hypothesis.beam.tops[i]});
  }
  return answer;
}

// The choice among branches was cut short: even one that is complete need not be the answer.
void MarkCut(std::vector<Answer>& answers, FinishReason reason) {
  for (Answer& answer : answers) answer.result.reason = reason;
}

std::vector<Answer> AnswersOf(Request& request) {
  const Ending& ending = *request.ending;
  std::vector<Answer> answers;
  if (request.beam) {
    const bool cut = !request.beam->done();
    request.beam->Stop(ending.reason);
    for (const BeamSearch::Hypothesis& hypothesis : request.beam->hypotheses()) {
      if (answers.size() < request.params.n) answers.push_back(OfHypothesis(hypothesis));
    }
    if (cut) MarkCut(answers, ending.reason);
    return answers;
  }
  // With some branches cut short a ranking would compare unequal things.
  const bool complete = std::all_of(request.lanes.begin(), request.lanes.end(),
                                    [](const Lane& lane) { return lane.ended; });
  std::vector<BranchScore> scores;
  for (const Lane& lane : request.lanes) scores.push_back({lane.sum, lane.sampled});
  std::vector<uint32_t> order(request.params.n);
  for (uint32_t i = 0; i < request.params.n; ++i) order[i] = i;
  if (complete && request.replays()) order = BestBranches(scores, request.params.n);
  for (const uint32_t i : order) answers.push_back(OfLane(request.lanes[i], ending));
  if (!complete && request.replays()) MarkCut(answers, ending.reason);
  return answers;
}

// Branches that could not be streamed, since only now it is known which they are.
void Replay(Core& core, Request& request, uint32_t branch, Answer& answer) {
  const model::Tokenizer& tokenizer = core.model.tokenizer();
  TextStream text(request.params.stop);
  const size_t wanted = static_cast<size_t>(std::max(request.params.logprobs, 0));
  for (size_t i = 0; i < answer.scored.size(); ++i) {
    const ScoredToken& scored = answer.scored[i];
    TokenEvent event;
    event.branch = branch;
    event.token = scored.token;
    event.logprob = scored.logprob;
    event.text = text.Append(tokenizer.Piece(scored.token, false));
    if (i + 1 == answer.scored.size()) event.text += text.Flush();
    if (request.wants_logprobs() && scored.top) {
      const size_t count = std::min(wanted, scored.top->size());
      event.top.assign(scored.top->begin(),
                       scored.top->begin() + static_cast<std::ptrdiff_t>(count));
    }
    EmitToken(core, request, std::move(event));
  }
  const TextStream::Spelling spelled = text.Spelled();
  answer.result.text = text.text();
  answer.result.text_tokens = spelled.tokens;
  answer.result.text_bytes = spelled.bytes;
}

void RememberAnswer(Core& core, const Request& request, const BranchResult& result) {
  if (!request.params.store || result.text_tokens == 0 || result.text_bytes == 0) return;
  core.cache.Remember(request.params.ns, std::string_view(result.text).substr(0, result.text_bytes),
                      std::span<const TokenId>(result.tokens).first(result.text_tokens));
}

void FillTimes(Core& core, Request& request) {
  RequestReport& report = request.report;
  const base::TimePoint now = core.Now();
  report.total_ms = Milliseconds(request.submitted, now);
  if (!request.started) {
    report.queue_ms = report.total_ms;
    return;
  }
  const base::TimePoint first = request.has_first_token ? request.first_token_at : now;
  report.prompt_ms = Milliseconds(request.started_at, first);
  report.predicted_ms = Milliseconds(first, now);
  if (request.has_first_token) report.first_token_ms = Milliseconds(request.submitted, first);
}

void CountEnding(EngineStats& stats, FinishReason reason) {
  stats.finished += 1;
  if (reason == FinishReason::kCancelled) stats.cancelled += 1;
  if (reason == FinishReason::kDeadline) stats.deadline_missed += 1;
  if (reason == FinishReason::kError) stats.errors += 1;
}

void FinishRequest(Core& core, Request& request) {
  std::vector<Answer> answers = AnswersOf(request);
  uint32_t branch = 0;
  for (Answer& answer : answers) {
    if (request.replays()) Replay(core, request, branch, answer);
    RememberAnswer(core, request, answer.result);
    request.report.branches.push_back(std::move(answer.result));
    ++branch;
  }
  request.report.status = request.ending->status;
  request.report.prompt_logprobs = std::move(request.prompt_logprobs);
  FillTimes(core, request);
  CountEnding(core.stats, request.ending->reason);
  Publish(core);
  Event event;
  event.kind = Event::Kind::kFinished;
  event.report = std::make_shared<const RequestReport>(std::move(request.report));
  Emit(core, request, std::move(event));
}

// Takes the ending requests out of the list, in order of age.
void TakeEnding(std::vector<std::unique_ptr<Request>>& from,
                std::vector<std::unique_ptr<Request>>& to) {
  const auto ending = [](const std::unique_ptr<Request>& request) {
    return request->ending.has_value();
  };
  for (std::unique_ptr<Request>& request : from) {
    if (ending(request)) to.push_back(std::move(request));
  }
  std::erase_if(from, [](const std::unique_ptr<Request>& request) { return request == nullptr; });
}

}  // namespace

void Finish(Core& core) {
  if (!core.any_ending) return;
  core.any_ending = false;
  std::vector<std::unique_ptr<Request>> ended;
  TakeEnding(core.running, ended);
  TakeEnding(core.waiting, ended);
  for (const std::unique_ptr<Request>& request : ended) {
    if (request->shadow) continue;
    // None: it came when the engine was stopping.
    if (request->turn != nullptr) {
      core.turns.Leave(request->turn, request->report.generated_tokens - request->charged_tokens);
    }
    FinishRequest(core, *request);
  }
}

void EmitToken(Core& core, Request& request, TokenEvent token) {
  Event event;
  event.kind = Event::Kind::kToken;
  event.token = std::move(token);
  Emit(core, request, std::move(event));
}

void Emit(Core& core, Request& request, Event event) {
  if (!request.callback) return;
  event.id = request.id;
  try {
    request.callback(event);
  } catch (...) {
    core.stats.callback_errors += 1;
  }
}

void Publish(Core& core) {
  core.stats.running = core.running.size();
  core.stats.waiting = core.waiting.size();
  core.stats.shadows_waiting = core.shadows.size();
  {
    const std::lock_guard lock(core.inbox.mutex);
    core.inbox.waiting = core.waiting.size();
  }
  const std::lock_guard lock(core.board.mutex);
  core.board.stats = core.stats;
}

}  // namespace kvlink::engine
