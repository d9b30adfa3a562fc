// Simulates a host whose wall clock jumps, for scenario C8. The library is preloaded into a daemon
// (LD_PRELOAD), which does not know of it.
//
// EVERGRAD_WALL_CLOCK names a file with one int64 (little endian): the number of nanoseconds by
// which this host's CLOCK_REALTIME is ahead of the kernel's. The file is mapped, so a write to it
// makes the clock jump. All other clocks are the kernel's, as when a person sets the time of a
// machine.
//
// Some calls wait until a time of the wall clock (pthread_cond_timedwait, pthread_cond_clockwait,
// sem_timedwait, and futex with FUTEX_CLOCK_REALTIME, as Abseil uses it). Such a wait must end when
// this host's clock reaches the time. A jump ahead ends it at once, and a jump back prolongs it.
// Therefore the library divides it into short waits, and reads the clock after each.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kSlice = kSecond / 20;

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::int64_t Kernel(clockid_t clock) {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  timespec now{};
  real(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

const std::atomic<std::int64_t>* Map() {
  static const std::atomic<std::int64_t> zero{0};
  const char* path = ::getenv("EVERGRAD_WALL_CLOCK");
  const int fd = path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return &zero;
  void* page = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return page == MAP_FAILED ? &zero : static_cast<const std::atomic<std::int64_t>*>(page);
}
std::int64_t Ahead() {
  static const std::atomic<std::int64_t>* const ahead = Map();
  return ahead->load(std::memory_order_relaxed);
}
bool IsWall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }
std::int64_t Wall() { return Kernel(CLOCK_REALTIME) + Ahead(); }

std::int64_t Nanoseconds(const timespec& t) { return t.tv_sec * kSecond + t.tv_nsec; }
timespec Spec(std::int64_t ns) {
  return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

// `wait(until)` must wait until the kernel's monotonic clock reaches `until`, and return a status.
// Sliced returns this status, or `timed_out` once this host's clock has reached `deadline`.
template <typename Wait>
int Sliced(std::int64_t deadline, int timed_out, Wait wait) {
  for (;;) {
    const std::int64_t left = deadline - Wall();
    const int result =
        wait(Spec(Kernel(CLOCK_MONOTONIC) + std::clamp<std::int64_t>(left, 0, kSlice)));
    if (result != timed_out || Wall() >= deadline) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, out);
  if (result == 0 && IsWall(clock)) *out = Spec(Nanoseconds(*out) + Ahead());
  return result;
}

int gettimeofday(timeval* out, void*) {
  const std::int64_t now = Wall();
  out->tv_sec = static_cast<time_t>(now / kSecond);
  out->tv_usec = static_cast<suseconds_t>(now % kSecond / 1000);
  return 0;
}

time_t time(time_t* out) {
  const auto now = static_cast<time_t>(Wall() / kSecond);
  if (out != nullptr) *out = now;
  return now;
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  if (!IsWall(clock)) return real(cond, mutex, clock, deadline);
  return Sliced(Nanoseconds(*deadline), ETIMEDOUT,
                [&](const timespec& until) { return real(cond, mutex, CLOCK_MONOTONIC, &until); });
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const timespec* deadline) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  // An attribute of the condition variable says which clock it uses. glibc keeps the attribute in
  // this bit (nptl/pthread_cond_common.c).
  if ((cond->__data.__wrefs & 2) != 0) return real(cond, mutex, deadline);
  return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, deadline);
}

int sem_timedwait(sem_t* sem, const timespec* deadline) {
  static auto* const real = Real<int(sem_t*, clockid_t, const timespec*)>("sem_clockwait");
  const int result = Sliced(Nanoseconds(*deadline), ETIMEDOUT, [&](const timespec& until) {
    return real(sem, CLOCK_MONOTONIC, &until) == 0 ? 0 : errno;
  });
  if (result == 0) return 0;
  errno = result;
  return -1;
}

long syscall(long number, ...) {
  static auto* const real = Real<long(long, ...)>("syscall");
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  constexpr long kUntilWall = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  const auto* deadline = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & ~static_cast<long>(FUTEX_PRIVATE_FLAG)) != kUntilWall ||
      deadline == nullptr)
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const int result = Sliced(Nanoseconds(*deadline), ETIMEDOUT, [&](const timespec& until) {
    return real(number, a[0], a[1] & ~static_cast<long>(FUTEX_CLOCK_REALTIME), a[2], &until, a[4],
                a[5]) == 0
               ? 0
               : errno;
  });
  if (result == 0) return 0;
  errno = result;
  return -1;
}

}  // extern "C"
