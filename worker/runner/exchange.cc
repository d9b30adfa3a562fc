#include "worker/runner/exchange.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "worker/runner/exchange_errors.h"
#include "worker/runner/failpoint_site.h"
#include "worker/runner/request_split.h"

namespace evergrad::worker {
namespace {

using client::FromProto;
using client::ToProto;

// The limit of consecutive errors that a retry is not expected to cure. At the limit the attempt
// ends; an answer resets the count.
constexpr std::uint32_t kHardErrorsMax = 5;
constexpr std::uint32_t kBusyAfterMsMax = 10'000;

PushAnswer AnswerOf(v1::PushAnswer answer) {
  switch (answer) {
    case v1::APPLIED: return PushAnswer::kApplied;
    case v1::DUPLICATE: return PushAnswer::kDuplicate;
    case v1::STALE: return PushAnswer::kStale;
    case v1::SUPERSEDED: return PushAnswer::kSuperseded;
    case v1::REFUSED: return PushAnswer::kRefused;
    case v1::BUSY: return PushAnswer::kBusy;
    case v1::OVER_BUDGET: return PushAnswer::kOverBudget;
    default: return PushAnswer::kInvalid;
  }
}

void Count(metrics::Counter* counter, std::uint64_t n = 1) {
  if (counter != nullptr) counter->Add(n);
}

// Gives `cache` the values of a dense shard. The values are views of the answer and keep it alive.
// Returns Internal if the server answered UNCHANGED although the cache holds no values of the
// shard.
absl::Status AcceptDense(
    ShardId shard, const v1::PullResult& result,
    const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
    std::size_t index, PullCache* cache) {
  if (result.answer() == v1::VALUES) {
    const client::ParameterClient::Answer& got = **answer;
    return cache->Accept({shard,
                          FromProto<MapVersion>(result.start()),
                          result.vlsn(),
                          {answer, got.payloads[index]},
                          got.frame.bytes.size()});
  }
  if (cache->held(shard).has) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "the server answered `unchanged`, but this worker holds no values of the shard: shard=",
      shard.value()));
}

}  // namespace

Exchange::Exchange(Environment environment, std::shared_ptr<const Layout> layout, const Work& work,
                   Events events)
    : env_(std::move(environment)),
      layout_(std::move(layout)),
      attempt_(work.attempt),
      closure_(work.closure),
      events_(std::move(events)),
      writer_({env_.job, env_.registration, closure_, attempt_, work.proof,
               work.granted_to.empty() ? std::string() : absl::StrCat("worker/", work.granted_to)},
              layout_, env_.cache),
      sections_(layout_),
      announcer_(env_.client, env_.endpoints, layout_, env_.deadline) {}

void Exchange::WantRows(std::uint64_t count, std::shared_ptr<const SlotRows> rows,
                        std::uint64_t after) {
  sections_.WantRows(count, rows, after);
  std::vector<tensor::AlignedBuffer> values = rows->MakeRows(env_.allocate);
  rows_.Begin(count, std::move(rows), std::move(values));
}

void Exchange::Push(UpdateIndex update, std::uint64_t global_step, std::vector<Gradient> gradients,
                    absl::string_view skip_reason) {
  for (Gradient& gradient : gradients)
    sections_.AddPush(update, {std::move(gradient), global_step, std::string(skip_reason)});
}

bool Exchange::Sequential() const {
  return env_.failpoints != nullptr && env_.failpoints->IsArmed("worker.between_pushes");
}

void Exchange::Flush() {
  const bool sequential = Sequential();
  if (sequential && in_flight_ > 0) return;
  for (const auto& [server, group] : sections_.ReadyByOwner(env_.book->map(), *env_.endpoints)) {
    if (!SendGroup(server, group) || (sequential && in_flight_ > 0)) return;
  }
}

