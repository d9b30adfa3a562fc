// Reads the newest log lines of tasks: requests the lines of each task through the task's session,
// and answers the call when the lines have come. The answer is ordered by wall time and has a
// cursor per task.
//
// A cursor is wall_ms x 100,000 + the number of returned lines of that millisecond. A caller that
// passes the cursor to its next call neither misses a line nor gets a line twice. The answer lacks
// the tasks that do not answer in time.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/log/log.h"
#include "common/time/clock.h"
#include "coordinator/membership/membership.h"
#include "coordinator/service/control_calls.h"
#include "coordinator/service/session_table.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class LogReads {
 public:
  struct Parts {  // all outlive this object
    SessionTable* sessions = nullptr;
    const Membership* membership = nullptr;
    log::Logger* logger = nullptr;  // for the coordinator's own lines
  };
  struct Options {
    // limit of the lines of one answer, and of the lines that one task is asked for
    std::uint32_t lines_max = 0;
    std::chrono::milliseconds timeout{0};
  };
  LogReads(Parts parts, Options options) : parts_(parts), options_(options) {}

  // Begins a read. `number` is unique among the requests to tasks. Answers NotFound if a named task
  // is not known.
  void Begin(MonoTime now, std::uint64_t number, const v1::ReadTaskLogsRequest& request,
             Responder responder);
  // Lines for a read that has ended, or from a task that was not asked, are ignored.
  void OnLines(TaskId task, const v1::LogLines& lines);
  void OnSessionClosed(TaskId task);  // stops awaiting its lines
  // Answers the reads that wait for no more tasks or have reached their deadline.
  void Check(MonoTime now);
  void Stop();  // answers all reads with Unavailable

 private:
  struct Read {
    std::set<TaskId> waiting;
    std::map<TaskId, std::string> names;
    std::map<TaskId, std::uint32_t> taken;  // number of lines that each task has sent
    std::vector<v1::LogLine> lines;
    v1::ReadTaskLogsRequest request;
    MonoTime deadline{0};
    Responder responder;
  };
  bool Knows(const std::string& task) const;
  void Ask(std::uint64_t number, Read& read);
  void Finish(std::uint64_t number);

  const Parts parts_;
  const Options options_;
  std::map<std::uint64_t, Read> reads_;
};

}  // namespace evergrad::coordinator
