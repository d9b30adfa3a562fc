// The log of a process. Only log.cc includes spdlog. Thread-safe.
//
// Each line names the job, the closure and the task to which it belongs. A bounded ring keeps the
// newest lines of this process for `psctl logs`, which reads them through the coordinator's
// session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace evergrad::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// A line's text and each part of its context are truncated to these sizes, which bounds the memory
// of the ring: 4096 lines of 4 KiB are 16 MiB.
inline constexpr std::size_t kTextBytesMax = 4096, kContextBytesMax = 256;

struct Line {
  std::uint64_t number = 0;  // numbers rise from 1 on
  std::int64_t wall_ms = 0;
  Level level = Level::kInfo;
  std::string text;
  std::string job;      // "" or name
  std::string closure;  // "" or number
  std::string task;     // "worker/0"
};

struct Options {
  // With true (--log-format json), each line is an object with the keys time, level, task, job,
  // closure, text.
  bool json = false;
  Level level = Level::kInfo;
  std::string file;  // "" for stderr
  std::size_t ring_lines_max = 4096;
};

// The subject of a line: its job, closure and task. The logger copies the context into each line.
struct Context {
  std::string job;
  std::string closure;
};

class Logger {
 public:
  explicit Logger(Options options);
  ~Logger();
  void SetTask(absl::string_view task);  // set to "worker/0" once the identity is known
  void Write(Level level, absl::string_view text, const Context& context = {});
  void Info(absl::string_view text, const Context& context = {}) {
    Write(Level::kInfo, text, context);
  }
  void Warning(absl::string_view text, const Context& context = {}) {
    Write(Level::kWarning, text, context);
  }
  void Error(absl::string_view text, const Context& context = {}) {
    Write(Level::kError, text, context);
  }
  void Debug(absl::string_view text, const Context& context = {}) {
    Write(Level::kDebug, text, context);
  }

  // Returns the newest lines with number > after and wall_ms >= since_wall_ms, oldest first, at
  // most `lines_max`.
  std::vector<Line> Read(std::uint64_t after, std::int64_t since_wall_ms, absl::string_view job,
                         std::size_t lines_max) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

absl::string_view LevelName(Level level);  // debug | info | warning | error

}  // namespace evergrad::log
