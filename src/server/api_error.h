// ApiError: a refused request in OpenAI's form, {"error": {message, type, param, code}}.
#pragma once

#include <string>

#include "kvlink/status.h"
#include "server/http.h"

namespace kvlink::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;      // the field at fault, empty: none
  std::string code;       // empty: null
  int retry_after_s = 0;  // of 429 and 503: Retry-After; 0: not known
  std::string allow;      // of 405: the methods that the path takes
};

// The JSON object of an error; `type` follows from the status.
std::string ErrorBody(const ApiError& error);
// The same as an answer, with the headers that belong to the status (Retry-After, Allow,
// WWW-Authenticate).
HttpResponse ErrorResponse(const ApiError& error);
// How a Status of the engine is told to a client.
ApiError FromStatus(const Status& status);

}  // namespace kvlink::server
