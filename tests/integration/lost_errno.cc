// A library that is preloaded into a program (LD_PRELOAD). After connect(), it changes errno for
// the first EVERGRAD_LOST_ERRNO TCP connections that connect() did not complete at once.
//
// gRPC reads errno only after it has put the socket into its epoll set, and any call in between may
// change errno. This happened in a bare chroot, because a call in between read a file of /sys that
// the chroot lacks. gRPC then gave up the connection with "No such file or directory". This library
// makes the error happen each time.
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

namespace {

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::atomic<int>& Left() {
  static std::atomic<int> left{[] {
    const char* text = ::getenv("EVERGRAD_LOST_ERRNO");
    return text == nullptr ? 0 : ::atoi(text);
  }()};
  return left;
}

thread_local bool under_way = false;

}  // namespace

extern "C" {

int connect(int fd, const sockaddr* address, socklen_t bytes) {
  static auto* const real = Real<int(int, const sockaddr*, socklen_t)>("connect");
  int kind = 0;
  socklen_t size = sizeof kind;
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size);
  const int result = real(fd, address, bytes);
  const int why = errno;
  under_way = result < 0 && why == EINPROGRESS && kind == SOCK_STREAM &&
              address->sa_family != AF_UNIX && Left().fetch_sub(1) > 0;
  errno = why;
  return result;
}

int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  static auto* const real = Real<int(int, int, int, epoll_event*)>("epoll_ctl");
  const int result = real(set, operation, fd, event);
  if (under_way && operation == EPOLL_CTL_ADD) {
    under_way = false;
    errno = ENOENT;
  }
  return result;
}

}  // extern "C"
