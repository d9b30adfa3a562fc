#include "common/preemption/clouds/azure_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/preemption/clouds/json_text.h"

namespace evergrad::preemption {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kEvery{1000};
// The first request for events starts the service, and its answer may need two minutes.
constexpr milliseconds kFirstTimeout = seconds(150), kTimeout = seconds(5);
constexpr int kAcknowledgementsMax = 3;
constexpr absl::string_view kEvents = "/metadata/scheduledevents?api-version=2020-07-01";

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
}

bool IsEventId(absl::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '-' || absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
}

// Returns whether the event ends this machine.
bool Ends(const nlohmann::json& event, const std::string& name) {
  if (!event.is_object()) return false;
  const std::string type = TextOf(event, "EventType");
  if (type != "Preempt" && type != "Terminate") return false;
  const auto resources = event.find("Resources");
  return resources != event.end() && resources->is_array() &&
         std::any_of(resources->begin(), resources->end(), [&](const nlohmann::json& resource) {
           return resource.is_string() && resource.get_ref<const std::string&>() == name;
         });
}

}  // namespace

Request AzureComputeRequest(absl::string_view key, milliseconds timeout) {
  Request request;
  request.path =
      absl::StrCat("/metadata/instance/compute/", key, "?api-version=2021-02-01&format=text");
  request.headers = {{"Metadata", "true"}};
  request.timeout = timeout;
  return request;
}

Ask AzureWatch::Begin() { return AskName(milliseconds(0)); }

Ask AzureWatch::AskName(milliseconds after) {
  stage_ = Stage::kName;
  return {after, AzureComputeRequest("name", kTimeout)};
}

Ask AzureWatch::AskEvents(milliseconds after) {
  stage_ = Stage::kEvents;
  Request request;
  request.path = std::string(kEvents);
  request.headers = {{"Metadata", "true"}};
  request.timeout = enabled_ ? kTimeout : kFirstTimeout;
  return {after, std::move(request)};
}

Ask AzureWatch::Acknowledgement(milliseconds after) {
  stage_ = Stage::kAcknowledged;
  ++acknowledgements_;
  Request request;
  request.method = "POST";
  request.path = std::string(kEvents);
  request.headers = {{"Metadata", "true"}, {"Content-Type", "application/json"}};
  request.body = absl::StrCat("{\"StartRequests\":[{\"EventId\":\"", event_, "\"}]}");
  request.timeout = seconds(1);
  return {after, std::move(request)};
}

std::optional<Ask> AzureWatch::Acknowledge() {
  if (event_.empty() || acknowledgements_ > 0) return std::nullopt;
  return Acknowledgement(milliseconds(0));
}

Turn AzureWatch::OnAnswer(const Answer& answer) {
  if (stage_ == Stage::kName) return OnName(answer);
  return stage_ == Stage::kEvents ? OnEvents(answer) : OnAcknowledged(answer);
}

Turn AzureWatch::OnName(const Answer& answer) {
  Turn turn;
  const absl::string_view name = absl::StripAsciiWhitespace(answer.body);
  if (answer.status != 200 || !IsName(name)) {
    turn.failure = absl::StrCat("no name of this machine: ", Unexpected(answer));
    turn.next = AskName(retries_.Next());
    return turn;
  }
  retries_.Reset();
  name_ = std::string(name);
  turn.next = AskEvents(milliseconds(0));
  return turn;
}

Turn AzureWatch::OnEvents(const Answer& answer) {
  Turn turn;
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  const auto events = body.is_object() ? body.find("Events") : body.end();
  if (answer.status != 200 || !body.is_object() || events == body.end() || !events->is_array()) {
    turn.failure = Unexpected(answer);
    turn.next = AskEvents(retries_.Next());
    return turn;
  }
  retries_.Reset();
  turn.complete = enabled_ = true;
  for (const nlohmann::json& event : *events) {
    if (!Ends(event, name_)) continue;
    const std::string id = TextOf(event, "EventId"), time = TextOf(event, "NotBefore");
    if (IsEventId(id)) event_ = id;
    turn.notice = absl::StrCat("Azure reclaims this machine: event=", TextOf(event, "EventType"),
                               time.empty() ? "" : absl::StrCat(" not_before=", Quoted(time, 40)));
    return turn;
  }
  turn.next = AskEvents(kEvery);
  return turn;
}

Turn AzureWatch::OnAcknowledged(const Answer& answer) {
  Turn turn;
  if (answer.status == 200) return turn;
  turn.failure = absl::StrCat("the event is not acknowledged: ", Unexpected(answer));
  if (acknowledgements_ < kAcknowledgementsMax) turn.next = Acknowledgement(milliseconds(200));
  return turn;
}

}  // namespace evergrad::preemption
