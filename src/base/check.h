// KVLINK_CHECK: an invariant of our own. When it does not hold, the process prints what and where,
// and aborts.
//
//   KVLINK_CHECK(used <= total) << "page " << page;
//
// It is for our mistakes only: nothing that a file, a socket or a client sends may reach it (that
// is a Status). KVLINK_DCHECK is compiled in debug builds (KVLINK_DEBUG) and costs nothing
// otherwise.
#pragma once

#include <ostream>
#include <sstream>

namespace kvlink::base {

// Collects the message and aborts in its destructor.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// Gives both sides of the ?: below the type void; & binds weaker than << and stronger than ?:.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace kvlink::base

#define KVLINK_CHECK(condition)                     \
  __builtin_expect(static_cast<bool>(condition), 1) \
      ? static_cast<void>(0)                        \
      : ::kvlink::base::Voidify() &                 \
            ::kvlink::base::CheckFailure(__FILE__, __LINE__, #condition).stream()

#ifdef KVLINK_DEBUG
#define KVLINK_DCHECK(condition) KVLINK_CHECK(condition)
#else
#define KVLINK_DCHECK(condition) KVLINK_CHECK(true || (condition))
#endif
