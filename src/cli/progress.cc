#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kvlink::cli {
namespace {
constexpr int kBarWidth = 30;
constexpr int kLineStepPercent = 10;
}  // namespace

Progress::Progress(std::FILE* out, std::string label)
    : Progress(out, std::move(label), isatty(fileno(out)) == 1) {}

Progress::Progress(std::FILE* out, std::string label, bool terminal)
    : out_(out), label_(std::move(label)), terminal_(terminal) {}

Progress::~Progress() { Finish(""); }

void Progress::Update(double fraction, const std::string& note) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  fraction_ = std::max(fraction_, std::clamp(fraction, 0.0, 1.0));
  const int percent = static_cast<int>(fraction_ * 100);
  const int step = terminal_ ? 1 : kLineStepPercent;
  if (drawn_ >= 0 && percent / step == drawn_ / step) return;
  drawn_ = percent;
  Draw(note);
}

void Progress::Finish(const std::string& note) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (drawn_ < 0 && note.empty()) return;
  if (!note.empty()) {
    fraction_ = 1;
    drawn_ = 100;
    Draw(note);
  }
  if (terminal_) std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::Dismiss() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true) || drawn_ < 0) return;
  if (terminal_) std::fputs("\r\033[K", out_);
  std::fflush(out_);
}

void Progress::Draw(const std::string& note) {
  if (!terminal_) {
    std::fprintf(out_, "%s: %d %%%s%s\n", label_.c_str(), drawn_, note.empty() ? "" : ", ",
                 note.c_str());
    return;
  }
  const int filled = static_cast<int>(fraction_ * kBarWidth);
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kBarWidth - filled), '.');
  // The escape clears what a longer note left behind.
  std::fprintf(out_, "\r%s [%s] %3d %% %s\033[K", label_.c_str(), bar.c_str(), drawn_,
               note.c_str());
  std::fflush(out_);
}

}  // namespace kvlink::cli
