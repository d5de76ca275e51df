#include "cli/bench_shape.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "cli/bench_engine.h"
#include "kvlink/cache.h"
#include "server/prompt_builder.h"

namespace kvlink::cli {
namespace {

struct KnownShape {
  const char* name;
  uint32_t layers, kv_heads, head_dim;
};
constexpr KnownShape kKnown[] = {
    {"llama2-7b", 32, 32, 128},  {"llama2-13b", 40, 40, 128}, {"llama2-70b", 80, 8, 128},
    {"llama3-8b", 32, 8, 128},   {"llama3-70b", 80, 8, 128},  {"mistral-7b", 32, 8, 128},
    {"qwen2.5-7b", 28, 4, 128},  {"qwen3-8b", 36, 8, 128},    {"phi3-mini", 32, 32, 96},
    {"smollm2-135m", 30, 3, 64},
};
constexpr uint32_t kMostLayers = 1000, kMostHeads = 1000, kMostDim = 1024;

std::optional<KnownShape> ReadCustomShape(std::string_view text) {
  KnownShape shape{"", 0, 0, 0};
  const std::array<std::pair<uint32_t*, uint32_t>, 3> parts{
      {{&shape.layers, kMostLayers}, {&shape.kv_heads, kMostHeads}, {&shape.head_dim, kMostDim}}};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && (at == end || *at++ != 'x')) return std::nullopt;
    const auto [next, error] = std::from_chars(at, end, *parts[i].first);
    if (error != std::errc() || *parts[i].first < 1 || *parts[i].first > parts[i].second) {
      return std::nullopt;
    }
    at = next;
  }
  // Rows of whole vectors, as every known model has.
  return at == end && shape.head_dim % 8 == 0 ? std::optional(shape) : std::nullopt;
}

// Contents mean nothing here. What the cache wrote into pages (a copied tail) goes back to the
// system, so that a replay needs little memory of its own.
void DropContents(const SpanTable& table, size_t page_bytes) {
  static const auto unit = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const BlockView& block : table.blocks) {
    const auto begin = (reinterpret_cast<uintptr_t>(block.page) + unit - 1) / unit * unit;
    const auto end = (reinterpret_cast<uintptr_t>(block.page) + page_bytes) / unit * unit;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

class Replay {
 public:
  Replay(const Workload& workload, const model::Tokenizer& tokenizer, Sharing sharing, Cache& cache)
      : workload_(workload),
        tokenizer_(tokenizer),
        sharing_(sharing),
        cache_(cache),
        prompts_(tokenizer, cache) {}

  Result<ShapeFigures> Run(uint32_t concurrency) {
    users_.resize(std::min<size_t>(concurrency, workload_.conversations.size()));
    for (User& user : users_) NextConversation(user);
    while (
        std::any_of(users_.begin(), users_.end(), [](const User& u) { return u.conversation; })) {
      for (User& user : users_) {
        if (!user.conversation || !user.branches.empty()) continue;
        if (Status status = Begin(user); !status.ok()) return status;
      }
      for (User& user : users_) {
        if (!user.conversation) continue;
        if (Status status = Step(user); !status.ok()) return status;
      }
    }
    const CacheStats stats = cache_.Stats();
    figures_.peak_kv_bytes = stats.peak_in_use_bytes;
    figures_.kept_bytes = stats.cached_bytes;
    const uint64_t tracked = std::max(stats.cached_bytes, stats.peak_in_use_bytes);
    if (tracked > 0) {
      figures_.tracking_share =
          static_cast<double>(stats.tracking_bytes) / static_cast<double>(tracked);
    }
    return figures_;
  }

 private:
  struct Branch {
    std::unique_ptr<Sequence> sequence;
    std::vector<TokenId> answer;
  };
  struct User {
    const Conversation* conversation = nullptr;  // null: nothing left to do
    size_t turn = 0;
    std::vector<model::ChatMessage> history;
    std::vector<Branch> branches;
    uint32_t generated = 0;  // tokens of each branch
  };

  void NextConversation(User& user) {
    user.turn = 0;
    user.history.clear();
    user.conversation =
        next_ < workload_.conversations.size() ? &workload_.conversations[next_++] : nullptr;
  }

  // Words drawn from the seed, as many tokens as asked for.
  std::vector<TokenId> MakeAnswer(uint64_t seed, uint32_t num_tokens) const {
    std::mt19937_64 random(seed);
    std::string text;
    std::vector<TokenId> tokens;
    while (tokens.size() < num_tokens) {
      for (uint32_t i = 0; i < num_tokens; ++i) {
        text += ' ';
        for (int letter = 0; letter < 5; ++letter) text += static_cast<char>('a' + random() % 26);
      }
      tokens = tokenizer_.Encode(text, false, false);
    }
    tokens.resize(num_tokens);
    return tokens;
  }

  Status Begin(User& user) {
    const Turn& turn = user.conversation->turns[user.turn];
    user.history.insert(user.history.end(), turn.messages.begin(), turn.messages.end());
    const Namespace ns{user.conversation->tenant, ""};
    const auto prompt = prompts_.FromChat(ns, user.history, "", /*add_generation_prompt=*/true);
    if (!prompt.ok()) return prompt.status();
    LookupRequest request;
    request.tokens = prompt->tokens;
    request.ns = ns;
    request.max_new_tokens = turn.max_tokens;
    ++figures_.requests;
    figures_.prompt_tokens += prompt->tokens.size();
    for (uint32_t i = 0; i < turn.n; ++i) {
      const bool fork = i > 0 && sharing_ != Sharing::kOff;
      auto sequence = fork ? user.branches[0].sequence->Fork(
                                 static_cast<uint32_t>(prompt->tokens.size()), turn.max_tokens)
                           : cache_.Begin(request, cache_.Lookup(request));
      if (!sequence.ok()) return sequence.status();
      const uint32_t ready = (*sequence)->num_ready();
      if (i == 0) figures_.cached_tokens += ready;
      DropContents((*sequence)->table(), cache_.shape().page_bytes());
      (*sequence)->Commit(std::span(prompt->tokens).subspan(ready));
      const uint64_t seed = BranchSeed(user.conversation->id, user.turn, i);
      user.branches.push_back({*std::move(sequence), MakeAnswer(seed, turn.max_tokens)});
    }
    user.generated = 0;
    NotePeak();
    return Status::Ok();
  }

  Status Step(User& user) {
    for (Branch& branch : user.branches) {
      const uint32_t rows = branch.sequence->num_ready();
      if (Status status = branch.sequence->Reserve(rows + 1); !status.ok()) return status;
      branch.sequence->Commit(std::span(branch.answer).subspan(user.generated, 1));
    }
    NotePeak();
    const Turn& turn = user.conversation->turns[user.turn];
    if (++user.generated < turn.max_tokens) return Status::Ok();
    const std::vector<TokenId> answer = std::move(user.branches[0].answer);
    user.branches.clear();
    const std::string text = tokenizer_.Decode(answer, false);
    cache_.Remember({user.conversation->tenant, ""}, text, answer);
    user.history.push_back({"assistant", turn.assistant.value_or(text), ""});
    if (++user.turn == user.conversation->turns.size()) NextConversation(user);
    return Status::Ok();
  }

  void NotePeak() {
    const uint64_t peak = cache_.Stats().peak_in_use_bytes;
    if (peak == peak_) return;
    peak_ = peak;
    figures_.branches_at_peak = 0;
    for (const User& user : users_) figures_.branches_at_peak += user.branches.size();
  }

  const Workload& workload_;
  const model::Tokenizer& tokenizer_;
  const Sharing sharing_;
  Cache& cache_;
  const server::PromptBuilder prompts_;
  size_t next_ = 0;  // conversation
  std::deque<User> users_;
  uint64_t peak_ = 0;
  ShapeFigures figures_;
};

}  // namespace

