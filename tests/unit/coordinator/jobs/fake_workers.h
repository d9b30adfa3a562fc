// The workers of a FakeCluster. A worker finishes each grant at once, unless `hold` returns true
// for the grant.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/client/protocol.h"
#include "common/grants/grant_proof.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {

struct FakeWorker {
  TaskId task;
  std::uint64_t process = 0;
  std::vector<std::string> functions;
  std::string identity;
  v1::ShardMap map;
  std::vector<v1::Grant> held;                   // grants that the worker has not answered yet
  std::vector<v1::TaskMessage> unanswered;       // Dones that the coordinator has not answered yet
  std::set<std::uint64_t> answered, superseded;  // numbers n of the attempts
  std::vector<v1::RunFileAnswer> files;          // the coordinator's answers to RunFileChunks
  bool ended = false;                            // JobEnded was received
  std::string ended_state;
};

// The base of FakeCluster for workers. Tests reach these members through the cluster.
class FakeWorkers {
 public:
  virtual ~FakeWorkers() = default;
  // Sends a message of a task to the job.
  virtual void Say(TaskId task, const v1::TaskMessage& message) = 0;

  static constexpr char kGrantKey[] = "known to the job and its servers";
  config::JobSpec spec;
  std::map<std::string, FakeWorker> workers;
  std::function<bool(const FakeWorker&, const v1::Grant&)> hold =
      [](const FakeWorker&, const v1::Grant&) { return false; };
  // Returns the ability that a worker lacks for a grant. A worker that lacks one fails the grant at
  // once.
  std::function<v1::Lack(const FakeWorker&, const v1::Grant&)> lacks =
      [](const FakeWorker&, const v1::Grant&) { return v1::NO_LACK; };
  std::function<void(const v1::Grant&, v1::Done*)> on_done = [](const v1::Grant&, v1::Done*) {};
  std::vector<v1::Grant> granted;  // the grants of all workers, in order
  std::int64_t eval_count = 7;     // the count that each evaluation closure reports
  std::vector<v1::HeldAttempt> last_adopted;

  template <class Message>
  static void AddHeld(const Message& from, const v1::Stamp& v1_stamp, v1::Hello* hello,
                      const std::string& granted_to = "0") {
    v1::HeldAttempt* held = hello->add_attempts();
    held->set_job_uid(from.job_uid());
    held->set_closure(from.closure());
    *held->mutable_attempt() = from.attempt();
    held->set_kind(from.kind());
    held->set_all_targets(from.all_targets());
    *held->mutable_targets() = from.targets();
    *held->mutable_v1() = v1_stamp;
    held->set_granted_to(granted_to);
    if (from.kind() != v1::TRAIN) return;
    held->set_proof(grants::MakeProof(kGrantKey, JobUid(from.job_uid()), ClosureId(from.closure()),
                                      client::FromProto<Attempt>(from.attempt()), granted_to));
  }

