// Tests that listeners and channels over gRPC use renewed certificates and authorities without a
// restart. The test makes each check of the files itself.
#if !defined(__SANITIZE_THREAD__)  // Debian's gRPC is not instrumented.
#include <catch2/catch.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/runtime/executor.h"
#include "common/transport/tls/tls_watch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/transport/transport_fixture.h"

namespace evergrad::transport {
namespace {

using namespace test;
using evergrad::test::Authority;
using evergrad::test::FilesOf;
using evergrad::test::IssuePems;
using evergrad::test::PemOf;
using evergrad::test::ReplaceFile;
using evergrad::test::ReplaceFiles;
using evergrad::test::TempFolder;

using Authorities = std::vector<const Authority*>;

// A task with its files, which are watched.
struct Task {
  Task(const TempFolder& folder, std::string task_name, const Authority& signer,
       const Authorities& trusted)
      : name(std::move(task_name)), files(FilesOf(folder, name)) {
    ReplaceFiles(files, IssuePems(name, signer, trusted));
    auto opened = TlsWatch::Open(files);
    REQUIRE(opened.ok());
    files.watch = *std::move(opened);
  }
  // Replaces all three files. The certificate gets the common name `common_name`.
  void Renew(const std::string& common_name, const Authority& signer, const Authorities& trusted) {
    const std::uint64_t before = files.watch->stats().reloads;
    ReplaceFiles(files,
                 IssuePems(common_name, signer, trusted, {.names = evergrad::test::NamesOf(name)}));
    files.watch->Check();
    REQUIRE(files.watch->stats().reloads == before + 1);
  }
  void Renew(const Authority& signer, const Authorities& trusted) { Renew(name, signer, trusted); }

