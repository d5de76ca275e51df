#include "cli/cache_client.h"

#include <utility>

#include "server/dump.h"

namespace kvlink::cli {
namespace {

using Json = CacheClient::Json;

constexpr int kMostLists = 3;  // a list that expired while it was read is begun again

// What the server says is wrong.
Status Refused(int status, const std::string& path, const std::string& body, bool has_key) {
  const Json object = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message = path + " answers HTTP " + std::to_string(status) +
                        "; it takes a `kvlink serve` of this version";
  if (object.is_object() && object.contains("error") && object["error"].is_object()) {
    message = object["error"].value("message", message);
  }
  if (status == 401) message += has_key ? " (--api-key)" : ": give --api-key";
  if (status == 400) return {StatusCode::kInvalidArgument, message};
  return {StatusCode::kFailedPrecondition, message};
}

Result<Json> Parse(const std::string& path, const Result<std::string>& body) {
  if (!body.ok()) return body.status();
  Json json = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Status(StatusCode::kDataLoss, "--url: " + path + " answers no JSON object");
  }
  return json;
}

}  // namespace

Result<std::string> CacheClient::BodyOf(const std::string& path, Result<HttpAnswer> answer) const {
  if (!answer.ok()) return Status(answer.status().code(), "--url: " + answer.status().message());
  if (answer->status == 200) return std::move(answer->body);
  return Refused(answer->status, path, answer->body, http_.has_key());
}

Result<std::string> CacheClient::Get(const std::string& path) const {
  return BodyOf(path, http_.Get(path));
}

Result<Json> CacheClient::GetJson(const std::string& path) const { return Parse(path, Get(path)); }

Result<Json> CacheClient::PostJson(const std::string& path, const Json& body) const {
  return Parse(path, BodyOf(path, http_.Post(path, server::Dump(body))));
}

Result<Json> CacheClient::AllBlocks() const {
  const auto get_page = [this](const std::string& cursor) -> Result<Json> {
    auto page = GetJson("/kvlink/blocks?limit=10000" + cursor);
    if (!page.ok()) return page;
    const bool is_list = page->contains("data") && (*page)["data"].is_array();
    if (!is_list) return Status(StatusCode::kDataLoss, "--url: this is no list of blocks");
    return page;
  };
  auto list = get_page("");
  for (int lists = 1; list.ok() && (*list)["next"].is_string();) {
    auto page = get_page("&cursor=" + (*list)["next"].get<std::string>());
    if (!page.ok()) {
      if (++lists > kMostLists) return page;
      list = get_page("");
      continue;
    }
    for (Json& block : (*page)["data"]) (*list)["data"].push_back(std::move(block));
    (*list)["next"] = (*page)["next"];
  }
  return list;
}

}  // namespace kvlink::cli
