// The routes of Api that show the cache's blocks.
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "server/api.h"
#include "server/blocks.h"

namespace kvlink::server {
namespace {

std::chrono::milliseconds Since(std::chrono::steady_clock::time_point then,
                                std::chrono::steady_clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now - then);
}

// Without keys there is one tenant, and nothing is hidden from it.
BlockFilter FilterOf(const Caller& caller) {
  return {.tenant = caller.scope, .everybody = caller.key.empty()};
}

// Other people's prompts stand in a tenant's blocks, and other tenants' in a group's.
std::string WhyNoText(const Caller& caller) {
  if (!caller.rights.Has(Right::kAdmin)) {
    return "the API key \"" + caller.key + "\" has no right \"" + RightName(Right::kAdmin) + "\"";
  }
  if (caller.settings.sharing == TenantSharing::kGroup && !caller.settings.sensitive) {
    return "these blocks are the group's \"" + caller.settings.group +
           "\", and may hold prompts of other tenants";
  }
  return "";
}

}  // namespace

void Api::ListBlocks(Call call) {
  const auto parsed = ParseBlocksQuery(call.request.query);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  const BlocksQuery& query = std::get<BlocksQuery>(parsed);
  const auto now = calls_.clock()();
  const std::string reader = call.caller.scope;
  if (query.cursor.list == 0) {
    BlockPages::Kept kept{0, reader, now, nullptr};
    BlockList list = engine_.cache().ListBlocks(FilterOf(call.caller));
    if (list.blocks.size() > query.limit) {  // there will be more pages
      kept = block_pages_.Keep(reader, std::move(list), now);
    } else {
      kept.list = std::make_shared<const BlockList>(std::move(list));
    }
    return Answer(call, BlocksAnswer(kept, query, std::chrono::milliseconds(0)));
  }
  const auto kept = block_pages_.Find(query.cursor.list, reader, now);
  if (!kept) {
    return Refuse(call, {410,
                         "the list that this cursor is of is over a minute old, or newer ones took "
                         "its place: begin again without a cursor",
                         "cursor", "list_expired"});
  }
  Answer(call, BlocksAnswer(*kept, query, Since(kept->taken, now)));
}

void Api::ShowBlock(Call call) {
  const std::string id = call.request.path.substr(std::string("/kvlink/blocks/").size());
  const auto parsed = ParseShowBlock(id, call.request.query);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return Refuse(call, *error);
  const ShowBlockQuery& query = std::get<ShowBlockQuery>(parsed);
  const auto shown = engine_.cache().ShowBlock(query.id, query.last, FilterOf(call.caller));
  if (!shown.ok()) return Refuse(call, {404, shown.status().message(), "id", "no_such_block"});
  Answer(call, ShowBlockAnswer(*shown, tokenizer_, WhyNoText(call.caller)));
}

}  // namespace kvlink::server
