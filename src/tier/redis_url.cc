// ParseRemoteUrl: redis://[[user]:password@]host[:port][,host[:port]...]
#include <charconv>
#include <optional>

#include "tier/remote_tier.h"

namespace kvlink::tier {
namespace {

Status Bad(const std::string& what) {
  return {StatusCode::kInvalidArgument,
          "remote tier: " + what + "; expected redis://[:password@]host[:port][,host[:port]...]"};
}

std::optional<unsigned char> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned char>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned char>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<unsigned char>(c - 'A' + 10);
  return std::nullopt;
}

// False when a % is not followed by two hexadecimal digits.
bool PercentDecode(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out->push_back(text[i]);
      continue;
    }
    if (text.size() - i < 3) return false;
    const auto high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (!high || !low) return false;
    out->push_back(static_cast<char>(*high << 4 | *low));
    i += 2;
  }
  return true;
}

Status ParseHost(std::string_view text, RemoteEndpoint* endpoint) {
  const std::string shown(text);
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return Bad("'" + shown + "' has no ']'");
    endpoint->host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const size_t colon = text.find(':');
    endpoint->host = text.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  }
  if (endpoint->host.empty()) return Bad("no host in '" + shown + "'");
  if (port.empty()) return {};
  uint32_t number = 0;
  const char* end = port.data() + port.size();
  const auto parsed = std::from_chars(port.data() + 1, end, number);
  if (port[0] != ':' || parsed.ec != std::errc() || parsed.ptr != end || number < 1 ||
      number > 65535) {
    return Bad("'" + shown + "' has no port between 1 and 65535");
  }
  endpoint->port = static_cast<uint16_t>(number);
  return {};
}

}  // namespace

Result<RemoteTierOptions> ParseRemoteUrl(std::string_view url) {
  RemoteTierOptions options;
  const size_t colon = url.find("://");
  const std::string_view scheme = url.substr(0, colon);
  if (colon == std::string_view::npos || (scheme != "redis" && scheme != "rediss")) {
    // The text may hold a password.
    return Bad("the URL starts with neither redis:// nor rediss://");
  }
  options.tls = scheme == "rediss";
  std::string_view rest = url.substr(colon + 3);
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = rest.substr(0, at);
    rest = rest.substr(at + 1);
    const size_t separator = login.find(':');
    if (separator == std::string_view::npos) {
      return Bad("there is no ':' before '@'");
    }
    if (!PercentDecode(login.substr(0, separator), &options.user) ||
        !PercentDecode(login.substr(separator + 1), &options.password)) {
      return Bad("a '%' in user or password is not followed by two hexadecimal digits");
    }
    if (options.password.empty()) return Bad("the password is empty");
  }
  for (const std::string_view end : {"/", "/0"}) {  // the database that there always is
    if (rest.ends_with(end)) rest.remove_suffix(end.size());
  }
  if (const size_t other = rest.find_first_of("/?#"); other != std::string_view::npos) {
    return Bad("'" + std::string(rest.substr(other)) + "' behind the hosts has no meaning");
  }
  for (;;) {
    const size_t comma = rest.find(',');
    RemoteEndpoint endpoint;
    if (Status status = ParseHost(rest.substr(0, comma), &endpoint); !status.ok()) return status;
    options.endpoints.push_back(std::move(endpoint));
    if (comma == std::string_view::npos) return options;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace kvlink::tier
