// The input is a sequence of requests to a server that holds dense shards and a slot (the shard of
// embedding tables). Each request is a raw frame, or a header to which the target adds the payloads
// and ids of its sections.
//
// Property: each request is answered exactly once. A repeated request changes no shard. A push
// without the proof that its job requires changes nothing at all.
#include "common/wire/stream_message.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/server_stage.h"
#include "tests/fuzz/session_steps.h"

namespace evergrad::fuzz {
namespace {

using namespace ps_server;

constexpr std::uint64_t kProvedJob = kJob + 1;
constexpr std::size_t kSectionsMax = 16;

void Hold(ServerStage& stage, const ShardSettings& settings) {
  bool loaded = false;
  stage.host().jobs().Learn(settings.job, {1, 9}, 8);
  stage.host()
      .shard_executor(settings.shard)
      .Assign(settings, kEpoch, kStart, {},
              [&](ShardExecutor::Loaded l) { loaded = l.status.ok(); });
  stage.Run();
  EG_CHECK(loaded);
}

void HoldAll(ServerStage& stage) {
  Hold(stage, CountingShard(2));
  Hold(stage, CountingSlot(3));
  ShardSettings adam = CountingShard(4);
  adam.optimizer.type = "adam";
  adam.wire = tensor::WireType::kBFloat16;
  Hold(stage, adam);
  stage.host().jobs().Learn(JobUid(kProvedJob), {1, 9}, 8);
  stage.host().jobs().SetGrantKey(JobUid(kProvedJob), "a key that no input knows");
  Hold(stage, CountingShard(5, 4, kProvedJob));
}

// Returns the states of the shards without the counters of requests, which every request changes.
std::vector<std::string> StateOf(ServerStage& stage) {
  std::vector<std::string> states = stage.States();
  for (std::string& bytes : states) {
    v1::ShardState state;
    EG_CHECK(state.ParseFromString(bytes));
    state.clear_duplicates_refused();
    state.clear_pulls();
    state.clear_pushes();
    state.clear_bytes_sent();
    state.clear_bytes_received();
    bytes = state.SerializeAsString();
  }
  return states;
}

tensor::SharedBytes Shared(absl::string_view bytes) { return {nullptr, BytesOf(bytes)}; }

tensor::AlignedBuffer Frame(Input& input) {
  const auto step = static_cast<RequestStep>(input.Choice(kRequestSteps));
  const absl::string_view bytes = input.Piece();
  v1::RequestHeader header;
  if (step == RequestStep::kFrame ||
      !header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      static_cast<std::size_t>(header.pushes_size() + header.pulls_size()) > kSectionsMax) {
    tensor::AlignedBuffer frame(bytes.size());
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(frame.data()));
    return frame;
  }
  std::vector<tensor::SharedBytes> payloads, ids;
  for (int i = 0; i < header.pushes_size(); ++i) payloads.push_back(Shared(input.Piece()));
  for (int i = 0; i < header.pushes_size() + header.pulls_size(); ++i) {
    const absl::string_view list = input.Piece();
    ids.push_back(Shared(list.substr(0, list.size() / 8 * 8)));
  }
  return Gathered(wire::BuildRequest(&header, std::move(payloads), std::move(ids)));
}

void CheckFits(const Reply& reply, const tensor::AlignedBuffer& frame) {
  const auto request = wire::ParseRequest({frame.data(), frame.size()});
  if (!request.ok() || !reply.answered) return;
  EG_CHECK(reply.frame.size() <=
           request->header->response_bytes_max() + wire::kAnswerHeaderBytesMax);
}

}  // namespace
}  // namespace evergrad::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad::fuzz;
  Input input(data, size);
  ServerStage stage;
  HoldAll(stage);
  const std::string proved = StateOf(stage).back();
  while (!input.done()) {
    const auto frame = Frame(input);
    CheckFits(*stage.Send(frame), frame);
    const auto after = StateOf(stage);
    CheckFits(*stage.Send(frame), frame);
    EG_CHECK(StateOf(stage) == after);
    EG_CHECK(after.back() == proved);
  }
  return 0;
}
