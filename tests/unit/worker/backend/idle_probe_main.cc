// A program that has only the thread pools of a worker. It computes on two threads, prints "idle",
// and waits until its standard input is closed. Then it prints how much CPU time the wait took, in
// microseconds. With the argument `name` it prints the backend's name instead. Its main() begins
// like the main() of a daemon.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace {
long long ProcessMicros() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}
}  // namespace

int main(int argc, char** argv) {
  evergrad::worker::PrepareThreadPools(std::getenv("OMP_WAIT_POLICY"), argv);
  evergrad::worker::KeepIsaLimit(std::getenv("ONEDNN_MAX_CPU_ISA"));
  auto backend = evergrad::worker::MakeBackend({"cpu", 2});
  if (!backend.ok()) return 1;
  if (argc > 1) return std::printf("%s\n", (*backend)->name().c_str()) > 0 ? 0 : 1;
  std::vector<float> x(512 * 512, 1.0f), w(512 * 512, 0.5f), y(512 * 512);
  for (int i = 0; i < 4; ++i)
    (*backend)->DenseForward(512, 512, 512, x, w, {}, evergrad::worker::Activation::kLinear, y);
  const long long before = ProcessMicros();
  if (::write(STDOUT_FILENO, "idle\n", 5) != 5) return 1;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  std::printf("%lld\n", ProcessMicros() - before);
  return y[0] == 256.0f ? 0 : 1;
}
