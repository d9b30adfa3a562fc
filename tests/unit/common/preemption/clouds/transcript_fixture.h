// Helps to test a watch (the part that decides which requests are sent to a cloud's metadata
// service). A test passes answers to the watch, and gets each turn of the watch as one line of
// text.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/preemption/clouds/cloud_watch.h"

namespace evergrad::preemption {

inline Answer Status(int status, std::string body = "",
                     std::vector<std::pair<std::string, std::string>> headers = {}) {
  Answer answer;
  answer.status = status;
  answer.body = std::move(body);
  answer.headers = std::move(headers);
  return answer;
}

inline Answer Silence(std::string failure = "timeout") {
  Answer answer;
  answer.failure = std::move(failure);
  return answer;
}

// Returns a request as text: "GET /path token=… body". If the request is sent after a delay, the
// text is followed by the delay, for example " +5000ms".
inline std::string ShowAsk(const Ask& ask) {
  std::string out = absl::StrCat(ask.request.method, " ", ask.request.path);
  for (const auto& [name, value] : ask.request.headers)
    if (name == "X-aws-ec2-metadata-token") absl::StrAppend(&out, " token=", value);
  if (!ask.request.body.empty()) absl::StrAppend(&out, " ", ask.request.body);
  if (ask.after.count() > 0) absl::StrAppend(&out, " +", ask.after.count(), "ms");
  return out;
}

inline std::string ShowTurn(const Turn& turn) {
  std::string out;
  if (!turn.failure.empty()) absl::StrAppend(&out, "failure: ", turn.failure, " | ");
  if (!turn.found.empty()) absl::StrAppend(&out, "found: ", turn.found, " | ");
  if (turn.notice) absl::StrAppend(&out, "notice: ", *turn.notice, " | ");
  if (turn.recommendation) absl::StrAppend(&out, "recommended: ", *turn.recommendation, " | ");
  return absl::StrCat(out, turn.next ? ShowAsk(*turn.next) : "end");
}

// Returns answers that are of no use to any watch.
inline std::vector<Answer> Useless() {
  return {Silence("timeout"),
          Silence("cannot connect: reason=Connection refused"),
          Status(200),
          Status(200, "<html>\x01\xff garbage"),
          Status(200, "{\"Events\": 7, \"action\": 1, \"noticeTime\": []}"),
          Status(200, "[[[[[[[["),
          Status(204),
          Status(302),
          Status(400),
          Status(403),
          Status(410),
          Status(429),
          Status(500, "TRUE"),
          Status(503)};
}

}  // namespace evergrad::preemption
