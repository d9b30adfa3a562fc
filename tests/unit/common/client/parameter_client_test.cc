// Tests the parameter client. The test acts as the server: it reads what arrives, and answers with
// good and bad frames.
#include "common/client/parameter_client.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "common/wire/data_frame.h"
#include "tests/unit/common/client/scripted_transport_fixture.h"

namespace evergrad::client {
namespace {

using namespace std::chrono_literals;

transport::ReceivedFrame FrameOf(const std::string& bytes) {
  transport::ReceivedFrame frame;
  frame.bytes = tensor::AlignedBuffer(bytes.size());
  if (!bytes.empty()) std::memcpy(frame.bytes.data(), bytes.data(), bytes.size());
  return frame;
}
std::string Flat(const std::vector<tensor::SharedBytes>& pieces) {
  std::string bytes;
  for (const auto& p : pieces)
    bytes.append(reinterpret_cast<const char*>(p.bytes.data()), p.bytes.size());
  return bytes;
}
tensor::SharedBytes BytesOf(const std::string& text) {
  auto owner = std::make_shared<const std::string>(text);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                         owner->size());
  return {std::move(owner), bytes};
}
v1::Endpoint At(const std::string& address, const std::string& unix_path = "",
                const std::string& host_id = "") {
  v1::Endpoint endpoint;
  endpoint.set_address(address);
  endpoint.set_unix_path(unix_path);
  endpoint.set_host_id(host_id);
  return endpoint;
}
v1::RequestHeader PushAndPull() {
  v1::RequestHeader header;
  header.set_job_uid(5);
  auto* push = header.add_pushes();
  push->set_shard(3);
  push->set_kind(v1::GRADIENT);
  header.add_pulls()->set_shard(4);
  return header;
}
v1::ResponseHeader GoodAnswer() {
  v1::ResponseHeader header;
  auto* push = header.add_pushes();
  push->set_shard(3);
  push->set_answer(v1::APPLIED);
  auto* pull = header.add_pulls();
  pull->set_shard(4);
  pull->set_answer(v1::VALUES);
  return header;
}

struct Stage {
  ScriptedTransport transport;
  std::vector<absl::StatusOr<ParameterClient::Answer>> answers;
  std::function<void(absl::StatusOr<ParameterClient::Answer>)> Take() {
    return [this](absl::StatusOr<ParameterClient::Answer> answer) {
      answers.push_back(std::move(answer));
    };
  }
};

TEST_CASE("a request arrives whole, and its answer returns with its payload") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  client.Send(At("a:1"), PushAndPull(), {BytesOf("gradient")}, 4096, 250ms, stage.Take());
  REQUIRE(stage.transport.data_links.size() == 1);
  DataCall& call = stage.transport.data_links[0]->calls.at(0);
  CHECK(call.options.response_bytes_max == 4096);
  CHECK(call.options.deadline == 250ms);
  const transport::ReceivedFrame arrived = FrameOf(call.bytes);
  const auto request = wire::ParseRequest({arrived.bytes.data(), arrived.bytes.size()});
  REQUIRE(request.ok());
  CHECK(request->header->client_name() == "worker/0");
  CHECK(request->header->response_bytes_max() == 4096);
  REQUIRE(request->payloads.size() == 1);
  CHECK(std::string(reinterpret_cast<const char*>(request->payloads[0].data()),
                    request->payloads[0].size()) == "gradient");

  const std::string answer = Flat(wire::BuildResponse(GoodAnswer(), {BytesOf("values!!")}));
  std::exchange(call.done, nullptr)(FrameOf(answer));
  REQUIRE(stage.answers.size() == 1);
  REQUIRE(stage.answers[0].ok());
  CHECK(stage.answers[0]->header->pushes(0).answer() == v1::APPLIED);
  REQUIRE(stage.answers[0]->payloads.size() == 1);
  const auto payload = stage.answers[0]->payloads[0];
  CHECK(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()) == "values!!");
  CHECK(reinterpret_cast<std::uintptr_t>(payload.data()) % 64 == 0);
  const auto stats = client.stats();
  CHECK(stats.calls == 1);
  CHECK(stats.failures == 0);
  CHECK(stats.bytes_sent == call.bytes.size());
  CHECK(stats.bytes_received == answer.size());
}

