#include "server/access.h"

namespace kvlink::server {

std::variant<Caller, ApiError> Authorize(const ApiKeys& keys, const HttpRequest& request,
                                         Right right) {
  if (keys.empty() || right == Right::kNone) return Caller{};
  const ApiKeys::Key* key = keys.Find(request.authorization);
  if (key == nullptr) {
    return ApiError{401,
                    request.authorization.empty()
                        ? "an API key is needed: Authorization: Bearer KEY"
                        : "the API key is not known",
                    "", "invalid_api_key"};
  }
  if (!key->rights.Has(right)) {
    return ApiError{403,
                    "the API key \"" + key->name + "\" has no right \"" + RightName(right) + "\"",
                    "", "missing_right"};
  }
  Caller caller;
  caller.key = key->name;
  caller.tenant = key->tenant;
  caller.settings = keys.SettingsOf(key->tenant);
  caller.scope = ScopeOf(caller.tenant, caller.settings);
  caller.own_scopes = OwnScopes(caller.tenant, caller.scope);
  caller.rights = key->rights;
  caller.several_tenants = keys.num_tenants() > 1;
  return caller;
}

}  // namespace kvlink::server
