#include "kernel/attention_observer.h"

#include <algorithm>
#include <string>

namespace kvlink::kernel {
namespace {

Status Invalid(const ObservedRows& rows, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, "attention: observed rows " +
                                                  std::to_string(rows.first_row) + " + " +
                                                  std::to_string(rows.num_rows) + ": " + why);
}

const SequenceRows* SequenceOf(const BatchRows& rows, uint32_t row) {
  for (const SequenceRows& sequence : rows.sequences()) {
    const auto is_row = [row](const Query& query) { return query.row == row; };
    if (std::ranges::any_of(sequence.queries, is_row)) return &sequence;
  }
  return nullptr;
}

}  // namespace

Status AttentionObserver::Begin(const BatchRows& rows, std::span<const ObservedRows> observed) {
  groups_.clear();
  for (const ObservedRows& run : observed) {
    if (run.num_rows == 0 || run.received == nullptr) return Invalid(run, "nothing to observe");
    if (uint64_t{run.first_row} + run.num_rows > rows.num_rows()) {
      return Invalid(run, "the batch has " + std::to_string(rows.num_rows()) + " rows");
    }
    const SequenceRows* sequence = SequenceOf(rows, run.first_row);
    std::vector<Query> queries;
    for (const Query& query : sequence->queries) {
      if (query.row - run.first_row < run.num_rows) queries.push_back(query);
    }
    if (queries.size() != run.num_rows) return Invalid(run, "they are of several sequences");
    for (size_t i = 0; i < queries.size(); i++) {
      if (queries[i].row != run.first_row + i) return Invalid(run, "not in order of position");
    }
    for (size_t first = 0; first < queries.size(); first += max_queries_) {
      const size_t count = std::min<size_t>(max_queries_, queries.size() - first);
      AddGroup(sequence->table, std::span(queries).subspan(first, count), run.received);
    }
  }
  return Status::Ok();
}

void AttentionObserver::AddGroup(const SpanTable* table, std::span<const Query> queries,
                                 float* received) {
  Group group;
  group.queries.assign(queries.begin(), queries.end());
  group.received = received;
  group.sums.assign(group.length() * shape_.num_kv_heads, 0.0f);
  group.tile.table = table;
  group.tile.num_queries = static_cast<uint32_t>(queries.size());
  group.tile.chunk_end = (queries.back().limit + kChunkTokens - 1) / kChunkTokens;
  groups_.push_back(std::move(group));
}

void AttentionObserver::Take() {
  const float share =
      1.0f / static_cast<float>(shape_.num_layers * shape_.num_kv_heads * heads_per_kv_);
  for (const Group& group : groups_) {
    for (size_t p = 0; p < group.length(); p++) {
      float sum = 0;
      for (size_t head = 0; head < shape_.num_kv_heads; head++) {
        sum += group.sums[head * group.length() + p];
      }
      group.received[p] += sum * share;
    }
  }
  groups_.clear();
}

}  // namespace kvlink::kernel
