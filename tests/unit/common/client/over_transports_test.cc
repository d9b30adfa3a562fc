// Runs both clients over both transports, on real threads. It tests what the tests on one thread
// cannot show: the order between threads, closing while calls are in flight, and a port on which no
// process listens.
#include <atomic>
#include <catch2/catch.hpp>
#include <map>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/client/session_client.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/wire/data_frame.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::client {
namespace {

using namespace std::chrono_literals;

struct Inproc {
  static std::unique_ptr<transport::Transport> Make() {
    return transport::MakeInprocTransport(nullptr);
  }
  static std::string Address(transport::Transport&, const std::string& name) { return name + ":1"; }
};
struct Grpc {
  static std::unique_ptr<transport::Transport> Make() {
    return transport::MakeGrpcTransport(nullptr);
  }
  // Returns a port that was free a moment ago. No process listens on it yet.
  static std::string Address(transport::Transport& transport, const std::string&) {
    auto server = transport.Listen(transport::ServerOptions(), transport::Handlers());
    REQUIRE(server.ok());
    return (*server)->address();
  }
};
// Debian's gRPC is not instrumented for ThreadSanitizer. Under this sanitizer only the in-process
// transport is tested.
#if defined(__SANITIZE_THREAD__)
#define EG_TRANSPORTS Inproc
#else
#define EG_TRANSPORTS Inproc, Grpc
#endif

// A coordinator that registers every sender of a Hello and acknowledges every Done.
class Registrar {
 public:
  Registrar(transport::Transport* transport, const std::string& address, std::uint64_t term)
      : term_(term) {
    transport::Handlers handlers;
    handlers.unary = [](const transport::PeerInfo&, absl::string_view, std::string,
                        std::unique_ptr<transport::UnaryResponder> r) {
      r->Answer(absl::UnimplementedError(""));
    };
    handlers.data = [](const transport::PeerInfo&, transport::ReceivedFrame,
                       std::unique_ptr<transport::DataResponder> r) {
      r->Fail(absl::UnimplementedError(""));
    };
    handlers.stream = [this](const transport::PeerInfo&, absl::string_view method,
                             std::shared_ptr<transport::MessageStream> stream)
        -> std::optional<transport::MessageStreamEvents> {
      if (method != kSessionMethod) return std::nullopt;
      transport::MessageStreamEvents events;
      // The events of a stream refer to it by a weak pointer, so that they do not keep it alive.
      // The transport owns the stream and destroys it when the peer is gone.
      events.on_message =
          [this, weak = std::weak_ptr<transport::MessageStream>(stream)](std::string bytes) {
            if (const auto to = weak.lock()) Answer(*to, bytes);
          };
      events.on_end = [](absl::Status) {};
      MutexLock lock(&mu_);
      streams_.push_back(std::move(stream));
      return events;
    };
    transport::ServerOptions options;
    options.listen = address;
    auto server = transport->Listen(options, std::move(handlers));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }
  ~Registrar() { server_->Shutdown(); }
  runtime::WaitableEvent three_heartbeats, left;

 private:
  void Answer(transport::MessageStream& to, const std::string& bytes) {
    v1::TaskBatch batch;
    if (!batch.ParseFromString(bytes)) return;
    v1::CoordinatorBatch answer;
    for (const auto& message : batch.messages()) {
      if (message.has_hello()) {
        auto* registered = answer.add_messages()->mutable_registered();
        registered->set_term(term_);
        registered->set_identity(message.hello().identity());
        registered->set_heartbeat_ms(5);
      } else if (message.has_done()) {
        answer.add_messages()->mutable_done_answer()->set_closure(message.done().closure());
      } else if (message.has_heartbeat() && ++heartbeats_ == 3) {
        three_heartbeats.Set();
      } else if (message.has_leaving()) {
        left.Set();
      }
    }
    if (answer.messages_size() > 0) (void)to.Send(answer.SerializeAsString());
  }

