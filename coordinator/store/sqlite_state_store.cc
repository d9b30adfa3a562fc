#include "coordinator/store/sqlite_state_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/runtime/executor.h"
#include "coordinator/store/journal_file.h"
#include "coordinator/store/record_codec.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kOverheadBytes = 256;  // approximate overhead of a queued commit

}  // namespace

struct SqliteStateStore::Impl {
  Impl(SqliteStoreOptions o, Parts p)
      : options(std::move(o)),
        parts(p),
        file(options, parts),
        queue_limit(*p.registry, "evergrad_coordinator_journal_queue_bytes",
                    "bytes that the journal has accepted and has not yet written to disk",
                    static_cast<double>(options.queue_bytes_max)),
        file_limit(
            *p.registry, "evergrad_coordinator_journal_file_bytes",
            "size of the journal without free pages, including its -wal file (--state-bytes-max)",
            static_cast<double>(options.file_bytes_max)),
        commits_total(p.registry->GetCounter("evergrad_coordinator_journal_commits_total",
                                             "group commits of the journal")),
        changes_total(p.registry->GetCounter("evergrad_coordinator_journal_changes_total",
                                             "changes committed to the journal")),
        failures_total(p.registry->GetCounter("evergrad_coordinator_journal_failures_total",
                                              "failed group commits, including retries")),
        seconds(p.registry->GetHistogram(
            "evergrad_coordinator_journal_commit_seconds",
            "duration of a group commit, its sync included",
            {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5})) {}

  // Runs on the thread that opens the store, before the journal thread has work.
  absl::Status Open() {
    EG_ASSIGN_OR_RETURN(JournalFile::Contents contents, file.Open());
    term = contents.term;
    order = std::move(contents.order);
    removed = std::move(contents.removed);
    ShowSize();
    journal = std::make_unique<runtime::ThreadExecutor>(
        runtime::ThreadExecutor::Options{.name = "journal"});
    LookLater();
    return absl::OkStatus();
  }

  // Does nothing if the store already holds the job.
  absl::Status AddJob(JobUid job) {
    if (std::find(order.begin(), order.end(), job) != order.end()) return absl::OkStatus();
    if (order.size() >= options.jobs_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the state store holds too many jobs: max=", options.jobs_max,
                       " job=", JobUidString(job)));
    }
    order.push_back(job);
    return absl::OkStatus();
  }

  void LookLater() {
    journal->PostAfter(options.look_every, [this] {
      absl::Status now = file.Look();
      std::function<void()> tell;
      {
        MutexLock lock(&mu);
        if (now.ok() != place.ok()) tell = listener;
        place = std::move(now);
      }
      if (tell) tell();
      LookLater();
    });
  }

  void ShowSize() { file_limit.current.Set(static_cast<double>(file.UsedBytes())); }

  // ---------------------------------------------------------------- the caller's side

  absl::Status Accept(Change change, std::uint64_t bytes) {
    bool post = false;
    {
      MutexLock lock(&mu);
      if (!broken.ok()) return broken;
      if (queue_bytes + bytes > options.queue_bytes_max) {
        queue_limit.refused.Add();
        broken = absl::ResourceExhaustedError(
            absl::StrCat("too many changes wait for the journal's disk: file=", file.path(),
                         " bytes=", queue_bytes + bytes, " max=", options.queue_bytes_max));
        return broken;
      }
      queue_bytes += bytes;
      queue_limit.current.Set(static_cast<double>(queue_bytes));
      queue.push_back({std::move(change), bytes});
      ++accepted;
      post = !std::exchange(scheduled, true);
    }
    if (post) Schedule();
    return absl::OkStatus();
  }

  // Schedules the writing of a group. If the previous group began less than commit_every ago, the
  // new commit waits for further commits. A busy coordinator therefore syncs at most once per
  // commit_every.
  void Schedule() {
    journal->Post([this] {
      const auto since = parts.clock->Now() - last_begun;
      if (since >= options.commit_every || options.commit_every.count() == 0) {
        CommitGroup();
      } else {
        journal->PostAfter(options.commit_every - since, [this] { CommitGroup(); });
      }
    });
  }

  // ---------------------------------------------------------------- the journal thread

  void CommitGroup() {
    last_begun = parts.clock->Now();
    if (group.empty()) {
      MutexLock lock(&mu);
      group.swap(queue);
      if (group.empty()) {
        scheduled = false;
        return;
      }
    }
    const int code = file.Write(group);
    const double took = std::chrono::duration<double>(parts.clock->Now() - last_begun).count();
    absl::Status there = file.Look();
    std::function<void()> tell;
    bool more = false, again = false;
    {
      MutexLock lock(&mu);
      tell = listener;
      place = std::move(there);
      if (code == SQLITE_OK) {
        std::uint64_t bytes = 0;
        for (const QueuedChange& queued : group) bytes += queued.bytes;
        queue_bytes -= bytes;
        queue_limit.current.Set(static_cast<double>(queue_bytes));
        durable += group.size();
        full = absl::OkStatus();
        more = !queue.empty();
        scheduled = more;
      } else if ((code & 0xff) == SQLITE_FULL) {
        again = true;
        if (full.ok()) {
          full = absl::ResourceExhaustedError(
              absl::StrCat("out of space for the coordinator's journal; the coordinator continues "
                           "when the disk has space again: file=",
                           file.path(), " reason=", file.failure()));
        }
      } else if (broken.ok()) {
        broken = absl::DataLossError(
            absl::StrCat("the coordinator's journal cannot be written, and its contents are "
                         "unknown; restart the coordinator when the disk works again: file=",
                         file.path(), " ", file.failure()));
      }
      durable_changed.NotifyAll();
    }
    if (code == SQLITE_OK) {
      commits_total.Add();
      changes_total.Add(group.size());
      seconds.Observe(took);
      ShowSize();
      group.clear();
    } else {
      failures_total.Add();
    }
    if (tell) tell();
    if (again) journal->PostAfter(options.retry_every, [this] { CommitGroup(); });
    if (more) Schedule();
  }

  absl::Status WaitDurable() {
    MutexLock lock(&mu);
    while (durable < accepted) {
      if (!broken.ok()) return broken;
      if (!full.ok()) return full;
      durable_changed.Wait(&mu);
    }
    return broken;
  }

  const SqliteStoreOptions options;
  const Parts parts;
  JournalFile file;  // used by the opening thread, then by the journal thread

  // Used by the journal thread.
  std::vector<QueuedChange> group;  // being written or retried
  MonoTime last_begun{MonoTime::min() / 2};

  // Used by the owner's thread.
  Term term;
  std::vector<JobUid> order;
  RemovedJobs removed{kRemovedMax};

  mutable Mutex mu;
  CondVar durable_changed;
  std::vector<QueuedChange> queue ABSL_GUARDED_BY(mu);
  std::uint64_t queue_bytes ABSL_GUARDED_BY(mu) = 0;
  std::uint64_t accepted ABSL_GUARDED_BY(mu) = 0, durable ABSL_GUARDED_BY(mu) = 0;
  bool scheduled ABSL_GUARDED_BY(mu) = false;
  absl::Status full ABSL_GUARDED_BY(mu), broken ABSL_GUARDED_BY(mu), place ABSL_GUARDED_BY(mu);
  std::function<void()> listener ABSL_GUARDED_BY(mu);

  metrics::Limit queue_limit, file_limit;
  metrics::Counter &commits_total, &changes_total, &failures_total;
  metrics::Histogram& seconds;

  // This is the last member, so that it is destroyed first: its tasks use all members above.
  std::unique_ptr<runtime::ThreadExecutor> journal;
};

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(SqliteStoreOptions options,
                                                                         Parts parts) {
  auto impl = std::make_unique<Impl>(std::move(options), parts);
  EG_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<SqliteStateStore>(new SqliteStateStore(std::move(impl)));
}

