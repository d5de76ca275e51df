// OpenApi: the document that describes this API (OpenAPI 3.1), as /openapi.json tells it. The text
// is openapi.json beside this file, compiled in.
#pragma once

#include <string>

namespace kvlink::server {

// With `version` as the version of the API.
std::string OpenApiDocument(const std::string& version);

}  // namespace kvlink::server
