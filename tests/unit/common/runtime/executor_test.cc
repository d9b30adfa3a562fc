#include "common/runtime/executor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/manual_executor.h"

namespace evergrad::runtime {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a thread executor runs tasks in the order of posting, on its own thread") {
  ThreadExecutor executor({"order"});
  // The executor's thread writes it, and the test reads it only after the executor has ended.
  std::vector<int> ran;
  bool own_thread = true;
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(executor.Post([&, i] {
      ran.push_back(i);
      own_thread = own_thread && executor.InThisThread();
    }));
  }
  CHECK_FALSE(executor.InThisThread());
  executor.Shutdown();
  REQUIRE(ran.size() == 1000);
  for (int i = 0; i < 1000; ++i) REQUIRE(ran[static_cast<std::size_t>(i)] == i);
  CHECK(own_thread);
}

TEST_CASE("tasks of many threads all run, in order for each thread") {
  ThreadExecutor executor({"many"});
  std::vector<std::vector<int>> ran(4);
  {
    std::vector<Thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back("poster", [&, t] {
        for (int i = 0; i < 500; ++i) executor.Post([&ran, t, i] { ran[t].push_back(i); });
      });
    }
  }
  executor.Shutdown();
  for (const auto& list : ran) {
    REQUIRE(list.size() == 500);
    CHECK(std::is_sorted(list.begin(), list.end()));
  }
}

TEST_CASE("timers of a thread executor fire in order of their time, and not early") {
  ThreadExecutor executor({"timers"});
  RealClock clock;
  WaitableEvent done;
  std::string ran;
  const MonoTime start = clock.Now();
  MonoTime fired{0};
  executor.PostAfter(30ms, [&] {
    ran += 'c';
    fired = clock.Now();
    done.Set();
  });
  executor.PostAfter(10ms, [&] { ran += 'b'; });
  executor.PostAfter(0ms, [&] { ran += 'a'; });
  done.Wait();
  executor.Shutdown();
  CHECK(ran == "abc");
  CHECK(fired - start >= 30ms);
}

TEST_CASE("a shutdown runs the posted tasks, drops timers, and is final") {
  ThreadExecutor executor({"shutdown"});
  auto alive = std::make_shared<int>(0);
  WaitableEvent started, go;
  int ran = 0;
  executor.Post([&] {
    started.Set();
    go.Wait();
  });
  for (int i = 0; i < 10; ++i) executor.Post([&] { ++ran; });
  executor.PostAfter(1h, [alive] {});
  started.Wait();
  CHECK(alive.use_count() == 2);
  CHECK(executor.queue_depth() >= 10);
  go.Set();
  executor.Shutdown();
  CHECK(ran == 10);
  CHECK(alive.use_count() == 1);  // The timer's task was destroyed and did not run.
  CHECK_FALSE(executor.Post([alive] {}));
  CHECK_FALSE(executor.PostAfter(0ms, [alive] {}));
  CHECK(alive.use_count() == 1);
  executor.Shutdown();  // A second call does nothing.
}

TEST_CASE("a refused task may post from its destructor") {
  ThreadExecutor executor({"refused"});
  executor.Shutdown();
  struct PostsAtEnd {
    ThreadExecutor* executor;
    ~PostsAtEnd() {
      executor->Post([] {});
    }
  };
  auto last_words = std::make_shared<PostsAtEnd>(PostsAtEnd{&executor});
  CHECK_FALSE(executor.Post([last_words = std::move(last_words)] {}));
}

TEST_CASE("an idle executor is lent to one caller, and a busy executor is not lent") {
  ThreadExecutor executor({"lent"});
  std::string ran;  // needs no lock: only the executor's thread uses it
  WaitableEvent posted, timer;
  bool own_thread = true;
  CHECK(executor.RunIfIdle([&] {
    own_thread = executor.InThisThread();
    ran += 'a';
    executor.PostAfter(0ms, [&] { timer.Set(); });
    executor.Post([&] {
      ran += 'c';
      posted.Set();
    });
    CHECK_FALSE(executor.RunIfIdle([&] { ran += '!'; }));
    CHECK(executor.queue_depth() == 2);
    ran += 'b';
  }));
  CHECK_FALSE(own_thread);
  posted.Wait();
  timer.Wait();

  WaitableEvent started, go, through;
  executor.Post([&] {
    started.Set();
    go.Wait();
  });
  started.Wait();
  CHECK_FALSE(executor.RunIfIdle([&] { ran += '!'; }));
  executor.Post([&] {
    ran += 'd';
    through.Set();
  });
  go.Set();
  through.Wait();
  executor.Shutdown();
  CHECK(ran == "abcd");
  CHECK_FALSE(executor.RunIfIdle([&] { ran += '!'; }));
}

