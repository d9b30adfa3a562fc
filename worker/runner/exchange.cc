#include "worker/runner/exchange.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "worker/runner/failpoint_site.h"

namespace evergrad::worker {
namespace {

using client::FromProto;
using client::ToProto;

// The attempt ends after this number of errors in a row that a retry is not expected to cure. An
// answer resets the number.
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

}  // namespace

Exchange::Exchange(Environment environment, std::shared_ptr<const Layout> layout, const Work& work,
                   Events events)
    : env_(std::move(environment)),
      layout_(std::move(layout)),
      attempt_(work.attempt),
      closure_(work.closure),
      proof_(work.proof),
      client_name_(work.granted_to.empty() ? std::string()
                                           : absl::StrCat("worker/", work.granted_to)),
      events_(std::move(events)) {
  for (std::uint32_t shard = 0; shard < layout_->dense_shards(); ++shard) pulls_[{0, shard}];
}

void Exchange::HavePulls(std::uint64_t count) {
  WantPulls(count);
  for (auto& [key, pull] : pulls_) {
    if (key.first == 0) pull.have = std::max(pull.have, count);
  }
}

bool Exchange::PullsDone(std::uint64_t count) const {
  return std::all_of(pulls_.begin(), pulls_.end(), [count](const auto& entry) {
    return entry.first.first != 0 || entry.second.have >= count;
  });
}

void Exchange::WantRows(std::uint64_t count, std::shared_ptr<const SlotRows> rows,
                        std::uint64_t after) {
  EG_CHECK(count > 0 && !row_pulls_.contains(count));
  RowPull& pull = row_pulls_[count];
  pull.values = rows->MakeRows(env_.allocate);
  pull.missing = rows->parts().size();
  pull.after = after;
  for (const SlotRows::OfShard& part : rows->parts())
    pulls_[{count, part.shard.value()}].part = &part;
  pull.rows = std::move(rows);
}

bool Exchange::RowsDone(std::uint64_t count) const {
  const auto it = row_pulls_.find(count);
  return it != row_pulls_.end() && it->second.missing == 0;
}

std::vector<tensor::AlignedBuffer> Exchange::TakeRows(std::uint64_t count, bool widen) {
  EG_CHECK(RowsDone(count));
  RowPull pull = std::move(row_pulls_.extract(count).mapped());
  if (widen) pull.rows->Widen(&pull.values);
  return std::move(pull.values);
}

void Exchange::Push(UpdateIndex update, std::uint64_t global_step, std::vector<Gradient> gradients,
                    absl::string_view skip_reason) {
  for (Gradient& gradient : gradients) {
    PushItem& item = pushes_[{update.value(), gradient.shard.value()}];
    item.global_step = global_step;
    item.bytes = std::move(gradient.bytes);
    item.skip_reason = std::string(skip_reason);
    item.rows = std::move(gradient.rows);
    item.part = gradient.part;
  }
}

bool Exchange::Sequential() const {
  return env_.failpoints != nullptr && env_.failpoints->IsArmed("worker.between_pushes");
}

const ShardPlace* Exchange::PlaceFor(std::uint32_t shard, Item& item) {
  const ShardMap& map = env_.book->map();
  if (shard < map.shards.size()) {
    const ShardPlace& place = map.shards[shard];
    if (!place.server.empty() && env_.endpoints->contains(place.server)) return &place;
  }
  item.state = State::kWaitMap;
  item.serial = ++serial_;
  item.wait_for = {};
  item.wait_newer = true;
  item.sent_version = map.version;
  return nullptr;
}

void Exchange::Flush() {
  const bool sequential = Sequential();
  if (sequential && in_flight_ > 0) return;
  std::map<std::string, Group> groups;
  // Shards with a push that is not sent now; their pull waits for the push.
  std::set<std::uint32_t> held_back;
  for (auto& [key, item] : pushes_) {
    const ShardPlace* place = item.state == State::kReady ? PlaceFor(key.second, item) : nullptr;
    if (place == nullptr) {
      held_back.insert(key.second);
    } else {
      groups[place->server].pushes.push_back(key);
    }
  }
  for (auto& [key, pull] : pulls_) {
    const bool wanted = key.first != 0 ? pulls_wanted_ >= row_pulls_.at(key.first).after
                                       : pull.have < pulls_wanted_;
    if (!wanted || pull.state != State::kReady || held_back.contains(key.second)) continue;
    if (const ShardPlace* place = PlaceFor(key.second, pull))
      groups[place->server].pulls.push_back(key);
  }
  for (const auto& [server, group] : groups) {
    if (!SendGroup(server, group) || (sequential && in_flight_ > 0)) return;
  }
}

SectionSize Exchange::SizeOfPush(const PushKey& key) const {
  const PushItem& item = pushes_.at(key);
  if (item.part == nullptr) return PushSize(key.second, item.bytes.bytes.size());
  return PushSize(key.second, item.bytes.bytes.size(), item.part->rows * sizeof(std::int64_t),
                  item.part->tables);
}

SectionSize Exchange::SizeOfPull(const PullKey& key) const {
  const PullItem& pull = pulls_.at(key);
  if (pull.part == nullptr)
    return PullSize(key.second, layout_->slice(ShardId(key.second)).wire_bytes());
  return PullSize(key.second, pull.part->bytes, pull.part->rows * sizeof(std::int64_t),
                  pull.part->tables);
}

bool Exchange::SendGroup(const std::string& server, const Group& group) {
  std::vector<SectionSize> sizes;
  sizes.reserve(group.pushes.size() + group.pulls.size());
  for (const PushKey& key : group.pushes) sizes.push_back(SizeOfPush(key));
  for (const PullKey& key : group.pulls) sizes.push_back(SizeOfPull(key));
  const auto parts = parts_.find(server);
  std::uint32_t under_way = parts == parts_.end() ? 0 : parts->second;
  const SplitPlan plan =
      SplitRequests(client::RequestLimits::Of(env_.endpoints->at(server)), sizes, under_way > 0);
  if (plan.never_fits) {
    // The event is posted, because the caller of Flush continues to use this exchange.
    env_.executor->Post(
        [weak = weak_from_this(), error = NeverFits(server, sizes[*plan.never_fits])] {
          if (const auto self = weak.lock()) self->events_.on_failed(error);
        });
    return false;
  }
  if (!plan.in_parts) {
    Send(server, group.pushes, group.pulls, /*is_part=*/false);
    return true;
  }
  for (const std::vector<std::size_t>& sections : plan.requests) {
    // The rest is sent as these parts are answered.
    if (under_way >= client::kPartsUnderWayMax) break;
    Group part;
    for (const std::size_t i : sections) {
      if (i < group.pushes.size()) {
        part.pushes.push_back(group.pushes[i]);
      } else {
        part.pulls.push_back(group.pulls[i - group.pushes.size()]);
      }
    }
    under_way = ++parts_[server];
    Send(server, part.pushes, part.pulls, /*is_part=*/true);
    if (Sequential()) break;
  }
  return true;
}

std::string Exchange::NameOf(std::uint32_t shard) const {
  if (!layout_->is_slot(ShardId(shard))) {
    const ShardSlice& slice = layout_->slice(ShardId(shard));
    return absl::StrCat("rows ", slice.row_begin, " to ", slice.row_end, " of variable ",
                        layout_->variable_of(ShardId(shard)).name);
  }
  std::vector<std::string> names;
  for (const LaidTable& table : layout_->tables()) names.push_back(table.name);
  return absl::StrCat("the rows that one batch reads in slot ", shard - layout_->dense_shards(),
                      " of ", absl::StrJoin(names, ", "));
}

absl::Status Exchange::NeverFits(const std::string& server, const SectionSize& section) const {
  const client::RequestLimits limits = client::RequestLimits::Of(env_.endpoints->at(server));
  const char* const remedy =
      layout_->is_slot(ShardId(section.shard))
          ? "use a smaller spec.data.batch_size, or more spec.strategy.table_slots"
          : "partition the variable into smaller shards (spec.strategy.partitioner)";
  return WithOrigin(UserError(absl::InvalidArgumentError(absl::StrCat(
                        NameOf(section.shard), " do not fit into one request to ps_server/", server,
                        ": bytes=", section.request_bytes + section.response_bytes,
                        " max=", limits.section_bytes_max(), "; start that server with more than ",
                        limits.section_flag(), ", or ", remedy))),
                    absl::StrCat("ps_server/", server));
}

void Exchange::Announce(const std::vector<ShardId>& shards, bool pulls) {
  announced_.clear();
  const ShardMap& map = env_.book->map();
  std::map<std::string, std::vector<SectionSize>> sections;
  for (const ShardId shard : shards) {
    if (shard.value() >= map.shards.size() ||
        !env_.endpoints->contains(map.shards[shard.value()].server))
      continue;
    sections[map.shards[shard.value()].server].push_back(
        PushSize(shard.value(), layout_->slice(shard).wire_bytes()));
  }
  for (std::uint32_t shard = 0;
       pulls && shard < layout_->dense_shards() && shard < map.shards.size(); ++shard) {
    const auto it = sections.find(map.shards[shard].server);
    if (it != sections.end())
      it->second.push_back(PullSize(shard, layout_->slice(ShardId(shard)).wire_bytes()));
  }
  for (auto& [server, all] : sections) {
    const SplitPlan plan = SplitRequests(client::RequestLimits::Of(env_.endpoints->at(server)), all,
                                         parts_.contains(server));
    if (plan.requests.empty()) continue;
    std::vector<SectionSize> first;  // the part that is sent first
    for (const std::size_t i : plan.requests.front()) first.push_back(all[i]);
    const RequestSize size = SizeOf(first);
    announced_[server] = env_.client->Announce(env_.endpoints->at(server), size.request_bytes,
                                               size.response_bytes, env_.deadline);
  }
}

std::uint64_t Exchange::MarkSent(Item& item, std::uint32_t shard) {
  if (item.tries > 0) Count(env_.counters.resends);
  item.state = State::kInFlight;
  item.serial = ++serial_;
  item.sent_version = env_.book->map().version;
  item.sent_to = env_.book->map().shards[shard];
  return item.serial;
}

// Adds the rows of tables to a section.
template <class Section>
void Exchange::NameRows(const std::shared_ptr<const SlotRows>& rows, const SlotRows::OfShard& part,
                        Section* section, Payloads* payloads) const {
  const auto tables = rows->tables(part), counts = rows->table_rows(part);
  section->mutable_tables()->Add(tables.begin(), tables.end());
  section->mutable_table_rows()->Add(counts.begin(), counts.end());
  payloads->ids.back() = SlotRows::Ids(rows, part);
  payloads->any_ids = true;
}

void Exchange::FillPush(const PushKey& key, v1::PushSection* section, Payloads* payloads) const {
  const PushItem& item = pushes_.at(key);
  const ShardId shard(key.second);
  const bool skipped = !item.skip_reason.empty();
  section->set_shard(key.second);
  *section->mutable_epoch() = ToProto(env_.book->map().shards[key.second].epoch);
  section->set_closure(closure_.value());
  section->set_update(key.first);
  *section->mutable_attempt() = ToProto(attempt_);
  section->set_kind(skipped ? v1::SKIP
                    : item.part == nullptr && layout_->variable_of(shard).moving_average
                        ? v1::MOVING_AVERAGE
                        : v1::GRADIENT);
  section->set_skip_reason(item.skip_reason);
  section->set_global_step(item.global_step);
  section->set_codec(v1::CODEC_NONE);
  payloads->bytes.push_back(item.bytes);
  payloads->ids.emplace_back();
  if (item.part != nullptr) {
    section->set_dtype(ToProto(item.part->wire));
    section->set_rows(item.part->rows);
    return NameRows(item.rows, *item.part, section, payloads);
  }
  // A skipped push to a slot names neither its rows nor their type.
  const ShardSlice& slice = layout_->slice(shard);
  if (!layout_->is_slot(shard)) section->set_dtype(ToProto(slice.wire));
  section->set_rows(skipped ? 0 : slice.rows());
}

void Exchange::FillPull(const PullKey& key, v1::PullSection* section, Payloads* payloads) const {
  const PullItem& pull = pulls_.at(key);
  section->set_shard(key.second);
  *section->mutable_epoch() = ToProto(env_.book->map().shards[key.second].epoch);
  payloads->ids.emplace_back();
  if (pull.part != nullptr)
    return NameRows(row_pulls_.at(key.first).rows, *pull.part, section, payloads);
  const PullCache::Held& held = env_.cache->held(ShardId(key.second));
  section->set_has(held.has);
  *section->mutable_have_start() = ToProto(held.start);
  section->set_have_vlsn(held.vlsn);
}

void Exchange::Send(const std::string& server, const std::vector<PushKey>& pushes,
                    const std::vector<PullKey>& pulls, bool is_part) {
  auto request = std::make_shared<Request>();
  request->server = server;
  request->part = is_part;
  auto packed = wire::Packed<v1::RequestHeader>::OfSections(pushes.size() + pulls.size());
  v1::RequestHeader& header = *packed;
  header.set_job_uid(env_.job.value());
  *header.mutable_client() = env_.registration;
  header.set_client_name(client_name_);
  if (!pushes.empty() && !proof_.empty()) {
    v1::GrantProof& grant = *header.add_grants();
    grant.set_closure(closure_.value());
    *grant.mutable_attempt() = ToProto(attempt_);
    grant.set_mac(proof_);
  }
  Payloads payloads;
  for (const PushKey& key : pushes) {
    FillPush(key, header.add_pushes(), &payloads);
    request->pushes.emplace_back(key, MarkSent(pushes_.at(key), key.second));
  }
  std::uint64_t response_bytes = 0;
  for (const PullKey& key : pulls) {
    FillPull(key, header.add_pulls(), &payloads);
    response_bytes += SizeOfPull(key).response_bytes;
    request->pulls.push_back({key, MarkSent(pulls_.at(key), key.second), pulls_wanted_});
  }
  if (!payloads.any_ids) payloads.ids.clear();
  client::ParameterClient::Announced announced;
  if (!pushes.empty()) {
    if (auto node = announced_.extract(server)) announced = std::move(node.mapped());
  }
  ++in_flight_;
  if (env_.clock != nullptr) reach_.Asked(server, env_.clock->Now());
  // The answer arrives on a transport thread, or on this thread before Send returns. It is posted
  // in both cases.
  env_.client->Send(
      env_.endpoints->at(server), std::move(header), std::move(payloads.bytes), response_bytes,
      env_.deadline,
      [weak = weak_from_this(), executor = env_.executor,
       request](absl::StatusOr<client::ParameterClient::Answer> answer) {
        auto shared =
            std::make_shared<absl::StatusOr<client::ParameterClient::Answer>>(std::move(answer));
        executor->Post([weak, request, shared] {
          if (const auto self = weak.lock()) self->OnAnswer(request, shared);
        });
      },
      std::move(announced), std::move(payloads.ids));
}

void Exchange::WaitOrBackoff(Item& item, MapVersion version) {
  item.serial = ++serial_;
  if (version > env_.book->map().version) {
    item.state = State::kWaitMap;
    item.wait_for = version;
    item.wait_newer = false;
  } else {
    item.state = State::kBackoff;
  }
}

void Exchange::OnAnswer(
    const std::shared_ptr<Request>& request,
    const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer) {
  const std::shared_ptr<Exchange> self = shared_from_this();  // an event may release this object
  --in_flight_;
  if (request->part) {
    if (const auto it = parts_.find(request->server); --it->second == 0) parts_.erase(it);
  }
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
  BackOff(retry);
  Continue(/*pushed=*/!request->pushes.empty());
}

bool Exchange::TakePushAnswers(const Request& request, const v1::ResponseHeader& header,
                               Retry* retry, std::set<std::uint32_t>* unsettled) {
  for (std::size_t i = 0; i < request.pushes.size(); ++i) {
    const auto& [key, serial] = request.pushes[i];
    const v1::PushResult& result = header.pushes(static_cast<int>(i));
    const auto it = pushes_.find(key);
    if (it == pushes_.end()) continue;  // settled by another copy
    if (it->second.serial != serial) {  // sent again meanwhile, to another owner
      unsettled->insert(key.second);
      continue;
    }
    const PushAnswer push_answer = AnswerOf(result.answer());
    Count(env_.counters.answers[static_cast<int>(push_answer)]);
    const Disposition disposition =
        env_.book->OnPushAnswer(attempt_, UpdateIndex(key.first), ShardId(key.second), push_answer,
                                FromProto<MapVersion>(result.version()));
    if (disposition.next == Next::kSettled) {
      pushes_.erase(it);
      continue;
    }
    unsettled->insert(key.second);
    it->second.over_budget_reason.clear();
    switch (disposition.next) {
      case Next::kSettled: break;
      case Next::kWaitForMap: WaitOrBackoff(it->second, disposition.wait_for); break;
      case Next::kBackoff:
        it->second.state = State::kBackoff;
        it->second.serial = ++serial_;
        retry->pushes.push_back(key);
        if (push_answer == PushAnswer::kOverBudget)
          it->second.over_budget_reason =
              absl::StrCat("ps_server/", request.server, ": ", result.message());
        if (push_answer == PushAnswer::kBusy)
          retry->busy_after_ms =
              std::max(retry->busy_after_ms, std::min(result.busy_after_ms(), kBusyAfterMsMax));
        break;
      case Next::kDropAttempt:
        events_.on_dropped(push_answer == PushAnswer::kSuperseded
                               ? std::optional(ShardId(key.second))
                               : std::nullopt);
        return false;
      case Next::kFail: events_.on_failed(PushError(request.server, key, result)); return false;
    }
  }
  return true;
}

absl::Status Exchange::PushError(const std::string& server, const PushKey& key,
                                 const v1::PushResult& result) const {
  const std::string origin = absl::StrCat("ps_server/", server);
  if (AnswerOf(result.answer()) == PushAnswer::kOverBudget)
    return WithOrigin(UserError(absl::ResourceExhaustedError(absl::StrCat(
                          "out of memory at ", origin, ": ", result.message(),
                          " closure=", closure_.value(), " update=", key.first,
                          "; give the servers more memory (--memory-bytes-max; bytes_max of the "
                          "table), add servers, let rows be removed (evict: lru, ttl_steps, "
                          "admit_after), or let the job wait (training.on_over_budget: pause)"))),
                      origin);
  return WithOrigin(absl::InternalError(absl::StrCat(
                        "push refused by the server: answer=", v1::PushAnswer_Name(result.answer()),
                        " closure=", closure_.value(), " update=", key.first, " shard=", key.second,
                        " message=", result.message())),
                    origin);
}

absl::Status Exchange::TakePullAnswers(
    const Request& request,
    const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
    const std::set<std::uint32_t>& unsettled, Retry* retry) {
  for (std::size_t i = 0; i < request.pulls.size(); ++i) {
    const Request::Pull& sent = request.pulls[i];
    const v1::PullResult& result = (*answer)->header->pulls(static_cast<int>(i));
    const auto it = pulls_.find(sent.key);
    if (it == pulls_.end() || it->second.serial != sent.serial) continue;
    PullItem& pull = it->second;
    pull.state = State::kReady;
    pull.serial = ++serial_;
    if (unsettled.contains(sent.key.second)) continue;  // requested again together with the push
    if (result.answer() == v1::PULL_STALE) {
      WaitOrBackoff(pull, FromProto<MapVersion>(result.version()));
      if (pull.state == State::kBackoff) retry->pulls.push_back(sent.key);
      continue;
    }
    EG_RETURN_IF_ERROR(CheckPull(pull, sent, result));
    Count(result.answer() == v1::VALUES ? env_.counters.pulls_values
                                        : env_.counters.pulls_unchanged);
    EG_RETURN_IF_ERROR(pull.part == nullptr ? AcceptDense(&pull, sent, result, answer, i)
                                            : AcceptRows(sent, (*answer)->payloads[i]));
  }
  return absl::OkStatus();
}

absl::Status Exchange::CheckPull(const PullItem& pull, const Request::Pull& sent,
                                 const v1::PullResult& result) const {
  const ShardId shard(sent.key.second);
  if (result.answer() != v1::VALUES && result.answer() != v1::UNCHANGED)
    return absl::InternalError(absl::StrCat("pull refused by the server: shard=", shard.value(),
                                            " message=", result.message()));
  const v1::DType want =
      ToProto(pull.part != nullptr ? pull.part->wire : layout_->slice(shard).wire);
  if (result.dtype() == want) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("values of another wire type: shard=", shard.value(),
                                          " want=", v1::DType_Name(want),
                                          " got=", v1::DType_Name(result.dtype())));
}

