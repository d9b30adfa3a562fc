#include "common/preemption/clouds/gce_watch.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace evergrad::preemption {
namespace {

constexpr std::chrono::milliseconds kBetweenRequests{1000};
constexpr std::size_t kEtagBytesMax = 64;

bool IsEtag(absl::string_view text) {
  return !text.empty() && text.size() <= kEtagBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); });
}

}  // namespace

Request GceRequest() {
  Request request;
  request.path = "/computeMetadata/v1/instance/preempted";
  request.headers = {{"Metadata-Flavor", "Google"}};
  return request;
}

bool IsFromGce(const Answer& answer) { return answer.Header("metadata-flavor") == "Google"; }

Ask GceWatch::Begin() { return {std::chrono::milliseconds(0), GceRequest()}; }

Turn GceWatch::OnAnswer(const Answer& answer) {
  Turn turn;
  const absl::string_view value = absl::StripAsciiWhitespace(answer.body);
  if (answer.status != 200 || !IsFromGce(answer) || (value != "TRUE" && value != "FALSE")) {
    turn.failure = answer.status == 200 && !IsFromGce(answer)
                       ? "the answer is not from Google's metadata server"
                       : Unexpected(answer);
    waits_ = false;
    turn.next = Ask{retries_.Next(), GceRequest()};
    return turn;
  }
  retries_.Reset();
  turn.complete = true;
  if (value == "TRUE") {
    turn.notice = "Compute Engine reclaims this machine within 30 s";
    return turn;
  }
  const absl::string_view etag = answer.Header("etag");
  Ask ask{std::chrono::milliseconds(0), GceRequest()};
  absl::StrAppend(&ask.request.path, "?wait_for_change=true&timeout_sec=60");
  if (IsEtag(etag)) absl::StrAppend(&ask.request.path, "&last_etag=", etag);
  ask.request.timeout = std::chrono::seconds(70);
  // If the server answered early although it was asked to wait for a change, the next request is
  // delayed. Otherwise the watch would run in a tight loop.
  if (waits_) ask.after = std::max(std::chrono::milliseconds(0), kBetweenRequests - answer.took);
  waits_ = true;
  turn.next = std::move(ask);
  return turn;
}

}  // namespace evergrad::preemption
