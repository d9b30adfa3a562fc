#include "coordinator/jobs/shard_queries.h"

#include "common/client/protocol.h"

namespace evergrad::coordinator {

void ShardQueries::Begin(const Question& question, const Servers& servers, Done done) {
  Query query{question, {}, {}, std::move(done)};
  for (const auto& [task, identity] : servers) AskServer(&query, task);
  queries_.push_back(std::move(query));
}

void ShardQueries::AskServer(Query* query, TaskId task) {
  v1::CoordinatorMessage message;
  message.mutable_report_shards()->set_request_id(query->question.request);
  message.mutable_report_shards()->set_job_uid(job_.value());
  message.mutable_report_shards()->set_digests(query->question.digests);
  query->waiting.insert(task);
  send_(task, message);
}

void ShardQueries::Ask(TaskId task, std::optional<ShardId> shard) {
  for (Query& query : queries_) {
    if (!shard || query.answers.count(shard->value()) == 0) AskServer(&query, task);
  }
}

void ShardQueries::Forget(TaskId task) {
  for (Query& query : queries_) query.waiting.erase(task);
}

bool ShardQueries::OnReport(TaskId task, const std::string& identity, const v1::ShardReport& report,
                            const Owners& owners, bool when_all_have_spoken) {
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    Query& query = queries_[i];
    if (query.question.request != report.request_id()) continue;
    for (const v1::ShardState& state : report.shards()) {
      if (state.job_uid() != job_.value() || state.shard() >= owners.size()) continue;
      const ShardOwner& owner = owners[state.shard()];
      if (owner.server != identity || owner.epoch != client::FromProto<ShardEpoch>(state.epoch()))
        continue;
      query.answers[state.shard()] = {state, identity};
    }
    if (!report.more()) query.waiting.erase(task);
    const bool is_report = query.question.report.has_value();
    if (query.answers.size() == owners.size() || (query.waiting.empty() && when_all_have_spoken))
      Finish(i, owners.size());
    return is_report;
  }
  return false;
}

void ShardQueries::Check(MonoTime now, std::optional<std::uint64_t> generation,
                         std::chrono::milliseconds more, const Servers& servers,
                         const Owners& owners) {
  for (std::size_t i = 0; i < queries_.size();) {
    Query& query = queries_[i];
    if (query.question.deadline > now) {
      ++i;
    } else if (generation && query.question.report == generation) {
      query.question.deadline = now + more;
      AskForMissing(&query, servers, owners);
      ++i;
    } else {
      Finish(i, owners.size());  // Calls `done`, which may append a query.
    }
  }
}

// Asks the servers of missing shards, unless their answer is pending. These servers were not
// connected when the query began, or did not hold the shard yet.
void ShardQueries::AskForMissing(Query* query, const Servers& servers, const Owners& owners) {
  std::set<std::string> missing;
  for (std::uint32_t p = 0; p < owners.size(); ++p) {
    if (query->answers.count(p) == 0) missing.insert(owners[p].server);
  }
  for (const auto& [task, identity] : servers) {
    if (query->waiting.count(task) == 0 && missing.count(identity) != 0) AskServer(query, task);
  }
}

void ShardQueries::Finish(std::size_t index, std::size_t shards) {
  Query query = std::move(queries_[index]);
  queries_.erase(queries_.begin() + static_cast<std::ptrdiff_t>(index));
  Answer answer;
  answer.complete = query.answers.size() == shards;
  for (auto& [shard, found] : query.answers) {
    answer.shards.push_back(std::move(found.first));
    answer.servers.push_back(std::move(found.second));
  }
  query.done(answer);
}

void ShardQueries::FinishAll(const Answer& answer) {
  const std::vector<Query> queries = std::exchange(queries_, {});
  for (const Query& query : queries) query.done(answer);
}

std::map<std::string, std::size_t> ShardQueries::Missing(std::uint64_t generation,
                                                         const Owners& owners) const {
  std::map<std::string, std::size_t> missing;
  for (const Query& query : queries_) {
    if (query.question.report != generation) continue;
    for (std::uint32_t p = 0; p < owners.size(); ++p)
      missing[owners[p].server] += query.answers.count(p) == 0;
  }
  return missing;
}

}  // namespace evergrad::coordinator