void Exchange::Continue(bool pushed) {
  const bool more = std::any_of(pushes_.begin(), pushes_.end(), [](const auto& entry) {
    return entry.second.state == State::kReady;
  });
  if (more && pushed && Sequential()) {
    AtFailpoint(env_.failpoints, "worker.between_pushes", env_.executor,
                [weak = weak_from_this()](absl::Status status) {
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

absl::Status Exchange::AcceptDense(
    PullItem* pull, const Request::Pull& sent, const v1::PullResult& result,
    const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
    std::size_t index) {
  const ShardId shard(sent.key.second);
  if (result.answer() == v1::VALUES) {
    const client::ParameterClient::Answer& got = **answer;
    EG_RETURN_IF_ERROR(env_.cache->Accept({shard,
                                           FromProto<MapVersion>(result.start()),
                                           result.vlsn(),
                                           {answer, got.payloads[index]},
                                           got.frame.bytes.size()}));
  } else if (!env_.cache->held(shard).has) {
    return absl::InternalError(absl::StrCat(
        "the server answered `unchanged` for a shard of which this worker holds no values: shard=",
        shard.value()));
  }
  pull->have = std::max(pull->have, sent.count);
  pull->tries = 0;
  return absl::OkStatus();
}

// The values are copied from the frame at once, so the item is done.
absl::Status Exchange::AcceptRows(const Request::Pull& sent, std::span<const std::byte> payload) {
  RowPull& pull = row_pulls_.at(sent.key.first);
  const SlotRows::OfShard& part = *pulls_.at(sent.key).part;
  if (!pull.rows->Scatter(part, payload, &pull.values)) {
    return absl::InternalError(absl::StrCat("rows of another size: shard=", sent.key.second,
                                            " want=", part.bytes, " got=", payload.size()));
  }
  pulls_.erase(sent.key);
  --pull.missing;
  return absl::OkStatus();
}

void Exchange::OnCallFailed(const Request& request, const absl::Status& status) {
  last_error_ = absl::StrCat("ps_server/", request.server, ": ", status.message());
  // The request cannot be divided further and exceeds the server's whole budget or frame limit, so
  // no retry helps.
  if (status.code() == absl::StatusCode::kOutOfRange &&
      request.pushes.size() + request.pulls.size() == 1) {
    const std::uint32_t shard = request.pushes.empty() ? request.pulls.front().key.second
                                                       : request.pushes.front().first.second;
    return events_.on_failed(WithOrigin(
        UserError(absl::InvalidArgumentError(absl::StrCat(NameOf(shard), ": ", status.message()))),
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
    const auto it = pushes_.find(key);
    if (it == pushes_.end() || it->second.serial != serial) continue;
    Count(env_.counters.answers[static_cast<int>(PushAnswer::kTransport)]);
    const Disposition disposition = env_.book->OnPushAnswer(
        attempt_, UpdateIndex(key.first), ShardId(key.second), PushAnswer::kTransport, {});
    if (disposition.next == Next::kDropAttempt) return events_.on_dropped(std::nullopt);
    EG_CHECK(disposition.next == Next::kBackoff);
    it->second.state = State::kBackoff;
    it->second.over_budget_reason.clear();
    it->second.serial = ++serial_;
    retry.pushes.push_back(key);
  }
  for (const Request::Pull& sent : request.pulls) {
    const auto it = pulls_.find(sent.key);
    if (it == pulls_.end() || it->second.serial != sent.serial) continue;
    it->second.state = State::kBackoff;
    it->second.serial = ++serial_;
    retry.pulls.push_back(sent.key);
  }
  BackOff(retry);
  Flush();
}

void Exchange::BackOff(const Retry& retry) {
  std::uint32_t tries = 0;
  std::vector<std::pair<PushKey, std::uint64_t>> push_serials;
  std::vector<std::pair<PullKey, std::uint64_t>> pull_serials;
  for (const PushKey& key : retry.pushes) {
    PushItem& item = pushes_.at(key);
    tries = std::max(tries, item.tries++);
    push_serials.emplace_back(key, item.serial);
  }
  for (const PullKey& key : retry.pulls) {
    PullItem& item = pulls_.at(key);
    tries = std::max(tries, item.tries++);
    pull_serials.emplace_back(key, item.serial);
  }
  if (push_serials.empty() && pull_serials.empty()) return;
  const auto doubled = env_.backoff_min * (1 << std::min(tries, 16u));
  const auto delay = std::max<std::chrono::milliseconds>(
      std::min<std::chrono::milliseconds>(doubled, env_.backoff_max),
      std::chrono::milliseconds(retry.busy_after_ms));
  env_.executor->PostAfter(delay, [weak = weak_from_this(), push_serials = std::move(push_serials),
                                   pull_serials = std::move(pull_serials)] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    for (const auto& [key, serial] : push_serials) {
      const auto it = self->pushes_.find(key);
      if (it != self->pushes_.end() && it->second.serial == serial)
        it->second.state = State::kReady;
    }
    for (const auto& [key, serial] : pull_serials) {
      const auto it = self->pulls_.find(key);
      if (it != self->pulls_.end() && it->second.serial == serial) it->second.state = State::kReady;
    }
    self->Flush();
  });
}

void Exchange::OnMap() {
  const ShardMap& map = env_.book->map();
  std::set<std::string> owners;
  for (const ShardPlace& place : map.shards) owners.insert(place.server);
  reach_.Keep(owners);
  const auto look = [&](std::uint32_t shard, Item& item) {
    bool again = false;
    switch (item.state) {
      case State::kReady: return;
      case State::kWaitMap:
        again = item.wait_newer ? map.version > item.sent_version ||
                                      (shard < map.shards.size() &&
                                       env_.endpoints->contains(map.shards[shard].server))
                                : map.version >= item.wait_for;
        break;
      // The former owner may be lost permanently. The new owner is asked at once, without waiting
      // for the answer of the former one.
      case State::kInFlight:
      case State::kBackoff:
        again = shard < map.shards.size() && (map.shards[shard].epoch != item.sent_to.epoch ||
                                              map.shards[shard].server != item.sent_to.server);
        break;
    }
    if (!again) return;
    item.state = State::kReady;
    item.serial = ++serial_;
    item.tries = 0;
  };
  for (auto& [key, item] : pushes_) look(key.second, item);
  for (auto& [key, item] : pulls_) look(key.second, item);
  Flush();
}

std::string Exchange::WaitingFor() const {
  const auto waits = [](const Item& item) { return item.state == State::kWaitMap; };
  const bool for_map =
      std::any_of(pushes_.begin(), pushes_.end(), [&](const auto& e) { return waits(e.second); }) ||
      std::any_of(pulls_.begin(), pulls_.end(), [&](const auto& e) { return waits(e.second); });
  if (for_map) return "a newer shard map, because a shard has no owner";
  const auto over_budget_reason = std::find_if(pushes_.begin(), pushes_.end(), [](const auto& e) {
    return !e.second.over_budget_reason.empty();
  });
  if (over_budget_reason != pushes_.end())
    return absl::StrCat("memory at ", over_budget_reason->second.over_budget_reason);
  return last_error_;
}

void Exchange::FillUnreached(v1::WorkerProgress* progress) const {
  if (env_.clock != nullptr) reach_.Fill(env_.clock->Now(), progress);
}

bool Exchange::WaitsForRoom() const {
  return std::any_of(pushes_.begin(), pushes_.end(),
                     [](const auto& e) { return !e.second.over_budget_reason.empty(); });
}

}  // namespace evergrad::worker