  v1::Done DoneOf(const FakeWorker& worker, const v1::Grant& grant) const {
    v1::Done done;
    done.set_job_uid(grant.job_uid());
    done.set_closure(grant.closure());
    *done.mutable_attempt() = grant.attempt();
    done.set_kind(grant.kind());
    done.set_all_targets(grant.all_targets());
    *done.mutable_targets() = grant.targets();
    *done.mutable_v0() = worker.map.version();
    *done.mutable_v1() = worker.map.version();
    switch (grant.kind()) {
      case v1::DESCRIBE: Describe(done.mutable_describe()); break;
      case v1::TRAIN: FillTrained(grant.closure(), done.mutable_metrics()); break;
      case v1::EVALUATE: FillEvaluated(done.mutable_metrics()); break;
      default:
        done.mutable_export_()->add_files("/runs/fake/weights.npz");
        done.mutable_export_()->set_host("far");
        break;
    }
    return done;
  }
  void Finish(FakeWorker& worker, const v1::Grant& grant) {
    v1::TaskMessage message;
    *message.mutable_done() = DoneOf(worker, grant);
    on_done(grant, message.mutable_done());
    std::erase_if(worker.held, [&](const v1::Grant& g) {
      return g.attempt().n() == grant.attempt().n() && g.attempt().term() == grant.attempt().term();
    });
    worker.unanswered.push_back(message);
    Say(worker.task, message);
  }
  // Finishes all attempts that the worker holds when the call begins. Attempts that are granted as
  // a result are not finished.
  void FinishHeld(FakeWorker& worker) {
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) Finish(worker, grant);
  }
  void FailGrant(FakeWorker& worker, const v1::Grant& grant, const std::string& text, bool user,
                 v1::Lack lack = v1::NO_LACK) {
    v1::TaskMessage message;
    v1::Failed* failed = message.mutable_failed();
    failed->set_job_uid(grant.job_uid());
    failed->set_closure(grant.closure());
    *failed->mutable_attempt() = grant.attempt();
    failed->set_kind(grant.kind());
    failed->set_all_targets(grant.all_targets());
    failed->set_user_error(user);
    failed->set_lack(lack);
    failed->mutable_cause()->set_message(text);
    failed->mutable_cause()->set_kind(user ? "user" : "transport");
    failed->mutable_cause()->set_retryable(!user);
    std::erase_if(worker.held,
                  [&](const v1::Grant& g) { return g.attempt().n() == grant.attempt().n(); });
    Say(worker.task, message);
  }
  void Report(FakeWorker& worker, const v1::Grant& grant, std::uint32_t step) {
    v1::TaskMessage message;
    v1::WorkerProgress* p = message.mutable_heartbeat()->mutable_worker();
    p->set_job_uid(grant.job_uid());
    p->set_state("running");
    p->set_running_closure(grant.closure());
    *p->mutable_running_attempt() = grant.attempt();
    p->set_running_step(step);
    Say(worker.task, message);
  }

 protected:
  // Imitates a worker that opens a new session: the worker keeps only the attempts that the job has
  // adopted.
  static void KeepAdopted(const v1::Registered& registered, FakeWorker* worker) {
    const auto lost = [&](const v1::Stamp& attempt) {
      for (const v1::HeldAttempt& a : registered.adopted()) {
        if (a.attempt().term() == attempt.term() && a.attempt().n() == attempt.n()) return false;
      }
      return true;
    };
    std::erase_if(worker->held, [&](const v1::Grant& g) { return lost(g.attempt()); });
    std::erase_if(worker->unanswered,
                  [&](const v1::TaskMessage& m) { return lost(m.done().attempt()); });
  }

  // Does what a worker does with this message of the coordinator.
  void AtWorker(FakeWorker& worker, const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kMap: worker.map = message.map(); break;
      case v1::CoordinatorMessage::kGrant: OnGrant(worker, message.grant()); break;
      case v1::CoordinatorMessage::kRecall: OnRecall(worker, message.recall()); break;
      case v1::CoordinatorMessage::kDoneAnswer: OnDoneAnswer(worker, message.done_answer()); break;
      case v1::CoordinatorMessage::kRunFileAnswer:
        worker.files.push_back(message.run_file_answer());
        break;
      case v1::CoordinatorMessage::kJobEnded:
        worker.ended = true;
        worker.ended_state = message.job_ended().state();
        worker.held.clear();
        worker.unanswered.clear();
        break;
      default: break;
    }
  }

 private:
  void Describe(v1::DescribeResult* d) const {
    d->set_train_examples(spec.counting.examples);
    d->set_eval_examples(spec.counting.examples);
    v1::VariableSpec* v = d->add_variables();
    v->set_name("counting/samples");
    v->add_shape(spec.counting.examples);
    v->add_shape(1);
    v->set_dtype(v1::DTYPE_FLOAT32);
    v->mutable_optimizer()->set_type("counting");
    d->set_parameters(spec.counting.examples);
  }
  static void FillTrained(std::uint64_t closure, v1::ClosureMetrics* m) {
    m->set_examples(8);
    m->set_steps(2);
    m->set_loss_sum(8.0 / (1.0 + static_cast<double>(closure)));
    for (std::uint32_t u = 0; u < 2; ++u) {
      v1::StepRecord* r = m->add_step_records();
      r->set_global_step(closure * 2 + u);
      r->set_loss(1.0 / (1.0 + static_cast<double>(closure)));
      r->set_examples(4);
    }
  }
  void FillEvaluated(v1::ClosureMetrics* m) const {
    m->set_examples(8);
    v1::NamedSum* s = m->add_sums();
    s->set_name("count");
    s->set_is_integer(true);
    s->set_count(eval_count);
  }

  void OnGrant(FakeWorker& worker, const v1::Grant& grant) {
    granted.push_back(grant);
    worker.held.push_back(grant);
    if (const v1::Lack of = lacks(worker, grant); of != v1::NO_LACK) {
      FailGrant(worker, grant, "not here: worker/" + worker.identity, true, of);
    } else if (!hold(worker, grant)) {
      Finish(worker, grant);
    }
  }
  // Answers a Recall. The worker's oldest attempt has begun, so the worker keeps it. The worker
  // gives back any other attempt that the coordinator recalls.
  void OnRecall(FakeWorker& worker, const v1::Recall& recall) {
    for (std::size_t i = 1; i < worker.held.size(); ++i) {
      if (worker.held[i].attempt().n() != recall.attempt().n()) continue;
      worker.held.erase(worker.held.begin() + static_cast<std::ptrdiff_t>(i));
      v1::TaskMessage dropped;
      dropped.mutable_dropped()->set_job_uid(recall.job_uid());
      dropped.mutable_dropped()->set_closure(recall.closure());
      *dropped.mutable_dropped()->mutable_attempt() = recall.attempt();
      Say(worker.task, dropped);
      break;
    }
  }
  static void OnDoneAnswer(FakeWorker& worker, const v1::DoneAnswer& answer) {
    std::erase_if(worker.unanswered, [&](const v1::TaskMessage& m) {
      return m.done().attempt().n() == answer.attempt().n() &&
             m.done().attempt().term() == answer.attempt().term();
    });
    if (answer.superseded()) {
      std::erase_if(worker.held,
                    [&](const v1::Grant& g) { return g.attempt().n() == answer.attempt().n(); });
    }
    (answer.superseded() ? worker.superseded : worker.answered).insert(answer.attempt().n());
  }
};

}  // namespace evergrad::coordinator
