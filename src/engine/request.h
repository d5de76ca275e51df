// Request: one submitted request on its way through the engine: the state that every action of a
// step reads and writes.
//
//   waiting --admit--> trunk --> lanes --> ended --finish--> (gone)
//      ^                 |         |
//      +----preempt------+---------+
//
// The *trunk* is what all branches begin with: the prompt, or after a preemption the longest prefix
// that the live branches share. It is computed once, in one sequence; then each *lane* (a live
// branch, or a live beam) forks from it, or, as the last one, takes it over. Where there are more
// branches than may run at once the trunk stays as a source, and the prompt's last logits with it:
// the next branch draws its first token from them and forks when another one has ended.
//
// Invariants
//   1. A waiting request holds no sequence.
//   2. A lane with a sequence has at least one row to run: sequence.num_ready() < its tokens.
//   3. Text, samplers and scores survive a preemption; what is computed again is rows only.
// Everything here belongs to the engine thread once the request was taken from the inbox.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/band_run.h"
#include "engine/beam_search.h"
#include "engine/engine.h"
#include "engine/fair_turns.h"
#include "engine/tail_observer.h"
#include "engine/text_stream.h"

namespace kvlink::engine {

struct ScoredToken {
  TokenId token = -1;
  float logprob = 0;
  TopList top;  // null: not asked for
};

// One continuation of the prompt.
struct Lane {
  std::unique_ptr<Sequence> sequence;  // null: not placed yet, or ended
  int source = -1;                     // Request::sources that it forks from
  TopList candidates;                  // beam search: the next tokens, once its row was run

  // Sampled branches only; beams keep theirs in Request::beam.
  std::unique_ptr<model::Sampler> sampler;
  std::vector<TokenId> generated;
  std::optional<TextStream> text;
  std::vector<ScoredToken> scored;  // for the replay at the end (best_of > n)
  double sum = 0;                   // of logprobs, the end token's included
  uint32_t sampled = 0;             // tokens, the end token included
  bool ended = false;
  FinishReason reason = FinishReason::kStop;
};

struct Trunk {
  std::unique_ptr<Sequence> sequence;
  std::span<const TokenId> tokens;  // the prompt, or Request::resumed
  uint32_t next = 0;                // first row that has not run since the request started
  bool first = true;                // the prompt for the first time: its last row gives logits
  TailObserver tail;                // of the prompt, when it is the first time
  std::unique_ptr<BandRun> bands;   // of a prompt on a donor's rows that runs layers apart
  uint64_t layer_rows = 0;          // likewise, that ran
};

// A wait for a leader that computes the same blocks (single flight).
struct LeaderWait {
  InFlight in_flight;
  base::TimePoint since;
};

// The exact run beside an answer from a donor's rows, in idle time.
struct Shadow {
  uint64_t number = 0;        // Verdict::shadow
  std::vector<float> logits;  // that the first token was drawn from [vocabulary]
  std::vector<TokenId> prompt;
  Namespace ns;
  bool store = true;  // as the request said
};

struct Ending {
  FinishReason reason = FinishReason::kStop;
  Status status;
};

struct Request {
  RequestId id = 0;
  GenerationRequest params;
  EventCallback callback;
  base::TimePoint submitted;
  std::optional<base::TimePoint> deadline;
  uint32_t max_tokens = 0;  // clipped by the context
  uint32_t width = 1;       // branches, or beams

  FairTurns::Turn* turn = nullptr;  // the tenant's; null: a shadow, which nobody waits for

  // Waiting.
  Plan plan;
  uint64_t plan_epoch = 0;  // of Core::epoch at the lookup; 0: never looked up
  std::optional<LeaderWait> wait;
  uint32_t awaited_tokens = 0;  // what the last leader would have brought
  bool overtakes = false;       // no longer waits for leaders: they are late
  // Blocks on their way from a colder tier; when they are there, held until the request starts.
  std::unique_ptr<Load> load;
  bool load_ended = false;
  bool may_load = true;             // none was tried since it was put in the queue
  uint64_t load_refused_epoch = 0;  // of Core::epoch: pages were missing
  std::vector<LoadedRows> loaded_rows;

  // Running.
  Trunk trunk;
  std::vector<TokenId> resumed;  // the trunk's tokens after a preemption
  std::vector<std::unique_ptr<Sequence>> sources;
  std::vector<Lane> lanes;          // once `branched`: `width` branches, or one a live beam
  bool branched = false;            // the first tokens were drawn
  uint32_t begun = 0;               // branches that have drawn theirs, in order of index
  std::vector<float> first_logits;  // that the others will draw theirs from [vocabulary]
  std::unique_ptr<BeamSearch> beam;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  std::optional<Ending> ending;
  bool exact_only = false;                   // the answer from a donor's rows was refused
  std::unique_ptr<Shadow> shadow;            // this request is one: nobody waits for it
  bool was_tried = false, on_trial = false;  // on a donor's rows, although its kind is closed
  std::unique_ptr<Shadow> trial;             // what that said, until the exact answer is there

  // Report.
  RequestReport report;
  bool started = false;
  base::TimePoint started_at, first_token_at;
  bool has_first_token = false;
  uint32_t counted_rows = 0;    // prompt rows that were counted as cached or computed
  uint32_t charged_tokens = 0;  // of those generated: what `turn` was charged with already

  uint32_t prompt_size() const { return static_cast<uint32_t>(params.prompt.size()); }
  bool borrows() const {
    return trunk.sequence != nullptr && trunk.first && !trunk.sequence->computed_rows().empty();
  }
  bool is_loading() const { return load != nullptr && !load_ended; }
  bool runs_in_bands() const { return borrows() && trunk.sequence->runs_in_bands(); }
  bool in_trunk() const { return trunk.sequence != nullptr; }
  bool wants_logprobs() const { return params.logprobs >= 0; }
  // The branches to return are known at the end only.
  bool replays() const { return beam || width > params.n; }
  bool scores() const { return wants_logprobs() || replays(); }

  bool is_live(const Lane& lane) const { return !lane.ended && (beam || lane.sampled > 0); }
  uint32_t num_live() const {
    return static_cast<uint32_t>(std::count_if(lanes.begin(), lanes.end(),
                                               [this](const Lane& lane) { return is_live(lane); }));
  }
  bool has_later_branches() const { return branched && !beam && begun < width; }
  // The next of them may begin as soon as a sequence is free.
  bool can_fork_more() const { return has_later_branches() && !sources.empty() && !ending; }

  std::span<const TokenId> Generated(const Lane& lane) const {
    if (!beam) return lane.generated;
    return beam->beams()[static_cast<size_t>(&lane - lanes.data())].tokens;
  }
  uint32_t LaneSize(const Lane& lane) const {
    return prompt_size() + static_cast<uint32_t>(Generated(lane).size());
  }
  TokenId TokenAt(const Lane& lane, uint32_t position) const {
    return position < prompt_size() ? params.prompt[position]
                                    : Generated(lane)[position - prompt_size()];
  }
  uint32_t RemainingTokens(const Lane& lane) const {
    return max_tokens - static_cast<uint32_t>(Generated(lane).size());
  }
};

}  // namespace kvlink::engine
