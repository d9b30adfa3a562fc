#include "coordinator/jobs/function_closures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Size of the range of closure numbers that a life may have given out and a torn journal may have
// lost. Servers may hold updates of these closures. The range is larger than the number of closures
// in any part of the journal that was not durable.
constexpr std::uint64_t kLifeGap = 1u << 16;

}  // namespace

FunctionClosures::FunctionClosures(const JobPart& part, Parts parts)
    : JobPart(part), parts_(std::move(parts)), queue_(id_.spec.functions) {}

void FunctionClosures::Note(const v1::FunctionsNote& note) {
  queue_.Apply(note);
  if (v1::JobNote* const all = job_.NoteIfJournaled()) all->mutable_functions()->MergeFrom(note);
  job_.Touch();
  host_->JobChanged(id_.uid);
}

// ---------------------------------------------------------------- ends

// Adds the work of a closure to the sums. This method runs when the closure ends and when the
// journal is read.
void FunctionClosures::Count(const v1::FunctionSucceeded& one) {
  parts_.epochs->CountUnplanned(one.steps(), one.examples());
  parts_.totals->CountClosure(one.worker(), one.steps(), one.examples());
}

void FunctionClosures::OnSucceeded(const std::string& worker, ClosureId closure,
                                   const v1::Done& done) {
  v1::FunctionsNote note;
  v1::FunctionSucceeded* one = note.add_succeeded();
  one->set_closure(closure.value());
  one->set_worker(worker);
  one->set_steps(std::min<std::uint64_t>(done.metrics().steps(), kUpdatesPerClosureMax));
  one->set_examples(std::min<std::uint64_t>(done.metrics().examples(), 1ull << 40));
  one->set_result(done.result());
  Count(*one);
  const bool first = queue_.results_given_up() == 0;
  Note(note);
  if (first && queue_.results_given_up() > 0)
    job_.Event("warning", absl::StrCat("the job discards results, the oldest first, because they "
                                       "exceed the limit: result_bytes_max=",
                                       id_.spec.functions.result_bytes_max));
}

void FunctionClosures::OnFailed(ClosureId closure, v1::ErrorDetail cause) {
  IntervalSet open;
  for (const std::uint64_t c : queue_.open()) open.Add(c);
  if (!open.Contains(closure.value())) return;
  const FunctionQueue::ScheduledClosure* entry = queue_.Find(closure.value());
  v1::FunctionsNote note;
  note.mutable_failed()->set_closure(closure.value());
  note.mutable_failed()->set_function(entry == nullptr ? "" : entry->function);
  const std::size_t others = open.size() - 1;
  job_.Event("error",
             absl::StrCat(
                 "closure ", closure.value(), " (", note.failed().function(),
                 ") failed: ", ErrorText(cause),
                 others == 0 ? ""
                             : absl::StrCat("; ", others, others == 1 ? " other is" : " others are",
                                            " cancelled")));
  *note.mutable_failed()->mutable_cause() = std::move(cause);
  Cancel(open, &note);
}

void FunctionClosures::OnLost(ClosureId closure) {
  v1::FunctionsNote note;
  *note.mutable_lost() = client::ToProto(IntervalSet{closure.value()});
  Note(note);
}

bool FunctionClosures::Cancel(const IntervalSet& closures, v1::FunctionsNote* note) {
  *note->mutable_cancelled() = client::ToProto(closures);
  const Record record = book_->Cancel(closures);
  closing_.UnionWith(record.dead_add);
  Note(*note);
  if (!job_.Persist(record)) return false;
  std::vector<std::pair<ClosureId, ClosureBook::Current>> taken;
  for (const auto& [closure, current] : book_->current()) {
    if (record.dead_add.Contains(closure.value())) taken.emplace_back(closure, current);
  }
  for (const auto& [closure, current] : taken) {
    book_->ReleaseAttempt(closure, current.attempt);
    parts_.revoke(closure, current);
  }
  job_.SendCloses();
  CheckClosing();
  return true;
}

void FunctionClosures::BeginLife(Record* begun) {
  if (queue_.next() + kLifeGap < plan_->closures()) {
    v1::FunctionsNote note;
    note.set_next(queue_.next() + kLifeGap);
    AppendRecord(book_->Cancel(IntervalSet::Range(queue_.next(), note.next())), begun);
    Note(note);
  }
  closing_ = book_->durable().dead;  // it is not known yet which owners refuse them
}

// ---------------------------------------------------------------- closing

void FunctionClosures::CheckClosing() {
  if (closing_.empty() || !book_ || book_->window_open() || !book_->RefusedEverywhere(closing_))
    return;
  closing_.Clear();
  host_->JobChanged(id_.uid);
}

