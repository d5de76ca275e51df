// Access: who asks, and whether they may.
//
// A route names the right that it needs; Authorize answers the caller, or the refusal to send: 401
// for an unknown key, 403 for a known one without the right. Without keys everybody is the tenant
// "default" and has every right, which is why the server then belongs on the loopback interface.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/http.h"
#include "server/tenants.h"

namespace kvlink::server {

struct Caller {
  std::string key;                      // its name in the key file; empty: there are no keys
  std::string tenant = "default";       // for logs, lists and limits
  std::string scope = "default";        // Namespace::tenant: whose blocks the caller shares
  std::vector<std::string> own_scopes;  // others of the tenant's own; tenants.h
  TenantSettings settings;
  Rights rights = Rights::All();
  bool several_tenants = false;  // the server has others as well
};

// With Right::kNone nobody is refused, and nobody is told apart.
std::variant<Caller, ApiError> Authorize(const ApiKeys& keys, const HttpRequest& request,
                                         Right right);

}  // namespace kvlink::server
