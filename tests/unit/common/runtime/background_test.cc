#include "common/runtime/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/runtime/executor.h"

namespace evergrad::runtime {
namespace {

TEST_CASE("only the background thread has a low priority in its process") {
  const auto nice = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const int before = nice();
  int in_background = before;
  {
    Thread thread("background", [&] {
      RunInBackground();
      in_background = nice();
    });
    thread.Join();
  }
  CHECK(in_background == 10);
  CHECK(nice() == before);
}

}  // namespace
}  // namespace evergrad::runtime
