// CacheClient: asks a running `kvlink serve` about its cache, and to change it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/http_client.h"
#include "kvlink/status.h"

namespace kvlink::cli {

class CacheClient {
 public:
  using Json = nlohmann::ordered_json;

  explicit CacheClient(HttpClient http) : http_(std::move(http)) {}

  // The body of a 200. kUnavailable, kDeadlineExceeded: nobody answers. kInvalidArgument: the
  // server says that a value is wrong (400); kFailedPrecondition: it refuses for another reason,
  // which the message tells.
  Result<std::string> Get(const std::string& path) const;
  Result<Json> GetJson(const std::string& path) const;
  Result<Json> PostJson(const std::string& path, const Json& body) const;

  // All pages of GET /kvlink/blocks as one list, whose "next" is null.
  Result<Json> AllBlocks() const;

 private:
  Result<std::string> BodyOf(const std::string& path, Result<HttpAnswer> answer) const;

  const HttpClient http_;
};

}  // namespace kvlink::cli