bool Exchange::SendGroup(const std::string& server, const Group& group) {
  const client::RequestLimits limits = client::RequestLimits::Of(env_.endpoints->at(server));
  const RequestParts::Requests requests = parts_.Divide(server, group, sections_, limits);
  if (requests.never_fits) {
    // The event is posted, because the caller of Flush continues to use this exchange.
    env_.executor->Post([weak = weak_from_this(),
                         error = NeverFits(*layout_, *requests.never_fits, server, limits)] {
      if (const auto self = weak.lock()) self->events_.on_failed(error);
    });
    return false;
  }
  for (const Group& request : requests.now) {
    if (requests.in_parts) parts_.Sent(server);
    Send(server, request, requests.in_parts);
    if (Sequential()) break;
  }
  return true;
}

void Exchange::Announce(const std::vector<ShardId>& shards, bool pulls) {
  announcer_.Announce(shards, pulls, env_.book->map(),
                      [this](const std::string& server) { return parts_.AnyInFlight(server); });
}

void Exchange::Send(const std::string& server, const Group& group, bool is_part) {
  const ShardMap& map = env_.book->map();
  RequestWriter::Written written = writer_.Write(sections_, group, map);
  auto request = std::make_shared<Request>();
  request->server = server;
  request->part = is_part;
  request->pulls_wanted = sections_.pulls_wanted();
  std::uint64_t response_bytes = 0;
  const auto sent = [&](const auto& keys, auto* with_serials) {
    for (const auto& key : keys) {
      response_bytes += sections_.Size(key).response_bytes;
      if (sections_.IsRetry(key)) Count(env_.counters.resends);
      with_serials->emplace_back(key, sections_.Sent(key, map));
    }
  };
  sent(group.pushes, &request->pushes);
  sent(group.pulls, &request->pulls);
  client::ParameterClient::Announced announced;
  if (!group.pushes.empty()) announced = announcer_.Take(server);
  ++in_flight_;
  if (env_.clock != nullptr) reach_.Asked(server, env_.clock->Now());
  // The answer arrives on a transport thread, or on this thread before Send returns. In both cases
  // a task is posted to the control executor, where OnAnswer processes the answer.
  env_.client->Send(
      env_.endpoints->at(server), std::move(*written.header), std::move(written.payloads),
      response_bytes, env_.deadline,
      [weak = weak_from_this(), executor = env_.executor,
       request](absl::StatusOr<client::ParameterClient::Answer> answer) {
        auto shared =
            std::make_shared<absl::StatusOr<client::ParameterClient::Answer>>(std::move(answer));
        executor->Post([weak, request, shared] {
          if (const auto self = weak.lock()) self->OnAnswer(request, shared);
        });
      },
      std::move(announced), std::move(written.ids));
}

void Exchange::OnAnswer(const std::shared_ptr<Request>& request, const SharedAnswer& answer) {
  const std::shared_ptr<Exchange> self = shared_from_this();  // an event may release this object
  --in_flight_;
  if (request->part) parts_.Answered(request->server);
  reach_.Ended(request->server);
  if (!answer->ok()) return OnCallFailed(*request, answer->status());
  if (env_.clock != nullptr) reach_.Answered(request->server, env_.clock->Now());
  const client::ParameterClient::Answer& got = **answer;
  const v1::ResponseHeader& header = *got.header;
  if (static_cast<std::size_t>(header.pushes_size()) != request->pushes.size() ||
      static_cast<std::size_t>(header.pulls_size()) != request->pulls.size() ||
      got.payloads.size() != request->pulls.size()) {
    return OnCallFailed(*request, absl::InternalError("answer does not match the request"));
  }
  hard_errors_ = 0;
  last_error_.clear();
  Retry retry;
  std::set<std::uint32_t> unsettled;
  if (!TakePushAnswers(*request, header, &retry, &unsettled)) return;
  if (const absl::Status status = TakePullAnswers(*request, answer, unsettled, &retry);
      !status.ok())
    return events_.on_failed(WithOrigin(status, absl::StrCat("ps_server/", request->server)));
  BackOff(std::move(retry));
  Continue(/*pushed=*/!request->pushes.empty());
}

