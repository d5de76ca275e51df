#include "cli/bench_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "cli/machine.h"

namespace kvlink::cli {
namespace {

TurnRequest MakeRequest(const Conversation& conversation, size_t turn_index,
                        const std::vector<model::ChatMessage>& history) {
  const Turn& turn = conversation.turns[turn_index];
  TurnRequest request{conversation.tenant, history, turn.max_tokens, turn.n, {}};
  for (uint32_t branch = 0; turn.n > 1 && branch < turn.n; ++branch) {
    request.seeds.push_back(BranchSeed(conversation.id, turn_index, branch));
  }
  return request;
}

std::vector<TurnOutcome> Talk(const Conversation& conversation, BenchTarget& target,
                              const std::function<void()>& turn_done) {
  std::vector<TurnOutcome> outcomes;
  std::vector<model::ChatMessage> history;
  for (size_t i = 0; i < conversation.turns.size(); ++i) {
    const Turn& turn = conversation.turns[i];
    history.insert(history.end(), turn.messages.begin(), turn.messages.end());
    if (!outcomes.empty() && !outcomes.back().error.empty()) {
      TurnOutcome not_sent;
      not_sent.error = "not sent: an earlier turn of '" + conversation.id + "' failed";
      outcomes.push_back(std::move(not_sent));
    } else {
      outcomes.push_back(target.Answer(MakeRequest(conversation, i, history)));
      history.push_back({"assistant", turn.assistant.value_or(outcomes.back().answer), ""});
    }
    turn_done();
  }
  return outcomes;
}

}  // namespace

WorkloadRun RunWorkload(const Workload& workload, BenchTarget& target, uint32_t concurrency,
                        const std::function<void(size_t)>& done) {
  WorkloadRun run;
  run.outcomes.resize(workload.conversations.size());
  std::atomic<size_t> next{0}, turns_done{0};
  const auto user = [&] {
    for (size_t i = next++; i < workload.conversations.size(); i = next++) {
      run.outcomes[i] =
          Talk(workload.conversations[i], target, [&] { done(turns_done.fetch_add(1) + 1); });
    }
  };
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = ProcessCpuSeconds();
  std::vector<std::thread> users;
  const size_t num_users = std::min<size_t>(concurrency, workload.conversations.size());
  for (size_t i = 0; i < num_users; ++i) users.emplace_back(user);
  for (std::thread& thread : users) thread.join();
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.cpu_s = ProcessCpuSeconds() - cpu_start;
  return run;
}

}  // namespace kvlink::cli
