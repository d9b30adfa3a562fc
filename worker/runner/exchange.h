// The pushes and pulls of one attempt: split by owner, sent, resent until settled (LEDGER lines 14
// and 15).
//
//   Push(u, …)  ─┐                   one request per server, push u and the next pull together;
//   several where the server cannot grant one so large WantPull(n) ─┴▶ Flush
//   ──────────────────────────────────────────────▶ ParameterClient
//                     ▲   waits for a map (STALE) or backs off (BUSY,          │ answers, per
//                     section └── transport, STALE at our map): 10 ms doubling to 1 s ─┘
//
// What an answer means is AttemptBook's decision; this class remembers what is where. A pull that
// rides with a push counts only once that push is settled, so a worker never misses its own update.
// Rows of embedding tables are pulled for one step at a time, by the ids of its batch. Runs on the
// control executor; bounded by the attempt: at most two updates, one pull per dense shard and the
// rows of two steps are under way. Of a server that takes less at once than is to be sent, a few
// parts are under way at a time (request_split.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/client/parameter_client.h"
#include "common/fault/failpoints.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/types.pb.h"
#include "worker/params/layout.h"
#include "worker/params/slot_rows.h"
#include "worker/params/weights.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/reach_log.h"
#include "worker/runner/request_split.h"

namespace evergrad::worker {

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Counters {
    metrics::Counter* answers[9] = {};  // by PushAnswer
    metrics::Counter* pulls_values = nullptr;
    metrics::Counter* pulls_unchanged = nullptr;
    metrics::Counter* resends = nullptr;
  };
  // All pointers outlive the exchange; `failpoints` may be null.
  struct Environment {
    runtime::Executor* executor = nullptr;
    client::ParameterClient* client = nullptr;
    AttemptBook* book = nullptr;
    PullCache* cache = nullptr;
    const std::map<std::string, v1::Endpoint>* endpoints =
        nullptr;  // by server identity; changes before OnMap
    fault::Failpoints* failpoints = nullptr;
    const Clock* clock = nullptr;  // null: nobody is told which servers cannot be reached
    Counters counters;
    Room room = nullptr;  // for rows of tables
    JobUid job;
    v1::Stamp registration;
    std::chrono::milliseconds deadline{10000}, backoff_min{10}, backoff_max{1000};
  };
  // Called on the executor, last thing in a turn: the callee may destroy the exchange.
  struct Events {
    std::function<void()> on_progress;  // something was settled or pulled
    // SUPERSEDED or REFUSED: the book has dropped the attempt. `superseded_by`: the shard that
    // answered SUPERSEDED.
    std::function<void(std::optional<ShardId> superseded_by)> on_dropped;
    std::function<void(absl::Status)>
        on_failed;  // INVALID, OVER_BUDGET under `fail`, or a server that cannot be talked to
  };
  struct Gradient {
    ShardId shard;
    tensor::SharedBytes bytes;  // empty for a SKIP
    // Of a slot, but for a SKIP: which rows these are of. `part` is one of its parts.
    std::shared_ptr<const SlotRows> rows = nullptr;
    const SlotRows::Part* part = nullptr;
  };

  // `work` is what the attempt was granted as.
  Exchange(Environment environment, std::shared_ptr<const Layout> layout, const Work& work,
           Events events);

  // The first `count` pulls of every dense shard are wanted; a lower count than before changes
  // nothing. Flush sends.
  void WantPulls(std::uint64_t count) { pulls_wanted_ = std::max(pulls_wanted_, count); }
  // Values that were pulled under the present map before this attempt began serve as its first
  // pull.
  void HavePulls(std::uint64_t count);
  bool PullsDone(std::uint64_t count) const;  // of dense shards
  // Rows of embedding tables for one step, numbered from 1 as the runner likes: once for each. They
  // leave when pull `after` of dense shards is wanted, with it or later. Flush sends.
  void WantRows(std::uint64_t count, std::shared_ptr<const SlotRows> rows, std::uint64_t after);
  bool RowsDone(std::uint64_t count) const;  // false, too, when they are not wanted
  // Those rows, for each table [ids, dimension], once RowsDone(count): float32, or, not to be
  // widened, as they came (SlotRows::Scatter).
  std::vector<tensor::AlignedBuffer> TakeRows(std::uint64_t count, bool widen);
  // Once per update, after AttemptBook::Expect of the same shards. `skip_reason` not "": kind SKIP,
  // without payload [13].
  void Push(UpdateIndex update, std::uint64_t global_step, std::vector<Gradient> gradients,
            absl::string_view skip_reason);
  void Flush();
  // Pushes to `shards` are about to come, with the next pull of every shard if `pulls`: room at the
  // servers is asked for now. What comes instead, or elsewhere, goes without.
  void Announce(const std::vector<ShardId>& shards, bool pulls);
  // A new map, or new addresses: what waited for it goes, what was sent to a former owner is sent
  // again to the new one.
  void OnMap();
  // "" or what is waited for, for people.
  std::string WaitingFor() const;
  // A push was answered OVER_BUDGET and is sent again and again until there is room
  // (AttemptBook::OverBudget::kPause).
  bool WaitsForRoom() const;
  // Which servers have not answered, and since when.
  void FillUnreached(v1::WorkerProgress* progress) const;

