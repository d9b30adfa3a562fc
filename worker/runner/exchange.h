// The pushes and pulls of one attempt. They are split by owner, sent, and resent until settled
// (LEDGER lines 14 and 15).
//
//   Push(u, …)   ─┐
//   WantPulls(n) ─┴▶ Flush ─▶ ParameterClient ─▶ answers, one per section
//                      ▲                            │
//                      └── retry after a newer map (STALE), or after a backoff of 10 ms doubling
//                          to 1 s (BUSY, transport errors, STALE at our map)
//
// Push u and the next pull share one request per server, or several if the server cannot grant one
// of that size.
//
// AttemptBook decides what an answer means; this class tracks the state of every section. A pull
// that is sent with a push counts only once that push is settled, so a worker never misses its own
// update. Rows of embedding tables are pulled for one step at a time, by the ids of its batch. The
// class runs on the control executor. The attempt bounds the requests in flight: at most two
// updates, one pull for each dense shard, and the rows of two steps. If a server's limits are below
// the size of a request, a few parts are in flight at a time (request_split.h).
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
    // The endpoints by server identity; the owner updates them before OnMap.
    const std::map<std::string, v1::Endpoint>* endpoints = nullptr;
    fault::Failpoints* failpoints = nullptr;
    const Clock* clock = nullptr;  // if null, unreachable servers are not reported
    Counters counters;
    Allocator allocate = nullptr;  // allocates memory for rows of tables
    JobUid job;
    v1::Stamp registration;
    std::chrono::milliseconds deadline{10000}, backoff_min{10}, backoff_max{1000};
  };
  // The callbacks run on the executor at the end of a turn, so they may destroy the exchange.
  struct Events {
    std::function<void()> on_progress;  // a push was settled or a pull completed
    // A push was answered SUPERSEDED or REFUSED, and the book has dropped the attempt.
    // `superseded_by` is the shard that answered SUPERSEDED.
    std::function<void(std::optional<ShardId> superseded_by)> on_dropped;
    // The attempt fails: INVALID, OVER_BUDGET under `fail`, or an unusable server.
    std::function<void(absl::Status)> on_failed;
  };
  struct Gradient {
    ShardId shard;
    tensor::SharedBytes bytes;  // empty for a SKIP
    // The rows of a slot's gradients; null for a dense shard or a SKIP. `part` is one of their
    // parts.
    std::shared_ptr<const SlotRows> rows = nullptr;
    const SlotRows::OfShard* part = nullptr;
  };

  // `work` must be the attempt as granted.
  Exchange(Environment environment, std::shared_ptr<const Layout> layout, const Work& work,
           Events events);

  // Requests the first `count` pulls of every dense shard; a lower count than before has no effect.
  // Flush sends the requests.
  void WantPulls(std::uint64_t count) { pulls_wanted_ = std::max(pulls_wanted_, count); }
  // Declares that values pulled under the current map before this attempt serve as its first pulls.
  void HavePulls(std::uint64_t count);
  bool PullsDone(std::uint64_t count) const;  // for dense shards
  // Requests rows of embedding tables for one step, once for each `count`; the caller numbers the
  // requests from 1. They are sent with pull `after` of the dense shards, or later. Flush sends
  // them.
  void WantRows(std::uint64_t count, std::shared_ptr<const SlotRows> rows, std::uint64_t after);
  bool RowsDone(std::uint64_t count) const;  // also false if the rows were not requested
  // Returns the rows of request `count`, [ids, dimension] for each table; RowsDone(count) must be
  // true. The values are float32 with `widen`, otherwise as received (SlotRows::Scatter).
  std::vector<tensor::AlignedBuffer> TakeRows(std::uint64_t count, bool widen);
  // Pushes an update. The caller calls it once per update, after AttemptBook::Expect of the same
  // shards. With a `skip_reason` that is not "" the push is of kind SKIP, without payload [13].
  void Push(UpdateIndex update, std::uint64_t global_step, std::vector<Gradient> gradients,
            absl::string_view skip_reason);
  void Flush();
  // Announces pushes to `shards` that follow soon, and the next pull of every shard if `pulls`, so
  // that the servers reserve memory now. Other requests are not announced.
  void Announce(const std::vector<ShardId>& shards, bool pulls);
  // The map or the addresses have changed. Sends the sections that waited for this, and resends to
  // the new owners the requests that went to former owners.
  void OnMap();
  // Returns the reason for waiting, as a text for people, or "".
  std::string WaitingFor() const;
  // Returns whether a push was answered OVER_BUDGET and is repeated until the server has memory
  // (AttemptBook::OverBudget::kPause).
  bool WaitsForRoom() const;
  // Adds the servers that have not answered, with times.
  void FillUnreached(v1::WorkerProgress* progress) const;

 private:
  enum class State { kReady, kInFlight, kBackoff, kWaitMap };
  struct Item {
    State state = State::kReady;
    // Serial of the current state; answers and timers with another serial are late.
    std::uint64_t serial = 0;
    std::uint32_t tries = 0;
    MapVersion wait_for;      // kWaitMap: the item waits for a map at least this new …
    bool wait_newer = false;  // … or any newer than `sent_version`
    MapVersion sent_version;
    ShardPlace sent_to;
  };
  struct PushItem : Item {
    std::uint64_t global_step = 0;
    tensor::SharedBytes bytes;
    std::string skip_reason;
    std::shared_ptr<const SlotRows> rows;
    const SlotRows::OfShard* part = nullptr;
    // The server and the reason, if the last answer was OVER_BUDGET; otherwise "".
    std::string over_budget_reason;
  };
  struct PullItem : Item {
    std::uint64_t have = 0;                   // dense: pulls done
    const SlotRows::OfShard* part = nullptr;  // rows: the part of row_pulls_[key.first]
  };
  // (0 for dense, otherwise the number of the step's pull; shard).
  using PullKey = std::pair<std::uint64_t, std::uint32_t>;
  struct RowPull {
    std::shared_ptr<const SlotRows> rows;
    std::vector<tensor::AlignedBuffer> values;
    std::size_t missing = 0;  // number of missing parts
    std::uint64_t after = 0;
  };
  using PushKey = std::pair<std::uint32_t, std::uint32_t>;  // (update, shard)
  struct Request {
    std::string server;
    bool part = false;                                      // one of several parts
    std::vector<std::pair<PushKey, std::uint64_t>> pushes;  // with their serials
    struct Pull {
      PullKey key;
      std::uint64_t serial, count;
    };
    std::vector<Pull> pulls;
  };

  bool Sequential() const;
  // Returns the current owner of the shard. If there is none, returns nullptr, and the item now
  // waits for a map.
  const ShardPlace* PlaceFor(std::uint32_t shard, Item& item);
  // Sections that go to one server.
  struct Group {
    std::vector<PushKey> pushes;
    std::vector<PullKey> pulls;
  };
  // Sends the sections in one request, or in as many parts as may be in flight. Returns false if a
  // section can never be sent; the attempt must then end.
  bool SendGroup(const std::string& server, const Group& group);
  void Send(const std::string& server, const std::vector<PushKey>& pushes,
            const std::vector<PullKey>& pulls, bool is_part);
  // The parts of a request besides its header: a payload for each push, ids of rows for each
  // section.
  struct Payloads {
    std::vector<tensor::SharedBytes> bytes, ids;
    bool any_ids = false;
  };
  void FillPush(const PushKey& key, v1::PushSection* section, Payloads* payloads) const;
  void FillPull(const PullKey& key, v1::PullSection* section, Payloads* payloads) const;
  template <class Section>
  void NameRows(const std::shared_ptr<const SlotRows>& rows, const SlotRows::OfShard& part,
                Section* section, Payloads* payloads) const;
  // Marks the item as sent, and returns the serial of its new state.
  std::uint64_t MarkSent(Item& item, std::uint32_t shard);
  SectionSize SizeOfPush(const PushKey& key) const;
  SectionSize SizeOfPull(const PullKey& key) const;
  // Returns the name of the content of a section of `shard`, in the words of the job file.
  std::string NameOf(std::uint32_t shard) const;
  // Returns the user error for a section that exceeds the limits of `server`.
  absl::Status NeverFits(const std::string& server, const SectionSize& section) const;
  // Sections to be sent again after a delay of at least `busy_after_ms`.
  struct Retry {
    std::vector<PushKey> pushes;
    std::vector<PullKey> pulls;
    std::uint32_t busy_after_ms = 0;
  };
  // Processes the answers to the pushes of a request, and adds the shards with an unsettled push to
  // `unsettled`. Returns false if an event has ended the attempt.
  bool TakePushAnswers(const Request& request, const v1::ResponseHeader& header, Retry* retry,
                       std::set<std::uint32_t>* unsettled);
  absl::Status PushError(const std::string& server, const PushKey& key,
                         const v1::PushResult& result) const;
  // Processes the answers to the pulls of a request. An error ends the attempt.
  absl::Status TakePullAnswers(
      const Request& request,
      const std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>& answer,
      const std::set<std::uint32_t>& unsettled, Retry* retry);
  absl::Status CheckPull(const PullItem& pull, const Request::Pull& sent,
                         const v1::PullResult& result) const;
  // Sends the sections that are ready, and reports the progress. `pushed` says that a push was
  // answered; then the failpoint worker.between_pushes applies.
  void Continue(bool pushed);
  // Accepts the values of a pull. An error ends the attempt.
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
  // Pulls of dense shards stay; pulls of rows stay until the rows have arrived.
  std::map<PullKey, PullItem> pulls_;
  std::map<std::uint64_t, RowPull> row_pulls_;
  std::map<std::string, client::ParameterClient::Announced> announced_;  // by server
  std::map<std::string, std::uint32_t> parts_;  // number of parts in flight by server; never 0
  std::string last_error_;
  ReachLog reach_;
};

}  // namespace evergrad::worker