bool Exchange::TakePushAnswers(const Request& request, const v1::ResponseHeader& header,
                               Retry* retry, std::set<std::uint32_t>* unsettled) {
  for (std::size_t i = 0; i < request.pushes.size(); ++i) {
    const auto& [key, serial] = request.pushes[i];
    const v1::PushResult& result = header.pushes(static_cast<int>(i));
    if (!sections_.HasPush(key)) continue;    // another copy of the push has settled it
    if (!sections_.IsCurrent(key, serial)) {  // the push was sent again, to another owner
      unsettled->insert(key.shard);
      continue;
    }
    const PushAnswer push_answer = AnswerOf(result.answer());
    Count(env_.counters.answers[static_cast<int>(push_answer)]);
    const Disposition disposition =
        env_.book->OnPushAnswer(attempt_, UpdateIndex(key.update), ShardId(key.shard), push_answer,
                                FromProto<MapVersion>(result.version()));
    if (disposition.next == Next::kSettled) {
      sections_.Settle(key);
      continue;
    }
    unsettled->insert(key.shard);
    sections_.SetOverBudget(key,
                            push_answer == PushAnswer::kOverBudget
                                ? absl::StrCat("ps_server/", request.server, ": ", result.message())
                                : "");
    switch (disposition.next) {
      case Next::kSettled: break;
      case Next::kWaitForMap:
        sections_.WaitOrBackOff(key, disposition.wait_for, env_.book->map().version, retry);
        break;
      case Next::kBackoff:
        sections_.BackOff(key, retry);
        if (push_answer == PushAnswer::kBusy)
          retry->busy_after_ms =
              std::max(retry->busy_after_ms, std::min(result.busy_after_ms(), kBusyAfterMsMax));
        break;
      case Next::kDropAttempt:
        events_.on_dropped(push_answer == PushAnswer::kSuperseded
                               ? std::optional(ShardId(key.shard))
                               : std::nullopt);
        return false;
      case Next::kFail:
        events_.on_failed(
            PushError(request.server, closure_, key.update, ShardId(key.shard), result));
        return false;
    }
  }
  return true;
}

absl::Status Exchange::TakePullAnswers(const Request& request, const SharedAnswer& answer,
                                       const std::set<std::uint32_t>& unsettled, Retry* retry) {
  for (std::size_t i = 0; i < request.pulls.size(); ++i) {
    const auto& [key, serial] = request.pulls[i];
    const v1::PullResult& result = (*answer)->header->pulls(static_cast<int>(i));
    if (!sections_.IsCurrent(key, serial)) continue;
    sections_.MakeReady(key);
    if (unsettled.contains(key.shard)) continue;  // requested again together with the push
    if (result.answer() == v1::PULL_STALE) {
      sections_.WaitOrBackOff(key, FromProto<MapVersion>(result.version()),
                              env_.book->map().version, retry);
      continue;
    }
    const ShardId shard(key.shard);
    const SlotRows::OfShard* const part = sections_.rows(key).part;
    EG_RETURN_IF_ERROR(CheckPullAnswer(
        result, shard, ToProto(part != nullptr ? part->wire : layout_->slice(shard).wire)));
    Count(result.answer() == v1::VALUES ? env_.counters.pulls_values
                                        : env_.counters.pulls_unchanged);
    if (part != nullptr) {
      // The values are copied from the frame at once, so the section is done.
      EG_RETURN_IF_ERROR(rows_.Accept(key.rows, *part, (*answer)->payloads[i]));
      sections_.Settle(key);
    } else {
      EG_RETURN_IF_ERROR(AcceptDense(shard, result, answer, i, env_.cache));
      sections_.AcceptDense(key, request.pulls_wanted);
    }
  }
  return absl::OkStatus();
}

