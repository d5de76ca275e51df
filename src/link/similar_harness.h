// A pretended engine for the tests of similar reuse. Every row it writes can be told from every
// other: the K of each layer and head is the row's 64-bit mark,
//     exact rows         a hash of the namespace and all tokens up to the row
//     approximate rows   a number of their own
// and the V depends on the token, and by `context` on all before it, as it does in a model.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "link/cache_harness.h"

namespace kvlink::link {

// A request that runs, exact or borrowing.
struct Running {
  std::unique_ptr<Sequence> sequence;
  Namespace ns;
  Tokens tokens;
  uint32_t prompt = 0;
  bool tainted = false;
  bool stored = true;
  std::map<uint32_t, uint64_t> own;  // marks of approximate rows, by position
  Plan plan;
  mutable std::vector<uint64_t> marks;  // of its rows, were they exact

  Sequence* operator->() { return sequence.get(); }
  uint32_t ready() const { return sequence->num_ready(); }
  uint32_t left() const { return static_cast<uint32_t>(tokens.size()) - ready(); }
};

class SimilarHarness : public CacheHarness {
 public:
  SimilarHarness(uint32_t tokens_per_block, uint64_t pages)
      : CacheHarness(tokens_per_block, pages) {
    options.similar.policy = SimilarPolicy::kOn;
    options.similar.always_shadowed = 0;
    options.similar.shadow_share = 0;
    for (SimilarTrials& trials : options.similar_model.calibrated) trials = {.trials = 1000};
  }

  float context = 0;  // how much of V depends on what stands before
  uint64_t rows_computed = 0;

  LookupRequest Similar(const Tokens& tokens, const Namespace& ns = {},
                        SimilarPolicy policy = SimilarPolicy::kOn) const {
    LookupRequest request = RequestOf(tokens, ns);
    request.similar = policy;
    return request;
  }
  Result<Running> TryStart(const LookupRequest& request, const Plan& plan) {
    auto sequence = cache->Begin(request, plan);
    if (!sequence.ok()) return sequence.status();
    Running run{.sequence = std::move(sequence).value(),
                .ns = request.ns,
                .tokens = Tokens(request.tokens.begin(), request.tokens.end()),
                .plan = plan};
    run.prompt = static_cast<uint32_t>(run.tokens.size());
    run.tainted = !run->computed_rows().empty();
    run.stored = request.store;
    return run;
  }
  Running Start(const LookupRequest& request) {
    auto run = TryStart(request, cache->Lookup(request));
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    return std::move(run).value();
  }
  Running Start(const Tokens& tokens, const Namespace& ns = {}) {
    return Start(Similar(tokens, ns));
  }

  // Runs up to `most` of the rows that are left, in order of position, as an engine does.
  void Compute(Running& run, uint32_t most = 1u << 30) {
    const auto size = static_cast<uint32_t>(run.tokens.size());
    const auto commit = [&](uint32_t end) {
      const uint32_t from = run.ready();
      run->Commit(std::span(run.tokens).subspan(from, end - from));
    };
    for (const Selection::Range& range : run->computed_rows()) {
      const uint32_t end = range.position + range.num_rows;
      const uint32_t from = std::max(range.position, run.ready());
      if (from >= end || most == 0) continue;
      const uint32_t count = std::min(most, end - from);
      for (uint32_t p = from; p < from + count; ++p) Write(run, p);
      commit(from + count);
      most -= count;
    }
    if (!run->computed_rows().empty() && run.ready() < run.prompt) return;
    const uint32_t count = std::min(most, size - run.ready());
    for (uint32_t p = run.ready(); p < run.ready() + count; ++p) Write(run, p);
    if (count > 0) commit(run.ready() + count);
  }
  Status Generate(Running& run, TokenId token) {
    const Status reserved = run->Reserve(run.ready() + 1);
    if (!reserved.ok()) return reserved;
    run.tokens.push_back(token);
    Compute(run);
    return Status::Ok();
  }
  Result<Running> Fork(Running& run, uint32_t num_tokens) {
    auto forked = run->Fork(num_tokens, 8);
    if (!forked.ok()) return forked.status();
    Running branch{.sequence = std::move(forked).value(),
                   .ns = run.ns,
                   .tokens = FirstOf(run.tokens, num_tokens),
                   .prompt = std::min(run.prompt, num_tokens),
                   .tainted = run.tainted,
                   .stored = run.stored};
    for (const auto& [position, mark] : run.own) {
      if (position < num_tokens) branch.own[position] = mark;
    }
    return branch;
  }
  // A whole request, accepted or fallen back.
  void ServeSimilar(const Tokens& tokens, const Namespace& ns = {}) {
    Running run = Start(tokens, ns);
    Compute(run);
    if (run.tainted) {
      ASSERT_EQ(run->CheckFirstToken(Certain(1)).action, Verdict::Action::kAccept);
    }
    ASSERT_EQ(WrongRows(run), "");
  }

  // Logits of a vocabulary of 100 that nearly all fall on one token.
  static std::vector<float> Certain(TokenId token) {
    std::vector<float> logits(100, 0.0f);
    logits[static_cast<size_t>(token)] = 12;
    return logits;
  }