Result<NamedShape> FindShape(std::string_view text, KvType type, uint32_t tokens_per_block) {
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                   [&](const KnownShape& shape) { return text == shape.name; });
  const auto found = known != std::end(kKnown) ? std::optional(*known) : ReadCustomShape(text);
  if (!found) {
    std::string names;
    for (const KnownShape& shape : kKnown) names += std::string(shape.name) + ", ";
    return Status(StatusCode::kInvalidArgument, "--shape: '" + std::string(text) + "' is none of " +
                                                    names +
                                                    "and no LAYERSxHEADSxDIM such as 32x8x128");
  }
  KvShape shape;
  shape.num_layers = found->layers;
  shape.num_kv_heads = found->kv_heads;
  shape.head_dim = found->head_dim;
  shape.type = type;
  shape.tokens_per_block = tokens_per_block;
  return NamedShape{std::string(text), shape};
}

Result<ShapeFigures> ReplayShape(const Workload& workload, const model::Tokenizer& tokenizer,
                                 const KvShape& shape, Sharing sharing, uint32_t concurrency) {
  CacheOptions options;
  options.shape = shape;
  options.sharing = sharing;
  // Room for everything that was ever computed: what is held shall not depend on evictions.
  const auto all = static_cast<uint32_t>(workload.conversations.size());
  options.budget_bytes = 2 * KvBytesWithoutSharing(workload, tokenizer, shape, all, UINT32_MAX);
  options.model_fingerprint = "shape";
  auto cache = CreateCache(options);
  if (!cache.ok()) return cache.status();
  auto figures = Replay(workload, tokenizer, sharing, **cache).Run(concurrency);
  if (figures.ok()) figures->mode = sharing == Sharing::kOff ? "off" : "exact";
  return figures;
}

}  // namespace kvlink::cli
