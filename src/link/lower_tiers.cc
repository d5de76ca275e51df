#include "link/lower_tiers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/row_copy.h"
#include "link/block_store.h"
#include "link/lookup.h"
#include "tier/chain_digest.h"

namespace kvlink::link {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

namespace {

// How much a new observation counts.
constexpr double kWeight = 0.2;
// When a tier turns out not to answer, a request is later by this share of what computing takes, or
// by the floor. A disk is slow rather than gone; a peer may be frozen.
constexpr double kPeerShare = 0.1, kLocalShare = 0.5, kProbeShare = 0.05;
constexpr microseconds kPeerFloor{20'000}, kLocalFloor{100'000};
constexpr microseconds kProbeFloor{5'000}, kMostProbePatience{250'000};
// A load that would not pay by what was observed is tried all the same when none was for so long:
// otherwise a tier that was slow once would stay unused.
constexpr std::chrono::seconds kTryAgainAfter{5};
// Runs of fewer rows say little about what a row costs.
constexpr uint32_t kFewestRows = 16;
constexpr size_t kMostFailed = 4096;

steady_clock::duration Microseconds(double us) {
  return duration_cast<steady_clock::duration>(std::chrono::duration<double, std::micro>(us));
}

}  // namespace

void WakeUp::Set(std::function<void()> wake) {
  const base::MutexLock lock(mutex_);  // a call that runs has it
  wake_ = std::move(wake);
}

void WakeUp::Call() {
  const base::MutexLock lock(mutex_);
  if (wake_) wake_();
}

uint32_t Loadable::num_known() const {
  const auto end = std::find(tiers.begin(), tiers.end(), kUnknown);
  return static_cast<uint32_t>(end - tiers.begin());
}

LowerTiers::LowerTiers(const CacheOptions& options, std::unique_ptr<tier::TierStore> store,
                       Counters* counters, const std::vector<std::string>& other_models)
    : shape_(options.shape),
      may_leave_ram_(options.tiers.may_leave_ram),
      clock_(options.clock),
      store_(std::move(store)),
      counters_(counters),
      gate_(options.tiers.write_share,
            std::chrono::duration<double, std::micro>(options.tiers.write_head_start).count()),
      texts_(*store_),
      plain_root_(match::KeyMaker(options.model_fingerprint, options.hash_bits).MakeRoot({}).key),
      us_per_row_(options.similar_model.prefill_us_per_row) {
  for (uint32_t t = 0; t < store_->num_tiers(); ++t) {
    names_.emplace_back(store_->tier(t).name());
    is_local_.push_back(store_->tier(t).ContainsNow({}).has_value());
  }
  for (const std::string& model : other_models) {
    other_models_.emplace_back(model, options.hash_bits);
  }
  if (options.observer != nullptr) {
    notices_ = std::make_unique<TierNotices>(*options.observer, *store_, names_, clock_);
  }
}

// --- Writing. ---

void LowerTiers::NoteFull(BlockId id, const match::Root& root, BlockId parent,
                          std::span<const TokenId> tokens, bool may_leave_ram) {
  if (id >= records_.size()) records_.resize(id + size_t{1});
  Record& record = records_[id];
  record = Record{};
  const bool parent_stays =
      parent != kNoBlock && (parent >= records_.size() || records_[parent].state <= State::kStays);
  if (!may_leave_ram || parent_stays) {
    record.state = State::kStays;
    return;
  }
  record.identity = tier::NextDigest(
      parent == kNoBlock ? tier::RootDigest(root.extras) : records_[parent].identity, tokens);
  record.root = root.key;
  const tier::BlockKey address = tier::AddressOf(record.identity);
  if (IsEverywhere(address) && !IsDamaged(address)) {
    record.state = State::kWritten;
    if (notices_) unwatched_.push_back(id);
    return;
  }
  record.state = State::kUnwritten;
  fresh_.push_back(id);
}

bool LowerTiers::IsEverywhere(const tier::BlockKey& address) const {
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << store_->num_tiers()) - 1);
  return (store_->Find(address).present & all) == all;
}

