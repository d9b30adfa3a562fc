#include "ps_server/service/section_runner.h"

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::ps_server {
namespace {

constexpr absl::string_view kUnproved =
    "the coordinator has not granted this attempt to the sender of the push";

// Returns the error of a push, without its numbers, or "". The error becomes the answer to the push
// (LEDGER line 11).
std::string DefectOf(const v1::PushSection& push) {
  if (push.kind() != v1::GRADIENT && push.kind() != v1::MOVING_AVERAGE && push.kind() != v1::SKIP) {
    return absl::StrCat("update kind is not built, expected GRADIENT, MOVING_AVERAGE or SKIP, got=",
                        static_cast<int>(push.kind()));
  }
  if (push.codec() != v1::CODEC_NONE)
    return absl::StrCat("codec is not built, expected CODEC_NONE, got=",
                        static_cast<int>(push.codec()));
  if (push.dtype() < v1::DTYPE_UNSPECIFIED || push.dtype() > v1::DTYPE_INT64) {
    return absl::StrCat("gradient dtype mismatch, no such type: got=",
                        static_cast<int>(push.dtype()));
  }
  return "";
}

template <class Section>
TableRows RowsOf(const Section& section, std::span<const std::int64_t> ids) {
  const auto numbers = [](const auto& field) {
    return std::span<const std::uint32_t>(field.data(), static_cast<std::size_t>(field.size()));
  };
  return {section.has_ids(), ids, numbers(section.tables()), numbers(section.table_rows())};
}

}  // namespace

bool LosesAnswer(const fault::Hit& hit) {
  return hit.action == fault::Action::kError || hit.action == fault::Action::kUserError ||
         hit.action == fault::Action::kDrop;
}

void SectionRunner::BeginPush(HostedShard* hosted, RequestSection section) {
  Shard* const shard = hosted->shard.get();
  const v1::PushSection& from =
      section.call->request().header->pushes(static_cast<int>(section.index));
  const std::string defect = DefectOf(from);
  Push push;
  push.epoch = client::FromProto<ShardEpoch>(from.epoch());
  push.closure = ClosureId(from.closure());
  push.update = UpdateIndex(from.update());
  push.attempt = client::FromProto<Attempt>(from.attempt());
  push.kind = from.kind() == v1::SKIP             ? UpdateKind::kSkip
              : from.kind() == v1::MOVING_AVERAGE ? UpdateKind::kMovingAverage
                                                  : UpdateKind::kGradient;
  push.global_step = from.global_step();
  push.rows = from.rows();
  push.payload = section.call->request().payloads[section.index];
  push.rows_of = RowsOf(from, section.call->request().push_ids[section.index]);
  push.skip_reason = from.skip_reason();
  push.wire = static_cast<tensor::WireType>(from.dtype());
  push.defect = defect;
  if (hosted->grants != nullptr && !section.call->IsProved(*hosted->grants, from))
    push.unproved = kUnproved;
  DataCall::PushOutcome& outcome = section.call->push(section.index);
  outcome.result = shard->BeginApply(push);
  if (shard->applying()) {
    hosted->applying = std::move(section);
    return;
  }
  if (outcome.result.code == PushCode::kStale)
    outcome.version = options_.jobs->Find(shard->settings().job).version;
  options_.metrics->updates[static_cast<int>(outcome.result.code)]->Add();
  if (!push.unproved.empty() && outcome.result.code == PushCode::kInvalid && options_.on_unproved)
    options_.on_unproved(*section.call->request().header, from);
  if (outcome.result.code == PushCode::kApplied) CountApplied(hosted, section);  // for a SKIP
  section.call->FinishSection();
}

std::uint64_t SectionRunner::ContinuePush(HostedShard* hosted) {
  const std::uint64_t bytes = hosted->shard->ContinueApply(kTurnBytes);
  if (hosted->shard->applying()) return bytes;
  const RequestSection section = *std::exchange(hosted->applying, std::nullopt);
  options_.metrics->push_bytes->Add(section.call->request().payloads[section.index].size());
  options_.metrics->updates[static_cast<int>(PushCode::kApplied)]->Add();
  CountApplied(hosted, section);
  section.call->FinishSection();
  return bytes;
}

void SectionRunner::CountApplied(HostedShard* hosted, const RequestSection& section) {
  const wire::Request& request = section.call->request();
  ++hosted->traffic.pushes;
  hosted->traffic.bytes_received +=
      request.payloads[section.index].size() + request.push_ids[section.index].size_bytes();
  const v1::RequestHeader& header = *request.header;
  if (header.pushes(static_cast<int>(section.index)).kind() != v1::SKIP &&
      section.call->counters() != nullptr) {
    if (const auto staleness = hosted->sender_pulls.StalenessOf(header.client_name(),
                                                                hosted->shard->updates_applied()))
      section.call->counters()->staleness.Observe(static_cast<double>(*staleness));
  }
  if (options_.failpoints == nullptr || !options_.failpoints->AnyArmed()) return;
  if (LosesAnswer(options_.failpoints->At("server.after_apply"))) section.call->LoseAnswer();
}

std::uint64_t SectionRunner::RunPull(HostedShard* hosted, RequestSection section) {
  const Shard& shard = *hosted->shard;
  const v1::PullSection& from =
      section.call->request().header->pulls(static_cast<int>(section.index));
  DataCall::PullOutcome& outcome = section.call->pull(section.index);
  if (from.has_image()) {
    const std::uint64_t bytes = ReadImage(shard, section);
    section.call->FinishSection();
    return bytes;
  }
  PullPlan plan = shard.Read({client::FromProto<ShardEpoch>(from.epoch()), from.has(),
                              client::FromProto<MapVersion>(from.have_start()), from.have_vlsn(),
                              RowsOf(from, section.call->request().pull_ids[section.index])});
  outcome.result = std::move(plan.result);
  outcome.invalid = std::move(outcome.result.invalid);
  const bool copied =
      plan.rows_bytes > 0 && section.call->ReserveCopy(plan.rows_bytes, &outcome.invalid);
  std::uint64_t bytes = 0;
  if (!outcome.invalid.empty()) {
    options_.metrics->pulls[3]->Add();
  } else {
    options_.metrics->pulls[static_cast<int>(outcome.result.code)]->Add();
    if (outcome.result.code == PullCode::kStale)
      outcome.version = options_.jobs->Find(shard.settings().job).version;
    else
      hosted->sender_pulls.OnPull(section.call->request().header->client_name(),
                                  shard.updates_applied());
    if (outcome.result.code == PullCode::kValues) {
      if (copied) bytes += plan.rows_bytes;
      for (const tensor::SharedBytes& piece : outcome.result.chunks) bytes += piece.bytes.size();
      options_.metrics->pull_bytes->Add(bytes);
      ++hosted->traffic.pulls;
      hosted->traffic.bytes_sent += bytes;
      hosted->traffic.bytes_received +=
          section.call->request().pull_ids[section.index].size_bytes();
    }
  }
  if (copied) {
    outcome.result.chunks.push_back(options_.copies->Add(plan, std::move(section.call)));
    return bytes;
  }
  // An answer with references to chunks copies no values, but each reference also takes time.
  const std::uint64_t cost = outcome.result.chunks.size() * 256;
  section.call->FinishSection();
  return cost;
}

// Answers from the image, without the checks of Shard::Read (LEDGER line 22). The next owner
// requests the state of a stopped shard under the old epoch, and a stopped shard serves no other
// request.
std::uint64_t SectionRunner::ReadImage(const Shard& shard, const RequestSection& section) {
  const v1::PullSection& from =
      section.call->request().header->pulls(static_cast<int>(section.index));
  DataCall::PullOutcome& outcome = section.call->pull(section.index);
  absl::StatusOr<tensor::SharedBytes> piece = absl::NotFoundError("the shard has no image");
  if (options_.images != nullptr) {
    piece = options_.images->Read(shard.settings().job, ShardId(from.shard()),
                                  client::FromProto<ShardEpoch>(from.epoch()),
                                  from.image().offset(), from.image().bytes());
  }
  if (!piece.ok()) {
    outcome.invalid = std::string(piece.status().message());
    options_.metrics->pulls[3]->Add();
    return 0;
  }
  outcome.result.code = PullCode::kValues;
  outcome.result.start = shard.start();
  outcome.result.vlsn = shard.vlsn();
  outcome.result.chunks.push_back(*std::move(piece));
  options_.metrics->pulls[static_cast<int>(PullCode::kValues)]->Add();
  return 256;
}

// Answers STALE with the known map version (LEDGER line 8). A shard number beyond the job's shards
// is the caller's mistake, and is answered as invalid.
void SectionRunner::AnswerUnheld(const RequestSection& section) {
  const ShardKey key = section.key();
  const JobTable::Job job = options_.jobs->Find(key.job);
  const bool unknown = job.shards_total != 0 && key.shard.value() >= job.shards_total;
  std::string message;
  if (unknown)
    message = absl::StrCat("unknown shard: shard=", key.shard.value(), " shards=", job.shards_total,
                           " job=", JobUidString(key.job));
  if (section.is_push) {
    auto& outcome = section.call->push(section.index);
    outcome.result.code = unknown ? PushCode::kInvalid : PushCode::kStale;
    outcome.result.message = std::move(message);
    outcome.version = job.version;
    options_.metrics->updates[static_cast<int>(outcome.result.code)]->Add();
  } else {
    auto& outcome = section.call->pull(section.index);
    outcome.invalid = std::move(message);
    outcome.version = job.version;
    options_.metrics->pulls[unknown ? 3 : 2]->Add();
  }
  section.call->FinishSection();
}

}  // namespace evergrad::ps_server
