// A state machine that determines the requests to the metadata service of one cloud, and judges the
// answers. It has no clock and no sockets.
//
// A metadata service tells a machine about itself over plain HTTP. The driver
// (common/preemption/watch.cc) sends the requests and hands each answer back:
//
//   Ask ask = watch->Begin();
//   for (;;) {
//     … wait for ask.after, and send ask.request
//     const Turn turn = watch->OnAnswer(answer);
//     … report turn.failure, turn.notice and turn.recommendation
//     if (!turn.next) break;
//     ask = *turn.next;
//   }
//
// An answer consists of bytes from outside. A watch accepts the documented answers only, and
// anything else is a failure. Not thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad::preemption {

struct Request {
  std::string method = "GET";
  std::string path;  // begins with "/", and includes the query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // Limit of the time from the connection to the last byte of the answer.
  std::chrono::milliseconds timeout{2000};
};

struct Answer {
  int status = 0;  // 0 if no complete answer arrived
  // Names are in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string failure;                // the reason for status 0, for the log
  std::chrono::milliseconds took{0};  // time from the connection to the end of the answer

  // Returns the value of the first header of this name (in lower case), or "".
  absl::string_view Header(absl::string_view name) const;
};

struct Ask {
  std::chrono::milliseconds after{0};  // time to wait before the request is sent
  Request request;
};

struct Turn {
  std::string failure;    // the reason why the answer is of no use, or ""
  bool complete = false;  // the watch has a usable answer to each of its questions
  std::string found;      // the cloud that `auto` has found, or ""
  // Text about a notice that the machine will be reclaimed. A watch reports one notice at most.
  std::optional<std::string> notice;
  // Text about a new recommendation to leave the machine.
  std::optional<std::string> recommendation;
  std::optional<Ask> next;  // nullopt if the watch has no more questions
};

class CloudWatch {
 public:
  virtual ~CloudWatch() = default;
  // Returns "gce", "aws" or "azure". A watch that searches for the cloud returns "auto" until it
  // has found the cloud.
  virtual absl::string_view source() const = 0;
  // Returns the first request. Called once.
  virtual Ask Begin() = 0;
  virtual Turn OnAnswer(const Answer& answer) = 0;
  // Called when the task has handed over its work. Returns the request that reports this to the
  // cloud, or nullopt if the cloud has no such request or has announced nothing. The answer to an
  // earlier request must not be passed to OnAnswer afterwards.
  virtual std::optional<Ask> Acknowledge() { return std::nullopt; }
};

// `source` is "gce", "aws", "azure" or "auto" (EG_CHECK).
std::unique_ptr<CloudWatch> MakeCloudWatch(absl::string_view source);

}  // namespace evergrad::preemption
