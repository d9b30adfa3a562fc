// The input is a sequence of steps of a server's session with its coordinator: messages,
// registrations, lost sessions, and requests of workers in between.
//
// Property: each request is answered once, and the Hello names exactly the shards that the server
// holds.
#include <set>

#include "common/base/checked_math.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/server_stage.h"
#include "tests/fuzz/session_steps.h"

namespace evergrad::fuzz {
namespace {

// A server allocates as much as its coordinator orders, up to the size limit of a partition. The
// target orders smaller shards only, so that an input with many orders is not reported as out of
// memory.
bool IsSmall(const v1::CoordinatorMessage& message) {
  const v1::ShardSpec& spec =
      message.has_assign() ? message.assign().spec() : message.receive().spec();
  std::uint64_t elements = spec.row_end() - spec.row_begin();
  for (int i = 1; i < spec.variable().shape_size(); ++i)
    elements = CheckedMul(elements, spec.variable().shape(i)).value_or(~0ull);
  return elements <= 1u << 16 && spec.slot().tables_size() <= 16 &&
         message.receive().bytes() <= 1u << 20;
}

void Give(ServerStage& stage, const v1::CoordinatorMessage& message) {
  if (!IsSmall(message)) return;
  stage.control().OnMessage(message);
  stage.Run();
}

void Take(Input& input, ServerStage& stage) {
  const auto step = static_cast<OrderStep>(input.Choice(kOrderSteps));
  if (step == OrderStep::kLost) return stage.control().OnLost();
  if (step == OrderStep::kSettle) return stage.Settle();
  const absl::string_view bytes = input.Piece();
  const auto parse = [&](google::protobuf::MessageLite* message) {
    return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  };
  if (step == OrderStep::kMessage) {
    v1::CoordinatorMessage message;
    if (parse(&message)) Give(stage, message);
  } else if (step == OrderStep::kBatch) {
    v1::CoordinatorBatch batch;
    if (!parse(&batch)) return;
    for (const v1::CoordinatorMessage& message : batch.messages()) Give(stage, message);
  } else if (step == OrderStep::kRegistered) {
    v1::Registered registered;
    if (parse(&registered)) stage.control().OnRegistered(registered);
  } else {
    tensor::AlignedBuffer frame(bytes.size());
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(frame.data()));
    (void)stage.Send(frame);
  }
}

using Key = std::pair<std::uint64_t, std::uint32_t>;  // job and shard

void CheckHello(ServerStage& stage) {
  stage.Settle();
  v1::Hello hello;
  stage.control().FillHello(&hello);
  std::set<Key> said, held;
  for (const v1::HeldShard& shard : hello.shards()) {
    EG_CHECK(client::FromProto(shard.done()).ok());
    EG_CHECK(client::FromProto(shard.refused()).ok());
    EG_CHECK(!shard.loading());
    EG_CHECK(said.emplace(shard.job_uid(), shard.shard()).second);
  }
  for (const std::string& bytes : stage.States()) {
    v1::ShardState state;
    EG_CHECK(state.ParseFromString(bytes));
    held.emplace(state.job_uid(), state.shard());
  }
  EG_CHECK(said == held);
}

}  // namespace
}  // namespace evergrad::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::fuzz::ServerStage stage;
  while (!input.done()) evergrad::fuzz::Take(input, stage);
  evergrad::fuzz::CheckHello(stage);
  return 0;
}
