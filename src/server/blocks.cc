#include "server/blocks.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "server/dump.h"

#include "base/hash.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

template <typename Number>
bool ReadNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

std::string Quoted(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

ApiError BadNumber(const char* name, std::string_view seen, uint32_t most) {
  return {400,
          std::string(name) + " must be a whole number from 1 to " + std::to_string(most) +
              ", not " + Quoted(seen),
          name, ""};
}

// Calls take(name, value) for each part of a query until it answers an error.
template <typename Take>
std::optional<ApiError> ForParameters(std::string_view query, Take take) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view value = part.substr(std::min(equals + 1, part.size()));
    if (auto error = take(part.substr(0, equals), value)) return error;
  }
  return std::nullopt;
}

ApiError UnknownParameter(std::string_view name) {
  return {400, "there is no parameter " + Quoted(name) + " here", std::string(name.substr(0, 80)),
          ""};
}

// "7.1000": list 7 from its block 1000 on.
bool ReadCursor(std::string_view text, BlocksQuery::Cursor* cursor) {
  const size_t point = text.find('.');
  return point != std::string_view::npos && ReadNumber(text.substr(0, point), &cursor->list) &&
         ReadNumber(text.substr(point + 1), &cursor->offset) && cursor->list > 0;
}

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) * 1e-3; }

// Ten thousand blocks at a time: objects of the JSON library would take longer than all the rest.
class BlockWriter {
 public:
  explicit BlockWriter(const BlockList& list) : list_(list) {
    for (const BlockList::Space& space : list.spaces) {
      const Json tenant = space.tenant.empty() ? Json(nullptr) : Json(space.tenant);
      spaces_.push_back(R"("tenant":)" + Dump(tenant) + R"(,"salt":)" + SaltText(space.salt));
    }
    for (uint32_t set = 0; set < (1u << std::min<size_t>(list.tiers.size(), 5)); ++set) {
      Json names = Json::array();
      for (size_t t = 0; t < list.tiers.size(); ++t) {
        if ((set >> t & 1) != 0) names.push_back(list.tiers[t]);
      }
      tier_sets_.push_back(Dump(names));
    }
  }

  void Append(const ListedBlock& block, std::string* out) const {
    const uint32_t position = block.depth * list_.tokens_per_block;
    *out += '{';
    Number("id", block.id, out);
    Reference("parent", block.parent, out);
    Reference("base", block.base, out);
    Text("kind", BlockKindName(block.kind), out);
    *out += spaces_[block.space] + ",";
    Number("position", position, out);
    Number("tokens", block.rows, out);
    Number("length", position + block.rows, out);
    Number("bytes", list_.BytesOf(block), out);
    Number("children", block.children, out);
    Number("references", block.children + block.differences, out);
    Number("users", block.users, out);
    Number("uses", block.uses, out);
    Text("state", block.users > 0 ? "in_use" : "cached", out);
    // As eviction sees it: what several requests used stays when one-off prompts come.
    Flag("hot", block.users > 0 || block.uses > 1, out);
    Flag("tainted", block.tainted, out);
    Reference("writer", block.writer, out);
    *out += R"("tiers":)" + tier_sets_[block.tiers & (tier_sets_.size() - 1)] + ",";
    Time("pinned_s", block.pinned_for, block.pinned_for.count() > 0, out);
    Time("age_s", block.age, true, out);
    Time("idle_s", block.idle, true, out);
    out->back() = '}';
  }

 private:
  // As in /kvlink/requests: which of a tenant's salts, not the salt.
  static std::string SaltText(const std::string& salt) {
    if (salt.empty()) return "null";
    char text[24];
    std::snprintf(text, sizeof text, "\"%016llx\"",
                  static_cast<unsigned long long>(std::max<uint64_t>(base::Hash64(salt), 1)));
    return text;
  }
  static void Name(const char* name, std::string* out) {
    *out += '"';
    *out += name;
    *out += "\":";
  }
  static void Number(const char* name, uint64_t value, std::string* out) {
    Name(name, out);
    *out += std::to_string(value) + ",";
  }
  static void Reference(const char* name, uint64_t id, std::string* out) {
    Name(name, out);
    *out += (id == 0 ? "null" : std::to_string(id)) + ",";
  }
  static void Text(const char* name, const char* value, std::string* out) {
    Name(name, out);
    *out += '"';
    *out += value;
    *out += "\",";
  }
  static void Flag(const char* name, bool value, std::string* out) {
    Name(name, out);
    *out += value ? "true," : "false,";
  }
  static void Time(const char* name, std::chrono::milliseconds time, bool is_there,
                   std::string* out) {
    Name(name, out);
    char text[32];
    std::snprintf(text, sizeof text, "%.3f,", Seconds(time));
    *out += is_there ? text : "null,";
  }

