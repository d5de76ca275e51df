// HttpText: the few pieces of HTTP that are written by hand: response heads, chunks, percent
// decoding.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "server/http.h"

namespace kvlink::server {

// Status line and headers. `length` nothing: chunked, or, without that, until the connection ends.
std::string Head(const HttpResponse& response, std::optional<size_t> length, bool keep_alive,
                 bool chunked);
std::string Chunk(const std::string& part);
// Broken escapes stay as they are.
std::string PercentDecode(const std::string& text);

}  // namespace kvlink::server
