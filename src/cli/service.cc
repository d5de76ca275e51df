#include "cli/service.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>

namespace kvlink::cli {

bool NotifyService(const std::string& state, const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool named = socket.size() > 1 && (socket[0] == '/' || socket[0] == '@');
  if (!named || socket.size() >= sizeof(address.sun_path)) return false;
  socket.copy(address.sun_path, socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const ssize_t sent = ::sendto(descriptor, state.data(), state.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), length);
  ::close(descriptor);
  return sent == static_cast<ssize_t>(state.size());
}

void NotifyService(const std::string& state) {
  const char* const socket = std::getenv("NOTIFY_SOCKET");
  if (socket != nullptr) (void)NotifyService(state, socket);
}

bool HangUpEnds() {
  struct sigaction inherited = {};
  if (::sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN) {
    return false;
  }
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return false;
  ::close(terminal);
  return true;
}

}  // namespace kvlink::cli