void LowerTiers::AppendWrites(const BlockStore& blocks, BlockId id, bool spends,
                              std::vector<PendingWrite>* writes) {
  const size_t first = writes->size();
  for (; id != kNoBlock && records_[id].state == State::kUnwritten;
       id = blocks.index().ParentOf(id)) {
    PendingWrite& write = writes->emplace_back();
    const std::span<const TokenId> tokens = blocks.index().TokensOf(id);
    const BlockId parent = blocks.index().ParentOf(id);
    const cache::Block& block = blocks.graph()[id];
    write.id = id;
    write.tokens.assign(tokens.begin(), tokens.end());
    write.name.identity = records_[id].identity;
    write.name.key = tier::AddressOf(write.name.identity);
    write.replaces = IsDamaged(write.name.key);
    if (parent != kNoBlock) write.name.parent = tier::AddressOf(records_[parent].identity);
    write.view = blocks.graph().View(id);
    const double position = static_cast<double>(block.depth) * shape_.tokens_per_block;
    write.cost_us = ComputeUs(1) * (1 + position / cache::EvictionOrder::kDearPosition);
    records_[id].state = State::kWritten;
    if (spends) gate_.Spend(shape_.page_bytes(), store_->num_tiers());
  }
  std::reverse(writes->begin() + static_cast<std::ptrdiff_t>(first), writes->end());
  for (size_t i = first; notices_ && i < writes->size(); ++i) Watch(blocks, (*writes)[i].id);
}

std::vector<PendingWrite> LowerTiers::TakeFresh(const BlockStore& blocks) {
  std::vector<PendingWrite> writes;
  gate_.EarnComputing(cpu_us_earned_.exchange(0));
  for (const BlockId id : fresh_) {
    if (gate_.IsOpen()) {
      AppendWrites(blocks, id, true, &writes);
    } else {
      Defer(id);
    }
  }
  fresh_.clear();
  TellObserver(blocks);
  return writes;
}

void LowerTiers::FreshAreWritten() {
  for (const BlockId id : fresh_) {
    records_[id].state = State::kWritten;
    if (notices_) unwatched_.push_back(id);
  }
  fresh_.clear();
}

void LowerTiers::Defer(BlockId id) {
  Record& record = records_[id];
  if (record.state != State::kUnwritten || std::exchange(record.waits, true)) return;
  if (backlog_.size() >= 2 * records_.size()) DropStale();
  backlog_.push_back(id);
}

// Blocks that were evicted while they waited left their numbers behind, and an engine that is never
// idle takes none out.
void LowerTiers::DropStale() {
  std::vector<bool> seen(records_.size());
  std::erase_if(backlog_, [&](BlockId id) {
    if (!records_[id].waits || seen[id]) return true;
    seen[id] = true;
    return false;
  });
}

std::vector<PendingWrite> LowerTiers::TakeBacklog(const BlockStore& blocks, size_t most) {
  std::vector<PendingWrite> writes;
  while (!backlog_.empty() && writes.size() < most) {
    const BlockId id = backlog_.front();
    backlog_.pop_front();
    // One that was evicted since is not waiting any more; its number may stand for another block,
    // which then is in the list on its own.
    if (!std::exchange(records_[id].waits, false)) continue;
    AppendWrites(blocks, id, false, &writes);
  }
  return writes;
}

std::vector<BlockId> LowerTiers::Write(const KvShape& shape, std::span<const PendingWrite> writes) {
  std::vector<BlockId> refused;
  std::vector<std::byte> whole;  // of a difference block
  for (const PendingWrite& write : writes) {
    tier::PutBlock put;
    put.name = write.name;
    put.name.tokens = write.tokens;
    put.valid_rows = shape.tokens_per_block;
    put.payload = {write.view.page, shape.page_bytes()};
    put.cost_us = write.cost_us;
    if (write.view.difference != nullptr) {
      whole.assign(write.view.page, write.view.page + shape.page_bytes());
      cache::CopyRows(shape, write.view, {.page = whole.data()}, 0, shape.tokens_per_block);
      put.payload = whole;
    }
    if (store_->Put(put)) continue;
    // One that was damaged is there until the store has removed it.
    if (write.replaces || !IsEverywhere(write.name.key)) refused.push_back(write.id);
  }
  return refused;
}

