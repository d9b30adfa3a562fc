#include "common/preemption/clouds/auto_watch.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/preemption/clouds/aws_watch.h"
#include "common/preemption/clouds/azure_watch.h"
#include "common/preemption/clouds/failures.h"
#include "common/preemption/clouds/gce_watch.h"

namespace evergrad::preemption {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kTimeout = seconds(2);
constexpr milliseconds kBetweenRounds[] = {seconds(1), seconds(5), seconds(15), seconds(60)};

}  // namespace

Ask AutoWatch::Begin() { return Next(Stage::kGce, milliseconds(0)); }

Ask AutoWatch::Next(Stage stage, milliseconds after) {
  stage_ = stage;
  Request request;
  switch (stage) {
    case Stage::kGce: request = GceRequest(); break;
    case Stage::kAwsToken: request = AwsTokenRequest(); break;
    case Stage::kAwsInstance: request = AwsRequest("/latest/meta-data/instance-id", token_); break;
    case Stage::kAzure: request = AzureComputeRequest("azEnvironment", kTimeout); break;
  }
  request.timeout = kTimeout;
  return {after, std::move(request)};
}

Turn AutoWatch::OnAnswer(const Answer& answer) {
  if (found_ != nullptr) return found_->OnAnswer(answer);
  const absl::string_view text = absl::StripAsciiWhitespace(answer.body);
  const bool ok = answer.status == 200;
  Turn turn;
  switch (stage_) {
    case Stage::kGce:
      if (ok && IsFromGce(answer)) return Found("gce");
      return NextCloud(Stage::kAwsToken, "gce", answer);
    case Stage::kAwsToken:
      if (!ok || !IsAwsToken(text)) return NextCloud(Stage::kAzure, "aws", answer);
      token_ = std::string(text);
      turn.next = Next(Stage::kAwsInstance, milliseconds(0));
      return turn;
    case Stage::kAwsInstance:
      if (ok && absl::StartsWith(text, "i-")) return Found("aws");
      return NextCloud(Stage::kAzure, "aws", answer);
    case Stage::kAzure:
      if (ok && absl::StartsWith(text, "Azure")) return Found("azure");
      return NextCloud(Stage::kGce, "azure", answer);
  }
  return turn;
}

Turn AutoWatch::NextCloud(Stage stage, absl::string_view cloud, const Answer& answer) {
  // The body may be a token, so only its status is shown.
  const std::string reason = answer.status == 0     ? Unexpected(answer)
                             : answer.status == 200 ? "the answer is not as documented"
                                                    : absl::StrCat("status ", answer.status);
  absl::StrAppend(&reasons_, reasons_.empty() ? "" : "; ", cloud, ": ", reason);
  if (stage == Stage::kGce) return NoneAnswered();
  Turn turn;
  turn.next = Next(stage, milliseconds(0));
  return turn;
}

Turn AutoWatch::NoneAnswered() {
  Turn turn;
  turn.failure =
      absl::StrCat("no cloud's metadata service answers: ", std::exchange(reasons_, std::string()));
  if (static_cast<std::size_t>(rounds_) < std::size(kBetweenRounds))
    turn.next = Next(Stage::kGce, kBetweenRounds[rounds_++]);
  return turn;
}

Turn AutoWatch::Found(absl::string_view source) {
  found_ = MakeCloudWatch(source);
  Turn turn;
  turn.found = std::string(source);
  turn.complete = true;
  turn.next = found_->Begin();
  return turn;
}

std::optional<Ask> AutoWatch::Acknowledge() {
  return found_ == nullptr ? std::nullopt : found_->Acknowledge();
}

}  // namespace evergrad::preemption
