// The input is a sequence of Control calls to a coordinator that trains a job. Each call consists
// of the method's number and the request's bytes.
#include "tests/fuzz/control_methods.h"
#include "tests/fuzz/coordinator_stage.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/session_steps.h"

namespace evergrad::fuzz {
namespace {

void Take(Input& input, CoordinatorStage& stage) {
  const std::size_t step = input.Choice(kCallSteps + ControlMethods());
  if (step == static_cast<std::size_t>(CallStep::kTime)) {
    stage.Advance(std::chrono::milliseconds(input.Number<std::uint16_t>() % 8192));
    return;
  }
  const std::string method = step == static_cast<std::size_t>(CallStep::kNamed)
                                 ? std::string(input.Piece())
                                 : MethodPath(step - kCallSteps);
  (void)stage.Call(method, std::string(input.Piece()));
}

}  // namespace
}  // namespace evergrad::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::fuzz::CoordinatorStage stage;
  while (!input.done()) evergrad::fuzz::Take(input, stage);
  // A call that waits is answered at its deadline, or when the stage is closed.
  stage.Advance(std::chrono::seconds(30));
  stage.CheckAlive();
  return 0;
}