  const BlockList& list_;
  std::vector<std::string> spaces_;     // members of the object
  std::vector<std::string> tier_sets_;  // by the bits of ListedBlock::tiers
};

}  // namespace

BlockPages::Kept BlockPages::Keep(std::string reader, BlockList list, TimePoint now) {
  Kept kept{0, std::move(reader), now, std::make_shared<const BlockList>(std::move(list))};
  const std::lock_guard lock(mutex_);
  kept.number = ++last_number_;
  while (!lists_.empty() &&
         (lists_.size() >= kMostLists || now - lists_.front().taken > kKeptFor)) {
    lists_.pop_front();
  }
  lists_.push_back(kept);
  return kept;
}

std::optional<BlockPages::Kept> BlockPages::Find(uint64_t number, const std::string& reader,
                                                 TimePoint now) {
  const std::lock_guard lock(mutex_);
  for (const Kept& kept : lists_) {
    if (kept.number == number && kept.reader == reader && now - kept.taken <= kKeptFor) return kept;
  }
  return std::nullopt;
}

Parsed<BlocksQuery> ParseBlocksQuery(const std::string& query) {
  BlocksQuery out;
  const auto error = ForParameters(
      query, [&](std::string_view name, std::string_view value) -> std::optional<ApiError> {
        if (name == "limit") {
          const bool is_good = ReadNumber(value, &out.limit) && out.limit >= 1 &&
                               out.limit <= BlocksQuery::kMostLimit;
          if (!is_good) return BadNumber("limit", value, BlocksQuery::kMostLimit);
          return std::nullopt;
        }
        if (name != "cursor") return UnknownParameter(name);
        if (ReadCursor(value, &out.cursor)) return std::nullopt;
        return ApiError{400, "cursor must be one that a list's \"next\" said, not " + Quoted(value),
                        "cursor", ""};
      });
  if (error) return *error;
  return out;
}

Parsed<ShowBlockQuery> ParseShowBlock(const std::string& id, const std::string& query) {
  ShowBlockQuery out;
  if (!ReadNumber(id, &out.id) || out.id == 0) {
    return ApiError{400, "a block's id is a whole number from 1 on, not " + Quoted(id), "id", ""};
  }
  const auto error = ForParameters(
      query, [&](std::string_view name, std::string_view value) -> std::optional<ApiError> {
        if (name != "last") return UnknownParameter(name);
        const bool is_good =
            ReadNumber(value, &out.last) && out.last >= 1 && out.last <= ShowBlockQuery::kMostLast;
        if (!is_good) return BadNumber("last", value, ShowBlockQuery::kMostLast);
        return std::nullopt;
      });
  if (error) return *error;
  return out;
}

std::string BlocksAnswer(const BlockPages::Kept& kept, const BlocksQuery& query,
                         std::chrono::milliseconds age) {
  const BlockList& list = *kept.list;
  const BlockWriter writer(list);
  const size_t first = std::min(query.cursor.offset, list.blocks.size());
  const size_t end = std::min(first + query.limit, list.blocks.size());
  const Json next = end < list.blocks.size()
                        ? Json(std::to_string(kept.number) + "." + std::to_string(end))
                        : Json(nullptr);
  const Json head = {{"object", "list"},
                     {"tokens_per_block", list.tokens_per_block},
                     {"page_bytes", list.page_bytes},
                     {"total", list.blocks.size()},
                     {"first", first},
                     {"next", next},
                     {"taken_s_ago", Seconds(age)},
                     {"data", Json::array()}};
  std::string out = Dump(head);
  out.resize(out.size() - 2);  // "]}"
  out.reserve(out.size() + (end - first) * 400);
  for (size_t i = first; i < end; ++i) {
    if (i > first) out += ',';
    writer.Append(list.blocks[i], &out);
  }
  out += "]}";
  return out;
}

std::string ShowBlockAnswer(const ShownBlocks& shown, const model::Tokenizer& tokenizer,
                            const std::string& withheld) {
  std::string block;
  BlockWriter(shown.list).Append(shown.list.blocks.back(), &block);
  Json rest = {{"chain", Json::array()},
               {"text", nullptr},
               {"text_withheld", withheld.empty() ? Json(nullptr) : Json(withheld)}};
  for (const ListedBlock& of_chain : shown.list.blocks) rest["chain"].push_back(of_chain.id);
  if (withheld.empty() && !shown.tokens.empty()) {
    rest["text"] = tokenizer.Decode(shown.tokens, true);
  }
  block.back() = ',';
  return R"({"object":"kvlink.block",)" + block.substr(1) + Dump(rest).substr(1);
}

}  // namespace kvlink::server