void LowerTiers::PutBack(std::span<const BlockId> refused) {
  for (const BlockId id : refused) {
    if (id >= records_.size() || records_[id].state != State::kWritten) continue;
    records_[id].state = State::kUnwritten;
    Defer(id);
  }
}

void LowerTiers::BeforeEviction(const BlockStore& blocks, BlockId id) {
  if (id >= records_.size() || records_[id].state != State::kUnwritten) return;
  if (blocks.graph()[id].times_used > 1 || gate_.IsOpen()) {
    std::vector<PendingWrite> writes;
    AppendWrites(blocks, id, true, &writes);
    PutBack(Write(shape_, writes));
  }
  if (records_[id].state == State::kUnwritten) counters_->unwritten_blocks.Add();
}

void LowerTiers::Forget(BlockId id) {
  if (id < records_.size()) records_[id] = Record{};
}

// --- Telling. ---

bool LowerTiers::TellObserver(const BlockStore& blocks) {
  if (notices_ == nullptr) return false;
  for (const BlockId id : std::exchange(unwatched_, {})) {
    // Else it was evicted meanwhile.
    if (records_[id].state == State::kWritten) Watch(blocks, id);
  }
  notices_->Look();
  return notices_->has_news();
}

void LowerTiers::TellObserverAgain() {
  if (notices_) notices_->TellAgain();
}

// Requires: full, and so in the index.
void LowerTiers::Watch(const BlockStore& blocks, BlockId id) {
  const auto hash_of = [](const tier::BlockKey& key) { return BlockHash{key.lo, key.hi}; };
  const match::PrefixIndex& index = blocks.index();
  StoredBlock stored{.hash = hash_of(index.KeyOf(id)), .tokens = index.TokensOf(id)};
  const BlockId parent = index.ParentOf(id);
  if (parent != kNoBlock) stored.parent = hash_of(index.KeyOf(parent));
  if (records_[id].root != plain_root_) stored.name_space = hash_of(records_[id].root);
  notices_->Watch(tier::AddressOf(records_[id].identity), stored);
}

void LowerTiers::KeepText(std::string_view extras, std::string_view text,
                          std::span<const TokenId> tokens) {
  texts_.Put(extras, text, tokens, ComputeUs(1) / static_cast<double>(shape_.page_bytes()));
}

// --- Loading. ---

Loadable LowerTiers::Find(const LookupRequest& request, const match::Root& root,
                          const match::PrefixMatch& match) const {
  Loadable found;
  found.first_block = static_cast<uint32_t>(match.blocks.size());
  const uint32_t rows = shape_.tokens_per_block;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  const uint32_t wanted = ComputeFrom(request, size);  // rows behind it are computed in any case
  tier::Identity identity;
  if (match.blocks.empty()) {
    identity = tier::RootDigest(root.extras);
  } else {
    const BlockId last = match.blocks.back();
    if (last >= records_.size() || records_[last].state <= State::kStays) return found;
    identity = records_[last].identity;
  }
  tier::BlockKey parent = match.blocks.empty() ? tier::BlockKey{} : tier::AddressOf(identity);
  for (uint32_t at = found.first_block * rows; at + rows <= size && at < wanted; at += rows) {
    tier::BlockName name;
    name.tokens = request.tokens.subspan(at, rows);
    identity = tier::NextDigest(identity, name.tokens);
    name.identity = identity;
    name.key = tier::AddressOf(identity);
    name.parent = parent;
    const auto failed = failed_.find(name.key);
    if (failed != failed_.end() && clock_() < failed->second.until) {
      found.failed_before = true;
      break;
    }
    const tier::Where where = store_->Find(name.key);
    if (where.present == 0 && where.unknown == 0) break;
    found.tiers.push_back(where.present == 0 ? Loadable::kUnknown
                                             : static_cast<uint32_t>(__builtin_ctz(where.present)));
    parent = name.key;
    found.names.push_back(name);
  }
  return found;
}

