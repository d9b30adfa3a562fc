// A controller with an API server and a coordinator that a test plays. Both write each call into
// one transcript.
#pragma once

#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/health/readiness.h"
#include "common/log/log.h"
#include "kubernetes/controller/controller.h"
#include "kubernetes/reconcile/conditions.h"
#include "tests/support/manual_executor.h"

namespace evergrad::kubernetes {

using Transcript = std::vector<std::string>;

// Keeps objects as an API server does. `before` may fail a call: it gets the line of the
// transcript.
class FakeApi final : public Api {
 public:
  FakeApi(Transcript* transcript, ManualClock* clock) : transcript_(*transcript), clock_(*clock) {}

  std::map<std::string, JobObject> objects;
  std::vector<Json> events;
  std::function<absl::Status(const std::string& call)> before;
  std::function<void(const std::string& call)> after;

  JobObject& Create(const std::string& name, Json spec) {
    JobObject object;
    object.name = name;
    object.uid = absl::StrCat(name, "-uid-", ++uids_);
    object.generation = 1;
    object.spec = std::move(spec);
    object.resource_version = absl::StrCat(++version_);
    return objects[name] = std::move(object);
  }
  void Edit(const std::string& name, Json spec) {
    objects.at(name).spec = std::move(spec);
    ++objects.at(name).generation;
    objects.at(name).resource_version = absl::StrCat(++version_);
  }
  void Delete(const std::string& name) {
    objects.at(name).deleting = true;
    objects.at(name).resource_version = absl::StrCat(++version_);
  }

  absl::StatusOr<JobList> List() override { return absl::UnimplementedError("no list"); }
  absl::Status Watch(const std::string&, const WatchReader::OnEvent&) override {
    return absl::UnimplementedError("no watch");
  }
  absl::StatusOr<JobObject> SetFinalizers(const JobObject& object,
                                          const std::vector<std::string>& finalizers) override {
    return Change(
        absl::StrCat("finalizers ", object.name, " [", absl::StrJoin(finalizers, " "), "]"), object,
        [&](JobObject* changed) { changed->finalizers = finalizers; });
  }
  absl::StatusOr<JobObject> SetStatus(const JobObject& object, const Json& status) override {
    return Change(absl::StrCat("status ", object.name, " ", TextOf(status, "state"), " ",
                               TextOf(FindCondition(status, "Accepted"), "reason")),
                  object, [&](JobObject* changed) { changed->status = status; });
  }
  absl::Status CreateEvent(const Json& event) override {
    const std::string call = absl::StrCat("event ", TextOf(Member(event, "involvedObject"), "name"),
                                          " ", TextOf(event, "reason"));
    if (const absl::Status status = Begin(call); !status.ok()) return status;
    for (const Json& one : events)
      if (one["metadata"]["name"] == event["metadata"]["name"])
        return absl::AlreadyExistsError("exists");
    events.push_back(event);
    return absl::OkStatus();
  }

 private:
  absl::Status Begin(const std::string& call) {
    transcript_.push_back(call);
    clock_.Advance(std::chrono::microseconds(1));
    return before ? before(call) : absl::OkStatus();
  }
  absl::StatusOr<JobObject> Change(const std::string& call, const JobObject& object,
                                   const std::function<void(JobObject*)>& change) {
    if (const absl::Status status = Begin(call); !status.ok()) return status;
    const auto found = objects.find(object.name);
    if (found == objects.end() || found->second.uid != object.uid)
      return absl::NotFoundError("not found");
    if (found->second.resource_version != object.resource_version)
      return absl::AbortedError("conflict");
    change(&found->second);
    found->second.resource_version = absl::StrCat(++version_);
    if (after) after(call);
    JobObject changed = found->second;
    if (changed.deleting && changed.finalizers.empty()) objects.erase(found);
    return changed;
  }

  Transcript& transcript_;
  ManualClock& clock_;
  int version_ = 0, uids_ = 0;
};

class FakeCoordinator final : public CoordinatorCalls {
 public:
  FakeCoordinator(Transcript* transcript, ManualClock* clock)
      : transcript_(*transcript), clock_(*clock) {}

  v1::ListJobsResponse jobs;
  std::vector<v1::SubmitJobRequest> submissions;
  std::string owner = "operator";
  absl::Status list_error, get_error, submit_error, cancel_error;
  std::chrono::nanoseconds cost = std::chrono::microseconds(1);  // of a call
  std::vector<std::pair<std::string, double>> metrics;           // of the newest epoch

  v1::JobStatus& job(int index = 0) {
    v1::JobStatus& found = *jobs.mutable_jobs(index);
    found.set_revision(found.revision() + 1);
    return found;
  }

