#include "server/dump.h"

#include <nlohmann/json.hpp>

namespace kvlink::server {

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kvlink::server
