// Core: the engine thread's state, and the actions that make up one step.
//
//   Intake, Expire, Finish, Admit, Place, BuildBatch, Execute, Sample, RunBands, Finish; then again
//
// Each action is a function in a file of its own and does its part for all requests; adding a phase
// is adding a file and a line in engine.cc. Between actions:
//   1. `waiting` and `running` are sorted by id, that is by age; a request is in one of them.
//   2. A request that is to end carries Request::ending and holds no sequence; actions skip it, and
//      Finish takes it out.
//   3. Views in `batch` are valid from BuildBatch to the end of Sample: nothing in between changes
//      a sequence but Commit.
// Threads: Inbox and StatsBoard are shared; all else belongs to the engine thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/fair_turns.h"
#include "engine/request.h"

namespace kvlink::engine {

// What other threads hand in.
struct Inbox {
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::unique_ptr<Request>> submissions;  // ids ascending
  std::vector<RequestId> cancels;
  RequestId next_id = 1;
  size_t waiting = 0;                // length of Core::waiting, for the limit of the queue
  bool load_progress = false;        // something came from a colder tier
  std::optional<uint64_t> withhold;  // bytes, when that has changed
  bool stop = false;
};

// The figures as other threads see them.
struct StatsBoard {
  std::mutex mutex;
  EngineStats stats;
};

// The rows of one trunk or lane in the batch.
struct BatchUnit {
  Request* request = nullptr;
  Lane* lane = nullptr;  // null: the trunk
  Sequence* sequence = nullptr;
  uint32_t first_position = 0, num_rows = 0;
  uint32_t first_output = 0, num_outputs = 0;  // its outputs are those of its last rows
};

struct StepBatch {
  std::vector<BatchUnit> units;
  std::vector<TokenId> tokens;
  std::vector<kernel::BatchRow> rows;
  std::vector<const SpanTable*> tables;  // [units]
  std::vector<uint32_t> outputs;
  std::vector<kernel::ObservedRows> observed;
  std::span<const uint32_t> checkpoints;  // of any unit's sequence: all that have some have these
  const float* logits = nullptr;          // [outputs, vocabulary]
  void Clear();
};

struct Core {
  Core(const model::Model& model_in, Cache& cache_in) : model(model_in), cache(cache_in) {}

  const model::Model& model;
  Cache& cache;
  EngineOptions options;  // with every default filled in
  std::unique_ptr<model::Runner> runner;
  uint32_t vocab_size = 0;
  uint32_t budget_tokens = 0;  // rows that the KV budget holds
  uint32_t token_limit = 0;    // of prompt + answer: the context, or the budget if that is less

  std::vector<std::unique_ptr<Request>> waiting, running;
  FairTurns turns;
  uint64_t turn_walks = 0;  // over the queue, by tenant
  StepBatch batch;
  std::vector<TokenId> scratch_tokens;

  // Lookups done under an older epoch are stale: something began, finished its trunk or went away.
  uint64_t epoch = 1;
  // Pages ran out: nobody is admitted until some come back.
  bool admission_closed = false;
  bool any_ending = false;
  // Waiting for idle time, newest last. What runs is a request of its own.
  std::deque<std::unique_ptr<Shadow>> shadows;

  EngineStats stats;
  uint64_t peak_kv_bytes = 0;
  bool kv_grew = false;
  Inbox inbox;
  StatsBoard board;

  base::TimePoint Now() const { return options.clock(); }
};

// --- The actions. ---

// Takes what was handed in; waits for something when there is nothing to do, or nothing but what is
// on its way from a colder tier. False: stop.
bool Intake(Core& core);
// Ends requests whose deadline has passed.
void Expire(Core& core);
// Starts waiting requests, and branches of those that have more than may run at once, while
// sequences and pages last.
void Admit(Core& core);
// Gives every lane a sequence and room for its next row; preempts when pages run out.
void Place(Core& core);
// All decode rows, and prefill rows up to `chunk_tokens`, oldest request first.
void BuildBatch(Core& core);
// Runs the batch and commits its rows.
void Execute(Core& core);
// Logits to tokens, of trunks and lanes.
void Sample(Core& core);
// Prompts on a donor's rows that run layers apart: up to `chunk_tokens` rows of a band.
void RunBands(Core& core);
// Reports and removes what has ended.
void Finish(Core& core);
// Starts a shadow while nothing else is to be done, and drops it when something is.
void RunShadows(Core& core);

// Shows the figures to other threads; before the batch runs and at the end of a step.
void Publish(Core& core);

// --- What they share. ---

// What Submit refuses: kInvalidArgument with the figures.
Status Validate(const Core& core, const GenerationRequest& request);

// Ends the request for this reason: its pages are released now; Finish reports it.
void End(Core& core, Request& request, FinishReason reason, Status status = {});
// Releases the pages of a running request and puts it back in the queue. Invalidates `request`'s
// place in `running`. Started again at once it would be preempted again: the caller sees to it that
// first somebody gives pages back.
void Preempt(Core& core, Request& request);
// Takes a running request back into the queue, where its age puts it.
void Requeue(Core& core, Request& request);
// Gives up the load of the youngest waiting request, but not of `keep`, for its pages; of a
// tenant's if `turn` is one. False: there is none.
bool DropLoad(Core& core, const Request* keep, const FairTurns::Turn* turn = nullptr);
// The backward check of a prompt that ran on a donor's rows, from its last row's logits. True: its
// first tokens may be drawn.
bool PassesCheck(Core& core, Request& request, std::span<const float> logits);
// A request of a kind that is closed may run on a donor's rows first, unseen, so that its kind can
// prove itself again; then it runs as it would have. Called with a fresh plan.
void ConsiderTrial(Core& core, Request& request);
// The exact logits of a request that was tried are there.
void EndTrial(Core& core, Request& request, std::span<const float> logits);
// The exact logits of a shadow are there.
void EndShadow(Core& core, Request& request, std::span<const float> logits);
// Drops all sequences of the request.
void ReleaseSequences(Core& core, Request& request);
// Calls the request's callback; what it throws is counted.
void Emit(Core& core, Request& request, Event event);
void EmitToken(Core& core, Request& request, TokenEvent token);

// The trunk is complete: branches draw their first tokens from `logits` [vocabulary] of its last
// row, or go on where they were preempted.
void LeaveTrunk(Core& core, Request& request, const float* logits);
// Draws the first tokens of all branches, or of as many as run at once, from the last prompt row's
// logits.
void BeginBranches(Core& core, Request& request, const float* logits);
// Likewise of one that had to wait. Requires: request.can_fork_more().
void BeginNextBranch(Core& core, Request& request);
// One more token of a lane.
void SampleLane(Core& core, Request& request, Lane& lane, const float* logits);
// Beam search: when every live beam has its candidates, the search takes a step.
void StepBeams(Core& core, Request& request);

}  // namespace kvlink::engine