bool LowerTiers::IsOfAnotherModel(const LookupRequest& request, size_t index) const {
  const size_t rows = shape_.tokens_per_block;
  if (index >= kMostBlocksElsewhere || request.tokens.size() < (index + 1) * rows) return false;
  return std::ranges::any_of(other_models_, [&](const match::KeyMaker& keys) {
    tier::Identity identity = tier::RootDigest(keys.MakeRoot(request.ns).extras);
    for (size_t at = 0; at <= index * rows; at += rows) {
      identity = tier::NextDigest(identity, request.tokens.subspan(at, rows));
      if (store_->Find(tier::AddressOf(identity)).present == 0) return false;
    }
    return true;
  });
}

double LowerTiers::ComputeUs(size_t num_blocks) const {
  return us_per_row_.load(std::memory_order_relaxed) * shape_.tokens_per_block *
         static_cast<double>(num_blocks);
}

double LowerTiers::CpuUsPerBlock() const {
  return ComputeUs(1) * num_threads_.load(std::memory_order_relaxed);
}

// Blocks that may be there cost nothing yet: they are asked for first, and decided on then.
double LowerTiers::LoadUs(const Loadable& loadable) const {
  double us = 0;
  for (uint32_t tier = 0; tier < names_.size(); ++tier) {
    const auto blocks = std::count(loadable.tiers.begin(), loadable.tiers.end(), tier);
    if (blocks > 0) {
      us += store_->LoadCostUs(tier, static_cast<uint32_t>(blocks), shape_.page_bytes());
    }
  }
  return us;
}

bool LowerTiers::Pays(const Loadable& loadable) const {
  if (loadable.names.empty()) return false;
  if (LoadUs(loadable) < ComputeUs(loadable.names.size())) return true;
  const auto now = duration_cast<nanoseconds>(clock_().time_since_epoch()).count();
  const int64_t last = last_load_ns_.load(std::memory_order_relaxed);
  return last == 0 || now - last > nanoseconds(kTryAgainAfter).count();
}

steady_clock::duration LowerTiers::Patience(const Loadable& loadable) const {
  const bool local = std::all_of(loadable.tiers.begin(), loadable.tiers.end(),
                                 [this](uint32_t tier) { return is_local_[tier]; });
  const double most = ComputeUs(loadable.names.size());
  const double us = std::max(2 * LoadUs(loadable), (local ? kLocalShare : kPeerShare) * most);
  return std::max<steady_clock::duration>(Microseconds(std::min(us, most)),
                                          local ? kLocalFloor : kPeerFloor);
}

steady_clock::duration LowerTiers::MostPatience(const Loadable& loadable) const {
  return std::max<steady_clock::duration>(Microseconds(ComputeUs(loadable.names.size())),
                                          Patience(loadable));
}

steady_clock::duration LowerTiers::ProbePatience(size_t num_blocks) const {
  return std::clamp<steady_clock::duration>(Microseconds(kProbeShare * ComputeUs(num_blocks)),
                                            kProbeFloor, kMostProbePatience);
}

void LowerTiers::NoteLoadStarted() {
  const auto now = duration_cast<nanoseconds>(clock_().time_since_epoch()).count();
  last_load_ns_.store(std::max<int64_t>(now, 1), std::memory_order_relaxed);
  counters_->loads.Add();
}

void LowerTiers::NoteLoaded(uint32_t num_blocks) {
  gate_.EarnSaving(CpuUsPerBlock() * num_blocks);
  counters_->loaded_tokens.Add(uint64_t{num_blocks} * shape_.tokens_per_block);
}