SqliteStateStore::SqliteStateStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SqliteStateStore::~SqliteStateStore() {
  impl_->journal->Post([impl = impl_.get()] {
    impl->CommitGroup();
    impl->file.EmptyWal();
  });
  impl_->journal->Shutdown();
}

absl::Status SqliteStateStore::CommitTerm(Term term) {
  if (term <= impl_->term) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the new term of the coordinator is not above its present term: have=", impl_->term.value(),
        " got=", term.value()));
  }
  EG_RETURN_IF_ERROR(impl_->Accept(PutTerm{term}, kOverheadBytes));
  impl_->term = term;
  return absl::OkStatus();
}

Term SqliteStateStore::term() const { return impl_->term; }

absl::Status SqliteStateStore::Commit(JobUid job, const Record& record, std::string note) {
  EG_RETURN_IF_ERROR(impl_->AddJob(job));
  const std::uint64_t bytes =
      kOverheadBytes + note.size() +
      64 * (record.map.size() + record.todo_add.size() + record.todo_remove.size());
  return impl_->Accept(PutEntry{job, record, std::move(note)}, bytes);
}

absl::Status SqliteStateStore::Checkpoint(JobUid job, const DurableState& state,
                                          std::string snapshot) {
  EG_RETURN_IF_ERROR(impl_->AddJob(job));
  std::string encoded = EncodeState(state);
  const std::uint64_t bytes = kOverheadBytes + encoded.size() + snapshot.size();
  return impl_->Accept(PutJob{job, std::move(encoded), std::move(snapshot)}, bytes);
}

absl::Status SqliteStateStore::Remove(JobUid job) {
  if (std::erase(impl_->order, job) == 0) return absl::OkStatus();
  return impl_->Accept(DropJob{job, impl_->removed.Add(job)}, kOverheadBytes);
}
bool SqliteStateStore::Removed(JobUid job) const { return impl_->removed.Contains(job); }

absl::StatusOr<StoredJob> SqliteStateStore::LoadJob(JobUid job) const {
  EG_RETURN_IF_ERROR(impl_->WaitDurable());
  absl::StatusOr<StoredJob> stored = absl::InternalError("not read");
  runtime::WaitableEvent read;
  if (!impl_->journal->Post([&] {
        stored = impl_->file.Read(job);
        read.Set();
      })) {
    return absl::FailedPreconditionError("the journal is closed");
  }
  read.Wait();
  return stored;
}

absl::StatusOr<std::vector<JobUid>> SqliteStateStore::ListJobs() const { return impl_->order; }
absl::Status SqliteStateStore::Sync() { return impl_->WaitDurable(); }

std::uint64_t SqliteStateStore::accepted() const {
  MutexLock lock(&impl_->mu);
  return impl_->accepted;
}
std::uint64_t SqliteStateStore::durable() const {
  MutexLock lock(&impl_->mu);
  return impl_->durable;
}
absl::Status SqliteStateStore::health() const {
  MutexLock lock(&impl_->mu);
  return impl_->broken.ok() ? impl_->full : impl_->broken;
}
absl::Status SqliteStateStore::place() const {
  MutexLock lock(&impl_->mu);
  return impl_->place;
}
void SqliteStateStore::SetListener(std::function<void()> listener) {
  MutexLock lock(&impl_->mu);
  impl_->listener = std::move(listener);
}
std::string SqliteStateStore::path() const { return impl_->file.path(); }
std::uint64_t SqliteStateStore::torn_bytes() const { return impl_->file.torn_bytes(); }

}  // namespace evergrad::coordinator