TEST_CASE("an executor with a waiting task is not lent, even while its thread wakes up") {
  ThreadExecutor executor({"lent"});
  std::atomic<int> ran{0};
  int lent = 0, overtaken = 0;
  for (int round = 1; round <= 2000; ++round) {
    executor.Post([&] { ++ran; });
    lent += executor.RunIfIdle([&] { overtaken += ran != round; }) ? 1 : 0;
    while (ran != round) std::this_thread::yield();
  }
  INFO("lent " << lent << " times");
  CHECK(overtaken == 0);
}

TEST_CASE(
    "tasks that a borrower posts run when the loan ends, without another event to wake the "
    "thread") {
  ThreadExecutor executor({"lent"});
  for (int round = 0; round < 100; ++round) {
    WaitableEvent posted;
    while (!executor.RunIfIdle([&] { executor.Post([&] { posted.Set(); }); }))
      std::this_thread::yield();
    REQUIRE(posted.WaitFor(20s));
  }
}

TEST_CASE("a shutdown waits for the borrower of the executor and runs the tasks that it posted") {
  ThreadExecutor executor({"borrowed"});
  WaitableEvent borrowed, go;
  std::string ran;
  bool lent = false;
  Thread borrower("borrower", [&] {
    lent = executor.RunIfIdle([&] {
      executor.Post([&] { ran += 'b'; });
      borrowed.Set();
      go.Wait();
      ran += 'a';
    });
  });
  borrowed.Wait();
  Thread end("end", [&] { executor.Shutdown(); });
  // Posts tasks until the shutdown has begun.
  while (executor.Post([&] { ran += 'c'; })) std::this_thread::yield();
  go.Set();
  end.Join();
  borrower.Join();
  CHECK(lent);
  CHECK(ran.substr(0, 2) == "ab");
}

TEST_CASE("with borrowers and posters on many threads one task runs at a time, and none is lost") {
  ThreadExecutor executor({"lent"});
  constexpr int kThreads = 4, kTasks = 2000;
  int ran = 0;  // has no lock, so that ThreadSanitizer can find a race
  {
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("caller", [&] {
        for (int i = 0; i < kTasks; ++i) {
          if (i % 16 == 0) executor.PostAfter(0ms, [] {});
          if (i % 3 == 0 || !executor.RunIfIdle([&] { ++ran; })) executor.Post([&] { ++ran; });
        }
      });
    }
  }
  executor.Shutdown();
  CHECK(ran == kThreads * kTasks);
}

TEST_CASE("a manual executor runs nothing until it is told to, then all due tasks in order") {
  ManualClock clock;
  ManualExecutor executor(&clock);
  std::string ran;
  executor.PostAfter(20ms, [&] { ran += 'd'; });
  executor.PostAfter(10ms, [&] {
    ran += 'c';
    executor.Post([&] { ran += '!'; });
    executor.PostAfter(10ms, [&] { ran += 'e'; });
  });
  executor.Post([&] {
    ran += 'a';
    executor.Post([&] { ran += 'b'; });
  });
  CHECK(ran.empty());
  CHECK(executor.RunReady() == 2);
  CHECK(ran == "ab");
  CHECK(executor.Advance(9ms) == 0);
  CHECK(executor.Advance(1ms) == 2);
  CHECK(ran == "abc!");
  CHECK(executor.Advance(1h) == 2);
  CHECK(ran == "abc!de");
  CHECK(clock.Now() == 1h + 10ms);
}

TEST_CASE(
    "a manual executor advances its clock timer by timer, so that each timer sees its own time") {
  ManualClock clock;
  ManualExecutor executor(&clock);
  std::vector<MonoTime> seen;
  std::function<void()> tick = [&] {
    seen.push_back(clock.Now());
    if (seen.size() < 4) executor.PostAfter(5ms, tick);
  };
  executor.PostAfter(5ms, tick);
  executor.Advance(100ms);
  CHECK(seen == std::vector<MonoTime>{5ms, 10ms, 15ms, 20ms});
}

TEST_CASE("a set event wakes its waiters, and a wait times out before") {
  WaitableEvent event;
  CHECK_FALSE(event.IsSet());
  CHECK_FALSE(event.WaitFor(1ms));
  Thread setter("setter", [&] { event.Set(); });
  event.Wait();
  CHECK(event.IsSet());
  CHECK(event.WaitFor(0ms));
}

TEST_CASE("a signal is returned once, and a requested stop is returned as 0") {
  SignalWaiter::Install();
  {
    SignalWaiter waiter;
    CHECK(waiter.WaitFor(0ms) == SignalWaiter::kTimedOut);
    REQUIRE(::kill(::getpid(), SIGTERM) == 0);
    CHECK(waiter.Wait() == SIGTERM);
    CHECK(waiter.WaitFor(0ms) == SignalWaiter::kTimedOut);
    Thread stopper("stopper", [&] { waiter.RequestStop(); });
    CHECK(waiter.Wait() == 0);
    CHECK(waiter.Wait() == 0);
    REQUIRE(::kill(::getpid(), SIGINT) == 0);
    CHECK(waiter.Wait() == SIGINT);
  }
  SignalWaiter::ResetInChild();
}

}  // namespace
}  // namespace evergrad::runtime