bool LowerTiers::IsDamaged(const tier::BlockKey& address) const {
  const auto failed = failed_.find(address);
  return failed != failed_.end() && failed->second.is_damaged && clock_() < failed->second.until;
}

void LowerTiers::NoteFailed(const tier::BlockKey& address, bool is_damaged) {
  const base::TimePoint now = clock_();
  if (failed_.size() >= kMostFailed) {
    std::erase_if(failed_, [now](const auto& entry) { return entry.second.until <= now; });
    if (failed_.size() >= kMostFailed) failed_.clear();
  }
  failed_[address] = {now + kRetryAfter, is_damaged};
}

void LowerTiers::NoteRegret(uint32_t num_blocks) { gate_.EarnRegret(CpuUsPerBlock() * num_blocks); }

void LowerTiers::ObserveCompute(uint32_t num_rows, double wall_us, int num_threads) {
  if (!(wall_us > 0)) return;
  cpu_us_earned_.fetch_add(wall_us * num_threads);
  if (num_rows < kFewestRows) return;
  num_threads_.store(num_threads, std::memory_order_relaxed);
  const double seen = wall_us / num_rows, before = us_per_row_.load(std::memory_order_relaxed);
  us_per_row_.store(before + kWeight * (seen - before), std::memory_order_relaxed);
}

std::vector<TierFigures> LowerTiers::Figures() const {
  std::vector<TierFigures> all;
  for (uint32_t t = 0; t < store_->num_tiers(); ++t) {
    const tier::TierStats stats = store_->Stats(t);
    TierFigures& figures = all.emplace_back();
    figures.name = stats.name;
    figures.hits = stats.hits;
    figures.misses = stats.misses;
    figures.stored = stats.stored;
    figures.promoted = stats.promoted;
    figures.dropped = stats.queue_drops;
    figures.bytes_read = stats.bytes_read;
    figures.bytes_written = stats.bytes_written;
    for (size_t op = 0; op < stats.errors.size(); ++op) {
      for (size_t reason = 0; reason < stats.errors[op].size(); ++reason) {
        const uint64_t count = stats.errors[op][reason];
        if (count == 0) continue;
        figures.errors.push_back({tier::TierOpName(static_cast<tier::TierOp>(op)),
                                  tier::ErrorReasonName(static_cast<tier::ErrorReason>(reason)),
                                  count});
      }
    }
    figures.breaker_openings = stats.breaker_openings;
    figures.breaker = tier::BreakerStateName(stats.breaker);
    figures.queued_blocks = stats.queued_blocks;
    figures.queued_bytes = stats.queued_bytes;
    figures.latency_us = stats.latency_us;
    figures.bytes_per_s = stats.bytes_per_s;
    figures.blocks = stats.usage.blocks;
    figures.bytes = stats.usage.bytes;
    figures.device_bytes = stats.usage.device_bytes;
    figures.budget_bytes = stats.usage.budget_bytes;
    figures.evictions = stats.usage.evictions;
    figures.unreachable = stats.usage.unreachable;
    figures.last_error = stats.last_error;
  }
  return all;
}

std::optional<tier::BlockKey> LowerTiers::AddressOf(BlockId id) const {
  if (id >= records_.size() || records_[id].state <= State::kStays) return std::nullopt;
  return tier::AddressOf(records_[id].identity);
}

bool LowerTiers::all_cut_off() const {
  for (uint32_t t = 0; t < store_->num_tiers(); ++t) {
    if (store_->Stats(t).breaker == tier::BreakerState::kClosed) return false;
  }
  return true;
}

size_t LowerTiers::tracking_bytes() const {
  return records_.capacity() * sizeof(Record) + backlog_.size() * sizeof(BlockId) +
         failed_.size() * 64 + (notices_ ? notices_->tracking_bytes() : 0);
}

}  // namespace kvlink::link
