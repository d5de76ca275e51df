// CacheClient: asks a running `kvlink serve` about its cache, and to change it.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/bench_exchange.h"
#include "kvlink/status.h"

namespace kvlink::cli {

class CacheClient {
 public:
  using Json = nlohmann::ordered_json;

  // `api_key` empty: none.
  CacheClient(Url url, std::string api_key, std::chrono::milliseconds timeout)
      : url_(std::move(url)), api_key_(std::move(api_key)), timeout_(timeout) {}

  // The body of a 200. kUnavailable, kDeadlineExceeded: nobody answers. kInvalidArgument: the
  // server says that a value is wrong (400); kFailedPrecondition: it refuses for another reason,
  // which the message tells.
  Result<std::string> Get(const std::string& path) const;
  Result<Json> GetJson(const std::string& path) const;
  Result<Json> PostJson(const std::string& path, const Json& body) const;

  // All pages of GET /kvlink/blocks as one list, whose "next" is null.
  Result<Json> AllBlocks() const;

 private:
  Result<std::string> Ask(bool post, const std::string& path, const std::string& body) const;

  const Url url_;
  const std::string api_key_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace kvlink::cli
