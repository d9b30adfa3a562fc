// Tests that a kernel gives the same bits on all processors. This matters because a shard may move
// to another host, and because a repair may run on another processor than the first computation.
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/skip.h"

namespace evergrad::ps_server::optimizer {
namespace {

std::string Printed(const std::string& program) {
  std::FILE* const pipe = ::popen((test::BinDir() + "/" + program).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  REQUIRE(::pclose(pipe) == 0);
  return text;
}

TEST_CASE("every update rule gives the same bits with each instruction set") {
#if defined(__x86_64__)
  const std::string baseline = Printed("ps_server_optimizer_bits_x86-64-v3");
  CHECK(baseline.size() > 13 * 20);  // a line of output for each rule
  CHECK(Printed("ps_server_optimizer_bits_x86-64-v2") == baseline);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    CHECK(Printed("ps_server_optimizer_bits_x86-64-v4") == baseline);
  } else {
    WARN("x86-64-v4 is left out: this processor has no AVX-512");
  }
#else
  test::Skip("one instruction set is built for this processor: nothing to compare");
#endif
}

}  // namespace
}  // namespace evergrad::ps_server::optimizer
