#include "common/preemption/clouds/aws_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/preemption/clouds/json_text.h"

namespace evergrad::preemption {
namespace {

constexpr std::chrono::milliseconds kEvery{5000};
constexpr std::size_t kTokenBytesMax = 1024;

}  // namespace

Request AwsTokenRequest() {
  Request request;
  request.method = "PUT";
  request.path = "/latest/api/token";
  request.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  return request;
}

Request AwsRequest(absl::string_view path, absl::string_view token) {
  Request request;
  request.path = std::string(path);
  request.headers = {{"X-aws-ec2-metadata-token", std::string(token)}};
  return request;
}

bool IsAwsToken(absl::string_view text) {
  return !text.empty() && text.size() <= kTokenBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

Ask AwsWatch::Begin() { return Next(Stage::kToken, std::chrono::milliseconds(0)); }

Ask AwsWatch::Next(Stage stage, std::chrono::milliseconds after) {
  stage_ = stage;
  if (stage == Stage::kToken) return {after, AwsTokenRequest()};
  const char* path = stage == Stage::kAction ? "/latest/meta-data/spot/instance-action"
                                             : "/latest/meta-data/events/recommendations/rebalance";
  return {after, AwsRequest(path, token_)};
}

Turn AwsWatch::Fail(std::string failure) {
  Turn turn;
  turn.failure = std::move(failure);
  // After a failure the watch first asks for the notice, because the notice matters more than a
  // recommendation.
  turn.next = Next(token_.empty() ? Stage::kToken : Stage::kAction, retries_.Next());
  return turn;
}

Turn AwsWatch::OnAnswer(const Answer& answer) {
  if (stage_ == Stage::kToken) return OnToken(answer);
  if (answer.status == 401) {
    const bool was_new = token_is_new_;
    token_.clear();
    if (was_new) return Fail("a new token is refused: status=401");
    Turn turn;
    turn.next = Next(Stage::kToken, std::chrono::milliseconds(0));
    return turn;
  }
  if (answer.status != 0) token_is_new_ = false;
  return stage_ == Stage::kAction ? OnAction(answer) : OnRecommendation(answer);
}

Turn AwsWatch::OnToken(const Answer& answer) {
  if (answer.status != 200) return Fail(absl::StrCat("no token: ", Unexpected(answer)));
  const absl::string_view token = absl::StripAsciiWhitespace(answer.body);
  // The text of a token is secret, so the log does not show it.
  if (!IsAwsToken(token)) return Fail("no token: the answer is not as documented");
  token_ = std::string(token);
  token_is_new_ = true;
  Turn turn;
  turn.next = Next(Stage::kAction, std::chrono::milliseconds(0));
  return turn;
}

Turn AwsWatch::OnAction(const Answer& answer) {
  Turn turn;
  if (answer.status == 404) {
    turn.next = Next(Stage::kRecommendation, std::chrono::milliseconds(0));
    return turn;
  }
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  const std::string action = TextOf(body, "action");
  if (answer.status != 200 || (action != "terminate" && action != "stop" && action != "hibernate"))
    return Fail(Unexpected(answer));
  const std::string time = Quoted(TextOf(body, "time"), 40);
  turn.notice = absl::StrCat("EC2 reclaims this machine: action=", action,
                             time.empty() ? "" : absl::StrCat(" time=", time));
  return turn;
}

Turn AwsWatch::OnRecommendation(const Answer& answer) {
  Turn turn;
  if (answer.status == 200) {
    const std::string time =
        Quoted(TextOf(nlohmann::json::parse(answer.body, nullptr, false), "noticeTime"), 40);
    if (time.empty()) return Fail(Unexpected(answer));
    if (time != last_recommendation_) {
      last_recommendation_ = time;
      turn.recommendation =
          absl::StrCat("EC2 recommends to leave this machine: rebalance recommendation of ", time);
    }
  } else if (answer.status != 404) {
    return Fail(Unexpected(answer));
  }
  retries_.Reset();
  turn.complete = true;
  turn.next = Next(Stage::kAction, kEvery);
  return turn;
}

}  // namespace evergrad::preemption