TEST_CASE(
    "an announcement serves one fitting request of its stream, and is abandoned when it is "
    "unused") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  const std::uint64_t bytes = ParameterClient::RequestBytesMax(2, 64);
  auto announced = client.Announce(At("a:1"), bytes, 4096, 1s);
  REQUIRE(announced != nullptr);
  REQUIRE(stage.transport.data_links.size() == 1);
  DataLink& link = *stage.transport.data_links[0];
  CHECK(link.announced == std::vector<std::uint64_t>{bytes + 4096});
  SECTION("the announcement is used") {
    client.Send(At("a:1"), PushAndPull(), {BytesOf("gradient")}, 4096, 1s, stage.Take(),
                std::move(announced));
    CHECK(link.calls.at(0).bytes.size() <= bytes);
    CHECK(link.calls.at(0).ticket == 1);
    CHECK(link.abandoned.empty());
    CHECK(client.stats().announced == 1);
  }
  SECTION("a larger request announces again") {
    client.Send(At("a:1"), PushAndPull(), {BytesOf(std::string(bytes, 'x'))}, 4096, 1s,
                stage.Take(), std::move(announced));
    CHECK(link.calls.at(0).ticket == 0);
    CHECK(link.abandoned == std::vector<std::uint64_t>{1});
    CHECK(client.stats().announced == 0);
  }
  SECTION("a larger answer announces again") {
    client.Send(At("a:1"), PushAndPull(), {BytesOf("gradient")}, 4097, 1s, stage.Take(),
                std::move(announced));
    CHECK(link.calls.at(0).ticket == 0);
    CHECK(link.abandoned == std::vector<std::uint64_t>{1});
  }
  SECTION("a request to another server announces again") {
    client.Send(At("b:1"), PushAndPull(), {BytesOf("gradient")}, 4096, 1s, stage.Take(),
                std::move(announced));
    CHECK(stage.transport.data_links.at(1)->calls.at(0).ticket == 0);
    CHECK(link.abandoned == std::vector<std::uint64_t>{1});
  }
  SECTION("no request uses the announcement") {
    announced.reset();
    CHECK(link.abandoned == std::vector<std::uint64_t>{1});
  }
  SECTION("the announcement outlives its stream") {
    client.Retain({});
    announced.reset();
    CHECK(link.abandoned.empty());
  }
}

TEST_CASE("no announcement is sent to a server that cannot be dialed") {
  Stage stage;
  stage.transport.refuse_dials = absl::UnavailableError("no way");
  ParameterClient client(&stage.transport, {}, "worker/0");
  CHECK(client.Announce(At("a:1"), 1000, 4096, 1s) == nullptr);
}

TEST_CASE("an answer that does not fit its request is refused, whatever its content") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  const auto answer_with = [&](transport::ReceivedFrame frame) {
    client.Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 4096, 1s, stage.Take());
    std::exchange(stage.transport.data_links[0]->calls.back().done, nullptr)(std::move(frame));
    REQUIRE_FALSE(stage.answers.back().ok());
    return stage.answers.back().status();
  };
  CHECK_FALSE(IsRetryable(answer_with(FrameOf("garbage that is no frame at all"))));
  CHECK_FALSE(answer_with(FrameOf("")).ok());
  v1::ResponseHeader no_push = GoodAnswer();
  no_push.clear_pushes();
  CHECK_THAT(
      std::string(
          answer_with(FrameOf(Flat(wire::BuildResponse(no_push, {BytesOf("v")})))).message()),
      Catch::Contains("number of push results"));
  v1::ResponseHeader no_pull = GoodAnswer();
  no_pull.clear_pulls();
  CHECK_THAT(std::string(answer_with(FrameOf(Flat(wire::BuildResponse(
                                         no_pull, std::vector<tensor::SharedBytes>{}))))
                             .message()),
             Catch::Contains("number of pull results"));
  v1::ResponseHeader other_shard = GoodAnswer();
  other_shard.mutable_pulls(0)->set_shard(9);
  const absl::Status misfit =
      answer_with(FrameOf(Flat(wire::BuildResponse(other_shard, {BytesOf("v")}))));
  CHECK(misfit.code() == absl::StatusCode::kInternal);
  CHECK_THAT(std::string(misfit.message()),
             Catch::Contains("shard of a pull result") && Catch::Contains("want=4 got=9"));
  CHECK(client.stats().failures == 5);
}

TEST_CASE("an error about a whole frame keeps the server's origin and retryability") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  client.Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 4096, 1s, stage.Take());
  v1::ResponseHeader header;
  *header.mutable_error() = ToErrorDetail(absl::ResourceExhaustedError("budget"), "ps_server/1");
  std::exchange(stage.transport.data_links[0]->calls[0].done, nullptr)(
      FrameOf(Flat(wire::BuildResponse(header, std::vector<tensor::SharedBytes>{}))));
  REQUIRE(stage.answers.size() == 1);
  CHECK(stage.answers[0].status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(OriginOf(stage.answers[0].status()) == "ps_server/1");
  CHECK(IsRetryable(stage.answers[0].status()));
}

