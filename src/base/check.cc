#include "base/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvlink::base {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  message_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  message_ << "\n";
  const std::string text = message_.str();
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvlink::base
