#include "ps_server/service/shard_executor.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/client/protocol.h"
#include "common/runtime/arrival.h"

namespace evergrad::ps_server {
namespace {

constexpr std::uint64_t kTurnBytes = 1 << 20;  // about a millisecond of apply work
constexpr std::uint64_t kSectionCost = 2048;   // cost of a section without bytes
constexpr absl::string_view kUnproved =
    "the coordinator has not granted this attempt to the sender of the push";
constexpr std::size_t kHottestIds = 16;           // per table of a slot in a report
constexpr std::uint64_t kSliceBytes = 512 << 10;  // size of one piece of a table's cut

ShardKey KeyOf(const DataCall& call, const ShardExecutor::Section& section) {
  const v1::RequestHeader& header = *call.request().header;
  const int i = static_cast<int>(section.index);
  return {JobUid(header.job_uid()),
          ShardId(section.is_push ? header.pushes(i).shard() : header.pulls(i).shard())};
}

// Returns the error of a push, without its numbers, or "". The shard returns the text as the answer
// to the push (line 11).
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

void Describe(const storage::EmbeddingTable& table, bool digests, v1::TableState* state) {
  const storage::TableStats stats = table.stats();
  state->set_name(table.settings().name);
  state->set_rows(stats.rows);
  state->set_waiting(stats.waiting);
  state->set_bytes(stats.value_bytes);
  state->set_slot_bytes(stats.state_bytes);
  state->set_memory_bytes(stats.memory_bytes);
  state->set_index_places(stats.index_places);
  state->set_admitted(stats.admitted);
  state->set_evicted_ttl(stats.evicted_ttl);
  state->set_evicted_lru(stats.evicted_lru);
  state->set_gradients_dropped(stats.gradients_dropped);
  state->set_duplicates(stats.duplicates);
  state->set_refused(stats.refused);
  for (const storage::HotId& hot : table.Hottest(kHottestIds)) {
    v1::HotId& id = *state->add_hottest();
    id.set_id(hot.id);
    id.set_pushes(hot.pushes);
    id.set_error(hot.error);
  }
  if (!digests) return;
  const storage::EmbeddingTable::Digests sums = table.Digest();
  state->set_digest(sums.values);
  state->set_slot_digest(sums.state + sums.counters);
}

absl::Status NotHeld(ShardKey key, ShardEpoch epoch) {
  return absl::NotFoundError(absl::StrCat("shard is not held at this epoch: shard=",
                                          key.shard.ToString(), " epoch=", epoch.ToString()));
}

ShardExecutor::Loaded LoadedOf(const Shard& shard) {
  return {absl::OkStatus(), shard.value_bytes(),   shard.state_bytes(),
          shard.lsn(),      shard.ledger().done(), shard.ledger().refused()};
}

bool LosesAnswer(const fault::Hit& hit) {
  return hit.action == fault::Action::kError || hit.action == fault::Action::kUserError ||
         hit.action == fault::Action::kDrop;
}

}  // namespace

void ShardExecutor::Submit(std::vector<Section> sections, bool here) {
  runtime::Task task = [this, sections = std::move(sections)]() mutable {
    for (Section& section : sections) Enqueue(std::move(section));
    if (!turn_posted_) Turn();
  };
  if (here && options_.executor->RunIfIdle(task)) return;
  options_.executor->Post(std::move(task));
}

std::map<ShardKey, ShardExecutor::HostedShard>::iterator ShardExecutor::FindNext(
    const ShardKey& key) {
  const auto it = next_ != hosted_.end() && next_->first == key ? next_ : hosted_.find(key);
  next_ = it == hosted_.end() ? it : std::next(it);
  return it;
}

void ShardExecutor::Enqueue(Section section) {
  const ShardKey key = KeyOf(*section.call, section);
  const auto it = FindNext(key);
  if (it == hosted_.end()) return AnswerUnheld(section);
  it->second.queue.push_back(std::move(section));
  if (!std::exchange(it->second.waiting, true)) ready_.push_back(key);
}

// Line 8: answers STALE with the known V. A number that no shard of the job can have is the
// caller's mistake.
void ShardExecutor::AnswerUnheld(const Section& section) {
  const ShardKey key = KeyOf(*section.call, section);
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

void ShardExecutor::Turn() {
  std::uint64_t spent = 0;
  while (!ready_.empty() && spent < kTurnBytes) {
    const ShardKey key = ready_.front();
    ready_.pop_front();
    const auto it = FindNext(key);
    if (it == hosted_.end()) continue;  // dropped, and its sections have been answered
    it->second.waiting = false;
    // Dropped and assigned again meanwhile.
    if (it->second.queue.empty() && !it->second.applying) continue;
    spent += Run(key, &it->second);
    if ((!it->second.queue.empty() || it->second.applying) && !it->second.waiting) {
      it->second.waiting = true;
      ready_.push_back(key);
    }
  }
  FinishReadings();
  room_ = nullptr;
  if (!ready_.empty()) PostTurn();
}

tensor::SharedBytes ShardExecutor::RoomFor(const DataCall& call, std::uint64_t bytes) {
  if (room_ == nullptr || room_of_ != &call || room_left_.size() < bytes) {
    room_ = nullptr;
    room_of_ = &call;
    // Large answers use a spare block of the pool, whose pages are mapped; small answers do not
    // need one.
    if (bytes <= storage::kChunkBytes && call.answer_bytes_max() >= storage::kChunkBytes / 2) {
      if (auto block = std::make_shared<storage::ChunkRef>(
              storage::ChunkRef::New(storage::kChunkFloats, options_.pool));
          *block) {
        room_left_ = std::as_writable_bytes(std::span((*block)->data(), storage::kChunkFloats));
        room_ = std::move(block);
      }
    }
    if (room_ == nullptr) {
      auto buffer = std::make_shared<tensor::AlignedBuffer>(
          std::max(bytes, std::min<std::uint64_t>(call.answer_bytes_max(), storage::kChunkBytes)));
      room_left_ = {buffer->data(), buffer->size()};
      room_ = std::move(buffer);
    }
  }
  tensor::SharedBytes place{room_, room_left_.first(bytes)};
  const std::span<std::byte> padding = room_left_.subspan(
      bytes,
      std::min<std::uint64_t>(room_left_.size(), RoundUp(bytes, tensor::kAlignment)) - bytes);
  std::fill(padding.begin(), padding.end(), std::byte{0});  // the frame may continue after it
  room_left_ = room_left_.subspan(bytes + padding.size());
  return place;
}

void ShardExecutor::PostTurn() {
  turn_posted_ = options_.executor->Post([this] {
    turn_posted_ = false;
    Turn();
  });
}

std::uint64_t ShardExecutor::Run(ShardKey key, HostedShard* hosted) {
  if (hosted->applying || hosted->queue.front().is_push ||
      hosted->queue.front().call != reading_for_)
    FinishReadings();
  if (hosted->applying) return ContinuePush(hosted);
  Section section = std::move(hosted->queue.front());
  hosted->queue.pop_front();
  if (section.is_push && !section.delayed && options_.failpoints != nullptr &&
      options_.failpoints->AnyArmed()) {
    const fault::Hit hit = options_.failpoints->At("server.before_apply");
    if (hit.action == fault::Action::kDelay) {
      // The queue of this shard waits, in order; other shards continue.
      section.delayed = true;
      hosted->queue.push_front(std::move(section));
      hosted->waiting = true;
      options_.executor->PostAfter(std::chrono::milliseconds(hit.delay_ms), [this, key] {
        if (!hosted_.contains(key)) return;
        ready_.push_back(key);
        if (!turn_posted_) Turn();
      });
      return kSectionCost;
    }
    if (LosesAnswer(hit)) {  // acts as if the push had never arrived
      section.call->LoseAnswer();
      section.call->FinishSection();
      return kSectionCost;
    }
  }
  if (section.is_push) return kSectionCost + BeginPush(hosted, std::move(section));
  return kSectionCost + RunPull(hosted, std::move(section));
}

std::uint64_t ShardExecutor::BeginPush(HostedShard* hosted, Section section) {
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
    return ContinuePush(hosted);
  }
  if (outcome.result.code == PushCode::kStale)
    outcome.version = options_.jobs->Find(shard->settings().job).version;
  options_.metrics->updates[static_cast<int>(outcome.result.code)]->Add();
  if (!push.unproved.empty() && outcome.result.code == PushCode::kInvalid && options_.on_unproved)
    options_.on_unproved(*section.call->request().header, from);
  if (outcome.result.code == PushCode::kApplied) AfterApplied(section, hosted);  // a skipped update
  section.call->FinishSection();
  return 0;
}

std::uint64_t ShardExecutor::ContinuePush(HostedShard* hosted) {
  const std::uint64_t bytes = hosted->shard->ContinueApply(kTurnBytes);
  if (hosted->shard->applying()) return bytes;
  const Section section = *std::exchange(hosted->applying, std::nullopt);
  options_.metrics->push_bytes->Add(section.call->request().payloads[section.index].size());
  options_.metrics->updates[static_cast<int>(PushCode::kApplied)]->Add();
  AfterApplied(section, hosted);
  section.call->FinishSection();
  // Waiters for the end of an apply run before the next apply begins, so that a continuous series
  // of pushes delays no report.
  const bool awaited = !hosted->after_apply.empty();
  EndApply(hosted);
  return awaited ? std::max(bytes, kTurnBytes) : bytes;
}

void ShardExecutor::AfterApplied(const Section& section, HostedShard* hosted) {
  const wire::Request& request = section.call->request();
  ++hosted->traffic.pushes;
  hosted->traffic.bytes_received +=
      request.payloads[section.index].size() + request.push_ids[section.index].size_bytes();
  if (options_.failpoints == nullptr || !options_.failpoints->AnyArmed()) return;
  if (LosesAnswer(options_.failpoints->At("server.after_apply"))) section.call->LoseAnswer();
}

void ShardExecutor::EndApply(HostedShard* hosted) {
  for (const CutReady& ready : std::exchange(hosted->cuts, {})) ready(CutOf(*hosted->shard));
  for (std::function<void()>& waiting : std::exchange(hosted->after_apply, {}))
    options_.executor->Post(std::move(waiting));
}

// Line 22. Bypasses the checks of the shard: its next owner asks under the old epoch, for a state
// from which no request is served any more.
std::uint64_t ShardExecutor::ReadImage(Shard* shard, const Section& section) {
  const v1::PullSection& from =
      section.call->request().header->pulls(static_cast<int>(section.index));
  DataCall::PullOutcome& outcome = section.call->pull(section.index);
  absl::StatusOr<tensor::SharedBytes> piece = absl::NotFoundError("shard has no image");
  if (options_.images != nullptr) {
    piece = options_.images->Read(shard->settings().job, ShardId(from.shard()),
                                  client::FromProto<ShardEpoch>(from.epoch()),
                                  from.image().offset(), from.image().bytes());
  }
  if (!piece.ok()) {
    outcome.invalid = std::string(piece.status().message());
    options_.metrics->pulls[3]->Add();
    return 0;
  }
  outcome.result.code = PullCode::kValues;
  outcome.result.start = shard->start();
  outcome.result.vlsn = shard->vlsn();
  outcome.result.chunks.push_back(*std::move(piece));
  options_.metrics->pulls[static_cast<int>(PullCode::kValues)]->Add();
  return 256;
}

std::uint64_t ShardExecutor::RunPull(HostedShard* hosted, Section section) {
  Shard* const shard = hosted->shard.get();
  const v1::PullSection& from =
      section.call->request().header->pulls(static_cast<int>(section.index));
  DataCall::PullOutcome& outcome = section.call->pull(section.index);
  if (from.has_image()) {
    const std::uint64_t bytes = ReadImage(shard, section);
    section.call->FinishSection();
    return bytes;
  }
  PullPlan plan = shard->Read({client::FromProto<ShardEpoch>(from.epoch()), from.has(),
                               client::FromProto<MapVersion>(from.have_start()), from.have_vlsn(),
                               RowsOf(from, section.call->request().pull_ids[section.index])});
  outcome.result = std::move(plan.result);
  outcome.invalid = std::move(outcome.result.invalid);
  // The rows are copied by FinishReadings.
  const bool copied =
      plan.rows_bytes > 0 && section.call->ReserveCopy(plan.rows_bytes, &outcome.invalid);
  if (copied) {
    tensor::SharedBytes place = RoomFor(*section.call, plan.rows_bytes);
    plan.ReadTo(const_cast<std::byte*>(place.bytes.data()), &readings_);
    outcome.result.chunks.push_back(std::move(place));
  }
  std::uint64_t bytes = 0;
  if (!outcome.invalid.empty()) {
    options_.metrics->pulls[3]->Add();
  } else {
    options_.metrics->pulls[static_cast<int>(outcome.result.code)]->Add();
    if (outcome.result.code == PullCode::kStale)
      outcome.version = options_.jobs->Find(shard->settings().job).version;
    if (outcome.result.code == PullCode::kValues) {
      for (const tensor::SharedBytes& piece : outcome.result.chunks) bytes += piece.bytes.size();
      options_.metrics->pull_bytes->Add(bytes);
      ++hosted->traffic.pulls;
      hosted->traffic.bytes_sent += bytes;
      hosted->traffic.bytes_received +=
          section.call->request().pull_ids[section.index].size_bytes();
    }
  }
  if (!copied) {
    // References have no bytes of their own, but a cost.
    const std::uint64_t cost = outcome.result.chunks.size() * 256;
    section.call->FinishSection();
    return cost;
  }
  reading_for_ = std::move(section.call);
  ++reading_sections_;
  return bytes;
}

void ShardExecutor::FinishReadings() {
  if (reading_for_ == nullptr) return;
  storage::ReadRows(readings_);
  readings_.clear();
  std::exchange(reading_for_, nullptr)->FinishSections(std::exchange(reading_sections_, 0));
}

void ShardExecutor::Assign(ShardSettings settings, ShardEpoch epoch, MapVersion start,
                           IntervalSet refused, std::function<void(Loaded)> done) {
  options_.executor->Post([this, settings = std::move(settings), epoch, start,
                           refused = std::move(refused), done = std::move(done)]() mutable {
    const ShardKey key{settings.job, settings.shard};
    // The replaced shard is freed first, because both may not fit into memory. Its sections are
    // stale by now.
    if (const auto held = hosted_.find(key); held != hosted_.end()) Remove(held);
    auto shard = Shard::FromSeed(settings, epoch, start, std::move(refused), options_.pool,
                                 options_.jobs->TablesOf(key.job));
    if (!shard.ok()) return done({shard.status(), 0, 0, 0, {}, {}});
    Loaded loaded = LoadedOf(**shard);
    Hold(*std::move(shard));
    done(std::move(loaded));
  });
}

void ShardExecutor::Adopt(std::unique_ptr<Shard> shard, std::function<void(Loaded)> done) {
  // Shared, because a posted task must be copyable.
  auto given = std::make_shared<std::unique_ptr<Shard>>(std::move(shard));
  options_.executor->Post([this, given, done = std::move(done)] {
    const ShardKey key{(*given)->settings().job, (*given)->settings().shard};
    if (const auto held = hosted_.find(key); held != hosted_.end()) Remove(held);
    Loaded loaded = LoadedOf(**given);
    Hold(std::move(*given));
    done(std::move(loaded));
  });
}

void ShardExecutor::Hold(std::unique_ptr<Shard> shard) {
  const ShardKey key{shard->settings().job, shard->settings().shard};
  HostedShard& hosted = hosted_[key];
  hosted.grants = options_.jobs->Find(key.job).grants;
  hosted.shard = std::move(shard);
}

void ShardExecutor::Vacate(ShardKey key, std::function<void()> vacated) {
  options_.executor->Post([this, key, vacated = std::move(vacated)] {
    if (const auto held = hosted_.find(key); held != hosted_.end()) Remove(held);
    vacated();
  });
}

void ShardExecutor::Remove(std::map<ShardKey, HostedShard>::iterator it) {
  for (const CutReady& ready : std::exchange(it->second.cuts, {}))
    ready(NotHeld(it->first, it->second.shard->epoch()));
  EndApply(&it->second);
  std::deque<Section> queue = std::move(it->second.queue);
  // A half-applied update is lost together with the state, and its answer says so.
  if (it->second.applying) queue.push_front(*std::move(it->second.applying));
  if (next_ == it) next_ = hosted_.end();
  hosted_.erase(it);
  for (const Section& section : queue) AnswerUnheld(section);
}

void ShardExecutor::Drop(ShardKey key, ShardEpoch epoch) {
  options_.executor->Post([this, key, epoch] {
    const auto it = hosted_.find(key);
    if (it != hosted_.end() && it->second.shard->epoch() == epoch) Remove(it);
  });
}

void ShardExecutor::DropJob(JobUid job) {
  options_.executor->Post([this, job] {
    for (auto it = hosted_.lower_bound({job, ShardId(0)});
         it != hosted_.end() && it->first.job == job;) {
      const auto next = std::next(it);
      Remove(it);
      it = next;
    }
  });
}

void ShardExecutor::Close(ShardKey key, ShardEpoch epoch, MapVersion version, IntervalSet done,
                          IntervalSet refused, std::function<void(bool)> answer) {
  options_.executor->Post([this, key, epoch, version, done = std::move(done),
                           refused = std::move(refused), answer = std::move(answer)] {
    const auto it = hosted_.find(key);
    answer(it != hosted_.end() && it->second.shard->Close(epoch, version, done, refused));
  });
}

void ShardExecutor::Seal(ShardKey key, ShardEpoch epoch, std::function<void()> sealed) {
  options_.executor->Post([this, key, epoch, sealed = std::move(sealed)] {
    // The shard is not held at this epoch. Pushes under the epoch are answered STALE, which has the
    // effect of a seal.
    const auto it = hosted_.find(key);
    if (it == hosted_.end() || it->second.shard->epoch() != epoch) return sealed();
    it->second.shard->Seal();
    if (!it->second.applying) return sealed();
    // The update was admitted before, so the cut contains it.
    it->second.after_apply.push_back(sealed);
  });
}

void ShardExecutor::Cut(ShardKey key, ShardEpoch epoch, CutReady ready) {
  TakeCut(key, epoch, /*stop=*/false, std::move(ready));
}

void ShardExecutor::Stop(ShardKey key, ShardEpoch epoch, CutReady ready) {
  TakeCut(key, epoch, /*stop=*/true, std::move(ready));
}

void ShardExecutor::TakeCut(ShardKey key, ShardEpoch epoch, bool stop, CutReady ready) {
  options_.executor->Post([this, key, epoch, stop, ready = std::move(ready)] {
    const auto it = hosted_.find(key);
    if (it == hosted_.end() || it->second.shard->epoch() != epoch)
      return ready(NotHeld(key, epoch));
    if (stop) it->second.shard->Stop();  // queued sections are answered STALE in their turn
    if (!it->second.applying) return ready(CutOf(*it->second.shard));
    it->second.cuts.push_back(ready);
  });
}

// Captures the cut of a slot shard between its pushes, piece by piece, as its writer requests it.
ShardCut ShardExecutor::CutOf(const Shard& shard) {
  ShardCut cut = shard.Cut();
  if (!cut.settings->slot) return cut;
  const ShardKey key{cut.settings->job, cut.settings->shard};
  // Releasing the cut ends it.
  const std::shared_ptr<void> open(nullptr, [this, executor = options_.executor, key,
                                             epoch = cut.epoch, serial = cut.serial](void*) {
    executor->Post([this, key, epoch, serial] {
      if (const auto it = hosted_.find(key);
          it != hosted_.end() && it->second.shard->epoch() == epoch)
        it->second.shard->EndCut(serial);
    });
  });
  cut.next_slice = [this, executor = options_.executor, key, epoch = cut.epoch, serial = cut.serial,
                    open] {
    const auto arrival = std::make_shared<runtime::Arrival<SlotSlice>>();
    executor->Post(
        [this, key, epoch, serial,
         ready = runtime::Arrival<SlotSlice>::Answerer(arrival, "the shard's executor has ended")] {
          TakeSlice(key, epoch, serial, ready);
        });
    return arrival->Wait();
  };
  return cut;
}

void ShardExecutor::TakeSlice(ShardKey key, ShardEpoch epoch, std::uint64_t serial,
                              const SliceReady& ready) {
  const auto it = hosted_.find(key);
  if (it == hosted_.end() || it->second.shard->epoch() != epoch) return ready(NotHeld(key, epoch));
  if (!it->second.applying) return ready(it->second.shard->NextSlice(serial, kSliceBytes));
  it->second.after_apply.push_back(
      [this, key, epoch, serial, ready] { TakeSlice(key, epoch, serial, ready); });
}

v1::ShardState ShardExecutor::StateOf(const HostedShard& hosted, bool digests) {
  const Shard& shard = *hosted.shard;
  v1::ShardState state;
  state.set_job_uid(shard.settings().job.value());
  state.set_shard(shard.settings().shard.value());
  state.set_variable(shard.settings().variable);
  state.set_row_begin(shard.settings().row_begin);
  state.set_row_end(shard.settings().row_end);
  state.set_bytes(shard.value_bytes());
  state.set_slot_bytes(shard.state_bytes());
  *state.mutable_epoch() = client::ToProto(shard.epoch());
  *state.mutable_start() = client::ToProto(shard.start());
  state.set_lsn(shard.lsn());
  state.set_vlsn(shard.vlsn());
  state.set_updates_applied(shard.updates_applied());
  std::uint64_t skips = 0;
  for (const auto& [reason, count] : shard.skips()) skips += count;
  state.set_skips(skips);
  state.set_duplicates_refused(shard.duplicates());
  state.set_pulls(hosted.traffic.pulls);
  state.set_pushes(hosted.traffic.pushes);
  state.set_bytes_sent(hosted.traffic.bytes_sent);
  state.set_bytes_received(hosted.traffic.bytes_received);
  for (const storage::EmbeddingTable* table : shard.Tables())
    Describe(*table, digests, state.add_tables());
  if (digests) {
    if (state.tables_size() == 0) {
      state.set_digest(shard.Digest());
      state.set_slot_digest(shard.StateDigest());
    }
    for (const v1::TableState& table :
         state.tables()) {  // the digests of a slot are sums over its tables, and each costs a pass
                            // over its rows
      state.set_digest(state.digest() + table.digest());
      state.set_slot_digest(state.slot_digest() + table.slot_digest());
    }
  }
  state.set_open_closures(static_cast<std::uint32_t>(shard.ledger().open().size()));
  state.set_ledger_intervals(static_cast<std::uint32_t>(shard.ledger().done().interval_count() +
                                                        shard.ledger().refused().interval_count()));
  return state;
}

struct ShardExecutor::ReportTask {
  std::set<ShardKey> left;
  std::vector<v1::ShardState> states;
  std::function<void(std::vector<v1::ShardState>)> done;
};

void ShardExecutor::Report(JobUid job, bool digests,
                           std::function<void(std::vector<v1::ShardState>)> done) {
  options_.executor->Post([this, job, digests, done = std::move(done)]() mutable {
    auto task = std::make_shared<ReportTask>();
    task->done = std::move(done);
    for (const auto& [key, hosted] : hosted_) {
      if (job == JobUid(0) || key.job == job) task->left.insert(key);
    }
    if (!digests || task->left.empty()) return ContinueReport(std::move(task));
    summing_.push_back(std::move(task));
    if (summing_.size() == 1) ContinueSums();
  });
}

// Continues a report without digests.
void ShardExecutor::ContinueReport(std::shared_ptr<ReportTask> task) {
  std::uint64_t spent = 0;
  while (!task->left.empty() && spent < kTurnBytes) {
    const auto it = hosted_.find(*task->left.begin());
    if (it != hosted_.end() && it->second.applying) {
      it->second.after_apply.push_back([this, task] { ContinueReport(task); });
      return;
    }
    task->left.erase(task->left.begin());
    if (it == hosted_.end()) continue;
    task->states.push_back(StateOf(it->second, /*digests=*/false));
    spent += kSectionCost;
  }
  if (task->left.empty()) return task->done(std::move(task->states));
  options_.executor->Post([this, task] { ContinueReport(task); });
}

// Sums each shard once for all waiting reports.
void ShardExecutor::ContinueSums() {
  std::uint64_t spent = 0;
  while (!summing_.empty() && spent < kTurnBytes) {
    const ShardKey key = *summing_.front()->left.begin();
    const auto it = hosted_.find(key);
    if (it != hosted_.end() && it->second.applying) {
      it->second.after_apply.push_back([this] { ContinueSums(); });
      return;
    }
    std::optional<v1::ShardState> state;
    if (it != hosted_.end()) {
      state = StateOf(it->second, /*digests=*/true);
      spent += it->second.shard->value_bytes() + it->second.shard->state_bytes() + kSectionCost;
    }
    std::deque<std::shared_ptr<ReportTask>> whole;
    std::erase_if(summing_, [&](const std::shared_ptr<ReportTask>& task) {
      if (task->left.erase(key) > 0 && state) task->states.push_back(*state);
      if (!task->left.empty()) return false;
      whole.push_back(task);
      return true;
    });
    for (const std::shared_ptr<ReportTask>& task : whole) task->done(std::move(task->states));
  }
  if (!summing_.empty()) options_.executor->Post([this] { ContinueSums(); });
}

}  // namespace evergrad::ps_server
