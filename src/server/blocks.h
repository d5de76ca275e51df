// Blocks: what GET /kvlink/blocks and GET /kvlink/blocks/ID are asked, and what they answer.
//
// A list is one look at the cache, taken at once and told in pages: the first page's answer names
// the next by a cursor into the same look, which is kept for a minute. So a list of many pages is
// as consistent as one page, however the cache changes meanwhile. Who asks sees the blocks of the
// own tenant; without API keys there is one tenant, and everything is seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "kvlink/block_list.h"
#include "server/api_error.h"
#include "server/api_request.h"

namespace kvlink::server {

// A few lists that somebody reads page by page. Thread-safe.
class BlockPages {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kMostLists = 4;  // the oldest goes first
  static constexpr std::chrono::seconds kKeptFor{60};

  struct Kept {
    uint64_t number = 0;
    std::string reader;  // who may read on
    TimePoint taken;
    std::shared_ptr<const BlockList> list;
  };

  Kept Keep(std::string reader, BlockList list, TimePoint now);
  // Nothing: it is over a minute old, was pushed out by newer ones, or is another reader's.
  std::optional<Kept> Find(uint64_t number, const std::string& reader, TimePoint now);

 private:
  std::mutex mutex_;
  std::deque<Kept> lists_;  // guarded by mutex_; the oldest first
  uint64_t last_number_ = 0;
};

struct BlocksQuery {
  struct Cursor {
    uint64_t list = 0;  // 0: a new one
    size_t offset = 0;
  };
  static constexpr uint32_t kDefaultLimit = 1000, kMostLimit = 10000;
  uint32_t limit = kDefaultLimit;
  Cursor cursor;
};
// `limit` 1 to 10,000 and `cursor`, of a URL's query.
Parsed<BlocksQuery> ParseBlocksQuery(const std::string& query);

struct ShowBlockQuery {
  static constexpr uint32_t kMostLast = 256;
  uint64_t id = 0;
  uint32_t last = 1;  // so many blocks that end in this one
};
// `id` as of a list; `last` 1 to 256, of the query.
Parsed<ShowBlockQuery> ParseShowBlock(const std::string& id, const std::string& query);

// JSON objects. `age`: of the list.
std::string BlocksAnswer(const BlockPages::Kept& kept, const BlocksQuery& query,
                         std::chrono::milliseconds age);
// `withheld`: why the text is not told; empty: it is.
std::string ShowBlockAnswer(const ShownBlocks& shown, const model::Tokenizer& tokenizer,
                            const std::string& withheld);

}  // namespace kvlink::server
