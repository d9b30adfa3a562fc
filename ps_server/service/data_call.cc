#include "ps_server/service/data_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "ps_server/service/data_sender.h"

namespace evergrad::ps_server {
namespace {

constexpr std::uint32_t kBusyAfterMs = 100;

v1::PushAnswer AnswerOf(PushCode code) {
  switch (code) {
    case PushCode::kApplied: return v1::APPLIED;
    case PushCode::kDuplicate: return v1::DUPLICATE;
    case PushCode::kStale: return v1::STALE;
    case PushCode::kSuperseded: return v1::SUPERSEDED;
    case PushCode::kRefused: return v1::REFUSED;
    case PushCode::kBusy: return v1::BUSY;
    case PushCode::kOverBudget: return v1::OVER_BUDGET;
    case PushCode::kInvalid: return v1::INVALID;
  }
  return v1::INVALID;
}

v1::PullAnswer AnswerOf(const DataCall::PullOutcome& outcome) {
  if (!outcome.invalid.empty()) return v1::PULL_INVALID;
  switch (outcome.result.code) {
    case PullCode::kValues: return v1::VALUES;
    case PullCode::kUnchanged: return v1::UNCHANGED;
    case PullCode::kStale: return v1::PULL_STALE;
  }
  return v1::PULL_INVALID;
}

std::uint64_t BytesOf(std::span<const tensor::SharedBytes> pieces) {
  std::uint64_t bytes = 0;
  for (const tensor::SharedBytes& piece : pieces) bytes += piece.bytes.size();
  return bytes;
}

}  // namespace

DataCall::DataCall(transport::ReceivedFrame frame, wire::Request request,
                   std::unique_ptr<transport::DataResponder> responder, std::uint32_t executors,
                   std::uint64_t answer_bytes_max,
                   std::shared_ptr<std::atomic<std::uint64_t>> largest_frame,
                   std::shared_ptr<JobCounters> counters, fault::Failpoints* failpoints)
    : frame_(std::move(frame)),
      request_(std::move(request)),
      responder_(std::move(responder)),
      executors_(executors),
      answer_bytes_max_(answer_bytes_max),
      largest_frame_(std::move(largest_frame)),
      counters_(std::move(counters)),
      failpoints_(failpoints),
      pushes_(static_cast<std::size_t>(request_.header->pushes_size())),
      pulls_(static_cast<std::size_t>(request_.header->pulls_size())),
      remaining_(pushes_.size() + pulls_.size()) {
  if (counters_ != nullptr)
    counters_->bytes_received.fetch_add(frame_.bytes.size(), std::memory_order_relaxed);
}

bool DataCall::ReserveCopy(std::uint64_t bytes, std::string* invalid) {
  const std::uint64_t bytes_max = answer_bytes_max();
  std::uint64_t before = copied_.load(std::memory_order_relaxed);
  do {
    if (bytes > bytes_max || before > bytes_max - bytes) {
      *invalid = absl::StrCat("the values exceed the reservation of the request: bytes=", bytes,
                              " reserved=", bytes_max, " left=", bytes_max - before);
      return false;
    }
  } while (!copied_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return true;
}

bool DataCall::IsProved(grants::GrantGuard& guard, const v1::PushSection& push) {
  const v1::RequestHeader& header = *request_.header;
  for (int i = 0; i < header.grants_size(); ++i) {
    const v1::GrantProof& grant = header.grants(i);
    if (grant.closure() != push.closure() || grant.attempt().term() != push.attempt().term() ||
        grant.attempt().n() != push.attempt().n())
      continue;
    const std::uint32_t bit = 1u << i;
    if ((proved_.load(std::memory_order_relaxed) & bit) != 0) return true;
    if (!guard.Fits(grant.mac(), ClosureId(push.closure()),
                    client::FromProto<Attempt>(push.attempt()), WorkerOf(header)))
      continue;
    proved_.fetch_or(bit, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void DataCall::FinishSections(std::size_t count) {
  if (remaining_.fetch_sub(count, std::memory_order_acq_rel) == count) Answer();
}

void DataCall::Answer() {
  auto packed = wire::Packed<v1::ResponseHeader>::OfSections(pushes_.size() + pulls_.size());
  v1::ResponseHeader& header = *packed;
  for (std::size_t i = 0; i < pushes_.size(); ++i) {
    PushOutcome& outcome = pushes_[i];
    if (counters_ != nullptr && outcome.result.code == PushCode::kApplied)
      counters_->updates_applied.fetch_add(1, std::memory_order_relaxed);
    if (counters_ != nullptr && outcome.result.code == PushCode::kDuplicate)
      counters_->duplicates_refused.fetch_add(1, std::memory_order_relaxed);
    v1::PushResult* result = header.add_pushes();
    result->set_shard(request_.header->pushes(static_cast<int>(i)).shard());
    result->set_answer(AnswerOf(outcome.result.code));
    if (outcome.result.code == PushCode::kStale)
      *result->mutable_version() = client::ToProto(outcome.version);
    if (outcome.result.code == PushCode::kBusy) result->set_busy_after_ms(kBusyAfterMs);
    // The message is set only if it is not empty, because setting it allocates.
    if (!outcome.result.message.empty()) result->set_message(std::move(outcome.result.message));
    result->set_lsn(outcome.result.lsn);
  }
  // A pull beyond the limit is refused. The pulls before the refused pull are served.
  const std::uint64_t bytes_max = answer_bytes_max();
  std::uint64_t left = bytes_max;
  std::vector<std::span<tensor::SharedBytes>> payloads(pulls_.size());
  for (std::size_t i = 0; i < pulls_.size(); ++i) {
    PullOutcome& outcome = pulls_[i];
    const std::uint64_t bytes = BytesOf(outcome.result.chunks);
    if (bytes > left) {
      outcome.invalid = absl::StrCat("the values exceed the reservation of the request: shard=",
                                     request_.header->pulls(static_cast<int>(i)).shard(),
                                     " bytes=", bytes, " reserved=", bytes_max, " left=", left);
    } else {
      left -= bytes;
      payloads[i] = std::span(outcome.result.chunks.data(), outcome.result.chunks.size());
    }
    v1::PullResult* result = header.add_pulls();
    result->set_shard(request_.header->pulls(static_cast<int>(i)).shard());
    result->set_answer(AnswerOf(outcome));
    if (!outcome.invalid.empty()) result->set_message(std::move(outcome.invalid));
    if (result->answer() == v1::PULL_STALE)
      *result->mutable_version() = client::ToProto(outcome.version);
    if (result->answer() == v1::VALUES || result->answer() == v1::UNCHANGED) {
      *result->mutable_start() = client::ToProto(outcome.result.start);
      result->set_vlsn(outcome.result.vlsn);
      result->set_dtype(client::ToProto(outcome.result.wire));
    }
  }
  std::vector<std::uint32_t> order;  // indices ordered by executor
  order.reserve(pulls_.size());
  for (std::uint32_t executor = 0; executor < executors_ && order.size() < pulls_.size();
       ++executor) {
    for (std::size_t i = 0; i < pulls_.size(); ++i) {
      if (request_.header->pulls(static_cast<int>(i)).shard() % executors_ == executor)
        order.push_back(static_cast<std::uint32_t>(i));
    }
  }
  // The bytes of the request and their reservation are released before the answer is sent.
  request_ = {};
  frame_ = {};
  if (answer_lost_.load(std::memory_order_relaxed)) {
    responder_->Fail(absl::InternalError("a failpoint dropped the answer"));
    return;
  }
  transport::Frame answer{wire::BuildResponseOfPieces(&header, payloads, order)};
  const std::uint64_t answer_bytes = BytesOf(answer.pieces);
  NoteFrame(answer_bytes, largest_frame_.get());
  if (counters_ != nullptr)
    counters_->bytes_sent.fetch_add(answer_bytes, std::memory_order_relaxed);
  responder_->Answer(std::move(answer));
  if (failpoints_ != nullptr) failpoints_->At("server.after_answer");
}

void DataCall::NoteFrame(std::uint64_t bytes, std::atomic<std::uint64_t>* largest) {
  std::uint64_t known = largest->load(std::memory_order_relaxed);
  while (bytes > known &&
         !largest->compare_exchange_weak(known, bytes, std::memory_order_relaxed)) {
  }
}

transport::Frame DataCall::Refusal(const absl::Status& status) {
  v1::ResponseHeader header;
  *header.mutable_error() = client::ToErrorDetail(status);
  return {wire::BuildResponse(std::move(header), {})};
}

}  // namespace evergrad::ps_server