  const std::uint64_t term_;
  std::atomic<int> heartbeats_{0};
  Mutex mu_;
  // Shared with the transport.
  std::vector<std::shared_ptr<transport::MessageStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<transport::Server> server_;
};

TEMPLATE_TEST_CASE(
    "a session survives the coordinator's death: it redials, registers and sends unacknowledged "
    "messages again",
    "", EG_TRANSPORTS) {
  auto transport = TestType::Make();
  const std::string address = TestType::Address(*transport, "coordinator");
  log::Options quiet;
  quiet.file = "/dev/null";
  log::Logger logger(quiet);
  runtime::ThreadExecutor executor({"session"});
  runtime::WaitableEvent first_answer, lost, second_answer, waiting;
  std::uint64_t last_term = 0;

  std::unique_ptr<SessionClient> client;
  SessionClient::Options options;
  options.coordinator_address = address;
  options.backoff_min = 5ms;
  options.backoff_max = 20ms;
  SessionClient::Events events;
  events.make_hello = [] {
    v1::Hello hello;
    hello.set_identity("3");
    return hello;
  };
  events.on_registered = [&](const v1::Registered& registered) {
    last_term = registered.term();
    v1::TaskMessage done;
    done.mutable_done()->set_closure(registered.term());
    client->Send(std::move(done));
  };
  events.on_message = [&](const v1::CoordinatorMessage& message) {
    if (message.done_answer().closure() == 1) first_answer.Set();
    if (message.done_answer().closure() == 2) second_answer.Set();
  };
  events.on_lost = [&](absl::string_view) { lost.Set(); };
  std::string why;  // written before `waiting` is set
  events.on_waiting = [&](absl::string_view text) {
    if (waiting.IsSet()) return;
    why = std::string(text);
    waiting.Set();
  };
  executor.Post([&] {
    client = std::make_unique<SessionClient>(transport.get(), &executor, &logger, options,
                                             std::move(events));
    client->Start();  // The coordinator does not run yet.
  });
  REQUIRE(waiting.WaitFor(30s));
  CHECK_FALSE(why.empty());
  {
    Registrar first(transport.get(), address, 1);
    REQUIRE(first_answer.WaitFor(30s));
    REQUIRE(first.three_heartbeats.WaitFor(30s));
  }
  REQUIRE(lost.WaitFor(30s));
  {
    Registrar second(transport.get(), address, 2);
    REQUIRE(second_answer.WaitFor(30s));
    runtime::WaitableEvent ended;
    executor.Post([&] {
      v1::TaskMessage leaving;
      leaving.mutable_leaving()->set_reason("SIGTERM");
      client->Send(std::move(leaving));
      client->Stop();
      client.reset();
      ended.Set();
    });
    REQUIRE(ended.WaitFor(30s));
    CHECK(second.left.WaitFor(30s));  // Messages that were queued before Stop() still arrive.
  }
  executor.Shutdown();
  CHECK(last_term == 2);
}

// Returns a server that answers each push with APPLIED, and each pull with the number of its shard
// as text.
std::unique_ptr<transport::Server> Serve(transport::Transport& transport,
                                         const std::string& address) {
  transport::Handlers handlers;
  handlers.unary = [](const transport::PeerInfo&, absl::string_view, std::string,
                      std::unique_ptr<transport::UnaryResponder> r) {
    r->Answer(absl::UnimplementedError(""));
  };
  handlers.stream = [](const transport::PeerInfo&, absl::string_view,
                       std::shared_ptr<transport::MessageStream>) { return std::nullopt; };
  handlers.data = [](const transport::PeerInfo&, transport::ReceivedFrame frame,
                     std::unique_ptr<transport::DataResponder> responder) {
    v1::ResponseHeader header;
    std::vector<tensor::SharedBytes> payloads;
    {
      const auto request = wire::ParseRequest({frame.bytes.data(), frame.bytes.size()});
      if (!request.ok()) return responder->Fail(request.status());
      for (const auto& push : request->header->pushes()) {
        auto* result = header.add_pushes();
        result->set_shard(push.shard());
        result->set_answer(v1::APPLIED);
      }
      for (const auto& pull : request->header->pulls()) {
        auto* result = header.add_pulls();
        result->set_shard(pull.shard());
        result->set_answer(v1::VALUES);
        auto owner = std::make_shared<const std::string>(std::to_string(pull.shard()));
        const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                               owner->size());
        payloads.push_back({std::move(owner), bytes});
      }
    }
    responder->Answer({wire::BuildResponse(std::move(header), std::move(payloads))});
  };
  transport::ServerOptions options;
  options.listen = address;
  auto server = transport.Listen(options, std::move(handlers));
  REQUIRE(server.ok());
  return *std::move(server);
}