 private:
  enum class State { kReady, kInFlight, kBackoff, kWaitMap };
  struct Item {
    State state = State::kReady;
    std::uint64_t serial = 0;  // of the present state: an answer or a timer of another one is late
    std::uint32_t tries = 0;
    MapVersion wait_for;      // kWaitMap: a map at least this new …
    bool wait_newer = false;  // … or any newer than `sent_version`
    MapVersion sent_version;
    ShardPlace sent_to;
  };
  struct PushItem : Item {
    std::uint64_t global_step = 0;
    tensor::SharedBytes bytes;
    std::string skip_reason;
    std::shared_ptr<const SlotRows> rows;
    const SlotRows::Part* part = nullptr;
    std::string no_room;  // not "": its last answer was OVER_BUDGET; by whom, and why
  };
  struct PullItem : Item {
    std::uint64_t have = 0;                // dense: pulls done
    const SlotRows::Part* part = nullptr;  // rows: of row_pulls_[key.first]
  };
  using PullKey = std::pair<std::uint64_t, std::uint32_t>;  // 0 (dense) or the step's pull, shard
  struct RowPull {
    std::shared_ptr<const SlotRows> rows;
    std::vector<tensor::AlignedBuffer> values;
    std::size_t missing = 0;  // parts
    std::uint64_t after = 0;
  };
  using PushKey = std::pair<std::uint32_t, std::uint32_t>;  // update, shard
  struct Request {
    std::string server;
    bool part = false;                                      // one of several
    std::vector<std::pair<PushKey, std::uint64_t>> pushes;  // with serials
    struct Pull {
      PullKey key;
      std::uint64_t serial, count;
    };
    std::vector<Pull> pulls;
  };

  bool Sequential() const;
  // Where the item goes now; null: it waits for a map from here on.
  const ShardPlace* PlaceFor(std::uint32_t shard, Item& item);
  // What is ready to leave for one server.
  struct Group {
    std::vector<PushKey> pushes;
    std::vector<PullKey> pulls;
  };
  // One request, or parts of it as far as there may be more of them under way. False: something in
  // it never leaves, and the attempt is to end.
  bool SendGroup(const std::string& server, const Group& group);
  void Send(const std::string& server, const std::vector<PushKey>& pushes,
            const std::vector<PullKey>& pulls, bool is_part);
  // The parts of a request beside its header: a payload for each push, ids of rows for each
  // section.
  struct Payloads {
    std::vector<tensor::SharedBytes> bytes, ids;
    bool any_ids = false;
  };
  void FillPush(const PushKey& key, v1::PushSection* section, Payloads* payloads) const;
  void FillPull(const PullKey& key, v1::PullSection* section, Payloads* payloads) const;
  template <class Section>
  void NameRows(const std::shared_ptr<const SlotRows>& rows, const SlotRows::Part& part,
                Section* section, Payloads* payloads) const;
  // Returns the serial of the item's present state.
  std::uint64_t MarkSent(Item& item, std::uint32_t shard);
  SectionSize SizeOfPush(const PushKey& key) const;
  SectionSize SizeOfPull(const PullKey& key) const;
  // What a section of `shard` holds, in the words of the job file.
  std::string NameOf(std::uint32_t shard) const;
  // The user's error that a section is larger than what `server` takes.
  absl::Status NeverFits(const std::string& server, const SectionSize& section) const;
  // Sections that are sent again after a delay, of at least `busy_after_ms`.
  struct Retry {
    std::vector<PushKey> pushes;
    std::vector<PullKey> pulls;
    std::uint32_t busy_after_ms = 0;
  };
  // The answers to the pushes of a request. `unsettled`: the shards whose push is not settled.
  // False: an event has ended the attempt.
  bool TakePushAnswers(const Request& request, const v1::ResponseHeader& header, Retry* retry,
                       std::set<std::uint32_t>* unsettled);
  absl::Status PushError(const std::string& server, const PushKey& key,
                         const v1::PushResult& result) const;
  // The answers to the pulls of a request; an error ends the attempt.
  absl::Status TakePullAnswers(
      const Request& request,
      const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
      const std::set<std::uint32_t>& unsettled, Retry* retry);
  absl::Status CheckPull(const PullItem& pull, const Request::Pull& sent,
                         const v1::PullResult& result) const;
  // Sends the sections that are ready, and reports the progress. `pushed`: a push was answered,
  // behind which worker.between_pushes lies.
  void Continue(bool pushed);
  // Takes the values of a pull; an error ends the attempt.
  absl::Status AcceptDense(
      PullItem* pull, const Request::Pull& sent, const v1::PullResult& result,
      const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
      std::size_t index);
  absl::Status AcceptRows(const Request::Pull& sent, std::span<const std::byte> payload);
  void OnAnswer(const std::shared_ptr<Request>& request,
                const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer);
  void OnCallFailed(const Request& request, const absl::Status& status);
  void BackOff(const Retry& retry);
  void WaitOrBackoff(Item& item, MapVersion version);

  const Environment env_;
  const std::shared_ptr<const Layout> layout_;
  const Attempt attempt_;
  const ClosureId closure_;
  const std::string proof_, client_name_;  // [35]
  const Events events_;
  std::uint64_t pulls_wanted_ = 0;
  std::uint64_t serial_ = 0;
  std::uint32_t in_flight_ = 0, hard_errors_ = 0;
  std::map<PushKey, PushItem> pushes_;
  std::map<PullKey, PullItem> pulls_;  // of dense shards, always; of rows, until they are here
  std::map<std::uint64_t, RowPull> row_pulls_;
  std::map<std::string, client::ParameterClient::Announced> announced_;  // by server
  std::map<std::string, std::uint32_t>
      parts_;  // requests under way that are parts, by server; none is 0
  std::string last_error_;
  ReachLog reach_;
};

}  // namespace evergrad::worker
