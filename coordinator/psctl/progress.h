// How a running job looks: what is new goes out once (events, epochs), what changes is redrawn on a
// terminal and is a plain line now and then without one. Pure but for the stream that it is given;
// not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/time/clock.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

bool IsEnded(const v1::JobStatus& job);  // SUCCEEDED, FAILED or CANCELLED

// "RUNNING  epoch 2/5  step 612/2345 (26 %)  21300 examples/s  loss 0.4312  ETA 1 min 20 s workers:
// worker/0 running, worker/1 idle"
std::string ProgressLine(const v1::JobStatus& job);
// The same as a block with a bar and one line a worker; no line wider than `columns`.
std::vector<std::string> ProgressBlock(const v1::JobStatus& job, std::size_t columns);
// `metrics`: by name, a column for each behind the others (an evaluation's metrics beside loss and
// accuracy: auc).
std::string EpochHeader(bool counting, const std::vector<std::string>& metrics = {});
std::string EpochLine(const v1::EpochRow& row, bool counting,
                      const std::vector<std::string>& metrics = {});
std::vector<std::string> EpochMetrics(const v1::JobStatus& job);
// What the worker's device did, in two lines; none where it has none.
std::vector<std::string> DeviceLines(const v1::WorkerRow& worker);
// Of a task that gets no work of the job for a while: who, how long, why.
std::string BackoffLine(const v1::TaskBackoff& backoff);
// "worker/1 cannot reach ps_server/0 at 127.0.0.1:4000 for 12 s: connection refused".
std::string UnreachedLine(const std::string& worker, const v1::UnreachedServer& unreached);
std::string EventLine(const v1::Event& event);
// Where the files of a run are.
struct RunPlace {
  bool here = true;     // the coordinator's own folder is seen from here
  std::string fetched;  // "" or the folder that they were brought to
};
// After the end: the cause or the accuracy, what was applied, where the files lie.
// `there`: whether a file of the run is in its folder; empty: that cannot be seen from here (a
// remote cluster), all are named.
std::vector<std::string> SummaryLines(
    const v1::JobStatus& job, const std::function<bool(const std::string& name)>& there = {},
    const RunPlace& place = {});

class ProgressPrinter {
 public:
  struct Options {
    bool live = false;  // a terminal: redraw
    std::size_t columns = 80;
    std::chrono::milliseconds plain_every{2000};
  };
  ProgressPrinter(std::ostream& out, Options options) : out_(out), options_(options) {}

  // Shows what `job` has that was not shown yet. Cheap to call often.
  void Update(const v1::JobStatus& job, MonoTime now);
  // One line of ours between the others ("worker/1 ended with signal 9, started again").
  void Say(const std::string& line);
  // Takes the block off the screen, until the next Update: before a question, and at the end.
  void Clear();
  std::uint64_t events_shown() const { return events_shown_; }

 private:
  void Draw();
  void Erase();

  std::ostream& out_;
  const Options options_;
  std::vector<std::string> block_;  // what is wanted below
  std::size_t drawn_ = 0;           // lines of it on the screen
  std::uint64_t events_shown_ = 0;
  int epochs_shown_ = 0;
  std::vector<std::string> epoch_metrics_;  // in the header that was printed
  std::string state_shown_, line_shown_;
  std::optional<MonoTime> last_line_;
};

}  // namespace evergrad::psctl