  absl::StatusOr<v1::ListJobsResponse> ListJobs() override {
    Begin("list");
    if (!list_error.ok()) return list_error;
    return jobs;
  }
  absl::StatusOr<v1::JobStatus> GetJob(std::uint64_t job_uid) override {
    Begin(absl::StrCat("get ", job_uid));
    if (!get_error.ok()) return get_error;
    v1::JobStatus whole;
    v1::EpochRow& row = *whole.add_epoch_rows();
    for (const auto& [name, value] : metrics) (*row.mutable_metrics())[name] = value;
    return whole;
  }
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request) override {
    Begin(absl::StrCat("submit ", request.request_id()));
    submissions.push_back(request);
    if (!submit_error.ok()) return submit_error;
    v1::JobStatus& made = *jobs.add_jobs();
    made.set_job_uid(static_cast<std::uint64_t>(jobs.jobs_size()));
    made.set_state("QUEUED");
    made.set_revision(1);
    made.set_request_id(request.request_id());
    made.set_owner(owner);
    v1::SubmitJobResponse response;
    response.set_job_uid(made.job_uid());
    return response;
  }
  absl::Status CancelJob(std::uint64_t job_uid) override {
    Begin(absl::StrCat("cancel ", job_uid));
    return cancel_error;
  }

 private:
  void Begin(const std::string& call) {
    transcript_.push_back(call);
    clock_.Advance(cost);
  }
  Transcript& transcript_;
  ManualClock& clock_;
};

inline Json ValidSpec() {
  return *ParseJson(R"({"type": "functions",
    "functions": {"variables": [{"name": "slope", "shape": [2]}]},
    "optimizer": {"type": "sgd", "learning_rate": 0.05}})");
}

class Stage {
 public:
  explicit Stage(ControllerOptions options = {}) : options_(std::move(options)) {
    options_.name_space = "ns";
    options_.owner = "operator";
    clock.Advance(std::chrono::seconds(100));
    Restart();
    clock.Advance(kCallMax);  // submissions of a former process are no longer on their way
  }
  // Replaces the controller by one that knows nothing. Like the watch of a new process, the next
  // round brings all objects.
  void Restart() {
    controller = std::make_unique<Controller>(
        options_, Controller::Parts{&api, &coordinator, &clock, &logger, &metrics,
                                    readiness.Add("coordinator", "begins"), [this] { ++wishes; }});
    for (const auto& [name, object] : api.objects) Deliver(name);
  }
  // The next round gets the present version of this object.
  void Deliver(const std::string& name) {
    const auto found = api.objects.find(name);
    if (found == api.objects.end())
      changes_.emplace_back(name, std::nullopt);
    else
      changes_.emplace_back(name, found->second);
  }
  void Create(const std::string& name, Json spec = ValidSpec()) {
    api.Create(name, std::move(spec));
    Deliver(name);
  }
  // Makes one round, and returns its calls.
  Transcript Round() {
    transcript.clear();
    next = controller->Round(std::exchange(changes_, {}));
    return transcript;
  }
  // Lets time pass, and makes one round.
  Transcript After(std::chrono::nanoseconds time) {
    clock.Advance(time);
    return Round();
  }
  // Makes a round each 500 ms, as the thread of the controller does, and returns all calls.
  Transcript During(std::chrono::nanoseconds time) {
    Transcript all;
    for (const MonoTime end = clock.Now() + time; clock.Now() < end;) {
      const Transcript calls = After(std::chrono::milliseconds(500));
      all.insert(all.end(), calls.begin(), calls.end());
    }
    return all;
  }
  const Json& StatusOf(const std::string& name) { return api.objects.at(name).status; }
  std::vector<std::string> Log() const {
    std::vector<std::string> lines;
    for (const log::Line& line : logger.Read(0, 0, "", 1000)) lines.push_back(line.text);
    return lines;
  }

  Transcript transcript;
  ManualClock clock;
  FakeApi api{&transcript, &clock};
  FakeCoordinator coordinator{&transcript, &clock};
  metrics::Registry registry;
  OperatorMetrics metrics{registry};
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  health::Readiness readiness;
  std::unique_ptr<Controller> controller;
  MonoTime next{0};
  int wishes = 0;  // for a list of all objects

 private:
  ControllerOptions options_;
  ObjectFeed::Changes changes_;
};

// Returns the calls that begin with this word.
inline Transcript Only(const Transcript& calls, const std::string& word) {
  Transcript found;
  for (const std::string& call : calls)
    if (call.rfind(word + " ", 0) == 0 || call == word) found.push_back(call);
  return found;
}

}  // namespace evergrad::kubernetes
