// The pushes and pulls of one attempt. The exchange divides them by owner, sends them, and resends
// them until they are settled (LEDGER lines 14 and 15).
//
//   Push(u, …)   ─┐
//   WantPulls(n) ─┴▶ Flush ─▶ ParameterClient ─▶ answers, one per section
//                      ▲                            │
//                      └── retry after a newer map (STALE), or after a backoff of 10 ms doubling
//                          to 1 s (BUSY, transport errors, STALE without a newer map)
//
// Push u and the next pull share one request per server, or several if the server cannot grant a
// request of that size.
//
// AttemptBook decides the effect of an answer. A section of a request is one push or one pull of
// one shard. ExchangeSections owns the state of every section, RequestWriter writes a request,
// RowPulls owns the memory for pulled rows, and PushAnnouncer owns the announcements. This class
// owns the calls in flight and the timers, and ends the attempt in case of an error. A pull that is
// sent with a push does not count before that push is settled. The values of a pull that counts
// therefore contain the worker's own update. Rows of embedding tables are pulled for one step at a
// time, by the ids of its batch. The class runs on the control executor. The attempt bounds the
// requests in flight: at most two updates, one pull for each dense shard, and the rows of two
// steps. If a server's limits are below the size of a request, a few parts are in flight at a time
// (request_split.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "worker/runner/exchange_sections.h"
#include "worker/runner/push_announcer.h"
#include "worker/runner/reach_log.h"
#include "worker/runner/request_parts.h"
#include "worker/runner/request_writer.h"
#include "worker/runner/row_pulls.h"

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
  // The callbacks of the owner. They run on the executor at the end of a turn, and may destroy the
  // exchange.
  struct Events {
    std::function<void()> on_progress;  // a push was settled or a pull completed
    // A push was answered SUPERSEDED (by `superseded_by`) or REFUSED, and the book has dropped the
    // attempt.
    std::function<void(std::optional<ShardId> superseded_by)> on_dropped;
    // The attempt fails because of INVALID, OVER_BUDGET in a job with `on_over_budget: fail`, or an
    // unusable server.
    std::function<void(absl::Status)> on_failed;
  };
  using Gradient = ExchangeSections::Gradient;

  // `work` must be the attempt as granted.
  Exchange(Environment environment, std::shared_ptr<const Layout> layout, const Work& work,
           Events events);

  // Requests the first `count` pulls of every dense shard; a lower count than before has no effect.
  // Flush sends the requests.
  void WantPulls(std::uint64_t count) { sections_.WantPulls(count); }
  // Declares that values pulled under the current map before this attempt serve as its first pulls.
  void HavePulls(std::uint64_t count) { sections_.HavePulls(count); }
  // Returns whether every dense shard was pulled `count` times.
  bool PullsDone(std::uint64_t count) const { return sections_.PullsDone(count); }
  // Requests rows of embedding tables for one step. `count` is the number of the request, from 1;
  // each number is used once. The request is sent with pull `after` of the dense shards, or later.
  // Flush sends the requests.
  void WantRows(std::uint64_t count, std::shared_ptr<const SlotRows> rows, std::uint64_t after);
  // Returns whether all rows of request `count` have arrived; false if there is no such request.
  bool RowsDone(std::uint64_t count) const { return rows_.IsDone(count); }
  // Returns the rows of request `count`, [ids, dimension] for each table; RowsDone(count) must be
  // true. The values are float32 with `widen`, otherwise as received (SlotRows::Scatter).
  std::vector<tensor::AlignedBuffer> TakeRows(std::uint64_t count, bool widen) {
    return rows_.Take(count, widen);
  }
  // Pushes an update. The caller calls Push once per update, after AttemptBook::Expect of the same
  // shards. With a `skip_reason` that is not "" the push is of kind SKIP, without payload [LEDGER
  // 13].
  void Push(UpdateIndex update, std::uint64_t global_step, std::vector<Gradient> gradients,
            absl::string_view skip_reason);
  void Flush();
  // Announces pushes to `shards` that follow soon, and the next pull of every shard if `pulls`, so
  // that the servers reserve memory now. Other requests are not announced.
  void Announce(const std::vector<ShardId>& shards, bool pulls);
  // Must be called after a change of the map or of addresses. Sends the sections that waited for
  // the change, and resends requests that went to former owners to the new owners.
  void OnMap();
  // Returns the condition for which the exchange waits, as a text for people, or "".
  std::string WaitingFor() const;
  // Returns whether a push was answered OVER_BUDGET and is repeated until the server has memory
  // (AttemptBook::OverBudget::kPause).
  bool WaitsForRoom() const { return !sections_.OverBudget().empty(); }
  // Adds the servers that cannot be reached, each with the time of the first failure.
  void FillUnreached(v1::WorkerProgress* progress) const;

 private:
  using PushKey = ExchangeSections::PushKey;
  using PullKey = ExchangeSections::PullKey;
  using Group = ExchangeSections::Group;
  using Retry = ExchangeSections::Retry;
  struct Request {
    std::string server;
    bool part = false;  // true if the request is one of several parts
    // The sections of the request, with their serials.
    std::vector<std::pair<PushKey, std::uint64_t>> pushes;
    std::vector<std::pair<PullKey, std::uint64_t>> pulls;
    std::uint64_t pulls_wanted = 0;  // the number of wanted pulls when the request was sent
  };
  // The answer is shared, because the values in PullCache are views of it.
  using SharedAnswer = std::shared_ptr<absl::StatusOr<client::ParameterClient::Answer>>;

  bool Sequential() const;
  // Sends the sections in one request, or in parts whose number in flight is limited. Returns false
  // if a section can never be sent; the attempt must then end.
  bool SendGroup(const std::string& server, const Group& group);
  void Send(const std::string& server, const Group& group, bool is_part);
  void OnAnswer(const std::shared_ptr<Request>& request, const SharedAnswer& answer);
  // Processes the answers to the pushes of a request, and adds the shards with an unsettled push to
  // `unsettled`. Returns false if an event has ended the attempt.
  bool TakePushAnswers(const Request& request, const v1::ResponseHeader& header, Retry* retry,
                       std::set<std::uint32_t>* unsettled);
  // Processes the answers to the pulls of a request. An error ends the attempt.
  absl::Status TakePullAnswers(const Request& request, const SharedAnswer& answer,
                               const std::set<std::uint32_t>& unsettled, Retry* retry);
  // Sends the sections that are ready, and reports the progress. If a push was answered (`pushed`),
  // first passes the failpoint worker.between_pushes.
  void Continue(bool pushed);
  void OnCallFailed(const Request& request, const absl::Status& status);
  // Resumes the sections after their delay, with a timer of the control executor.
  void BackOff(Retry retry);

  const Environment env_;
  const std::shared_ptr<const Layout> layout_;
  const Attempt attempt_;
  const ClosureId closure_;
  const Events events_;
  const RequestWriter writer_;
  ExchangeSections sections_;
  RowPulls rows_;
  PushAnnouncer announcer_;
  std::uint32_t in_flight_ = 0, hard_errors_ = 0;
  RequestParts parts_;
  std::string last_error_;
  ReachLog reach_;
};

}  // namespace evergrad::worker
