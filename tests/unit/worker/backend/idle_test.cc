// Tests that the thread pool of an idle worker uses no CPU time, with two workers on one host.
// libgomp reads its settings from the environment when it is loaded. Therefore PrepareThreadPools
// executes the program a second time, and the test needs a separate process.
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "common/time/clock.h"
#include "tests/support/paths.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {
namespace {

std::string ReadLine(int fd) {
  std::string line;
  char c;
  while (::read(fd, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

// Returns the fraction of one core that the idle probe (idle_probe_main.cc) used while this process
// computed for a while.
double IdleShare(const char* policy) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::string(*e).rfind("OMP_", 0) != 0) environment.emplace_back(*e);
  }
  if (policy != nullptr) environment.push_back(std::string("OMP_WAIT_POLICY=") + policy);
  std::vector<char*> envp;
  for (std::string& e : environment) envp.push_back(e.data());
  envp.push_back(nullptr);

  int to[2], from[2];
  REQUIRE(::pipe(to) == 0);
  REQUIRE(::pipe(from) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  for (const int fd : {to[0], to[1], from[0], from[1]})
    posix_spawn_file_actions_addclose(&actions, fd);
  std::string program = test::BinDir() + "/worker_backend_idle_probe";
  char* argv[] = {program.data(), nullptr};
  pid_t pid = 0;
  const int spawned = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, envp.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  INFO(program);
  REQUIRE(spawned == 0);

  CHECK(ReadLine(from[0]) == "idle");
  auto backend = *MakeBackend({"cpu", 1});
  std::vector<float> x(256 * 256, 1.0f), y(256 * 256);
  const RealClock clock;
  const MonoTime begin = clock.Now();
  std::chrono::duration<double> elapsed{};
  for (; elapsed.count() < 0.3; elapsed = clock.Now() - begin)
    backend->DenseForward(256, 256, 256, x, x, {}, Activation::kLinear, y);
  ::close(to[1]);
  const std::string micros = ReadLine(from[0]);
  ::close(from[0]);
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  return std::stod(micros) / 1e6 / elapsed.count();
}

TEST_CASE("the thread pool of an idle worker leaves the cores to another worker") {
  CHECK(IdleShare(nullptr) < 0.05);
  // The measurement must detect a pool that spins because the user has set the variable.
  // PrepareThreadPools does not change a variable that is set.
  CHECK(IdleShare("active") > 0.05);
}

TEST_CASE(
    "a pool as large as the machine binds one thread to each processor, and other pools are "
    "unbound") {
  const auto allowed_in_thread = [](int threads, bool bind) {
    int count = -1;
    std::thread([&] {  // a separate thread, because a thread that is bound to a core stays bound
      const auto backend = MakeBackend({"cpu", threads, bind});
      cpu_set_t set;
      CPU_ZERO(&set);
      REQUIRE(backend.ok());
      REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
      count = CPU_COUNT(&set);
    })
        .join();
    return count;
  };
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  const int all = CPU_COUNT(&set);
  CHECK(allowed_in_thread(all, true) == 1);
  CHECK(allowed_in_thread(all, false) == all);
  CHECK(allowed_in_thread(all + 1, true) == all);
  if (all > 2) CHECK(allowed_in_thread(all - 1, true) == all);
  CHECK(allowed_in_thread(1, true) == all);
}

// The test runs in another process, because oneDNN reads its limit only once.
TEST_CASE("the setting ONEDNN_MAX_CPU_ISA is kept unless it includes tiles") {
  const auto name = [](const std::string& isa) {
    FILE* const probe = ::popen(("ONEDNN_MAX_CPU_ISA=" + isa + " '" + evergrad::test::BinDir() +
                                 "/worker_backend_idle_probe' name")
                                    .c_str(),
                                "r");
    REQUIRE(probe != nullptr);
    std::string text(200, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), probe));
    CHECK(::pclose(probe) == 0);
    return text;
  };
  CHECK_THAT(name("SSE41"), Catch::Contains(", sse41, "));
  CHECK_THAT(name("avx512_core_amx"), Catch::StartsWith("cpu (oneDNN ") && !Catch::Contains("amx"));
}

}  // namespace
}  // namespace evergrad::worker
