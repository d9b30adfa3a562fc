// Detects two worker processes with the same name that replace each other forever, because each is
// restarted by its supervisor. Pure.
//
// If two workers have one identity, the newer worker replaces the older worker. The older worker
// exits, is restarted, and then replaces the newer worker. One replacement of a living process is
// normal: a worker may restart before its old session has ended. Several replacements in a short
// time mean a wrong configuration.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/time/clock.h"

namespace evergrad::coordinator {

class IdentityContest {
 public:
  struct Options {
    std::uint32_t times = 3;  // limit of replacements of living processes within `within`
    std::chrono::milliseconds within{30'000};
    std::chrono::milliseconds said_every{60'000};
    std::size_t identities_max = 256;
  };
  struct Process {
    std::string host;
    std::int64_t pid = 0;
  };
  explicit IdentityContest(Options options) : options_(options) {}
  IdentityContest() : IdentityContest(Options()) {}

  // Records that `newer` has replaced `older`, whose session was open. If the replacements are too
  // frequent, returns a message that names both processes, otherwise nullopt.
  std::optional<std::string> OnReplaced(MonoTime now, const std::string& task, const Process& older,
                                        const Process& newer);

 private:
  struct Row {
    std::deque<MonoTime> replaced;  // times of the newest `times` replacements
    std::optional<MonoTime> said;
  };
  const Options options_;
  std::map<std::string, Row> rows_;
};

}  // namespace evergrad::coordinator
