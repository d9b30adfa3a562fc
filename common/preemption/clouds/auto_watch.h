// Finds the cloud of this machine, and then behaves like the watch for that cloud.
//
// All three clouds have their metadata service at one address. The watch sends each cloud's own
// question in turn: Compute Engine marks its answer with a header, EC2 gives a token and then the
// id of the instance, and Azure names its environment. If none of them answers as documented, the
// watch asks all three again after 1, 5, 15 and 60 s, because the network may not be ready yet.
// After that it ends, since the machine is probably in no cloud.
#pragma once

#include <memory>
#include <string>

#include "common/preemption/clouds/cloud_watch.h"

namespace evergrad::preemption {

class AutoWatch final : public CloudWatch {
 public:
  absl::string_view source() const override { return found_ ? found_->source() : "auto"; }
  Ask Begin() override;
  Turn OnAnswer(const Answer& answer) override;
  std::optional<Ask> Acknowledge() override;

 private:
  enum class Stage { kGce, kAwsToken, kAwsInstance, kAzure };
  Ask Next(Stage stage, std::chrono::milliseconds after);
  Turn Found(absl::string_view source);
  // Notes that `cloud` has not answered as documented, and asks the next cloud.
  Turn NextCloud(Stage stage, absl::string_view cloud, const Answer& answer);
  Turn NoneAnswered();

  Stage stage_ = Stage::kGce;
  std::string token_;
  std::string reasons_;  // why no cloud was found in this round, for the log
  int rounds_ = 0;       // number of rounds that have ended without a cloud
  std::unique_ptr<CloudWatch> found_;
};

}  // namespace evergrad::preemption
