// Dump: JSON as the server writes it: on one line, keys in their order, and U+FFFD for bytes that
// are no UTF-8, as a model may generate them. In one place, for what the JSON library makes of it
// is long to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvlink::server {

std::string Dump(const nlohmann::ordered_json& json);

}  // namespace kvlink::server
