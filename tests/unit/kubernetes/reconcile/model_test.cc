// A randomized test of the decisions against simple models of an API server, of a coordinator and
// of an operator that may die between any two effects.
//
// The submission of a dying operator may arrive at the coordinator later, but at most kInFlight
// time steps later. Nothing else is late, so no conflict excuses a wrong record: a write of the
// record fails if the spec has changed meanwhile.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kubernetes/reconcile/conditions.h"
#include "kubernetes/reconcile/decide.h"

namespace evergrad::kubernetes {
namespace {

constexpr int kInFlight = 40;

// The API server: refuses changes of an old version, and keeps deleted objects with finalizers.
class ModelApi {
 public:
  std::map<std::string, JobObject> objects;

  void Create(const std::string& name, bool valid) {
    if (objects.contains(name)) return;
    JobObject object;
    object.name = name;
    object.uid = absl::StrCat("uid-", ++uids_);
    object.generation = 1;
    object.spec = {{"valid", valid}};
    Store(std::move(object));
  }
  void Edit(const std::string& name, bool valid) {
    const auto found = objects.find(name);
    if (found == objects.end()) return;
    JobObject object = found->second;
    ++object.generation;
    object.spec = {{"valid", valid}};
    Store(std::move(object));
  }
  void Delete(const std::string& name) {
    const auto found = objects.find(name);
    if (found == objects.end()) return;
    JobObject object = found->second;
    object.deleting = true;
    Store(std::move(object));
  }
  std::optional<JobObject> Change(const JobObject& object,
                                  const std::function<void(JobObject*)>& change) {
    const auto found = objects.find(object.name);
    if (found == objects.end() || found->second.uid != object.uid ||
        found->second.resource_version != object.resource_version)
      return std::nullopt;
    JobObject changed = found->second;
    change(&changed);
    Store(changed);
    changed.resource_version = absl::StrCat(version_);
    return changed;
  }

 private:
  void Store(JobObject object) {
    object.resource_version = absl::StrCat(++version_);
    if (object.deleting && object.finalizers.empty()) {
      objects.erase(object.name);
      return;
    }
    const std::string name = object.name;
    objects[name] = std::move(object);
  }
  int version_ = 0, uids_ = 0;
};

struct ModelJob {
  v1::JobStatus status;
  std::int64_t generation = 0;  // stands for the YAML
};

// The coordinator: makes at most one job of all submissions with one request id.
class ModelCoordinator {
 public:
  std::vector<ModelJob> jobs;

  void Submit(const std::string& request_id, std::int64_t generation) {
    for (const ModelJob& job : jobs)
      if (job.status.request_id() == request_id) return;
    ModelJob job;
    job.generation = generation;
    job.status.set_job_uid(jobs.size() + 1);
    job.status.set_request_id(request_id);
    job.status.set_state("QUEUED");
    jobs.push_back(std::move(job));
  }
  void Advance(ModelJob* job) {
    if (HasEnded(job->status)) return;
    job->status.set_state(job->status.state() == "QUEUED" ? "RUNNING" : "SUCCEEDED");
  }
};

struct LateSubmission {
  int at = 0;
  std::string request_id;
  std::int64_t generation = 0;
};

class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {}

  void Run(int actions) {
    for (int i = 0; i < actions; ++i) {
      Act();
      ++now_;
      ArriveLate(now_);
      CheckRecords();
    }
    // Everything settles.
    crashes_ = refuses_ = silent_ = false;
    for (int i = 0; i < 30; ++i) {
      now_ += 10;
      ArriveLate(now_);
      Watch("");
      PollJobs();
      for (const std::string& name : Names()) Handle(name, 8);
      if (i > 15)
        for (ModelJob& job : coordinator_.jobs)
          if (Cancelled(job)) job.status.set_state("CANCELLED");
    }
    CheckRecords();
    CheckEnd();
  }

