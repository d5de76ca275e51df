#include "cli/chat_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "engine/utf8_stream.h"

namespace kvlink::cli {
namespace {

constexpr int kSignalExit = 128;

// What a terminal or a file may give that is no UTF-8 becomes U+FFFD, as everywhere.
std::string CleanText(std::string_view bytes) {
  engine::Utf8Stream stream;
  std::string text = stream.Append(bytes);
  return text + stream.Flush();
}

}  // namespace

ChatInput::ChatInput(int fd) : fd_(fd) {
  int ends[2];
  KVLINK_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  wake_read_ = ends[0];
  wake_write_ = ends[1];
}

ChatInput::~ChatInput() {
  ::close(wake_read_);
  ::close(wake_write_);
}

ChatInput::Event ChatInput::ReadLine() {
  std::array<char, 4096> piece;
  while (true) {
    if (auto event = TakeSignal()) return *std::move(event);
    if (auto line = TakeLine()) {
      const std::lock_guard lock(mutex_);
      interrupts_ = 0;
      return {Kind::kLine, *std::move(line)};
    }
    if (at_end_) return {Kind::kEnd, ""};
    pollfd waits[] = {{fd_, POLLIN, 0}, {wake_read_, POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0) continue;  // EINTR
    if (waits[1].revents != 0) {
      while (::read(wake_read_, piece.data(), piece.size()) > 0) {
      }
      continue;
    }
    const ssize_t count = ::read(fd_, piece.data(), piece.size());
    if (count > 0) {
      buffer_.append(piece.data(), static_cast<size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      at_end_ = true;
    }
  }
}

std::string ChatInput::ReadAll() {
  std::string text;
  while (true) {
    Event event = ReadLine();
    if (event.kind != Kind::kLine) return text;
    text += (text.empty() ? "" : "\n") + event.line;
  }
}

std::optional<std::string> ChatInput::TakeLine() {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos && !(at_end_ && !buffer_.empty())) return std::nullopt;
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return CleanText(line);
}

std::optional<ChatInput::Event> ChatInput::TakeSignal() {
  const std::lock_guard lock(mutex_);
  if (exit_code_ != 0) return Event{Kind::kQuit, ""};
  if (std::exchange(reported_, true)) return std::nullopt;
  return Event{Kind::kInterrupted, ""};
}

void ChatInput::BeginAnswer() {
  const std::lock_guard lock(mutex_);
  answering_ = true;
  stop_ = exit_code_ != 0;
}

void ChatInput::EndAnswer() {
  const std::lock_guard lock(mutex_);
  answering_ = false;
}

void ChatInput::OnSignal(int number) {
  {
    const std::lock_guard lock(mutex_);
    const bool second = number != SIGINT || interrupts_ > 0;
    ++interrupts_;
    if (answering_) {
      if (stop_) ::_exit(kSignalExit + number);
      stop_ = true;
    } else {
      reported_ = false;
    }
    if (second) exit_code_ = kSignalExit + number;
  }
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(wake_write_, &byte, 1);
}

}  // namespace kvlink::cli
