// metrics.jsonl of one job: the way of a line into the file.
//
//   Add ─▶ pending() ─▶ Commit (the journal has it) ─▶ durable ─▶ Write (the file thread) ─▶
//   written
//
// The journal knows how long the file is with all committed lines, and holds those that may not be
// in the file yet. So a committed line is always written, later if the disk is full now, and a line
// for which there is no space in memory is lost before it is committed, and counted. One write is
// under way at a time: after a failed write the end of the file is restored before anything is
// appended.
//
// Bounds: 4 MiB of lines of steps and rates, and 1 MiB more of all others. Errors of the disk are
// events, at most one a minute; no method fails. Not thread-safe: all calls, and the callbacks of
// the host, come from the control executor. The object may be destroyed while a write is under way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/time/clock.h"
#include "coordinator/jobs/json_lines.h"

namespace evergrad::v1 {
class JobCounters;
class JobNote;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

// An event for the people who follow a job: its kind ("warning", "state", …) and its text.
using EventSink = std::function<void(absl::string_view kind, const std::string& text)>;

class MetricsFile final : public LineSink {
 public:
  // The clock, the journal and the file thread, which works through its queue in order. `done` and
  // `then` come from the control executor.
  class Host {
   public:
    virtual ~Host() = default;
    virtual MonoTime Now() const = 0;
    // Not OK: the lines are not in the file.
    virtual void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                             std::function<void(absl::Status)> done) = 0;
    // Makes the file what it was at `offset` bytes, followed by `tail`: before the first append,
    // and after an AppendLines or a RestoreLines that failed. DataLoss: the file was shorter than
    // `offset`, and the tail is in it; any other error: the tail is not in the file.
    virtual void RestoreLines(const std::string& folder, const std::string& name,
                              std::uint64_t offset, std::string tail,
                              std::function<void(absl::Status)> done) = 0;
    // Runs `then` once everything that the store has accepted so far is durable: at once if it is.
    // In order.
    virtual void WhenDurable(std::function<void()> then) = 0;
  };
  MetricsFile(Host* host, std::string folder, EventSink event);  // host outlives this object

  bool Add(const std::string& json, bool frequent) override;
  // Lines that are not committed yet, each with its newline.
  const std::string& pending() const { return pending_; }
  // The pending lines are committed. They are written once the journal is durable, or with
  // `durable` as soon as Write is called.
  void Commit(bool durable);
  // Writes what is durable; after a failed write, tries again once a second.
  void Write();
  // The job ends. True: every committed line is in the file, or was given up. False: `then` is
  // called when this is so, after at most 5 s of a full disk.
  bool Settle(std::function<void()> then);
  void Close() { pending_.clear(); }  // No line follows.

  std::uint64_t lost() const { return lost_; }  // Lines.
  bool gave_up() const { return gave_up_; }     // Committed lines were lost at the job's end.

  // The journal. A job that is queued has no file yet: its lines stay pending. For a job that has
  // ended nothing is kept that would have to be written. FillNote takes the pending lines along.
  void Fill(bool queued, bool ended, v1::JobSnapshot* snapshot) const;
  void FillNote(v1::JobNote* note) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);
  // After the last ReadNote of a job that has not ended: its committed lines are durable, and it is
  // not known how many of them are in the file.
  void Resume();

 private:
  void OnWritten(const absl::Status& status);
  void OnWriteFailed(const absl::Status& status);
  void GiveUp(const absl::Status& why);

  Host* const host_;
  const std::string folder_;
  const EventSink event_;
  std::string pending_;
  std::deque<std::string> unwritten_;  // Committed, and not known to be in the file.
  std::string read_back_;              // The same, while the journal is read.
  std::uint64_t unwritten_bytes_ = 0;
  std::size_t durable_ = 0, writing_ = 0;  // Leading entries of unwritten_; writing_ of durable_.
  std::uint64_t committed_bytes_ = 0;      // The file's length once unwritten_ is in it.
  bool end_unknown_ = false;               // The file may end anywhere within unwritten_.
  bool trouble_told_ = false;              // An event told of it, and none that it is over.
  MonoTime retry_at_{0};
  std::optional<MonoTime> warned_at_;
  std::optional<MonoTime> settle_by_;
  std::function<void()> settled_;
  std::uint64_t lost_ = 0;
  bool gave_up_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
