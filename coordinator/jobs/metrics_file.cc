#include "coordinator/jobs/metrics_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Limits for the lines that are not in the file yet. Lines of steps and rates, which are most
// lines, may fill kLinesBytesMax. kOtherLinesBytes are reserved for the lines of epochs, of events
// and of the job's end.
constexpr std::size_t kLinesBytesMax = 4u << 20, kOtherLinesBytes = 1u << 20;
// Limit for one write. If the disk is nearly full, a part of the waiting lines may still fit.
constexpr std::size_t kWriteBytes = 256u << 10;
constexpr std::chrono::seconds kRetryAfter{1};
constexpr std::chrono::seconds kWarnEvery{60};
constexpr std::chrono::seconds kSettleMax{5};
constexpr char kFileName[] = "metrics.jsonl";

std::string LinesText(std::uint64_t lines) {
  return absl::StrCat(lines, lines == 1 ? " line" : " lines");
}

}  // namespace

MetricsFile::MetricsFile(Host* host, std::string folder, EventSink event)
    : host_(host), folder_(std::move(folder)), event_(std::move(event)) {}

bool MetricsFile::Add(const std::string& json, bool frequent) {
  if (unwritten_bytes_ + pending_.size() + json.size() >
      kLinesBytesMax + (frequent ? 0 : kOtherLinesBytes)) {
    ++lost_;
    return false;
  }
  pending_ += json;
  pending_ += '\n';
  return true;
}

void MetricsFile::Commit(bool durable) {
  if (pending_.empty()) return;
  committed_bytes_ += pending_.size();
  unwritten_bytes_ += pending_.size();
  unwritten_.push_back(std::move(pending_));
  pending_.clear();
  if (durable) {
    ++durable_;
    return;
  }
  std::weak_ptr<bool> alive = alive_;
  host_->WhenDurable([this, alive] {
    if (alive.expired()) return;
    ++durable_;
    Write();
  });
}

void MetricsFile::Write() {
  if (writing_ > 0 || durable_ == 0 || (end_unknown_ && host_->Now() < retry_at_)) return;
  std::string text;
  while (writing_ < durable_ &&
         (writing_ == 0 || text.size() + unwritten_[writing_].size() <= kWriteBytes))
    text += unwritten_[writing_++];
  std::weak_ptr<bool> alive = alive_;
  auto done = [this, alive](const absl::Status& status) {
    if (!alive.expired()) OnWritten(status);
  };
  if (end_unknown_) {
    const std::uint64_t offset =
        committed_bytes_ - std::min<std::uint64_t>(committed_bytes_, unwritten_bytes_);
    host_->RestoreLines(folder_, kFileName, offset, std::move(text), std::move(done));
  } else {
    host_->AppendLines(folder_, kFileName, std::move(text), std::move(done));
  }
}

void MetricsFile::OnWritten(const absl::Status& status) {
  const std::size_t wrote = std::exchange(writing_, 0);
  // True if another process has truncated the file. The lines of this write are then in the file.
  const bool was_shorter = end_unknown_ && absl::IsDataLoss(status);
  if (!status.ok() && !was_shorter) return OnWriteFailed(status);
  for (std::size_t i = 0; i < wrote; ++i) {
    unwritten_bytes_ -= unwritten_.front().size();
    unwritten_.pop_front();
  }
  durable_ -= wrote;
  end_unknown_ = false;
  if (was_shorter)
    event_("warning",
           absl::StrCat(kFileName, " was shortened by another process: ", status.message()));
  if (durable_ > 0) return Write();
  if (std::exchange(trouble_told_, false)) {
    event_("state", absl::StrCat(kFileName, " is written again, ",
                                 lost_ == 0 ? "and no line is lost"
                                            : absl::StrCat("but the buffer was full and dropped ",
                                                           LinesText(lost_))));
  }
  if (settle_by_) settled_();
}

void MetricsFile::OnWriteFailed(const absl::Status& status) {
  end_unknown_ = true;
  const MonoTime now = host_->Now();
  retry_at_ = now + kRetryAfter;
  if (settle_by_ && now >= *settle_by_) {
    GiveUp(status);
    return settled_();
  }
  if (warned_at_ && now - *warned_at_ < kWarnEvery) return;
  warned_at_ = now;
  trouble_told_ = true;
  event_("warning",
         absl::StrCat(
             kFileName, " cannot be written; its lines are kept in memory and written later",
             lost_ == 0 ? "" : absl::StrCat("; the buffer was full and dropped ", LinesText(lost_)),
             ": ", status.message()));
}

bool MetricsFile::Settle(std::function<void()> then) {
  if (durable_ == 0) return true;
  settled_ = std::move(then);
  if (!settle_by_) {
    settle_by_ = host_->Now() + kSettleMax;
    retry_at_ = host_->Now();
  }
  Write();
  return false;
}

void MetricsFile::GiveUp(const absl::Status& why) {
  std::uint64_t lines = 0;
  for (const std::string& text : unwritten_)
    lines += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  lost_ += lines;
  committed_bytes_ -= std::min<std::uint64_t>(committed_bytes_, unwritten_bytes_);
  unwritten_.clear();
  unwritten_bytes_ = 0;
  durable_ = 0;
  end_unknown_ = trouble_told_ = false;
  gave_up_ = true;
  event_("warning", absl::StrCat(kFileName, " ends too early, missing ", LinesText(lines), ": ",
                                 why.message()));
}

// ---------------------------------------------------------------- the journal

void MetricsFile::Fill(bool queued, bool ended, v1::JobSnapshot* snapshot) const {
  snapshot->set_lines_bytes(committed_bytes_ + (queued ? 0 : pending_.size()));
  if (queued) snapshot->set_lines_waiting(pending_);
  if (ended) return;
  for (const std::string& text : unwritten_) *snapshot->mutable_lines_unwritten() += text;
  if (!queued) *snapshot->mutable_lines_unwritten() += pending_;
}

void MetricsFile::FillNote(v1::JobNote* note) const { note->set_lines(pending_); }

void MetricsFile::FillCounters(v1::JobCounters* counters) const {
  counters->set_lines_lost(lost_);
  counters->set_lines_trouble_said(trouble_told_);
}

void MetricsFile::Read(const v1::JobSnapshot& snapshot) {
  committed_bytes_ = snapshot.lines_bytes();
  pending_ = snapshot.lines_waiting();
  read_back_ = snapshot.lines_unwritten();
}

void MetricsFile::ReadNote(const v1::JobNote& note) {
  committed_bytes_ += note.lines().size();
  read_back_ += note.lines();
}

void MetricsFile::ReadCounters(const v1::JobCounters& counters) {
  lost_ = counters.lines_lost();
  trouble_told_ = counters.lines_trouble_said();
}

void MetricsFile::Resume() {
  unwritten_bytes_ = read_back_.size();
  unwritten_.push_back(std::exchange(read_back_, std::string()));
  durable_ = 1;
  end_unknown_ = true;
  Write();
}

}  // namespace evergrad::coordinator
