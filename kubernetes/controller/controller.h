// Carries out the decisions about the objects (kubernetes/reconcile): asks the coordinator for its
// jobs, submits and cancels jobs, and writes finalizers, statuses and Events.
//
// Everything that the controller holds can be made again from the API server and the coordinator.
// One thread uses a controller: the thread `kube-control` calls Round. The calls of a round block.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/health/readiness.h"
#include "common/log/log.h"
#include "common/time/clock.h"
#include "kubernetes/api/api.h"
#include "kubernetes/controller/coordinator_calls.h"
#include "kubernetes/controller/job_list_view.h"
#include "kubernetes/controller/object_feed.h"
#include "kubernetes/controller/object_table.h"
#include "kubernetes/controller/operator_metrics.h"
#include "kubernetes/reconcile/decide.h"

namespace evergrad::kubernetes {

struct ControllerOptions {
  std::string name_space;
  std::string owner;  // the task of the operator's certificate; "" without TLS
  std::map<std::string, std::string> environment;  // for ${NAME} in objects
  std::chrono::milliseconds poll{1000};            // pause between two lists of jobs
  std::chrono::milliseconds status_every{5000};    // least pause between two writes of progress
  std::size_t objects_max = 10'000;  // objects above this number are ignored, with a warning
};

class Controller {
 public:
  // The objects outlive the controller.
  struct Parts {
    Api* api = nullptr;
    CoordinatorCalls* coordinator = nullptr;
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    OperatorMetrics* metrics = nullptr;
    health::Condition ready;  // met while the coordinator answers
    // Asks for a new list of all objects, because ignored ones have a place now.
    std::function<void()> wish_for_list = [] {};
  };
  Controller(ControllerOptions options, Parts parts);

  // Takes in the changes of objects, asks the coordinator if that is due, and brings each object
  // one or more steps further. Returns the time at which the next round is due, if no change
  // comes earlier.
  MonoTime Round(ObjectFeed::Changes changes);

 private:
  using Held = HeldObject;
  void PollJobs();
  void Handle(Held* held);
  // Takes one step. Returns whether the object may have a next step at once.
  bool Advance(Held* held);
  Facts FactsOf(Held* held);
  static bool HasNothingToDo(const Held& held, const Facts& facts, const Decision& decision);
  void Prepare(Held* held);
  void UpdateMetric(Held* held, const v1::JobStatus& job);
  bool WriteStatus(Held* held, const Json& status);
  bool SetFinalizers(Held* held, std::vector<std::string> finalizers);
  bool Submit(Held* held);
  // Cancels the job, unless that was tried a short time ago.
  void Cancel(Held* held, const v1::JobStatus& job);
  void TakeRefusal(Held* held, const absl::Status& status);
  void Report(const JobObject& object, const struct Report& report);
  // Notes a failed request about the object, and delays its next step.
  void Fail(Held* held, absl::string_view what, const absl::Status& status);
  void ForgetIdleness();
  // No request to the API server is sent for a while, because it does not answer.
  void PauseApi();
  std::string Now() const;

  const ControllerOptions options_;
  const Parts parts_;
  const MonoTime started_;
  JobListView jobs_;
  ObjectTable table_;
  MonoTime next_poll_{0};
  MonoTime round_ends_{0};      // a round that lasts longer continues after the next list
  MonoTime api_not_before_{0};  // no request to the API server before this time
  int api_failures_ = 0;        // requests that the API server did not answer, in a row
  std::string begin_after_;     // the next round begins after the object with this name
  // A call to the coordinator since the last list had no answer. Further ones wait for the next
  // list, so that a coordinator that hangs costs one timeout and not one for each object.
  bool coordinator_silent_ = false;
};

}  // namespace evergrad::kubernetes
