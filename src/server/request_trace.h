// RequestTrace: what names a request in headers and in the log: an id of the client's, and its
// place in a distributed trace as W3C Trace Context (Level 1) has it.
//
//   traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//                version, trace id, the caller's span, flags (1: sampled)
//   tracestate:  vendor=value,vendor=value
//
// A header that breaks its grammar counts as absent, as the specification asks: a trace is never a
// reason to refuse a request. `traceparent` is a header of requests; an answer says which span
// stood for it in `traceresponse` (same form), and only to who sent a valid `traceparent`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvlink::server {

struct TraceContext {
  std::string trace_id;   // 32 hex digits
  std::string parent_id;  // 16: the caller's span
  std::string span_id;    // 16: this request's own
  uint8_t flags = 0;      // those that version 00 knows
  std::string state;      // tracestate; empty: none, or not a valid one

  std::string Response() const;   // the value of traceresponse
  std::string FlagsText() const;  // "01"
};

// Nothing: `traceparent` is no valid header of version 00, nor of a later one that begins alike.
// `random` gives the new span; `tracestate` is all such headers, joined with commas.
std::optional<TraceContext> ParseTraceContext(std::string_view traceparent,
                                              std::string_view tracestate, uint64_t random);

// At most 32 members `key=value`, keys unique (W3C Trace Context, section 3.3).
bool IsTraceState(std::string_view text);

// Whether a client's X-Request-Id can stand in headers and log lines as it is: 1 to 128 of letters,
// digits and . _ - : / + = @ ~
bool IsRequestId(std::string_view text);

}  // namespace kvlink::server
