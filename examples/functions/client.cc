// Schedules the example's closures and shows their results (README.md).
//
//   evergrad-example-client ADDRESS JOB [CLOSURES [BATCHES]]
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/closures/cluster_coordinator.h"

namespace {

using evergrad::closures::ClusterCoordinator;
using evergrad::closures::RemoteValue;

absl::Status Run(ClusterCoordinator& cluster, std::uint32_t closures, std::uint32_t batches) {
  std::vector<RemoteValue> errors;
  for (std::uint32_t i = 0; i < closures; ++i) {
    auto scheduled = cluster.Schedule("fit", absl::StrCat(batches, " 32"));
    if (!scheduled.ok()) return scheduled.status();
    errors.push_back(*std::move(scheduled));
  }
  if (absl::Status joined = cluster.Join(); !joined.ok()) return joined;
  for (const RemoteValue* value : {&errors.front(), &errors.back()}) {
    const auto error = cluster.Fetch(*value);
    if (!error.ok()) return error.status();
    std::cout << "closure " << value->closure() << ": mean squared error of its last batch "
              << *error << "\n";
  }
  const auto read = cluster.Schedule("read", "");
  if (!read.ok()) return read.status();
  const auto values = cluster.Fetch(*read);
  if (!values.ok()) return values.status();
  std::cout << "slope, height and steps applied: " << *values << "   (drawn from 3 -2 0.5; "
            << std::uint64_t{closures} * batches << " steps scheduled)\n";

  // The arguments of this closure are wrong on purpose. The next call returns the error once, and
  // then the job continues.
  const auto wrong = cluster.Schedule("fit", "many points");
  if (!wrong.ok()) return wrong.status();
  std::cout << "a mistake on purpose: " << cluster.Join().message() << "\n";
  return cluster.Finish();
}

}  // namespace

int main(int argc, char** argv) {
  std::uint32_t closures = 40, batches = 10;
  if (argc < 3 || argc > 5 ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &closures) || closures == 0)) ||
      (argc > 4 && !absl::SimpleAtoi(argv[4], &batches))) {
    std::cerr << "usage: evergrad-example-client ADDRESS JOB [CLOSURES [BATCHES]]\n";
    return 2;
  }
  ClusterCoordinator::Options options;
  options.coordinator_address = argv[1];
  options.job = argv[2];
  auto cluster = ClusterCoordinator::Connect(options);
  const absl::Status status = cluster.ok() ? Run(**cluster, closures, batches) : cluster.status();
  if (status.ok()) return 0;
  std::cerr << "evergrad-example-client: " << status.message() << "\n";
  return 1;
}
