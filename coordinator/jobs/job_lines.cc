// The way of metrics.jsonl's lines into the file: Line -> lines_ -> committed (unwritten_) ->
// durable (writable_) -> the file thread.
//
// The journal says how long the file is with all that is committed, and holds what may not be in it
// yet; so a line that is committed is written, later if there is no room now, and one for which
// there is no room here is left out before that. One write is under way at a time: behind one that
// failed nothing is appended before the file's end is put right.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {
namespace {

// Not yet in the file. Steps and rates are many; epochs, events and the end are what nobody wants
// to miss: they have room of their own.
constexpr std::size_t kLinesBytesMax = 4u << 20, kOtherLinesBytes = 1u << 20;
constexpr std::size_t kWriteBytes =
    256u << 10;  // at once: where there is little room, a part of what waits finds it
constexpr std::chrono::seconds kLinesAgainAfter{1};
constexpr std::chrono::seconds kLinesSaidEvery{60};  // of what goes on failing
constexpr std::chrono::seconds kLastLinesWait{5};    // of a job that ends while its disk is full
constexpr char kLinesFile[] = "metrics.jsonl";

std::string LinesText(std::uint64_t lines) {
  return absl::StrCat(lines, lines == 1 ? " line" : " lines");
}

}  // namespace

bool Job::Line(const std::string& json, bool frequent) {
  if (json.empty() || restoring_) return true;
  if (unwritten_bytes_ + lines_.size() + json.size() >
      kLinesBytesMax + (frequent ? 0 : kOtherLinesBytes)) {
    ++lines_lost_;
    return false;
  }
  lines_ += json;
  lines_ += '\n';
  return true;
}

void Job::FlushLines() {
  if (state_ == JobState::kQueued) return;
  if (!journals()) {
    HandOverLines();
  } else if (whole_due_) {
    PersistWhole();
  } else {
    Persist(Record());  // lines go to the file once the journal has them, so that a restart knows
                        // what the file must hold
  }
  WriteLines();  // again, what could not be written
}

// What has just been committed goes to the file once it is durable.
void Job::HandOverLines() {
  if (lines_.empty()) return;
  lines_bytes_ += lines_.size();
  unwritten_bytes_ += lines_.size();
  unwritten_.push_back(std::move(lines_));
  lines_.clear();
  if (!journals()) {
    ++writable_;
    return;
  }
  std::weak_ptr<bool> alive = alive_;
  host_->WhenDurable([this, alive] {
    if (alive.expired()) return;
    ++writable_;
    WriteLines();
  });
}

// Of a former life: `tail` is durable, and where in it the file ends is not known.
void Job::TakeUpLines(std::string tail) {
  unwritten_bytes_ = tail.size();
  unwritten_.push_back(std::move(tail));
  writable_ = 1;
  lines_end_unknown_ = true;
  WriteLines();
}

void Job::WriteLines() {
  if (writing_ > 0 || writable_ == 0 || (lines_end_unknown_ && host_->Now() < lines_again_)) return;
  std::string text;
  while (writing_ < writable_ &&
         (writing_ == 0 || text.size() + unwritten_[writing_].size() <= kWriteBytes))
    text += unwritten_[writing_++];
  std::weak_ptr<bool> alive = alive_;
  auto done = [this, alive](const absl::Status& status) {
    if (!alive.expired()) OnLinesWritten(status);
  };
  if (lines_end_unknown_) {
    const std::uint64_t offset =
        lines_bytes_ - std::min<std::uint64_t>(lines_bytes_, unwritten_bytes_);
    host_->RestoreLines(id_.runs_folder, kLinesFile, offset, std::move(text), std::move(done));
  } else {
    host_->AppendLines(id_.runs_folder, kLinesFile, std::move(text), std::move(done));
  }
}

void Job::OnLinesWritten(const absl::Status& status) {
  const std::size_t wrote = std::exchange(writing_, 0);
  const bool short_before =
      lines_end_unknown_ &&
      absl::IsDataLoss(status);  // somebody has cut the file; the lines are in it
  if (!status.ok() && !short_before) {
    lines_end_unknown_ = true;
    const MonoTime now = host_->Now();
    lines_again_ = now + kLinesAgainAfter;
    if (lines_settle_by_ && now >= *lines_settle_by_) {
      GiveUpLines(status);
      return WriteModel();
    }
    if (lines_said_at_ && now - *lines_said_at_ < kLinesSaidEvery) return;
    lines_said_at_ = now;
    lines_trouble_said_ = true;
    Event("warning",
          absl::StrCat(kLinesFile, " cannot be written, its lines are kept and it is tried again",
                       lines_lost_ == 0
                           ? ""
                           : absl::StrCat("; there was no room for ", LinesText(lines_lost_)),
                       ": ", status.message()));
    return;
  }
  for (std::size_t i = 0; i < wrote; ++i) {
    unwritten_bytes_ -= unwritten_.front().size();
    unwritten_.pop_front();
  }
  writable_ -= wrote;
  lines_end_unknown_ = false;
  if (short_before)
    Event("warning", absl::StrCat(kLinesFile, " could not be continued whole: ", status.message()));
  if (writable_ > 0) return WriteLines();
  if (std::exchange(lines_trouble_said_, false)) {
    Event("state", absl::StrCat(kLinesFile, " is written again, ",
                                lines_lost_ == 0 ? "no line of it is lost"
                                                 : absl::StrCat("there was no room for ",
                                                                LinesText(lines_lost_))));
  }
  if (lines_settle_by_) WriteModel();
}

// The job ends: whether its last lines are in the file, or are given up. False: WriteModel is
// called once they are.
bool Job::LinesSettled() {
  if (writable_ == 0) return true;
  if (!lines_settle_by_) {
    lines_settle_by_ = host_->Now() + kLastLinesWait;
    lines_again_ = host_->Now();
  }
  WriteLines();
  return false;
}

void Job::GiveUpLines(const absl::Status& why) {
  std::uint64_t lines = 0;
  for (const std::string& text : unwritten_)
    lines += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  lines_lost_ += lines;
  lines_bytes_ -= std::min<std::uint64_t>(lines_bytes_, unwritten_bytes_);
  unwritten_.clear();
  unwritten_bytes_ = 0;
  writable_ = 0;
  lines_end_unknown_ = lines_trouble_said_ = false;
  Event("warning",
        absl::StrCat(kLinesFile, " lacks its end, ", LinesText(lines), ": ", why.message()));
  auto result = nlohmann::ordered_json::parse(result_json_, nullptr, false);
  if (!result.is_object()) return;
  result["lines_lost"] = lines_lost_;
  result_json_ =
      result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace evergrad::coordinator
