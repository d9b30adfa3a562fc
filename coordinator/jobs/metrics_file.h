// The file metrics.jsonl of one job. A line passes these stages:
//
//   Add ─▶ pending() ─▶ Commit (the journal has it) ─▶ durable ─▶ Write (the file thread) ─▶
//   written
//
// The journal has the length of the file with all committed lines, and holds the lines that the
// file may not have yet. A full disk therefore only delays a committed line while the job runs. A
// line for which there is no space in memory is dropped and counted before it is committed. One
// write is in flight at a time, because after a failed write the end of the file must be restored
// before the next append.
//
// Bounds: 4 MiB for lines of steps and rates, and 1 MiB more for all other lines. Errors of the
// disk become events, at most one per minute; no method fails. Not thread-safe: all calls, and the
// callbacks of the host, come from the control executor. The object may be destroyed while a write
// is in flight.
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

// Takes an event for the users of a job: its kind ("warning", "state", …) and its text.
using EventSink = std::function<void(absl::string_view kind, const std::string& text)>;

class MetricsFile final : public LineSink {
 public:
  // The clock, the journal and the file thread, which works through its queue in order. The control
  // executor calls `done` and `then`.
  class Host {
   public:
    virtual ~Host() = default;
    virtual MonoTime Now() const = 0;
    // Appends the lines to the file. If the status in `done` is not OK, the lines are not in the
    // file.
    virtual void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                             std::function<void(absl::Status)> done) = 0;
    // Truncates the file to `offset` bytes and appends `tail`. The call comes before the first
    // append, and after an AppendLines or a RestoreLines that failed. DataLoss means that the file
    // was shorter than `offset`, and that the tail is in the file; after any other error the tail
    // is not in the file.
    virtual void RestoreLines(const std::string& folder, const std::string& name,
                              std::uint64_t offset, std::string tail,
                              std::function<void(absl::Status)> done) = 0;
    // Runs `then` once all commits that the store has accepted so far are durable, or at once if
    // they are durable already. Calls run in order.
    virtual void WhenDurable(std::function<void()> then) = 0;
  };
  MetricsFile(Host* host, std::string folder, EventSink event);  // `host` outlives this object.

  bool Add(const std::string& json, bool frequent) override;
  // Returns the lines that are not committed yet, each with its newline.
  const std::string& pending() const { return pending_; }
  // Marks the pending lines as committed. These lines are written to the file once they are durable
  // in the journal. If `durable` is true, the next Write writes them.
  void Commit(bool durable);
  // Writes the durable lines. After a failed write, calls of this function try again at most once a
  // second.
  void Write();
  // Call when the job ends. Returns true if every committed line is in the file or was given up.
  // Otherwise returns false, and calls `then` when no committed line is waiting any more. Lines
  // that cannot be written for 5 s, for example to a full disk, are given up.
  bool Settle(std::function<void()> then);
  void Close() { pending_.clear(); }  // Called when no more lines follow.

  std::uint64_t lost() const { return lost_; }  // Number of lost lines.
  bool gave_up() const { return gave_up_; }     // Committed lines were lost at the job's end.

  // --- the journal. A queued job has no file yet, so its lines stay pending. The snapshot of an
  // ended job has no lines that are still to be written. FillNote adds the pending lines.
  void Fill(bool queued, bool ended, v1::JobSnapshot* snapshot) const;
  void FillNote(v1::JobNote* note) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);
  // Call after the last ReadNote of a job that has not ended: its committed lines are durable, but
  // some of them may not be in the file.
  void Resume();

 private:
  void OnWritten(const absl::Status& status);
  void OnWriteFailed(const absl::Status& status);
  void GiveUp(const absl::Status& why);

  Host* const host_;
  const std::string folder_;
  const EventSink event_;
  std::string pending_;
  std::deque<std::string> unwritten_;  // Committed lines that may not be in the file.
  std::string read_back_;              // The lines of unwritten_ while the journal is read.
  std::uint64_t unwritten_bytes_ = 0;
  // The first durable_ entries of unwritten_ are durable, and the first writing_ entries are being
  // written.
  std::size_t durable_ = 0, writing_ = 0;
  std::uint64_t committed_bytes_ = 0;  // The file's length once unwritten_ is in it.
  // True if the file may have any part of unwritten_ at its end.
  bool end_unknown_ = false;
  // An event has reported failed writes, and no event has reported their end yet.
  bool trouble_told_ = false;
  MonoTime retry_at_{0};
  std::optional<MonoTime> warned_at_;
  std::optional<MonoTime> settle_by_;
  std::function<void()> settled_;
  std::uint64_t lost_ = 0;
  bool gave_up_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