void Exchange::Continue(bool pushed) {
  if (pushed && sections_.AnyPushReady() && Sequential()) {
    AtFailpoint(env_.failpoints, "worker.between_pushes", env_.executor,
                [weak = weak_from_this()](const absl::Status& status) {
                  const auto alive = weak.lock();
                  if (alive == nullptr) return;
                  if (!status.ok()) return alive->events_.on_failed(status);
                  alive->Flush();
                  alive->events_.on_progress();
                });
    return;
  }
  Flush();
  events_.on_progress();
}

void Exchange::OnCallFailed(const Request& request, const absl::Status& status) {
  last_error_ = absl::StrCat("ps_server/", request.server, ": ", status.message());
  // The request cannot be divided further and exceeds the server's whole budget or frame limit, so
  // no retry helps.
  if (status.code() == absl::StatusCode::kOutOfRange &&
      request.pushes.size() + request.pulls.size() == 1) {
    const ShardId shard(request.pushes.empty() ? request.pulls.front().first.shard
                                               : request.pushes.front().first.shard);
    return events_.on_failed(WithOrigin(UserError(absl::InvalidArgumentError(absl::StrCat(
                                            SectionName(*layout_, shard), ": ", status.message()))),
                                        absl::StrCat("ps_server/", request.server)));
  }
  if (const auto endpoint = env_.endpoints->find(request.server);
      env_.clock != nullptr && endpoint != env_.endpoints->end())
    reach_.Failed(request.server, endpoint->second.address(), status, env_.clock->Now());
  const bool hard = !IsRetryable(status) && status.code() != absl::StatusCode::kCancelled;
  if (hard && ++hard_errors_ >= kHardErrorsMax)
    return events_.on_failed(WithOrigin(status, absl::StrCat("ps_server/", request.server)));
  Retry retry;
  for (const auto& [key, serial] : request.pushes) {
    if (!sections_.IsCurrent(key, serial)) continue;
    Count(env_.counters.answers[static_cast<int>(PushAnswer::kTransport)]);
    const Disposition disposition = env_.book->OnPushAnswer(
        attempt_, UpdateIndex(key.update), ShardId(key.shard), PushAnswer::kTransport, {});
    if (disposition.next == Next::kDropAttempt) return events_.on_dropped(std::nullopt);
    EG_CHECK(disposition.next == Next::kBackoff);
    sections_.SetOverBudget(key, "");
    sections_.BackOff(key, &retry);
  }
  for (const auto& [key, serial] : request.pulls) {
    if (sections_.IsCurrent(key, serial)) sections_.BackOff(key, &retry);
  }
  BackOff(std::move(retry));
  Flush();
}

void Exchange::BackOff(Retry retry) {
  if (retry.empty()) return;
  const std::chrono::milliseconds delay = retry.Delay(env_.backoff_min, env_.backoff_max);
  env_.executor->PostAfter(delay, [weak = weak_from_this(), retry = std::move(retry)] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->sections_.Resume(retry);
    self->Flush();
  });
}

void Exchange::OnMap() {
  const ShardMap& map = env_.book->map();
  std::set<std::string> owners;
  for (const ShardPlace& place : map.shards) owners.insert(place.server);
  reach_.Keep(owners);
  sections_.OnMap(map, *env_.endpoints);
  Flush();
}

std::string Exchange::WaitingFor() const {
  if (sections_.WaitsForMap()) return "a newer shard map, because a shard has no owner";
  const std::string over_budget = sections_.OverBudget();
  return over_budget.empty() ? last_error_ : absl::StrCat("memory at ", over_budget);
}

void Exchange::FillUnreached(v1::WorkerProgress* progress) const {
  if (env_.clock != nullptr) reach_.Fill(env_.clock->Now(), progress);
}

}  // namespace evergrad::worker
