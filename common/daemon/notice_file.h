// A preemption notice by file: a cloud's agent, or an operator, makes a file appear, and this
// machine will soon be taken away.
//
// Whatever the file holds, its appearing is the notice. One that is there already when the watch
// begins is of a former life and none, until it is written anew: else a stale file would keep a
// machine from work for ever. Looked for every 250 ms on a timer of the given executor. Not
// thread-safe: made before the executor runs anything of it, destroyed after its shutdown.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "common/runtime/executor.h"

namespace evergrad::daemon {

inline constexpr std::chrono::milliseconds kNoticeEvery{250};

class NoticeFile {
 public:
  // `noticed` is called once, on the executor; `warn` at most once, when the file can be neither
  // seen nor known to be absent.
  NoticeFile(std::string path, runtime::Executor* executor, std::function<void()> noticed,
             std::function<void(const std::string&)> warn);
  NoticeFile(const NoticeFile&) = delete;
  NoticeFile& operator=(const NoticeFile&) = delete;

  bool was_there() const { return before_.has_value(); }  // when the watch began

 private:
  using Seen =
      std::tuple<std::uint64_t, std::int64_t, std::int64_t>;  // inode, time of its last change
  std::optional<Seen> Look();
  void Watch();

  const std::string path_;
  runtime::Executor* const executor_;
  const std::function<void()> noticed_;
  const std::function<void(const std::string&)> warn_;
  bool warned_ = false;
  std::optional<Seen> before_;
};

}  // namespace evergrad::daemon
