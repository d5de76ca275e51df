#include "cli/service.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

namespace kvlink::cli {
namespace {

// The end of the protocol that systemd has.
class Listener {
 public:
  explicit Listener(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    descriptor_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bound_ = ::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())) == 0;
  }
  ~Listener() { ::close(descriptor_); }
  bool bound() const { return bound_; }
  // What has arrived, or "" when nothing has.
  std::string Next() {
    char text[256];
    const ssize_t size = ::recv(descriptor_, text, sizeof(text), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  int descriptor_ = -1;
  bool bound_ = false;
};

class NotifyServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/kvlink-service-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/notify";
  }
  void TearDown() override {
    ::unsetenv("NOTIFY_SOCKET");
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  std::string folder_, path_;
};

TEST_F(NotifyServiceTest, AStateArrivesAtAPathAndAtAnAbstractName) {
  const std::string abstract = "@" + path_;
  for (const std::string& name : {path_, abstract}) {
    Listener listener(name);
    ASSERT_TRUE(listener.bound()) << name;
    EXPECT_TRUE(NotifyService("READY=1\nSTATUS=serving", name));
    EXPECT_EQ(listener.Next(), "READY=1\nSTATUS=serving");
  }
}

TEST_F(NotifyServiceTest, WithoutTheVariableNothingIsSent) {
  Listener listener(path_);
  ::unsetenv("NOTIFY_SOCKET");
  NotifyService("READY=1");
  EXPECT_EQ(listener.Next(), "");
  ::setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  NotifyService("STOPPING=1");
  EXPECT_EQ(listener.Next(), "STOPPING=1");
}

TEST_F(NotifyServiceTest, ANameThatNobodyListensAtIsNoError) {
  const std::string too_long(200, 'x');
  for (const std::string& name :
       {std::string(), std::string("@"), std::string("relative"), path_, "/" + too_long}) {
    EXPECT_FALSE(NotifyService("READY=1", name)) << name;
  }
}

}  // namespace
}  // namespace kvlink::cli
