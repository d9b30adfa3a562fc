#include "coordinator/jobs/final_report.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kWaitsBytesMax = 500;

}  // namespace

FinalReport::FinalReport(const JobPart& part)
    : JobPart(part), queries_(id_.uid, [this](TaskId task, const v1::CoordinatorMessage& message) {
        host_->Send(task, message);
      }) {}

void FinalReport::Ask(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done) {
  Query(digests, timeout, std::nullopt, std::move(done));
}

void FinalReport::Query(bool digests, std::chrono::milliseconds timeout,
                        std::optional<std::uint64_t> report, ShardQueries::Done done) {
  if (!book_ || !shards_.placed()) return done(answer_);
  queries_.Begin({host_->NextNumber(), digests, host_->Now() + timeout, report}, shards_.Ready(),
                 std::move(done));
}

void FinalReport::Begin(Kind kind, std::function<void()> done) {
  Void();
  kind_ = kind;
  Query(true, options_.report_timeout,
        kind == Kind::kComplete ? std::optional(generation_) : std::nullopt,
        [this, generation = generation_, done = std::move(done)](const Answer& answer) {
          if (generation != generation_) return;
          kind_.reset();
          answer_ = answer;
          done();
        });
}

void FinalReport::Void() {
  ++generation_;
  kind_.reset();
}

void FinalReport::OnReport(TaskId task, const v1::ShardReport& report) {
  const JobServer* server = shards_.Find(task);
  if (server == nullptr || !book_) return;
  if (queries_.OnReport(task, server->identity, report, book_->durable().map,
                        kind_ == Kind::kSealed))
    job_.Touch();  // The job's status shows the shards that it waits for.
}

void FinalReport::Check() {
  if (queries_.empty() || !book_) return;
  queries_.Check(host_->Now(), kind_ == Kind::kComplete ? std::optional(generation_) : std::nullopt,
                 options_.report_timeout, shards_.Ready(), book_->durable().map);
}

std::string FinalReport::WaitingFor() const {
  if (!book_) return "";
  const std::map<std::string, std::size_t> left =
      queries_.Missing(generation_, book_->durable().map);
  std::string text;
  for (const auto& [identity, shards] : left) {
    if (shards > 0 && text.size() < kWaitsBytesMax)
      absl::StrAppend(&text, text.empty() ? "" : ", ", ShardCount(shards),
                      text.empty() ? " to be summed" : "", " by ps_server/", identity);
  }
  return text;
}

void FinalReport::Fill(v1::JobSnapshot* snapshot) const {
  for (const v1::ShardState& shard : answer_.shards) *snapshot->add_final_shards() = shard;
  for (const std::string& server : answer_.servers) snapshot->add_final_servers(server);
  snapshot->set_final_complete(answer_.complete);
}

absl::Status FinalReport::Read(const v1::JobSnapshot& snapshot) {
  answer_.complete = snapshot.final_complete();
  answer_.shards.assign(snapshot.final_shards().begin(), snapshot.final_shards().end());
  answer_.servers.assign(snapshot.final_servers().begin(), snapshot.final_servers().end());
  if (answer_.servers.size() != answer_.shards.size())
    return absl::InvalidArgumentError("the result in the journal has shards without servers");
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
