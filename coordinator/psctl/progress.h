// Renders a running job. New events and epochs are printed once. Changing figures are redrawn on a
// terminal; without a terminal they are printed as a plain line from time to time. Pure, apart from
// the output stream; not thread-safe.
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

// Returns "RUNNING  epoch 2/5  step 612/2345 (26 %)  21300 examples/s  loss 0.4312  ETA 1 min 20 s
// workers: worker/0 running, worker/1 idle".
std::string ProgressLine(const v1::JobStatus& job);
// Returns the contents of ProgressLine as a block with a bar and one line per worker. No line is
// wider than `columns`.
std::vector<std::string> ProgressBlock(const v1::JobStatus& job, std::size_t columns);
// `metrics` names the metrics of the evaluation other than loss and accuracy, such as auc. Each of
// these metrics gets a column at the right.
std::string EpochHeader(bool counting, const std::vector<std::string>& metrics = {});
std::string EpochLine(const v1::EpochRow& row, bool counting,
                      const std::vector<std::string>& metrics = {});
std::vector<std::string> EpochMetrics(const v1::JobStatus& job);
// Returns two lines about the worker's device, or none if the worker has none.
std::vector<std::string> DeviceLines(const v1::WorkerRow& worker);
// Describes a task that gets no work of the job for a while: its name, the duration, and the
// reason.
std::string BackoffLine(const v1::TaskBackoff& backoff);
// Returns "worker/1 cannot reach ps_server/0 at 127.0.0.1:4000 for 12 s: connection refused".
std::string UnreachedLine(const std::string& worker, const v1::UnreachedServer& unreached);
std::string EventLine(const v1::Event& event);
// The place of the files of a run.
struct RunPlace {
  bool here = true;     // true if this machine sees the coordinator's folder
  std::string fetched;  // folder into which the files were copied, or ""
};
// Returns the lines after the end of a job: the cause or the metrics, the applied work, the
// location of the files. `there` returns whether a file exists in the run's folder. If `there` is
// empty (a remote cluster), all files are named.
std::vector<std::string> SummaryLines(
    const v1::JobStatus& job, const std::function<bool(const std::string& name)>& there = {},
    const RunPlace& place = {});

class ProgressPrinter {
 public:
  struct Options {
    bool live = false;  // true on a terminal: redraw
    std::size_t columns = 80;
    std::chrono::milliseconds plain_every{2000};
  };
  ProgressPrinter(std::ostream& out, Options options) : out_(out), options_(options) {}

  // Prints the parts of `job` that have not been printed yet. The call is cheap, so callers may
  // repeat it often.
  void Update(const v1::JobStatus& job, MonoTime now);
  // Prints a line of psctl itself between the other lines ("worker/1 ended with signal 9, started
  // again").
  void Say(const std::string& line);
  // Removes the block from the screen until the next Update. Call it before a question, and at the
  // end.
  void Clear();
  std::uint64_t events_shown() const { return events_shown_; }

 private:
  void Draw();
  void Erase();

  std::ostream& out_;
  const Options options_;
  std::vector<std::string> block_;  // the block that should be on the screen
  std::size_t drawn_ = 0;           // number of lines of the block that are on the screen
  std::uint64_t events_shown_ = 0;
  int epochs_shown_ = 0;
  std::vector<std::string> epoch_metrics_;  // metrics in the header that was printed
  std::string state_shown_, line_shown_;
  std::optional<MonoTime> last_line_;
};

}  // namespace evergrad::psctl
