#include "link/loading_prefix.h"

#include <algorithm>
#include <string>
#include <utility>

#include "link/lookup.h"

namespace kvlink::link {
namespace {

// Tiers work in real time, whatever clock the cache is given.
base::TimePoint RealNow() { return std::chrono::steady_clock::now(); }

LookupRequest WithTokens(LookupRequest request, std::span<const TokenId> tokens) {
  request.tokens = tokens;
  request.own_scopes = {};  // of the caller, and for reasons alone
  return request;
}

}  // namespace

LoadingPrefix::LoadingPrefix(std::shared_ptr<CacheState> state, const LookupRequest& request)
    : state_(std::move(state)),
      tokens_(request.tokens.begin(), request.tokens.end()),
      request_(WithTokens(request, tokens_)),
      root_(state_->keys.MakeRoot(request.ns)) {}

Result<std::unique_ptr<Load>> LoadingPrefix::Start(std::shared_ptr<CacheState> state,
                                                   const LookupRequest& request) {
  std::unique_ptr<LoadingPrefix> load(new LoadingPrefix(std::move(state), request));
  const Status asked = load->Ask();
  if (!asked.ok()) return asked;
  return std::unique_ptr<Load>(std::move(load));
}

Status LoadingPrefix::Ask() {
  Loadable found;
  {
    const base::ReaderLock lock(state_->mutex);
    const match::PrefixMatch match = FindPrompt(*state_, request_, root_);
    found = state_->tiers->Find(request_, root_, match);
  }
  if (!state_->tiers->Pays(found)) return {StatusCode::kNotFound, "no tier has more of the prompt"};
  std::vector<tier::BlockKey> unknown;
  for (size_t i = found.num_known(); i < found.names.size(); ++i) {
    if (found.tiers[i] == Loadable::kUnknown) unknown.push_back(found.names[i].key);
  }
  if (unknown.empty()) return BeginLoading();
  deadline_ = RealNow() + state_->tiers->ProbePatience(found.names.size());
  answered_ = std::make_shared<std::atomic<bool>>(false);
  state_->tiers->store().Probe(unknown, [answered = answered_, wake_up = state_->tiers->wake_up()] {
    answered->store(true, std::memory_order_release);
    wake_up->Call();
  });
  return Status::Ok();
}

// Everything is looked up again: blocks were committed, evicted and probed since.
Status LoadingPrefix::BeginLoading() {
  LowerTiers& tiers = *state_->tiers;
  auto sequence = std::make_unique<LinkedSequence>(state_, root_, /*store=*/true);
  std::vector<tier::Want> wants;
  {
    const base::WriterLock lock(state_->mutex);
    const match::PrefixMatch match = FindPrompt(*state_, request_, root_);
    loadable_ = tiers.Find(request_, root_, match);
    loadable_.names.resize(loadable_.num_known());
    loadable_.tiers.resize(loadable_.names.size());
    const bool in_flight = match.has_next && state_->in_flight.LeaderOf(match.next_key);
    if (in_flight || !tiers.Pays(loadable_)) {
      return {StatusCode::kNotFound, "no tier has more of the prompt"};
    }
    const auto most = static_cast<uint64_t>(
        LowerTiers::kMostLoadingShare *
        static_cast<double>(state_->options.budget_bytes / state_->options.shape.page_bytes()));
    const uint64_t blocks = loadable_.first_block + loadable_.names.size();
    if (tiers.loading_pages > 0 && tiers.loading_pages + blocks > most) {
      return {StatusCode::kResourceExhausted, "loads hold " + std::to_string(tiers.loading_pages) +
                                                  " pages, and at most " + std::to_string(most)};
    }
    const Status begun = sequence->BeginLoad(
        std::span(tokens_).first(static_cast<size_t>(blocks) * block_size()), match);
    if (!begun.ok()) return begun;
    pages_ = blocks;
    tiers.loading_pages += pages_;
    for (size_t i = 0; i < loadable_.names.size(); ++i) {
      std::byte* const page = sequence->table().blocks[loadable_.first_block + i].page;
      wants.push_back({loadable_.names[i], {page, state_->options.shape.page_bytes()}});
    }
    tiers.NoteLoadStarted();
  }
  sequence_ = std::move(sequence);
  stage_ = Stage::kLoading;
  patience_ = tiers.Patience(loadable_);
  limit_ = RealNow() + tiers.MostPatience(loadable_);
  deadline_ = RealNow() + patience_;
  ticket_ = tiers.store().Load(wants, limit_, [wake_up = tiers.wake_up()] { wake_up->Call(); });
  return Status::Ok();
}

LoadingPrefix::~LoadingPrefix() {
  if (ticket_) ticket_->Cancel();  // from here on nobody writes into the pages
  if (pages_ == 0) return;
  const base::WriterLock lock(state_->mutex);
  state_->tiers->loading_pages -= pages_;
}

bool LoadingPrefix::Poll() {
  if (stage_ == Stage::kAsking) {
    if (!answered_->load(std::memory_order_acquire) && RealNow() < deadline_) return false;
    const Status begun = BeginLoading();
    if (!begun.ok()) stage_ = Stage::kOver;
    lacked_room_ = begun.code() == StatusCode::kResourceExhausted ||
                   begun.code() == StatusCode::kQuotaExhausted;
  }
  if (stage_ != Stage::kLoading) return true;
  const bool done = ticket_->Done();
  TakeArrived();
  if (!done && RealNow() < std::min(deadline_, limit_)) return false;
  if (!done) {
    is_late_ = true;
    ticket_->Cancel();
    TakeArrived();  // what came in the last moment
  }
  End();
  return true;
}

void LoadingPrefix::TakeArrived() {
  const uint32_t arrived = ticket_->num_leading();
  if (arrived == num_taken_) return;
  const uint32_t first = loadable_.first_block + num_taken_;
  const uint32_t count = arrived - num_taken_;
  for (uint32_t i = num_taken_; i < arrived; ++i) {
    const std::string& tier = state_->tiers->name(ticket_->result(i).tier);
    const uint32_t position = (loadable_.first_block + i) * block_size();
    if (loaded_.empty() || loaded_.back().tier != tier) loaded_.push_back({tier, position, 0});
    loaded_.back().num_rows += block_size();
  }
  num_taken_ = arrived;
  deadline_ = RealNow() + patience_;
  sequence_->CommitLoaded(
      std::span(tokens_).subspan(size_t{first} * block_size(), size_t{count} * block_size()));
  const base::WriterLock lock(state_->mutex);
  state_->tiers->NoteLoaded(count);
}

// What did not come is computed. A tier that has lost a block meanwhile is only a smaller hit; one
// that failed, or was too late, is not asked for the same block again for a while.
void LoadingPrefix::End() {
  stage_ = Stage::kOver;
  const base::WriterLock lock(state_->mutex);
  if (num_taken_ < loadable_.names.size()) {
    state_->counters->fallbacks.Add();
    state_->counters->failed_loads.Add();
    const tier::LoadResult result = ticket_->result(num_taken_);
    if (result.outcome == tier::Outcome::kError || is_late_) {
      const bool is_damaged = result.reason == tier::ErrorReason::kCorrupt ||
                              result.reason == tier::ErrorReason::kForeign;
      state_->tiers->NoteFailed(loadable_.names[num_taken_].key, is_damaged);
    }
  }
  sequence_->EndLoad();
}

}  // namespace kvlink::link
