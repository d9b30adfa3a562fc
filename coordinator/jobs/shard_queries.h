// Queries the owners of a job's shards for the present contents of each shard. The status of a job,
// its checks while it runs, and its final report are made from the answers.
//
//   Begin ─▶ ReportShards to each server ─▶ OnReport for each part of an owner's answer ─▶ done
//
// A query ends when it has an answer for every shard, or at its deadline with the answers that have
// come. The query for the job's final report has a generation. It continues past each deadline,
// until it has all answers or a newer generation has made it void. Not thread-safe: only the
// control executor calls it. No clock; messages are sent with the function given to the
// constructor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/closures/closure_book.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ShardQueries {
 public:
  struct Answer {
    bool complete = false;
    std::vector<v1::ShardState> shards;  // By shard number, without shards that did not answer.
    std::vector<std::string> servers;    // The identity of the owner of each of `shards`.
  };
  using Done = std::function<void(const Answer&)>;
  using Send = std::function<void(TaskId, const v1::CoordinatorMessage&)>;
  using Servers = std::map<TaskId, std::string>;  // Servers that can be asked, with identities.
  using Owners = std::vector<ShardOwner>;         // Owners by shard.

  struct Question {
    std::uint64_t request = 0;  // A number that no other query of this process has.
    bool digests = false;
    MonoTime deadline{0};
    // The generation, if the query is for a final report.
    std::optional<std::uint64_t> report = std::nullopt;
  };
  ShardQueries(JobUid job, Send send) : job_(job), send_(std::move(send)) {}

  bool empty() const { return queries_.empty(); }
  void Begin(const Question& question, const Servers& servers, Done done);
  // Asks `task` on behalf of every query. If `shard` is set, asks only on behalf of queries that
  // lack an answer for `shard`, because `task` may hold this shard now.
  void Ask(TaskId task, std::optional<ShardId> shard = std::nullopt);
  void Forget(TaskId task);  // Called when the task's session has ended before it answered.
  // Takes a report, which is a part of the answer of `task`. Shards that the task does not own, or
  // owns at another epoch, are ignored. If `when_all_have_spoken` is true, a query also ends once
  // all tasks that it has asked have answered. Returns true if the report belongs to a final
  // report.
  bool OnReport(TaskId task, const std::string& identity, const v1::ShardReport& report,
                const Owners& owners, bool when_all_have_spoken);
  // Ends the queries whose deadline has come. The final report of `generation`, if that is set,
  // gets `more` time instead, and the servers whose shards are missing in the answer are asked
  // again, unless they have not answered the previous question yet. `done` may begin another query.
  void Check(MonoTime now, std::optional<std::uint64_t> generation, std::chrono::milliseconds more,
             const Servers& servers, const Owners& owners);
  // Ends every query with `answer`, and ignores the answers that have come.
  void FinishAll(const Answer& answer);

  // Returns by server the number of shards that the final report of `generation` still lacks.
  std::map<std::string, std::size_t> Missing(std::uint64_t generation, const Owners& owners) const;

 private:
  struct Query {
    Question question;
    std::set<TaskId> waiting;  // Tasks that have not answered yet.
    std::map<std::uint32_t, std::pair<v1::ShardState, std::string>> answers;
    Done done;
  };
  void AskServer(Query* query, TaskId task);
  void AskForMissing(Query* query, const Servers& servers, const Owners& owners);
  void Finish(std::size_t index, std::size_t shards);

  const JobUid job_;
  const Send send_;
  std::vector<Query> queries_;
};

}  // namespace evergrad::coordinator
