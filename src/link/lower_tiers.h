// LowerTiers: the tiers below RAM as the cache uses them: which resident block has which name
// there, which blocks are written and when, what is loadable behind a prompt's resident rows, and
// whether loading it pays.
//
//   full block --NoteFull--> fresh --credit--> written behind (TakeFresh, Write)
//                              |
//                              +-----no credit----> backlog --idle time--> written (TakeBacklog)
//                                                      +--evicted: written when it was used again,
//                                                          or there is credit (BeforeEviction)
//
// Invariants
//   1. A block is handed to the tiers after its parent, under the SHA-256 of its whole chain.
//      Blocks of namespaces that stay in RAM have no name, and are never written nor looked for.
//   2. A block that failed to load is not looked for again for kRetryAfter; as long, one that was
//      damaged is written again although a tier has it.
//   3. The backlog is at most twice as long as there are blocks.
// Threads: const members may run at the same time, the rest needs the cache alone (its lock),
// except Write, Observe* and the store, which may be used from any thread. Cost: a SHA-256 (about 1
// us) per full block, and per block that a lookup finds in a tier; 56 bytes a block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "link/counters.h"
#include "link/kept_texts.h"
#include "link/tier_notices.h"
#include "link/write_gate.h"
#include "match/block_key.h"
#include "match/prefix_index.h"
#include "tier/tier_store.h"

namespace kvlink::link {

class BlockStore;

// Whoever waits for tiers: the engine. Shared with what runs in the store's threads.
class WakeUp {
 public:
  void Set(std::function<void()> wake);
  void Call();

 private:
  base::Mutex mutex_;
  std::function<void()> wake_ KVLINK_GUARDED_BY(mutex_);
};

// A block to hand to the tiers once the cache's lock is dropped. What `view` shows does not change:
// the block is full, and only the engine's thread, which writes it, evicts.
struct PendingWrite {
  BlockId id = kNoBlock;
  tier::BlockName name;  // its tokens lie in `tokens`
  std::vector<TokenId> tokens;
  BlockView view;
  double cost_us = 0;
  bool replaces = false;  // what a tier has under this name is damaged
};

// Blocks of one prompt behind its resident full blocks, in chain order, that tiers have or may
// have.
struct Loadable {
  static constexpr uint32_t kUnknown = ~0u;

  uint32_t first_block = 0;            // of the prompt
  std::vector<tier::BlockName> names;  // their tokens are the request's
  std::vector<uint32_t> tiers;         // the fastest that has it; kUnknown: only a probe can tell
  bool failed_before = false;          // the next block could not be loaded just now
  uint32_t num_known() const;          // leading blocks that a tier has
};

class LowerTiers {
 public:
  static constexpr std::chrono::seconds kRetryAfter{5};
  static constexpr double kMostLoadingShare = 0.5;   // of the pages
  static constexpr size_t kMostBlocksElsewhere = 8;  // looked for under another model

  // `other_models`: fingerprints of models whose blocks a tier on this machine may hold as well.
  LowerTiers(const CacheOptions& options, std::unique_ptr<tier::TierStore> store,
             Counters* counters, const std::vector<std::string>& other_models = {});

  bool MayLeaveRam(const Namespace& ns) const { return !may_leave_ram_ || may_leave_ram_(ns); }

  // --- Writing. ---

  // Block `id` became full and findable, behind the full block `parent` (kNoBlock: first of its
  // chain).
  void NoteFull(BlockId id, const match::Root& root, BlockId parent,
                std::span<const TokenId> tokens, bool may_leave_ram);
  // Blocks that are to be written now, parents first.
  std::vector<PendingWrite> TakeFresh(const BlockStore& blocks);
  // Those blocks came from a tier: the store itself writes them to the others.
  void FreshAreWritten();
  // The oldest blocks that wait, at most about `most`.
  std::vector<PendingWrite> TakeBacklog(const BlockStore& blocks, size_t most);
  // Copies them into the store's queues. Gives back the blocks that no tier took. Any thread.
  std::vector<BlockId> Write(const KvShape& shape, std::span<const PendingWrite> writes);
  void PutBack(std::span<const BlockId> refused);
  void BeforeEviction(const BlockStore& blocks, BlockId id);
  // `id` is evicted; writes nothing.
  void Forget(BlockId id);
  bool has_backlog() const { return !backlog_.empty(); }
  // The name under which tiers would have the block; nothing: it stays in RAM, or is not full.
  std::optional<tier::BlockKey> AddressOf(BlockId id) const;

  // --- Telling. ---

