// Takes the lines of a job's metrics.jsonl.
#pragma once

#include <string>

namespace evergrad::coordinator {

class LineSink {
 public:
  virtual ~LineSink() = default;
  // `json`: one JSON object, without a newline. `frequent`: one of the many lines of steps and
  // rates, which leave some space for the others. False: there is no space; the line is lost, and
  // counted by the sink.
  virtual bool Add(const std::string& json, bool frequent) = 0;
};

}  // namespace evergrad::coordinator
