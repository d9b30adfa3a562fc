// EC2: the spot action and the rebalance recommendation of the instance metadata service,
// version 2.
//
// Every request needs a token, which a PUT returns. The service answers 401 once a token has
// expired, and the watch then gets a new token. The service answers 404 to the requests for both
// values until there is something to announce. The watch asks for both values every 5 s, as EC2's
// documentation advises. The spot action is the notice, and comes 120 s before EC2 reclaims the
// machine.
#pragma once

#include <string>

#include "common/preemption/clouds/cloud_watch.h"
#include "common/preemption/clouds/failures.h"

namespace evergrad::preemption {

class AwsWatch final : public CloudWatch {
 public:
  absl::string_view source() const override { return "aws"; }
  Ask Begin() override;
  Turn OnAnswer(const Answer& answer) override;

 private:
  enum class Stage { kToken, kAction, kRecommendation };
  Ask Next(Stage stage, std::chrono::milliseconds after);
  Turn Fail(std::string failure);
  Turn OnToken(const Answer& answer);
  Turn OnAction(const Answer& answer);
  Turn OnRecommendation(const Answer& answer);

  Stage stage_ = Stage::kToken;
  std::string token_;
  bool token_is_new_ = false;        // no request with the token has been answered yet
  std::string last_recommendation_;  // the time in the last recommendation
  Retries retries_;
};

Request AwsTokenRequest();
// Returns the request for a value, with the token that every such request needs.
Request AwsRequest(absl::string_view path, absl::string_view token);
// Returns whether the text can be sent as the token of a request.
bool IsAwsToken(absl::string_view text);

}  // namespace evergrad::preemption
