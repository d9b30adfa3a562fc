// A preemption notice by file. A cloud's agent or an operator creates the file when this machine
// will soon be reclaimed.
//
// The appearance of the file is the notice; its contents are ignored. A file that exists when the
// watch begins is left over from an earlier run. Such a file is not a notice until it is written
// again, because otherwise a stale file would keep the machine from work forever. The path is
// checked every 250 ms on a timer of the given executor. Not thread-safe: construct the object
// before the executor runs its tasks, and destroy it after the executor's shutdown.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "common/runtime/executor.h"

namespace evergrad::preemption {

inline constexpr std::chrono::milliseconds kNoticeEvery{250};

class NoticeFile {
 public:
  // `noticed` is called once, on the executor. `warn` is called at most once, if it cannot be
  // determined whether the file exists.
  NoticeFile(std::string path, runtime::Executor* executor, std::function<void()> noticed,
             std::function<void(const std::string&)> warn);
  NoticeFile(const NoticeFile&) = delete;
  NoticeFile& operator=(const NoticeFile&) = delete;

  // Returns whether the file existed when the watch began.
  bool was_there() const { return before_.has_value(); }

 private:
  // The inode of the file and the time of its last change.
  using Seen = std::tuple<std::uint64_t, std::int64_t, std::int64_t>;
  std::optional<Seen> Look();
  void Watch();

  const std::string path_;
  runtime::Executor* const executor_;
  const std::function<void()> noticed_;
  const std::function<void(const std::string&)> warn_;
  bool warned_ = false;
  std::optional<Seen> before_;
};

}  // namespace evergrad::preemption
