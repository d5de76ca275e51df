// Progress: how far a long operation is, on a stream for people (stderr).
//
// On a terminal a bar that redraws itself; otherwise a line at every tenth, so that a log stays
// short. Thread rule: one instance may be updated from several threads.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

namespace kvlink::cli {

class Progress {
 public:
  Progress(std::FILE* out, std::string label);
  Progress(std::FILE* out, std::string label, bool terminal);
  ~Progress();  // as Finish("")
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `fraction` in [0, 1]; never runs backwards. `note` stands behind the bar.
  void Update(double fraction, const std::string& note = "");
  void Finish(const std::string& note);
  // As Finish, but a terminal gets the line back as if nothing had been there.
  void Dismiss();

 private:
  void Draw(const std::string& note);

  std::FILE* out_;
  const std::string label_;
  const bool terminal_;
  std::mutex mutex_;
  double fraction_ = 0;
  int drawn_ = -1;  // percent on the screen
  bool finished_ = false;
};

}  // namespace kvlink::cli