std::string FunctionClosures::ClosingText() const {
  return absl::StrCat("servers to confirm that closures are cancelled: ",
                      closing_.size() > kLifeGap ? "those of earlier coordinator processes"
                                                 : absl::StrCat(closing_.size(), " left"));
}

// ---------------------------------------------------------------- arguments and checkpoints

// The arguments of a closure are deleted once every snapshot of every shard contains its updates
// (LEDGER line 33). While schedule() waits for memory, it is enough that each shard's newest
// snapshot contains them. If the newest snapshot of a shard is damaged later, an older snapshot
// lacks the closure, and its updates in this shard are counted as lost.
IntervalSet FunctionClosures::SavedClosures() const {
  const DurableState& state = book_->durable();
  IntervalSet saved = state.succeeded;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const std::vector<Snapshot>& known = state.snapshots[p];
    IntervalSet here;
    if (!known.empty()) here = known.back().done;
    if (!capacity_wanted_) {
      for (const Snapshot& s : known) here = here.Intersect(s.done);
    }
    saved = saved.Intersect(here.Union(state.lost[p]));
  }
  return saved;
}

void FunctionClosures::TrimArguments() {
  if (!book_) return;
  std::vector<std::uint64_t> ended;
  for (const auto& [c, entry] : queue_.kept()) {
    if (!queue_.open().contains(c)) ended.push_back(c);
  }
  if (ended.empty()) capacity_wanted_ = false;
  if (ended.empty() || !shards_.placed()) return;
  IntervalSet drop;
  if (parts_.rounds->on()) {
    const IntervalSet saved = SavedClosures();
    for (const std::uint64_t c : ended) {
      if (saved.Contains(c)) drop.Add(c);
    }
  } else if (capacity_wanted_) {
    std::uint64_t bytes = queue_.argument_bytes();
    for (const std::uint64_t c : ended) {
      if (bytes <= queue_.argument_bytes_max() / 2) break;
      bytes -= queue_.Find(c)->arguments.size() + FunctionQueue::kEntryBytes;
      drop.Add(c);
    }
    if (!drop.empty() && !std::exchange(arguments_given_up_said_, true))
      job_.Event(
          "warning",
          "the job discards the arguments of ended closures, because they exceed the limit: there "
          "are no checkpoints, so a lost server would lose the updates of these closures");
  }
  if (drop.empty()) return;
  capacity_wanted_ = false;
  v1::FunctionsNote note;
  *note.mutable_arguments_dropped() = client::ToProto(drop);
  Note(note);
}

bool FunctionClosures::FreeCapacity(std::uint64_t argument_bytes) {
  if (queue_.HasRoomFor(argument_bytes)) return true;
  capacity_wanted_ = true;
  TrimArguments();
  if (queue_.HasRoomFor(argument_bytes)) return true;
  capacity_wanted_ = true;
  return false;
}

void FunctionClosures::OnSaved(const v1::Manifest& manifest) {
  saved_done_.assign(shards_.size(), IntervalSet());
  for (const v1::ShardFile& entry : manifest.shards()) {
    if (auto done = client::FromProto(entry.done());
        done.ok() && entry.shard() < saved_done_.size())
      saved_done_[entry.shard()] = *std::move(done);
  }
  TrimArguments();
  host_->JobChanged(id_.uid);
}

bool FunctionClosures::AllSaved() const {
  if (saved_done_.size() != shards_.size()) return false;
  const DurableState& state = book_->durable();
  for (std::uint32_t p = 0; p < saved_done_.size(); ++p) {
    if (!saved_done_[p].ContainsAll(state.succeeded.Minus(state.lost[p]))) return false;
  }
  return true;
}

void FunctionClosures::OnRoundTick() {
  if (round_wanted_ && AllSaved()) round_wanted_ = false;
}

// ---------------------------------------------------------------- questions

std::set<std::string> FunctionClosures::WantedFunctions() const {
  std::set<std::string> wanted;
  for (const std::uint64_t c : queue_.open()) {
    if (const FunctionQueue::ScheduledClosure* entry = queue_.Find(c); entry != nullptr)
      wanted.insert(entry->function);
  }
  return wanted;
}

std::string FunctionClosures::WaitingFor(const std::set<std::string>& functions_of_workers) const {
  for (const std::uint64_t c : queue_.open()) {
    if (book_->current().contains(ClosureId(c))) continue;
    const FunctionQueue::ScheduledClosure* entry = queue_.Find(c);
    if (entry != nullptr && !functions_of_workers.contains(entry->function))
      return absl::StrCat("workers: no connected worker has function `", entry->function, "`");
  }
  return "";
}

void FunctionClosures::ReadNote(const v1::FunctionsNote& note) {
  queue_.Apply(note);
  for (const v1::FunctionSucceeded& one : note.succeeded()) Count(one);
}

}  // namespace evergrad::coordinator
