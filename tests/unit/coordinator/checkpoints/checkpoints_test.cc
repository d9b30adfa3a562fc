#include <catch2/catch.hpp>

#include "coordinator/checkpoints/checkpoints.h"

namespace evergrad::coordinator {

TEST_CASE("a checkpoint lies in the runs folder, or in a folder of its own under the directory that the job names") {
  config::CheckpointSpec spec;
  CHECK(CheckpointFolder(spec, "/runs/mnist-0000000000000007", "mnist", JobUid(7)) == "/runs/mnist-0000000000000007/checkpoint");
  spec.directory = "file:///shared/";
  CHECK(CheckpointFolder(spec, "/runs/mnist-0000000000000007", "mnist", JobUid(7)) == "file:///shared/mnist-0000000000000007");
}

}  // namespace evergrad::coordinator
