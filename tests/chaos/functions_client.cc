// The client of a functions job in a scenario. It reads commands and prints answers, one in each
// line. This is the list of the commands with their answers:
//
//   schedule FUNCTION COUNT ARGUMENTS…   ok FIRST LAST (numbers of handles) | error CODE MESSAGE
//   join | join durable | done           ok [true|false]
//   fetch HANDLE                         ok RESULT
//   cancel HANDLE | cancel all | finish  ok
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/closures/cluster_coordinator.h"

namespace {

using evergrad::closures::ClusterCoordinator;
using evergrad::closures::RemoteValue;

absl::StatusOr<std::string> Do(ClusterCoordinator& cluster, const std::string& line,
                               std::vector<RemoteValue>* handles) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  const auto handle = [&]() -> absl::StatusOr<RemoteValue> {
    std::size_t index = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &index) || index >= handles->size())
      return absl::OutOfRangeError("no such handle");
    return (*handles)[index];
  };
  if (words[0] == "schedule" && words.size() >= 3) {
    std::size_t count = 0;
    if (!absl::SimpleAtoi(words[2], &count))
      return absl::InvalidArgumentError("COUNT is no number");
    const std::size_t first = handles->size();
    for (std::size_t i = 0; i < count; ++i) {
      auto value = cluster.Schedule(words[1], words.size() > 3 ? words[3] : "");
      if (!value.ok()) return value.status();
      handles->push_back(*std::move(value));
    }
    return absl::StrCat(first, " ", handles->size() - 1);
  }
  if (words[0] == "join") {
    if (absl::Status status = cluster.Join(words.size() > 1); !status.ok()) return status;
    return std::string();
  }
  if (words[0] == "done") {
    const auto done = cluster.Done();
    if (!done.ok()) return done.status();
    return std::string(*done ? "true" : "false");
  }
  if (words[0] == "fetch") {
    const auto value = handle();
    return value.ok() ? cluster.Fetch(*value) : value.status();
  }
  if (words[0] == "cancel") {
    absl::Status status;
    if (words.size() > 1 && words[1] == "all") {
      status = cluster.CancelAll();
    } else {
      const auto value = handle();
      status = value.ok() ? cluster.Cancel({*value}) : value.status();
    }
    if (!status.ok()) return status;
    return std::string();
  }
  if (words[0] == "finish") {
    if (absl::Status status = cluster.Finish(); !status.ok()) return status;
    return std::string();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown command: ", line));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: evergrad-functions-client ADDRESS JOB\n";
    return 2;
  }
  ClusterCoordinator::Options options;
  options.coordinator_address = argv[1];
  options.job = argv[2];
  const auto cluster = ClusterCoordinator::Connect(options);
  if (!cluster.ok()) {
    std::cerr << cluster.status().message() << "\n";
    return 1;
  }
  std::vector<RemoteValue> handles;
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = Do(**cluster, line, &handles);
    if (answer.ok())
      std::cout << "ok " << *answer << std::endl;
    else
      std::cout << "error " << absl::StatusCodeToString(answer.status().code()) << " "
                << absl::StrReplaceAll(answer.status().message(), {{"\n", " "}}) << std::endl;
  }
  return 0;
}