  const std::string name;
  TlsFiles files;
};

// Answers each unary call with the common name of the caller's certificate, and each message of a
// stream with the same message.
Handlers Answering() {
  Handlers handlers;
  handlers.unary = [](const PeerInfo& peer, absl::string_view, std::string,
                      std::unique_ptr<UnaryResponder> responder) {
    responder->Answer(peer.certificate_name);
  };
  const auto streams = Collect<std::shared_ptr<MessageStream>>();
  handlers.stream =
      [streams](const PeerInfo&, absl::string_view,
                std::shared_ptr<MessageStream> stream) -> std::optional<MessageStreamEvents> {
    const std::weak_ptr<MessageStream> weak = stream;
    streams->Put(std::move(stream));
    return MessageStreamEvents{.on_message =
                                   [weak](std::string text) {
                                     if (const auto open = weak.lock())
                                       (void)open->Send(std::move(text));
                                   },
                               .on_end = [](const absl::Status&) {}};
  };
  return handlers;
}

absl::StatusOr<std::string> Who(Channel& channel) {
  return UnaryAndWait(channel, "/evergrad.v1.Control/Who", "", 10000ms);
}
// Calls the server over a new connection. `host` replaces the host of the server's address.
absl::StatusOr<std::string> Who(World<Grpc>& world, const TlsFiles& tls, bool use_unix = false,
                                const std::string& host = "127.0.0.1") {
  const std::string address = world.server->address();
  auto channel =
      world.transport->Dial({.host_port = host + address.substr(address.rfind(':')),
                             .unix_path = world.server->unix_path()},
                            {.tls = tls, .peer_task = "ps_server/0", .use_unix = use_unix});
  if (!channel.ok()) return channel.status();
  return Who(**channel);
}

TEST_CASE("an open stream lives on when its authority is removed, and a new channel is refused") {
  TempFolder folder;
  const Authority old_ca("evergrad authority"), new_ca("evergrad authority");
  Task server(folder, "ps_server-0", old_ca, {&old_ca});
  const Task client(folder, "worker-7", old_ca, {&old_ca}),
      stays(folder, "worker-8", old_ca, {&old_ca}), moved(folder, "worker-9", new_ca, {&new_ca}),
      unknown(folder, "worker-10", old_ca, {&old_ca, &new_ca});
  World<Grpc> world(Answering(), {.tls = server.files}, {.tls = client.files});
  const auto messages = Collect<std::string>();
  const auto ended = Collect<absl::Status>();
  auto stream = world.channel->OpenStream(
      "/evergrad.v1.Sessions/Session",
      {.on_message = [messages](std::string text) { messages->Put(std::move(text)); },
       .on_end = [ended](absl::Status status) { ended->Put(std::move(status)); }});
  const auto echo = [&](const std::string& text) {
    REQUIRE(stream->Send(text).ok());
    CHECK(messages->Next() == text);
  };
  echo("before");
  REQUIRE(Who(world, stays.files).ok());

  server.Renew(new_ca, {&new_ca});
  echo("after");
  CHECK(Who(*world.channel).ok());  // a further call on the open connection
  // This client does not trust the server's new authority.
  const auto old_channel = Who(world, stays.files).status();
  INFO(old_channel.ToString());
  CHECK(old_channel.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(old_channel.message()), Catch::Contains("certificate verify failed"));
  // This client trusts the server, but the server does not trust the client any more.
  const auto refused = Who(world, unknown.files).status();
  INFO(refused.ToString());
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("the peer refused this task's certificate"));
  CHECK(Who(world, moved.files).value() == "worker-9");
  echo("at the end");
  CHECK(ended->total() == 0);
}

TEST_CASE("a listener refuses no right client while its authority is replaced step by step") {
  TempFolder folder;
  const Authority old_ca("evergrad authority"), new_ca("evergrad authority");
  Task server(folder, "ps_server-0", old_ca, {&old_ca});
  const Task old_old(folder, "worker-0", old_ca, {&old_ca}),
      old_both(folder, "worker-1", old_ca, {&old_ca, &new_ca}),
      new_both(folder, "worker-2", new_ca, {&old_ca, &new_ca}),
      new_new(folder, "worker-3", new_ca, {&new_ca});
  World<Grpc> world(Answering(),
                    {.listen = "localhost:0", .unix_path = folder / "s", .tls = server.files},
                    {.tls = old_old.files});
  // The name localhost may have two addresses, and so two sockets.
  std::vector<std::string> hosts{"unix", "127.0.0.1", "[::1]"};
  if (!Who(world, old_old.files, false, "[::1]").ok()) hosts.pop_back();
  const auto served = [&](const std::vector<const Task*>& right,
                          const std::vector<const Task*>& wrong) {
    for (const std::string& host : hosts) {
      CAPTURE(host);
      for (const Task* client : right)
        CHECK(Who(world, client->files, host == "unix", host).value_or("refused") == client->name);
      for (const Task* client : wrong) {
        CAPTURE(client->name);
        CHECK_FALSE(Who(world, client->files, host == "unix", host).ok());
      }
    }
  };
  served({&old_old, &old_both}, {&new_both, &new_new});

  const std::string old_pem = PemOf(old_ca.certificate.get()),
                    new_pem = PemOf(new_ca.certificate.get());
  ReplaceFile(server.files.ca, old_pem + new_pem);
  server.files.watch->Check();
  served({&old_old, &old_both, &new_both}, {&new_new});

  // The files of the second step arrive one after another, and the first one alone is useless.
  const TlsPems next = IssuePems(server.name, new_ca, {&old_ca, &new_ca});
  ReplaceFile(server.files.cert, next.cert);
  server.files.watch->Check();
  served({&old_old, &old_both, &new_both}, {&new_new});
  ReplaceFile(server.files.key, next.key);
  server.files.watch->Check();
  served({&old_both, &new_both, &new_new}, {&old_old});

  ReplaceFile(server.files.ca, new_pem);
  server.files.watch->Check();
  served({&new_both, &new_new}, {&old_old, &old_both});
  CHECK(server.files.watch->stats().reloads == 3);
  CHECK(server.files.watch->stats().failures == 1);
}

TEST_CASE("connections that begin while the certificates are exchanged all succeed") {
  TempFolder folder;
  const Authority old_ca("evergrad authority"), new_ca("evergrad authority");
  const Authorities both{&old_ca, &new_ca};
  Task server(folder, "ps_server-0", old_ca, both);
  const Task client(folder, "worker-7", old_ca, both);
  World<Grpc> world(Answering(), {.tls = server.files}, {.tls = client.files});
  std::atomic<bool> stop{false};
  std::atomic<int> connected{0};
  std::string failure;
  {
    const runtime::Thread dialer("dialer", [&] {
      while (!stop) {
        const auto name = Who(world, client.files);
        if (!name.ok()) failure = name.status().ToString();
        if (!name.ok() || ++connected >= 50) stop = true;
      }
    });
    struct Stop {
      ~Stop() { *stop = true; }
      std::atomic<bool>* stop;
    } const at_end{&stop};  // also after a failed REQUIRE
    for (int i = 0; !stop; ++i) server.Renew(i % 2 == 0 ? new_ca : old_ca, both);
  }
  CHECK(failure == "");
  CHECK(server.files.watch->stats().reloads > 1);
}

TEST_CASE("a channel uses its renewed certificate when it connects again") {
  TempFolder folder;
  const Authority old_ca("evergrad authority"), new_ca("evergrad authority");
  Task server(folder, "ps_server-0", old_ca, {&old_ca}),
      client(folder, "worker-7", old_ca, {&old_ca});
  World<Grpc> world(Answering(), {.tls = server.files}, {.tls = client.files});
  CHECK(Who(*world.channel).value() == "worker-7");
  client.Renew("renewed worker", new_ca, {&new_ca});
  server.Renew(new_ca, {&new_ca});
  CHECK(Who(*world.channel).value() == "worker-7");  // the connection is still open

  const std::string address = world.server->address();
  world.server.reset();
  auto again = world.transport->Listen({.listen = address, .tls = server.files}, Answering());
  REQUIRE(again.ok());
  // A call may fail as long as the channel has not noticed the end of its connection.
  absl::StatusOr<std::string> name;
  const auto until = std::chrono::steady_clock::now() + 30s;
  do {
    name = Who(*world.channel);
  } while (!name.ok() && std::chrono::steady_clock::now() < until);
  CHECK(name.value_or(name.status().ToString()) == "renewed worker");
}

TEST_CASE("a data stream that dials again uses the renewed certificate") {
  TempFolder folder;
  const Authority old_ca("evergrad authority"), new_ca("evergrad authority");
  Task server(folder, "ps_server-0", old_ca, {&old_ca}),
      client(folder, "worker-7", old_ca, {&old_ca});
  World<Grpc> world(Echoing(), {.tls = server.files}, {.tls = client.files});
  auto data = world.channel->OpenData();
  const auto echo = [&] {
    const auto results = Collect<DataResult>();
    data->Call(0, TextFrame("x"), {.response_bytes_max = 64}, Into(results));
    const auto result = results->Next();
    return result ? result->status() : absl::DeadlineExceededError("no answer");
  };
  REQUIRE(echo().ok());
  client.Renew(new_ca, {&new_ca});
  server.Renew(new_ca, {&new_ca});
  CHECK(echo().ok());
  const std::string address = world.server->address();
  world.server.reset();
  auto again = world.transport->Listen({.listen = address, .tls = server.files}, Echoing());
  REQUIRE(again.ok());
  absl::Status status;
  const auto until = std::chrono::steady_clock::now() + 30s;
  do {
    status = echo();
  } while (!status.ok() && std::chrono::steady_clock::now() < until);
  INFO(status.ToString());
  CHECK(status.ok());
}

}  // namespace
}  // namespace evergrad::transport
#endif