  // Tells the observer, if there is one, what tiers have gained and lost. True: there will be more.
  bool TellObserver(const BlockStore& blocks);
  // The observer was told that nothing is left.
  void TellObserverAgain();

  // --- Loading. ---

  Loadable Find(const LookupRequest& request, const match::Root& root,
                const match::PrefixMatch& match) const;
  // Whether a tier has the prompt's first blocks up to block `index`, of the same namespace, for
  // one of the other models. About 1.5 us for each of these that has none, 0.5 us a block it has.
  bool IsOfAnotherModel(const LookupRequest& request, size_t index) const;
  // Whether waiting for it is cheaper than computing it, as far as both were observed; true once in
  // a while in any case, to see whether a slow tier has recovered.
  bool Pays(const Loadable& loadable) const;
  // How long a load may bring nothing, and how long it may take in all. Requires: no tier of it is
  // kUnknown.
  std::chrono::steady_clock::duration Patience(const Loadable& loadable) const;
  std::chrono::steady_clock::duration MostPatience(const Loadable& loadable) const;
  std::chrono::steady_clock::duration ProbePatience(size_t num_blocks) const;
  void NoteLoadStarted();
  void NoteLoaded(uint32_t num_blocks);
  // `is_damaged`: the store removes what it has under this name.
  void NoteFailed(const tier::BlockKey& address, bool is_damaged);
  // Blocks of the prompt that have to be computed although they were here once.
  void NoteRegret(uint32_t num_blocks);

  void ObserveCompute(uint32_t num_rows, double wall_us, int num_threads);
  const std::shared_ptr<WakeUp>& wake_up() const { return wake_up_; }
  tier::TierStore& store() const { return *store_; }
  // The ids of a text that was generated here. Any thread.
  void KeepText(std::string_view extras, std::string_view text, std::span<const TokenId> tokens);
  const KeptTexts& texts() const { return texts_; }
  const char* NameOf(uint32_t tier) const { return names_[tier].c_str(); }
  const std::string& name(uint32_t tier) const { return names_[tier]; }
  std::vector<TierFigures> Figures() const;
  bool all_cut_off() const;  // no tier takes anything now
  size_t tracking_bytes() const;
  double credit_us() const { return gate_.credit_us(); }

  uint64_t loading_pages = 0;  // that loads hold

 private:
  enum class State : uint8_t { kNone, kStays, kUnwritten, kWritten };
  struct Record {
    tier::Identity identity{};
    tier::BlockKey root;  // of its namespace
    State state = State::kNone;
    bool waits = false;  // in backlog_
  };

  double ComputeUs(size_t num_blocks) const;  // wall time
  double CpuUsPerBlock() const;
  double LoadUs(const Loadable& loadable) const;
  bool IsEverywhere(const tier::BlockKey& address) const;
  bool IsDamaged(const tier::BlockKey& address) const;
  // `id` and its ancestors that are not written, parents first, are to be.
  void AppendWrites(const BlockStore& blocks, BlockId id, bool spends,
                    std::vector<PendingWrite>* writes);
  void Defer(BlockId id);
  void DropStale();
  void Watch(const BlockStore& blocks, BlockId id);

  const KvShape shape_;
  const std::function<bool(const Namespace&)> may_leave_ram_;
  const base::Clock clock_;
  const std::unique_ptr<tier::TierStore> store_;
  Counters* const counters_;
  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();
  std::vector<std::string> names_;  // by tier
  std::vector<bool> is_local_;      // by tier: it needs no peer to answer

  std::vector<Record> records_;  // by BlockId
  std::vector<BlockId> fresh_;
  std::vector<BlockId> unwatched_;  // blocks that a tier has, for Watch
  std::deque<BlockId> backlog_;
  struct Failure {
    base::TimePoint until;
    bool is_damaged = false;
  };
  std::unordered_map<tier::BlockKey, Failure> failed_;
  WriteGate gate_;
  KeptTexts texts_;
  std::unique_ptr<TierNotices> notices_;  // null: nobody wants to know
  tier::BlockKey plain_root_;             // of the namespace without tenant and salt
  std::vector<match::KeyMaker> other_models_;
  std::atomic<double> us_per_row_;
  std::atomic<double> cpu_us_earned_{0};  // computing that the gate has not been told of
  std::atomic<int> num_threads_{1};
  std::atomic<int64_t> last_load_ns_{0};  // of the clock; 0: never
};

// Opens what the options name. Null: they name none. `other_models`: as LowerTiers takes them.
Result<std::unique_ptr<tier::TierStore>> OpenTiers(const CacheOptions& options,
                                                   std::vector<std::string>* other_models);

}  // namespace kvlink::link
