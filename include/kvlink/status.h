// Status and Result: how every room reports bad input, an exhausted budget, corrupt bytes or a dead
// peer.
//
// A Status carries a code and a message that says what, where and the value seen. A miss, a
// rejected reuse or a cold tier is *not* an error: it is a smaller plan, counted by reason. A
// broken invariant of ours is KVLINK_CHECK. No exception crosses a room.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace kvlink {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's value cannot be used
  kNotFound,            // no such file, model, id
  kResourceExhausted,   // a budget (pages, queue, pins) is full; retrying later may work
  kFailedPrecondition,  // valid, but not in this state
  kUnimplemented,       // known, but not supported here
  kUnavailable,         // a peer or a device did not answer
  kDeadlineExceeded,
  kCancelled,
  kDataLoss,  // bytes are corrupt
  kInternal,
  kQuotaExhausted,  // a tenant's own budget is full; others are not concerned
};

const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const { return std::string(StatusCodeName(code_)) + ": " + message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Either a value or a Status that is not ok.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: a value is a Result
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: an error is a Result
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

inline const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kUnimplemented:
      return "not supported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kInternal:
      return "internal";
    case StatusCode::kQuotaExhausted:
      return "quota exhausted";
  }
  return "unknown";
}

}  // namespace kvlink