TEST_CASE(
    "a server has one stream, which uses a unix socket only on the same host and only if enabled") {
  Stage stage;
  transport::ChannelOptions options;
  const bool use_unix = GENERATE(false, true);
  options.use_unix = use_unix;
  ParameterClient client(&stage.transport, options, "worker/0", "host-1");
  for (int i = 0; i < 2; ++i) {
    client.Send(At("a:1", "/tmp/a.sock", "host-1"), PushAndPull(), {BytesOf("g")}, 0, 1s,
                stage.Take());
    client.Send(At("b:1", "/tmp/b.sock", "host-2"), PushAndPull(), {BytesOf("g")}, 0, 1s,
                stage.Take());
    client.Send(At("c:1", "/tmp/c.sock", ""), PushAndPull(), {BytesOf("g")}, 0, 1s, stage.Take());
  }
  REQUIRE(stage.transport.data_links.size() == 3);
  CHECK(stage.transport.data_links[0]->address.unix_path == (use_unix ? "/tmp/a.sock" : ""));
  CHECK(stage.transport.data_links[1]->address.unix_path.empty());
  CHECK(stage.transport.data_links[2]->address.unix_path.empty());
  CHECK(stage.transport.data_links[0]->calls.size() == 2);
}

TEST_CASE("a client whose own host is unknown is on the same host as no server") {
  Stage stage;
  transport::ChannelOptions options;
  options.use_unix = true;
  ParameterClient client(&stage.transport, options, "worker/0");
  client.Send(At("a:1", "/tmp/a.sock", ""), PushAndPull(), {BytesOf("g")}, 0, 1s, stage.Take());
  CHECK(stage.transport.data_links.at(0)->address.unix_path.empty());
}

TEST_CASE("servers that the client does not keep are closed, and their calls end") {
  Stage stage;
  auto client =
      std::make_unique<ParameterClient>(&stage.transport, transport::ChannelOptions{}, "worker/0");
  for (const char* address : {"a:1", "b:1", "c:1"})
    client->Send(At(address), PushAndPull(), {BytesOf("g")}, 0, 1s, stage.Take());
  client->Retain({"b:1"});
  CHECK_FALSE(stage.transport.data_links[0]->open);
  CHECK(stage.transport.data_links[1]->open);
  CHECK_FALSE(stage.transport.data_links[2]->open);
  REQUIRE(stage.answers.size() == 2);
  CHECK(stage.answers[0].status().code() == absl::StatusCode::kCancelled);
  // A new call to the address whose stream was closed dials the address again.
  client->Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 0, 1s, stage.Take());
  CHECK(stage.transport.data_links.size() == 4);
  client.reset();
  CHECK(stage.answers.size() == 4);
  CHECK_FALSE(stage.transport.data_links[1]->open);
}

TEST_CASE("a stream is not destroyed while a call is handed to it") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  client.Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 0, 1s,
              [](absl::StatusOr<ParameterClient::Answer>) {});
  DataLink& link = *stage.transport.data_links.at(0);
  runtime::WaitableEvent inside, closed;
  bool closed_under_us = true;
  link.on_close = [&] { closed.Set(); };
  link.on_call = [&] {
    inside.Set();
    // If Retain does not wait for this callback, this wait is long enough to notice it.
    closed_under_us = closed.WaitFor(20ms);
  };
  runtime::Thread sender("sender", [&] {
    client.Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 0, 1s,
                [](absl::StatusOr<ParameterClient::Answer>) {});
  });
  inside.Wait();
  client.Retain({});
  CHECK(closed.IsSet());
  sender.Join();
  CHECK_FALSE(closed_under_us);
}

TEST_CASE("a call that cannot be sent is answered at once") {
  Stage stage;
  ParameterClient client(&stage.transport, {}, "worker/0");
  client.Send(At("a:1"), PushAndPull(), {}, 0, 1s, stage.Take());
  REQUIRE(stage.answers.size() == 1);
  CHECK(stage.answers[0].status().code() == absl::StatusCode::kInvalidArgument);
  stage.transport.refuse_dials = absl::InvalidArgumentError("cannot read certificate: file=ca.pem");
  client.Send(At("a:1"), PushAndPull(), {BytesOf("g")}, 0, 1s, stage.Take());
  REQUIRE(stage.answers.size() == 2);
  CHECK_THAT(std::string(stage.answers[1].status().message()), Catch::Contains("ca.pem"));
}

}  // namespace
}  // namespace evergrad::client