 private:
  struct Held {
    JobObject object;
    int submitted = -1;
    bool refused_again = false;
  };

  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, held] : held_) names.push_back(name);
    return names;
  }

  void Act() {
    static const char* const kNames[] = {"a", "b", "c"};
    const std::string name = kNames[random_() % 3];
    switch (random_() % 20) {
      case 0: return api_.Create(name, Chance(80));
      case 1: return Chance(70) ? api_.Edit(name, Chance(70)) : api_.Create(name, true);
      case 2: return Chance(50) ? api_.Delete(name) : api_.Create(name, true);
      case 3: silent_ = !silent_ && Chance(60); return;
      case 4: return Chance(40) ? Crash() : void();
      case 5:
      case 6:
        if (!coordinator_.jobs.empty()) {
          ModelJob& job = coordinator_.jobs[random_() % coordinator_.jobs.size()];
          if (Cancelled(job))
            job.status.set_state("CANCELLED");
          else
            coordinator_.Advance(&job);
        }
        return;
      case 7:
      case 8:
      case 9: return Watch(name);
      case 10:
      case 11:
      case 12: return PollJobs();
      default: Handle(name, 1 + static_cast<int>(random_() % 6));
    }
  }

  // The watch brings the newest version of one object, or of all objects.
  void Watch(const std::string& only) {
    for (const char* name : {"a", "b", "c"}) {
      if (!only.empty() && only != name) continue;
      const auto found = api_.objects.find(name);
      if (found == api_.objects.end()) {
        held_.erase(name);
        continue;
      }
      Held& held = held_[name];
      if (held.object.uid != found->second.uid) held = Held();
      held.object = found->second;
    }
  }

  void PollJobs() {
    answered_ = !silent_;
    if (!answered_) return;
    list_.clear();
    for (const ModelJob& job : coordinator_.jobs) list_[job.status.request_id()] = job.status;
    asked_ = ++now_;
  }

  void Crash() {
    held_.clear();
    list_.clear();
    answered_ = false;
    asked_ = -1;
    started_ = ++now_;
    dead_ = true;
  }
  // The operator dies here sometimes.
  bool Dies() {
    if (!crashes_ || !Chance(4)) return false;
    Crash();
    return true;
  }

  Facts FactsOf(const Held& held) const {
    Facts facts;
    facts.jobs_known = answered_ && asked_ > held.submitted;
    const auto job = list_.find(RequestId(held.object));
    facts.job = job == list_.end() ? nullptr : &job->second;
    facts.trouble = answered_ ? "" : "silent";
    facts.settled = answered_ && asked_ - started_ >= kInFlight;
    facts.now = absl::StrCat(now_);
    const bool looks = facts.job == nullptr && TextOf(held.object.status, "jobUid").empty();
    if (looks && held.object.spec["valid"] == false)
      facts.refusal = Refusal{"InvalidSpec", "wrong", false};
    else if (looks && held.refused_again)
      facts.refusal = Refusal{"NameInUse", "in use", true};
    return facts;
  }

  void Handle(const std::string& name, int steps) {
    dead_ = false;
    while (steps-- > 0 && !dead_ && held_.contains(name) && Step1(&held_[name])) {
    }
  }

  // Takes one step. Returns whether the object may have another one.
  bool Step1(Held* held) {
    const Facts facts = FactsOf(*held);
    const Decision decision = Decide(held->object, facts);
    if (decision.status != held->object.status &&
        (IsUrgent(held->object.status, decision.status) || Chance(50))) {
      return Write(held, [&](JobObject* object) { object->status = decision.status; });
    }
    switch (decision.step) {
      case Step::kNone: return false;
      case Step::kAddFinalizer:
        return Write(held, [](JobObject* o) { o->finalizers.emplace_back(kFinalizer); });
      case Step::kRemoveFinalizer:
        return Write(held, [](JobObject* o) { std::erase(o->finalizers, kFinalizer); });
      case Step::kSubmit: return Submit(held);
      case Step::kCancel:
        if (!silent_ && !Dies()) cancelled_.insert(facts.job->job_uid());
        return false;
    }
    return false;
  }

  bool Write(Held* held, const std::function<void(JobObject*)>& change) {
    if (Dies()) return false;
    const auto changed = api_.Change(held->object, change);
    if (Dies() || !changed) return false;
    held->object = *changed;
    return true;
  }

  bool Submit(Held* held) {
    const std::string id = RequestId(held->object);
    const std::int64_t generation = held->object.generation;
    REQUIRE(held->object.spec["valid"] == true);
    if (crashes_ && Chance(20)) {  // dies with the call on its way
      late_.push_back({now_ + static_cast<int>(random_() % kInFlight), id, generation});
      const std::string name = held->object.name;
      Crash();
      // The next process begins soon, often with a changed object.
      if (Chance(30)) api_.Delete(name);
      if (Chance(30)) api_.Edit(name, Chance(70));
      if (Chance(70)) Watch("");
      if (Chance(70)) PollJobs();
      return false;
    }
    held->refused_again = false;
    if (refuses_ && Chance(20)) {
      held->refused_again = true;  // a full queue
    } else if (!silent_) {
      Made(id, generation);
    }
    if (Dies()) return false;
    held->submitted = ++now_;
    return held->refused_again;
  }

  void Made(const std::string& id, std::int64_t generation) {
    const std::size_t before = coordinator_.jobs.size();
    coordinator_.Submit(id, generation);
    // No job may be made for an object that is gone: nobody would cancel it.
    if (coordinator_.jobs.size() > before)
      REQUIRE(std::any_of(api_.objects.begin(), api_.objects.end(),
                          [&](const auto& one) { return RequestId(one.second) == id; }));
  }
  void ArriveLate(int now) {
    for (const LateSubmission& one : late_)
      if (one.at <= now) Made(one.request_id, one.generation);
    std::erase_if(late_, [&](const LateSubmission& one) { return one.at <= now; });
  }

  const ModelJob* JobOf(const JobObject& object) const {
    for (const ModelJob& job : coordinator_.jobs)
      if (job.status.request_id() == RequestId(object)) return &job;
    return nullptr;
  }
  bool Cancelled(const ModelJob& job) const {
    return cancelled_.contains(job.status.job_uid()) && !HasEnded(job.status);
  }

  // The record of an object names the generation of its job at any time.
  void CheckRecords() const {
    for (const auto& [name, object] : api_.objects) {
      const ModelJob* const job = JobOf(object);
      if (job == nullptr) continue;
      CAPTURE(name, object.uid, object.generation);
      REQUIRE(IntegerOf(object.status, "submittedGeneration") == job->generation);
    }
  }

  void CheckEnd() const {
    std::set<std::string> alive;
    for (const auto& [name, object] : api_.objects) {
      CAPTURE(name, object.uid, object.status.dump());
      REQUIRE_FALSE(object.deleting);
      alive.insert(RequestId(object));
      const ModelJob* const job = JobOf(object);
      if (job != nullptr) {
        CHECK(TextOf(object.status, "jobUid") ==
              absl::StrCat(absl::Hex(job->status.job_uid(), absl::kZeroPad16)));
        CHECK(TextOf(object.status, "state") == job->status.state());
        const bool same = job->generation == object.generation;
        CHECK(TextOf(FindCondition(object.status, "UpToDate"), "status") ==
              (same ? "True" : "False"));
      } else {
        CHECK(object.spec["valid"] == false);
        CHECK(TextOf(object.status, "state") == "INVALID");
      }
    }
    for (const ModelJob& job : coordinator_.jobs) {
      CAPTURE(job.status.request_id());
      CHECK((HasEnded(job.status) || alive.contains(job.status.request_id())));
    }
  }

  std::mt19937_64 random_;
  ModelApi api_;
  ModelCoordinator coordinator_;
  std::vector<LateSubmission> late_;
  std::set<std::uint64_t> cancelled_;
  int now_ = 0;
  bool silent_ = false;  // the coordinator does not answer
  bool crashes_ = true, refuses_ = true;
  // The memory of the operator.
  std::map<std::string, Held> held_;
  std::map<std::string, v1::JobStatus> list_;
  bool answered_ = false;
  int asked_ = -1, started_ = 0;
  bool dead_ = false;
};

TEST_CASE("an operator that dies at any moment makes one job of each object, and leaves none") {
  const std::uint64_t first = std::random_device()();
  for (std::uint64_t seed = first; seed < first + 150; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    model.Run(400);
  }
}

}  // namespace
}  // namespace evergrad::kubernetes