v1::RequestHeader Pull(std::uint32_t shard) {
  v1::RequestHeader header;
  header.add_pulls()->set_shard(shard);
  return header;
}

TEMPLATE_TEST_CASE(
    "many threads send to two servers while streams are closed, and each call gets its own answer "
    "once",
    "", EG_TRANSPORTS) {
  auto transport = TestType::Make();
  const auto a = Serve(*transport, TestType::Address(*transport, "a")),
             b = Serve(*transport, TestType::Address(*transport, "b"));
  constexpr int kThreads = 3, kCalls = 200;
  std::atomic<int> answered{0}, wrong{0};
  runtime::WaitableEvent all;
  {
    ParameterClient client(transport.get(), {}, "worker/0");
    std::vector<runtime::Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("sender", [&, t] {
        for (int i = 0; i < kCalls; ++i) {
          const auto shard = static_cast<std::uint32_t>(t * kCalls + i);
          v1::Endpoint endpoint;
          endpoint.set_address(i % 2 == 0 ? a->address() : b->address());
          client.Send(endpoint, Pull(shard), {}, 1024, 30s,
                      [&, shard](absl::StatusOr<ParameterClient::Answer> answer) {
                        if (answer.ok()) {
                          const auto payload = answer->payloads.at(0);
                          const std::string text(reinterpret_cast<const char*>(payload.data()),
                                                 payload.size());
                          wrong += text != std::to_string(shard);
                        }
                        if (++answered == kThreads * kCalls) all.Set();
                      });
        }
      });
    }
    for (int i = 0; i < 20; ++i) client.Retain({i % 2 == 0 ? a->address() : b->address()});
    for (auto& thread : threads) thread.Join();
    // A Retain may have ended every call above before its stream was connected. One more call is
    // repeated until it is answered, to show that the client still works after streams were closed.
    // A stream that is being dialed may refuse the call, so a timer repeats it.
    runtime::ThreadExecutor executor({"retry"});
    runtime::WaitableEvent answered_right;
    std::function<void()> attempt = [&] {
      v1::Endpoint endpoint;
      endpoint.set_address(a->address());
      client.Send(endpoint, Pull(7), {}, 1024, 30s,
                  [&](absl::StatusOr<ParameterClient::Answer> answer) {
                    if (answer.ok())
                      answered_right.Set();
                    else
                      executor.PostAfter(5ms, attempt);
                  });
    };
    executor.Post(attempt);
    CHECK(answered_right.WaitFor(30s));
    executor.Shutdown();
  }
  // When the client has been destroyed, every call has been answered.
  CHECK(all.IsSet());
  CHECK(answered == kThreads * kCalls);
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE(
    "calls to an absent server fail with a machine's error, and succeed once it listens", "",
    EG_TRANSPORTS) {
  auto transport = TestType::Make();
  const std::string address = TestType::Address(*transport, "a");
  ParameterClient client(transport.get(), {}, "worker/0");
  v1::Endpoint endpoint;
  endpoint.set_address(address);
  std::atomic<int> calls{0}, retryable{0};
  const auto call = [&](std::function<void(absl::Status)> done) {
    ++calls;
    client.Send(endpoint, Pull(7), {}, 1024, 10s,
                [&, done = std::move(done)](absl::StatusOr<ParameterClient::Answer> answer) {
                  retryable += IsRetryable(answer.status());
                  done(answer.status());
                });
  };
  runtime::WaitableEvent refused;
  absl::Status first;
  call([&](absl::Status status) {
    first = std::move(status);
    refused.Set();
  });
  REQUIRE(refused.WaitFor(30s));
  CHECK(first.code() == absl::StatusCode::kUnavailable);
  const auto server = Serve(*transport, address);
  // The client redials the stream by itself. Until the stream is connected, calls fail at once, and
  // a timer repeats them, as in a worker.
  runtime::ThreadExecutor executor({"retry"});
  runtime::WaitableEvent answered;
  std::function<void()> attempt = [&] {
    call([&](absl::Status status) {
      if (status.ok())
        answered.Set();
      else
        executor.PostAfter(5ms, attempt);
    });
  };
  executor.Post(attempt);
  CHECK(answered.WaitFor(30s));
  executor.Shutdown();
  CHECK(retryable == calls - 1);
  const auto stats = client.stats();
  CHECK(stats.failures == stats.calls - 1);
}

}  // namespace
}  // namespace evergrad::client
