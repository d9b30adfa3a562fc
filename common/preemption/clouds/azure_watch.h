// Azure: the scheduled events of the instance metadata service.
//
// The watch asks for the name of its machine, and then every second for the events. An event of the
// type Preempt or Terminate whose resources include this machine is the notice; machines of one
// scale set see each other's events. Azure waits at most until the time in the event, and at least
// 30 s after a Preempt. Once the task has handed over its work, the watch acknowledges the event,
// and Azure then takes the machine at once.
#pragma once

#include <string>

#include "common/preemption/clouds/cloud_watch.h"
#include "common/preemption/clouds/failures.h"

namespace evergrad::preemption {

class AzureWatch final : public CloudWatch {
 public:
  absl::string_view source() const override { return "azure"; }
  Ask Begin() override;
  Turn OnAnswer(const Answer& answer) override;
  std::optional<Ask> Acknowledge() override;

 private:
  enum class Stage { kName, kEvents, kAcknowledged };
  Ask AskName(std::chrono::milliseconds after);
  Ask AskEvents(std::chrono::milliseconds after);
  Ask Acknowledgement(std::chrono::milliseconds after);
  Turn OnName(const Answer& answer);
  Turn OnEvents(const Answer& answer);
  Turn OnAcknowledged(const Answer& answer);

  Stage stage_ = Stage::kName;
  bool enabled_ = false;  // the events service has answered
  std::string name_;      // name of this machine
  std::string event_;     // id of the event that is the notice
  int acknowledgements_ = 0;
  Retries retries_;
};

// Returns the request for one text about the machine, for example "name".
Request AzureComputeRequest(absl::string_view key, std::chrono::milliseconds timeout);

}  // namespace evergrad::preemption
