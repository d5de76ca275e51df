#include "server/api_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvlink::server {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

std::string ErrorBody(const ApiError& error) {
  const nlohmann::json body = {{"error",
                                {{"message", error.message},
                                 {"type", TypeOf(error.status)},
                                 {"param", OrNull(error.param)},
                                 {"code", OrNull(error.code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorBody(error);
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", std::to_string(std::max(error.retry_after_s, 1)));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
  return response;
}

ApiError FromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
      return {400, status.message(), "", ""};
    case StatusCode::kNotFound:
      return {404, status.message(), "", ""};
    case StatusCode::kResourceExhausted:
      return {429, status.message(), "", "queue_full"};
    case StatusCode::kQuotaExhausted:
      return {429, status.message(), "", "tenant_cache_bytes"};
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      return {503, status.message(), "", ""};
    case StatusCode::kDeadlineExceeded:
      return {504, status.message(), "", "deadline_exceeded"};
    default:
      return {500, status.message(), "", ""};
  }
}

}  // namespace kvlink::server
