// Input of a chat: lines from a terminal or a pipe, and SIGINT, which stops the answer under way
// or, a second time, ends.
//
//        question          first SIGINT                       second SIGINT
//   idle ---------> answering ---------> answer ends, idle ---------> the end
//     \___________________________________________________________/
//      a SIGINT while nothing runs counts as the first one, too; a new line starts the count again
//
// Threads: OnSignal from any, the rest from the one that reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace kvlink::cli {

class ChatInput {
 public:
  // Reads from `fd`, which stays the caller's.
  explicit ChatInput(int fd);
  ~ChatInput();
  ChatInput(const ChatInput&) = delete;
  ChatInput& operator=(const ChatInput&) = delete;

  enum class Kind : uint8_t { kLine, kEnd, kInterrupted, kQuit };
  struct Event {
    Kind kind = Kind::kEnd;
    std::string line;  // kLine: without its end, as whole UTF-8 characters
  };
  // kInterrupted: the first SIGINT; kQuit: the second one, or another signal.
  Event ReadLine();
  // All that is left.
  std::string ReadAll();

  // Around an answer. `stop()` becomes true when it is to end.
  void BeginAnswer();
  void EndAnswer();
  const std::atomic<bool>& stop() const { return stop_; }

  // SIGINT, SIGTERM, SIGHUP. A second one while an answer is being stopped ends the process at
  // once.
  void OnSignal(int number);
  // 128 and the signal that ended it; 0: none did.
  int exit_code() const { return exit_code_; }

 private:
  std::optional<Event> TakeSignal();
  std::optional<std::string> TakeLine();

  const int fd_;
  int wake_read_ = -1, wake_write_ = -1;  // a pipe: signals end the wait for a line
  std::string buffer_;
  bool at_end_ = false;

  std::mutex mutex_;
  bool answering_ = false;  // guarded by mutex_
  int interrupts_ = 0;      // in a row; guarded by mutex_
  bool reported_ = true;    // the last one; guarded by mutex_
  std::atomic<bool> stop_{false};
  std::atomic<int> exit_code_{0};
};

}  // namespace kvlink::cli
