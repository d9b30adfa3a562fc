#include "coordinator/jobs/journal_writer.h"

#include <utility>

#include "coordinator/jobs/append_field.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

JournalWriter::JournalWriter(JobHost* host, const JobOptions* options, JobUid uid,
                             MetricsFile* lines,
                             std::function<void(v1::JobCounters*)> fill_counters)
    : host_(host),
      options_(*options),
      uid_(uid),
      lines_(lines),
      fill_counters_(std::move(fill_counters)) {}

JournalWriter::~JournalWriter() = default;

v1::JobNote* JournalWriter::Note() {
  if (!on()) return nullptr;
  if (note_ == nullptr) note_ = std::make_unique<v1::JobNote>();
  return note_.get();
}

void JournalWriter::NoteCounted(const std::string& worker, ClosureId closure,
                                const v1::Done& done) {
  if (!on()) return;
  const v1::ClosureMetrics& metrics = done.metrics();
  if (counting_ == nullptr) counting_ = std::make_unique<v1::CountedClosure>();
  counting_->set_closure(closure.value());
  counting_->set_worker(worker);
  counting_->set_examples(metrics.examples());
  counting_->set_loss_sum(metrics.loss_sum());
  *counting_->mutable_step_records() = metrics.step_records();
  counting_->clear_touched();
  if (done.has_touched()) *counting_->mutable_touched() = done.touched();
  AppendField(v1::JobNote::kCountedFieldNumber, *counting_, &counted_);
}

std::string JournalWriter::TakeNote() {
  if (!on() || (note_ == nullptr && lines_->pending().empty() && counted_.empty()))
    return std::string();
  v1::JobNote& note = *Note();
  fill_counters_(note.mutable_counters());
  lines_->FillNote(&note);
  std::string bytes = std::exchange(counted_, std::string());
  note.AppendToString(&bytes);
  note_.reset();
  return bytes;
}

bool JournalWriter::full() const {
  return on() && (notes_ >= options_.notes_max || notes_bytes_ >= options_.notes_bytes_max);
}

bool JournalWriter::Commit() {
  std::string note = TakeNote();
  if (record_.empty() && note.empty()) return true;
  ++notes_;
  notes_bytes_ += note.size();
  const Record record = std::exchange(record_, Record());
  if (absl::Status status = host_->store().Commit(uid_, record, std::move(note)); !status.ok()) {
    host_->StoreFailed(status);
    return false;
  }
  if (on()) lines_->Commit(/*durable=*/false);
  return true;
}

bool JournalWriter::CommitWhole(const DurableState& state, const v1::JobSnapshot& snapshot) {
  note_.reset();
  counted_.clear();
  notes_ = 0;
  notes_bytes_ = 0;
  record_ = Record();  // `state` contains it
  whole_wanted_ = false;
  if (absl::Status status = host_->store().Checkpoint(uid_, state, snapshot.SerializeAsString());
      !status.ok()) {
    host_->StoreFailed(status);
    return false;
  }
  return true;
}

}  // namespace evergrad::coordinator