  // What is wrong with the first ready row that is not what it must be; empty: nothing.
  std::string WrongRows(const Running& run) const {
    const SpanTable& table = run.sequence->table();
    uint32_t position = 0;
    for (const Span& span : table.spans) {
      if (span.position != position) return "a gap at " + std::to_string(position);
      for (uint32_t i = 0; i < span.num_rows; ++i, ++position) {
        if (position >= run.ready()) continue;
        const std::string wrong = WrongRow(run, span, position);
        if (!wrong.empty()) return "row " + std::to_string(position) + ": " + wrong;
      }
    }
    if (position != run.sequence->capacity()) return "spans end at " + std::to_string(position);
    return "";
  }
  // Of the ready rows, those that are somebody else's approximation or another prompt's.
  uint32_t BorrowedRows(const Running& run) const {
    uint32_t borrowed = 0;
    for (uint32_t p = 0; p < run.ready(); ++p) {
      const uint64_t mark = MarkAt(run, p);
      borrowed += mark != PrefixMark(run, p) && !run.own.contains(p);
    }
    return borrowed;
  }
  static uint64_t PrefixMark(const Running& run, uint32_t position) {
    std::vector<uint64_t>& marks = run.marks;
    while (marks.size() <= position) {
      const uint64_t before = marks.empty() ? std::hash<std::string>()(Key(run.ns)) : marks.back();
      marks.push_back(Mix(before, static_cast<uint64_t>(run.tokens[marks.size()])));
    }
    return marks[position];
  }

 private:
  struct ExactRow {
    std::string space;
    TokenId token = 0;
    uint32_t position = 0;
  };
  static std::string Key(const Namespace& ns) { return ns.tenant + "/" + ns.salt; }

  std::pair<BlockView, uint32_t> PlaceOf(const Running& run, uint32_t position) const {
    const SpanTable& table = run.sequence->table();
    for (const Span& span : table.spans) {
      if (position >= span.position + span.num_rows) continue;
      return PlaceIn(table, span, position);
    }
    ADD_FAILURE() << "no span has row " << position;
    return {};
  }
  std::pair<BlockView, uint32_t> PlaceIn(const SpanTable& table, const Span& span,
                                         uint32_t position) const {
    const uint32_t row = span.first_row + position - span.position;
    const uint32_t rows = options.shape.tokens_per_block;
    return {table.blocks[span.first_block + row / rows], row % rows};
  }

  void Write(Running& run, uint32_t position) {
    const TokenId token = run.tokens[position];
    uint64_t mark = ++last_mark_;
    if (run.tainted) {
      run.own[position] = mark;
    } else {
      mark = PrefixMark(run, position);
      if (run.stored) exact_[mark] = {Key(run.ns), token, position};
    }
    ++rows_computed;
    const auto [block, row] = PlaceOf(run, position);
    const KvShape& shape = options.shape;
    for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
        const auto place = KvRowOf(shape, block, layer, head, row);
        for (uint32_t d = 0; d < 4; ++d) {
          const auto k = static_cast<uint16_t>(mark >> (16 * d));
          std::memcpy(place.k + d * place.k_stride, &k, 2);
          const uint16_t v = ValueOf(token, mark, d);
          std::memcpy(place.v + d * 2, &v, 2);
        }
      }
    }
  }
  // In [1, 2) as F16; all of it depends on the token, or up to all of its bits on the context.
  uint16_t ValueOf(TokenId token, uint64_t mark, uint32_t d) const {
    const auto of_token = Mix(static_cast<uint64_t>(token), d) & 0x3ffu;
    const auto of_context = Mix(mark, d) & static_cast<uint64_t>(context * 0x3ff);
    return static_cast<uint16_t>(0x3c00u | (of_token ^ of_context));
  }
  uint64_t MarkOf(const BlockView& block, uint32_t row, uint32_t layer, uint32_t head) const {
    const auto place = KvRowOf(options.shape, block, layer, head, row);
    uint64_t mark = 0;
    for (uint32_t d = 0; d < 4; ++d) {
      uint16_t k;
      std::memcpy(&k, place.k + d * place.k_stride, 2);
      mark |= uint64_t{k} << (16 * d);
    }
    return mark;
  }
  uint64_t MarkAt(const Running& run, uint32_t position) const {
    const auto [block, row] = PlaceOf(run, position);
    return MarkOf(block, row, 0, 0);
  }

  std::string WrongRow(const Running& run, const Span& span, uint32_t position) const {
    const auto [block, row] = PlaceIn(run.sequence->table(), span, position);
    const uint64_t mark = MarkOf(block, row, 0, 0);
    const KvShape& shape = options.shape;
    for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
        if (MarkOf(block, row, layer, head) != mark) return "layers of different rows";
      }
    }
    if (const auto own = run.own.find(position); own != run.own.end()) {
      if (span.shift != 0) return "an own row is shifted";
      return mark == own->second ? "" : "not what this sequence wrote";
    }
    if (mark == PrefixMark(run, position)) {
      return span.shift == 0 ? "" : "an exact row is shifted";
    }
    if (!run.tainted) return "not exact";
    const auto lent = exact_.find(mark);
    if (lent == exact_.end()) return "no row that was stored";
    if (lent->second.space != Key(run.ns)) return "another namespace's row";
    if (lent->second.token != run.tokens[position]) return "another token's row";
    if (static_cast<int64_t>(lent->second.position) + span.shift != position) {
      return "shift " + std::to_string(span.shift) + " of the row at " +
             std::to_string(lent->second.position);
    }
    return "";
  }

  uint64_t last_mark_ = 0;
  std::map<uint64_t, ExactRow> exact_;
};

}  // namespace kvlink::link
