#include "server/request_trace.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace kvlink::server {
namespace {

constexpr size_t kTraceIdDigits = 32, kSpanIdDigits = 16;
constexpr size_t kTraceparentSize = 2 + 1 + kTraceIdDigits + 1 + kSpanIdDigits + 1 + 2;
constexpr uint8_t kKnownFlags = 1;  // sampled
constexpr size_t kMostMembers = 32, kMostKeyBytes = 256, kMostValueBytes = 256;
constexpr size_t kMostStateBytes = 8192, kMostRequestIdBytes = 128;

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f'); }
bool IsHex(std::string_view text) { return std::ranges::all_of(text, IsHexDigit); }
bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

uint8_t HexByte(std::string_view text) {
  const auto digit = [](char c) { return IsDigit(c) ? c - '0' : c - 'a' + 10; };
  return static_cast<uint8_t>(digit(text[0]) * 16 + digit(text[1]));
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// key = (letter / digit) *255(letter / digit / "_" / "-" / "*" / "/" / "@"); at most one "@". A
// digit in front is what tenants' keys and Level 2 permit.
bool IsStateKey(std::string_view key) {
  if (key.empty() || key.size() > kMostKeyBytes) return false;
  if (!IsLower(key[0]) && !IsDigit(key[0])) return false;
  if (std::ranges::count(key, '@') > 1 || key.ends_with('@')) return false;
  return std::ranges::all_of(key, [](char c) {
    return IsLower(c) || IsDigit(c) || std::string_view("_-*/@").find(c) != std::string_view::npos;
  });
}

// Printable ASCII but "," and "=", no space at the end.
bool IsStateValue(std::string_view value) {
  if (value.empty() || value.size() > kMostValueBytes || value.ends_with(' ')) return false;
  return std::ranges::all_of(value,
                             [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

}  // namespace

std::string TraceContext::FlagsText() const {
  char text[3];
  std::snprintf(text, sizeof(text), "%02x", flags);
  return text;
}

std::string TraceContext::Response() const {
  return "00-" + trace_id + "-" + span_id + "-" + FlagsText();
}

bool IsTraceState(std::string_view text) {
  if (text.size() > kMostStateBytes) return false;
  std::set<std::string_view> keys;
  size_t members = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view member = Trim(text.substr(begin, end - begin));
    begin = end + 1;
    if (member.empty()) continue;  // permitted, so that headers can be joined
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos || ++members > kMostMembers) return false;
    const std::string_view key = member.substr(0, equals);
    if (!IsStateKey(key) || !IsStateValue(member.substr(equals + 1))) return false;
    if (!keys.insert(key).second) return false;
  }
  return members > 0;
}

std::optional<TraceContext> ParseTraceContext(std::string_view traceparent,
                                              std::string_view tracestate, uint64_t random) {
  const std::string_view text = Trim(traceparent);
  if (text.size() < kTraceparentSize) return std::nullopt;
  const std::string_view version = text.substr(0, 2);
  // Later versions may add fields behind those of version 00, and are read as it.
  if (!IsHex(version) || version == "ff") return std::nullopt;
  if (version == "00" && text.size() != kTraceparentSize) return std::nullopt;
  if (text.size() > kTraceparentSize && text[kTraceparentSize] != '-') return std::nullopt;
  const std::string_view trace = text.substr(3, kTraceIdDigits);
  const std::string_view parent = text.substr(4 + kTraceIdDigits, kSpanIdDigits);
  const std::string_view flags = text.substr(kTraceparentSize - 2, 2);
  if (text[2] != '-' || text[3 + kTraceIdDigits] != '-' || text[kTraceparentSize - 3] != '-') {
    return std::nullopt;
  }
  if (!IsHex(trace) || !IsHex(parent) || !IsHex(flags)) return std::nullopt;
  if (IsZero(trace) || IsZero(parent)) return std::nullopt;
  TraceContext context;
  context.trace_id = trace;
  context.parent_id = parent;
  context.flags = HexByte(flags) & kKnownFlags;
  char span[kSpanIdDigits + 1];
  std::snprintf(span, sizeof(span), "%016llx",
                static_cast<unsigned long long>(random == 0 ? 1 : random));
  context.span_id = span;
  if (IsTraceState(tracestate)) context.state = Trim(tracestate);
  return context;
}

bool IsRequestId(std::string_view text) {
  if (text.empty() || text.size() > kMostRequestIdBytes) return false;
  return std::ranges::all_of(text, [](char c) {
    return IsLower(c) || IsDigit(c) || (c >= 'A' && c <= 'Z') ||
           std::string_view("._-:/+=@~").find(c) != std::string_view::npos;
  });
}

}  // namespace kvlink::server
