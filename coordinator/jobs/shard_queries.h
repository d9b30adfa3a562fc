// Questions to the owners of a job's shards: what does each shard hold now? The status of a job,
// its checks while it runs, and its final report are made of the answers.
//
//   Begin ─▶ ReportShards to each server ─▶ OnReport, in parts, from its owner alone ─▶ done
//
// A query ends when every shard has answered, or at its deadline with what has come. The job's own
// final report has a generation instead: it is asked on past each deadline, until it is complete or
// another generation has made it void. Not thread-safe: the control executor's. No clock; messages
// leave through the function given to the constructor.
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
    std::vector<v1::ShardState> shards;  // By shard number; those that did not answer are absent.
    std::vector<std::string> servers;    // The identity of its owner, beside each.
  };
  using Done = std::function<void(const Answer&)>;
  using Send = std::function<void(TaskId, const v1::CoordinatorMessage&)>;
  using Servers = std::map<TaskId, std::string>;  // Those that can be asked, and their identities.
  using Owners = std::vector<ShardOwner>;         // By shard.

  struct Question {
    std::uint64_t request = 0;  // Its number; no other query of this process has it.
    bool digests = false;
    MonoTime deadline{0};
    std::optional<std::uint64_t> report = std::nullopt;  // The generation of a final report.
  };
  ShardQueries(JobUid job, Send send) : job_(job), send_(std::move(send)) {}

  bool empty() const { return queries_.empty(); }
  void Begin(const Question& question, const Servers& servers, Done done);
  // `task` may hold what nobody could tell of before: every query asks it; with `shard`, those that
  // have no answer of that shard.
  void Ask(TaskId task, std::optional<ShardId> shard = std::nullopt);
  void Forget(TaskId task);  // It will not answer: its session has ended.
  // Takes a report, which is a part of the answer of `task`. Shards that the task does not own, or
  // of which it owns another epoch, are left out. With `when_all_have_spoken` a query also ends
  // once no task owes it an answer. Returns whether a final report has made progress.
  bool OnReport(TaskId task, const std::string& identity, const v1::ShardReport& report,
                const Owners& owners, bool when_all_have_spoken);
  // Ends the queries whose deadline has come. A final report of `generation` (nullopt: none is
  // waited for) gets `more` time instead, and those are asked that do not know of it. `done` may
  // begin another query.
  void Check(MonoTime now, std::optional<std::uint64_t> generation, std::chrono::milliseconds more,
             const Servers& servers, const Owners& owners);
  // Every query ends with `answer`, whatever had come.
  void FinishAll(const Answer& answer);

  // Shards that the final report of `generation` still lacks, by server; zeros where it lacks none.
  std::map<std::string, std::size_t> Missing(std::uint64_t generation, const Owners& owners) const;

 private:
  struct Query {
    Question question;
    std::set<TaskId> waiting;  // They owe an answer.
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
