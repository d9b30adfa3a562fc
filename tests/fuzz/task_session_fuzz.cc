// The input is a sequence of steps of sessions at a coordinator that trains a job: batches of
// messages from its registered worker and server, batches from peers that have not registered, ends
// of sessions, and passing time.
//
// Property: the coordinator continues to serve, and another coordinator can start from its journal.
#include "tests/fuzz/coordinator_stage.h"
#include "tests/fuzz/fill_in.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/session_steps.h"

namespace evergrad::fuzz {
namespace {

constexpr int kSessionsMax = 8;

std::string Batch(Input& input, std::uint64_t job_uid) {
  std::string bytes(input.Piece());
  v1::TaskBatch batch;
  if (!batch.ParseFromString(bytes)) return bytes;
  ReplaceJobUid(batch, CoordinatorStage::kThisJob, job_uid);
  return batch.SerializeAsString();
}

void Take(Input& input, CoordinatorStage& stage) {
  switch (static_cast<SessionStep>(input.Choice(kSessionSteps))) {
    case SessionStep::kWorker: return stage.Deliver(stage.worker(), Batch(input, stage.job_uid()));
    case SessionStep::kServer: return stage.Deliver(stage.server(), Batch(input, stage.job_uid()));
    case SessionStep::kPeer: {
      const auto session = static_cast<int>(input.Choice(kSessionsMax));
      while (stage.sessions() <= session) stage.Connect();
      return stage.Deliver(session, Batch(input, stage.job_uid()));
    }
    case SessionStep::kEnd: {
      const int session = input.Number();
      if (session < stage.sessions()) stage.End(session);
      return;
    }
    case SessionStep::kTime:
      return stage.Advance(std::chrono::milliseconds(input.Number<std::uint16_t>() % 8192));
  }
}

}  // namespace
}  // namespace evergrad::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::fuzz::CoordinatorStage stage;
  while (!input.done()) evergrad::fuzz::Take(input, stage);
  stage.CheckAlive();
  return 0;
}
