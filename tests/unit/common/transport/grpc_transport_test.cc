// Tests the features that only the gRPC transport has: TLS, unix sockets, the rule for addresses
// off loopback, memory, and other processes that die or are stopped.
#if !defined(__SANITIZE_THREAD__)  // Debian's gRPC is not instrumented.
#include <catch2/catch.hpp>

#include <absl/base/internal/sysinfo.h>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "common/runtime/executor.h"
#include "common/transport/not_connected.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/transport/transport_fixture.h"

namespace evergrad::transport {
namespace {

using namespace test;
using evergrad::test::Authority;
using evergrad::test::Issue;
using evergrad::test::TempFolder;

bool Contains(const absl::Status& status, absl::string_view text) {
  return std::string(status.message()).find(std::string(text)) != std::string::npos;
}

Handlers NamingPeers() {
  Handlers handlers = Echoing();
  handlers.unary = [](const PeerInfo& peer, absl::string_view, std::string,
                      std::unique_ptr<UnaryResponder> responder) {
    responder->Answer(peer.certificate_name + " " + peer.certificate_task);
  };
  return handlers;
}

TEST_CASE("with mutual TLS, tasks of one authority connect and know each other's name") {
  TempFolder folder;
  const Authority ca;
  World<Grpc> world(NamingPeers(),
                    {.listen = "0.0.0.0:0", .tls = Issue(folder, "ps_server-0", ca, ca)},
                    {.tls = Issue(folder, "worker-7", ca, ca)});
  const std::string port = world.server->address().substr(world.server->address().rfind(':'));
  auto channel = world.transport->Dial({.host_port = "127.0.0.1" + port},
                                       {.tls = Issue(folder, "worker-8", ca, ca)});
  REQUIRE(channel.ok());
  CHECK(UnaryAndWait(**channel, "/evergrad.v1.Control/Who", "", 10000ms).value() ==
        "worker-8 worker/8");
  auto data = (*channel)->OpenData();
  const auto results = Collect<DataResult>();
  data->Call(0, Patterned(3u << 20, 1), {.response_bytes_max = 3u << 20}, Into(results));
  const auto result = results->Next();
  REQUIRE(result);
  REQUIRE(result->ok());
  CHECK(IsPatterned(View((*result)->bytes), 3u << 20, 1));
}

TEST_CASE("malformed certificate files are refused by name before anything starts") {
  TempFolder folder;
  const Authority ca, other("another CA");
  const TlsFiles good = Issue(folder, "good", ca, ca);
  const auto transport = MakeGrpcTransport(nullptr);
  const auto refused = [&](const TlsFiles& files) {
    const auto dialled = transport->Dial({.host_port = "127.0.0.1:1"}, {.tls = files}).status();
    CHECK(transport->Listen({.tls = files}, {}).status() == dialled);
    CHECK(dialled.code() == absl::StatusCode::kInvalidArgument);
    return dialled;
  };
  CHECK(Contains(
      refused(Issue(folder, "expired", ca, ca, {.begin_seconds = -7200, .end_seconds = -3600})),
      "certificate verify failed: certificate has expired: file=" + (folder / "expired.pem")));
  CHECK(Contains(
      refused(Issue(folder, "future", ca, ca, {.begin_seconds = 3600, .end_seconds = 7200})),
      "certificate verify failed: certificate is not yet valid"));
  CHECK(Contains(refused(Issue(folder, "foreign", other, ca)),
                 "certificate verify failed: unable to get local issuer certificate"));
  CHECK(Contains(refused({.ca = good.ca, .cert = good.cert, .key = folder / "none.key"}),
                 "cannot read tls key: file=" + (folder / "none.key")));
  CHECK(Contains(refused({.ca = good.ca, .cert = good.cert}), "all three"));
  CHECK(Contains(refused({.ca = good.key, .cert = good.cert, .key = good.key}),
                 "not a PEM certificate"));
  CHECK(Contains(
      refused({.ca = good.ca, .cert = good.cert, .key = Issue(folder, "second", ca, ca).key}),
      "does not belong to the certificate"));
  // These certificates are refused at the start, because no peer would accept them or because they
  // belong to another task.
  CHECK(Contains(refused(Issue(folder, "old", ca, ca, {.names = "none"})),
                 "certificate names no task"));
  CHECK(Contains(refused(Issue(folder, "hosts", ca, ca, {.names = "IP:127.0.0.1"})),
                 "`psctl cert issue` writes: file=" + (folder / "hosts.pem")));
  CHECK(Contains(refused(Issue(folder, "both", ca, ca,
                               {.names = "URI:evergrad://worker/1,URI:evergrad://worker/2"})),
                 "several tasks"));
  for (const char* uri : {"URI:evergrad://scheduler/0", "URI:evergrad://worker/",
                          "URI:evergrad://worker/0/1", "URI:evergrad://coordinator/0"})
    CHECK(Contains(refused(Issue(folder, "odd", ca, ca, {.names = uri})),
                   "certificate names an unknown task"));
  TlsFiles worker = Issue(folder, "worker-0", ca, ca);
  for (const char* task : {"", "worker", "worker/0"}) {
    worker.task = task;
    CHECK(transport->Dial({.host_port = "127.0.0.1:1"}, {.tls = worker}).ok());
  }
  for (const char* task : {"coordinator", "worker/1", "ps_server/0"}) {
    worker.task = task;
    CHECK(Contains(refused(worker), std::string("certificate is for worker/0, expected ") + task +
                                        ": file=" + worker.cert));
  }
}

TEST_CASE("a channel refuses every task except the intended one") {
  TempFolder folder;
  const Authority ca;
  const TlsFiles own = Issue(folder, "worker-7", ca, ca);
  const auto call = [&](World<Grpc>& world, const ChannelOptions& options) {
    auto channel = world.transport->Dial(
        {.host_port = world.server->address(), .unix_path = world.server->unix_path()}, options);
    REQUIRE(channel.ok());
    const auto status = UnaryAndWait(**channel, "/evergrad.v1.Control/Who", "", 10000ms).status();
    auto data = (*channel)->OpenData();
    const auto results = Collect<DataResult>();
    data->Call(0, TextFrame("x"), {.response_bytes_max = 64}, Into(results));
    const auto pushed = results->Next();
    REQUIRE(pushed);
    INFO(status.ToString() << " | " << pushed->status().ToString());
    CHECK(pushed->ok() == status.ok());
    // The error must be retryable, because the right server may later get this address.
    if (!status.ok()) CHECK(status.code() == absl::StatusCode::kUnavailable);
    return status;
  };
  World<Grpc> coordinator(NamingPeers(),
                          {.unix_path = folder / "s", .tls = Issue(folder, "coordinator", ca, ca)},
                          {.tls = own});
  CHECK(call(coordinator, {.tls = own, .peer_task = "coordinator", .check_host = true}).ok());
  CHECK(Contains(call(coordinator, {.tls = own, .peer_task = "ps_server/0"}),
                 "certificate is for coordinator, expected ps_server/0"));
  World<Grpc> impostor(NamingPeers(), {.tls = Issue(folder, "worker-0", ca, ca)}, {.tls = own});
  CHECK(Contains(call(impostor, {.tls = own, .peer_task = "coordinator"}),
                 "certificate is for worker/0, expected coordinator"));
  World<Grpc> server(NamingPeers(), {.tls = Issue(folder, "ps_server-1", ca, ca)}, {.tls = own});
  CHECK(call(server, {.tls = own, .peer_task = "ps_server"}).ok());
  CHECK(call(server, {.tls = own, .peer_task = "ps_server/1"}).ok());
  CHECK(Contains(call(server, {.tls = own, .peer_task = "ps_server/0"}),
                 "certificate is for ps_server/1, expected ps_server/0"));
  World<Grpc> any(NamingPeers(),
                  {.tls = Issue(folder, "any", ca, ca, {.names = "URI:evergrad://ps_server"})},
                  {.tls = own});
  CHECK(call(any, {.tls = own, .peer_task = "ps_server/0"}).ok());

  World<Grpc> elsewhere(
      NamingPeers(),
      {.unix_path = folder / "e",
       .tls = Issue(folder, "elsewhere", ca, ca,
                    {.names = "URI:evergrad://coordinator,IP:10.0.0.1,DNS:train.example"})},
      {.tls = own});
  CHECK(call(elsewhere, {.tls = own, .peer_task = "coordinator"}).ok());
  CHECK(Contains(call(elsewhere, {.tls = own, .peer_task = "coordinator", .check_host = true}),
                 "certificate is for 10.0.0.1, train.example, but the dialed host is 127.0.0.1"));
  CHECK(call(elsewhere,
             {.tls = own, .peer_task = "coordinator", .check_host = true, .use_unix = true})
            .ok());
}

TEST_CASE("a server refuses a data stream of a peer whose certificate does not permit it") {
  TempFolder folder;
  const Authority ca;
  World<Grpc> world(NamingPeers(),
                    {.tls = Issue(folder, "ps_server-0", ca, ca), .data_peers = "worker"},
                    {.tls = Issue(folder, "worker-7", ca, ca)});
  const auto push = [](World<Grpc>& to, const TlsFiles& tls) {
    auto channel = to.transport->Dial({.host_port = to.server->address()}, {.tls = tls});
    REQUIRE(channel.ok());
    auto data = (*channel)->OpenData();
    const auto results = Collect<DataResult>();
    data->Call(0, TextFrame("x"), {.response_bytes_max = 64}, Into(results));
    const auto pushed = results->Next();
    REQUIRE(pushed);
    return pushed->status();
  };
  CHECK(push(world, Issue(folder, "worker-7", ca, ca)).ok());
  const auto refused = push(world, Issue(folder, "ps_server-1", ca, ca));
  INFO(refused.ToString());
  CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
  CHECK(Contains(refused, "certificate is for ps_server/1, expected worker"));
  CHECK(world.server->stats().refused_total >= 1);
  // A server accepts two kinds of clients: workers, and servers to which its shards are moved.
  World<Grpc> both(NamingPeers(),
                   {.tls = Issue(folder, "ps_server-0", ca, ca), .data_peers = "worker,ps_server"},
                   {.tls = Issue(folder, "worker-7", ca, ca)});
  CHECK(push(both, Issue(folder, "worker-7", ca, ca)).ok());
  CHECK(push(both, Issue(folder, "ps_server-1", ca, ca)).ok());
  CHECK(Contains(push(both, Issue(folder, "coordinator", ca, ca)),
                 "certificate is for coordinator, expected ps_server"));
}

TEST_CASE(
    "a peer of another authority or without a certificate is refused by name, and the server "
    "continues") {
  TempFolder folder;
  const Authority ca, other("another CA");
  World<Grpc> world(NamingPeers(), {.tls = Issue(folder, "server", ca, ca)},
                    {.tls = Issue(folder, "worker", ca, ca)});
  const auto call = [&](const TlsFiles& tls) {
    auto channel = world.transport->Dial({.host_port = world.server->address()}, {.tls = tls});
    REQUIRE(channel.ok());
    const auto unary = UnaryAndWait(**channel, "/evergrad.v1.Control/Who", "", 10000ms).status();
    auto data = (*channel)->OpenData();
    const auto results = Collect<DataResult>();
    data->Call(0, TextFrame("x"), {}, Into(results));
    const auto pushed = results->Next();
    REQUIRE(pushed);
    INFO(unary.ToString() << " | " << pushed->status().ToString());
    CHECK_FALSE(pushed->ok());
    return unary;
  };
  // This client does not trust the server, and the server does not trust it.
  const auto wrong = call(Issue(folder, "stranger", other, other));
  INFO(wrong.ToString());
  CHECK(wrong.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(wrong, "certificate verify failed"));
  CHECK_FALSE(IsNotConnected(wrong));
  const auto none = call({});
  INFO(none.ToString());
  CHECK(none.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(none, "tls"));
  // This client trusts the server, but the server does not trust it. With TLS 1.3 only the server
  // knows this, and only after the client's handshake has ended.
  TlsFiles both = Issue(folder, "outsider", other, other);
  both.ca = folder / "both.pem";
  std::ofstream(both.ca) << std::ifstream(folder / "worker.ca.pem").rdbuf()
                         << std::ifstream(folder / "outsider.ca.pem").rdbuf();
  const auto outsider = call(both);
  INFO(outsider.ToString());
  CHECK(outsider.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(
      outsider, "the peer refused this task's certificate: certificate verify failed at the peer"));
  CHECK_FALSE(IsNotConnected(none));
  CHECK_FALSE(IsNotConnected(outsider));
  CHECK(world.Unary("/evergrad.v1.Control/Who", "").value() == "worker user/worker");
}

// ---------------------------------------------------------------- addresses

TEST_CASE(
    "without credentials a server listens on loopback only, and the message says how to open it") {
  const auto transport = MakeGrpcTransport(nullptr);
  for (const char* address : {"0.0.0.0:0", "[::]:0", "10.1.2.3:0", "example.org:0"}) {
    const auto status = transport->Listen({.listen = address}, {}).status();
    INFO(address);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(Contains(status, "tls"));
    CHECK(Contains(status, "insecure-listen"));
  }
  for (const char* address : {"127.0.0.1", "127.0.0.1:70000", ":0", "::1:0"})
    CHECK(transport->Listen({.listen = address}, {}).status().code() ==
          absl::StatusCode::kInvalidArgument);
  const auto open = transport->Listen({.insecure_listen = "0.0.0.0:0"}, {});
  REQUIRE(open.ok());
  CHECK((*open)->address().find("0.0.0.0:") == 0);
  const auto local = transport->Listen({.listen = "localhost:0"}, {});
  CHECK(local.ok());
}

TEST_CASE(
    "the files in /sys that a lock's first wait reads were read before the first connection") {
  const auto transport = MakeGrpcTransport(nullptr);
  // These calls must not open a file. A file that is opened between connect() and gRPC's reading of
  // errno could change errno.
  errno = 0;
  absl::base_internal::NumCPUs();
  absl::base_internal::NominalCPUFrequency();
  CHECK(errno == 0);
}

TEST_CASE("a port in use is Unavailable and is not shared") {
  const auto transport = MakeGrpcTransport(nullptr);
  const auto first = transport->Listen({}, {});
  REQUIRE(first.ok());
  const auto second = transport->Listen({.listen = (*first)->address()}, {});
  CHECK(second.status().code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(second.status(), (*first)->address()));
}

TEST_CASE(
    "a unix socket works beside TCP and for its user alone, and a path that is too long falls back "
    "to TCP") {
  TempFolder folder;
  const std::string path = folder / "s.sock",
                    long_path = folder / (std::string(120, 'x') + ".sock");
  World<Grpc> world(Echoing(), {.unix_path = path});
  CHECK(world.server->unix_path() == path);
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const auto health = [&](const Address& address) {
    auto channel = world.transport->Dial(address, {.use_unix = true});
    REQUIRE(channel.ok());
    return UnaryAndWait(**channel, "/grpc.health.v1.Health/Check", "", 10000ms).status();
  };
  // No process listens on the port, so the answer comes through the unix socket.
  CHECK(health({.host_port = "127.0.0.1:1", .unix_path = path}).ok());
  CHECK(health({.host_port = world.server->address(), .unix_path = folder / "nobody.sock"}).ok());
  CHECK(health({.host_port = world.server->address(), .unix_path = long_path}).ok());
  auto fallen_back = world.transport->Listen({.unix_path = long_path}, Echoing());
  REQUIRE(fallen_back.ok());
  CHECK((*fallen_back)->unix_path() == "");
  auto dialled =
      world.transport->Dial({.host_port = "127.0.0.1:1", .unix_path = path}, {.use_unix = true});
  auto data = (*dialled)->OpenData();
  const auto results = Collect<DataResult>();
  data->Call(0, Patterned(2u << 20, 4), {.response_bytes_max = 2u << 20}, Into(results));
  CHECK(results->Next()->ok());
}

// ---------------------------------------------------------------- any gRPC client

TEST_CASE("an ordinary gRPC client can call unary methods, and compressed messages are refused") {
  World<Grpc> world(NamingPeers());
  const auto call = [&](grpc_compression_algorithm compression) {
    grpc::ChannelArguments arguments;
    arguments.SetCompressionAlgorithm(compression);
    const auto channel = grpc::CreateCustomChannel(world.server->address(),
                                                   grpc::InsecureChannelCredentials(), arguments);
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    grpc::CompletionQueue queue;
    const grpc::Slice slice(std::string(2000, 'x'));
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto reader =
        stub.PrepareUnaryCall(&context, "/evergrad.v1.Control/ListTasks", request, &queue);
    reader->StartCall();
    reader->Finish(&reply, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return status;
  };
  CHECK(call(GRPC_COMPRESS_NONE).ok());
  CHECK(call(GRPC_COMPRESS_GZIP).error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("a unary call whose request does not arrive is ended, and its place is freed") {
  World<Grpc> world(NamingPeers(), {.streams_max = 2, .unary_request_max = 300ms});
  grpc::GenericStub stub(
      grpc::CreateChannel(world.server->address(), grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag;
    bool ok;
    return queue.Next(&tag, &ok) && ok;
  };
  struct Half {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::Status status;
  } halves[2];
  for (Half& half : halves) {
    half.call = stub.PrepareCall(&half.context, "/evergrad.v1.Control/Who", &queue);
    half.call->StartCall(nullptr);
    REQUIRE(next());
    // The server has received only the headers of this call.
    while (world.server->stats().streams < static_cast<std::uint64_t>(&half - halves + 1))
      std::this_thread::yield();
  }
  CHECK(world.Unary("/evergrad.v1.Control/Who", "").status().code() ==
        absl::StatusCode::kResourceExhausted);
  for (Half& half : halves) {
    half.call->Finish(&half.status, nullptr);
    REQUIRE(next());
    CHECK(half.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    CHECK(half.status.error_message() == "no request arrived: unary_request_max_ms=300");
  }
  while (world.server->stats().streams > 0) std::this_thread::yield();
  CHECK(world.Unary("/evergrad.v1.Control/Who", "").ok());
  queue.Shutdown();
  next();
}

TEST_CASE(
    "messages that were sent before Close arrive, even if the client's transport ends at once") {
  const auto messages = Collect<std::string>();
  const auto ends = Collect<absl::Status>();
  std::shared_ptr<MessageStream> server_end;
  Handlers handlers;
  handlers.stream =
      [&](const PeerInfo&, absl::string_view,
          std::shared_ptr<MessageStream> stream) -> std::optional<MessageStreamEvents> {
    server_end = std::move(stream);
    return MessageStreamEvents{
        .on_message = [messages](std::string text) { messages->Put(std::move(text)); },
        .on_end = [ends](absl::Status status) { ends->Put(std::move(status)); }};
  };
  World<Grpc> world(std::move(handlers));
  constexpr int kMessages = 200;
  {
    const auto transport = MakeGrpcTransport(nullptr);
    auto channel = transport->Dial({.host_port = world.server->address()}, {});
    REQUIRE(channel.ok());
    auto stream = (*channel)->OpenStream("/evergrad.v1.Sessions/Session", {});
    for (int i = 0; i < kMessages; ++i)
      REQUIRE(stream->Send("up " + std::to_string(i) + std::string(20000, ' ')).ok());
    stream->Close();
    stream.reset();
    channel->reset();
  }
  for (int i = 0; i < kMessages; ++i) {
    const auto message = messages->Next();
    REQUIRE(message);
    REQUIRE(message->find("up " + std::to_string(i) + " ") == 0);
  }
  CHECK(ends->Next().value().ok());
}

// ---------------------------------------------------------------- other processes

// A server in another process. The process executes this test program again, because a fork does
// not work in a process that has gRPC's threads.
class ServerProcess {
 public:
  // `scenario` is the name of a hidden test case below, which the process runs.
  ServerProcess(const char* scenario, const std::string& argument) {
    int out[2];
    if (pipe(out) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out[1], 9);
      setenv("EVERGRAD_TEST_ARGUMENT", argument.c_str(), 1);
      execl("/proc/self/exe", "server", scenario, static_cast<char*>(nullptr));
      _exit(1);
    }
    close(out[1]);
    out_ = out[0];
    address_ = ReadLine();
  }
  ~ServerProcess() {
    Signal(SIGCONT);
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(out_);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Returns once the kernel has stopped the process.
  void Stop() const {
    Signal(SIGSTOP);
    int status = 0;
    if (waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status))
      throw std::runtime_error("the server did not stop");
  }
  std::string ReadLine() const {
    std::string line;
    for (char c; read(out_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  std::uint64_t RssBytes() const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/statm");
    std::uint64_t total = 0, resident = 0;
    in >> total >> resident;
    return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  std::string address_;
};

constexpr std::uint64_t kChildBudget = 64u << 20, kChildLanes = 32u << 20;

TEST_CASE("the server process of the tests of this file", "[.child]") {
  TuneAllocator();
  // A push is held until four pushes have arrived, and then all four are answered. The budget is
  // therefore always full while more pushes wait.
  struct Slow {
    Mutex mu;
    std::deque<Arrived> held ABSL_GUARDED_BY(mu);
  };
  const auto slow = std::make_shared<Slow>();
  Handlers handlers;
  handlers.data = [slow](const PeerInfo&, ReceivedFrame frame,
                         std::unique_ptr<DataResponder> responder) {
    if (frame.bytes.size() <
        1000) {  // a small call, which warms up the server, is answered at once
      responder->Answer({});
      return;
    }
    std::deque<Arrived> go;
    {
      MutexLock lock(&slow->mu);
      slow->held.push_back({std::move(frame), std::move(responder)});
      if (slow->held.size() >= kChildBudget / (16u << 20)) go.swap(slow->held);
    }
    for (auto& request : go) {
      request.frame = {};
      request.responder->Answer({});
    }
  };
  const auto transport = MakeGrpcTransport(nullptr);
  const char* unix_path = std::getenv("EVERGRAD_TEST_ARGUMENT");
  auto server = transport->Listen({.unix_path = unix_path == nullptr ? "" : unix_path,
                                   .budget_bytes_max = kChildBudget,
                                   .lane_bytes_max = kChildLanes},
                                  std::move(handlers));
  REQUIRE(server.ok());
  const std::string line = (*server)->address() + "\n";
  REQUIRE(write(9, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  runtime::WaitableEvent never;
  never.WaitFor(120s);
}
const char* const kChild = "the server process of the tests of this file";

TEST_CASE("the death of a server process ends calls and streams within moments") {
  ServerProcess server(kChild, "");
  const auto transport = MakeGrpcTransport(nullptr);
  auto channel = transport->Dial({.host_port = server.address()}, {});
  REQUIRE(channel.ok());
  auto data = (*channel)->OpenData();
  const auto results = Collect<DataResult>();
  data->Call(0, TextFrame("warm"), {}, Into(results));
  REQUIRE(results->Next()->ok());
  data->Call(0, Patterned(16u << 20, 1), {}, Into(results));  // It is not answered yet.
  const auto before = std::chrono::steady_clock::now();
  server.Signal(SIGKILL);
  const auto result = results->Next();
  const auto seen = std::chrono::steady_clock::now() - before;
  REQUIRE(result);
  CHECK(result->status().code() == absl::StatusCode::kUnavailable);
  CHECK(seen < 1s);
  const double seen_ms =
      static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(seen).count()) /
      1000;
  WARN("death of a peer seen after " << seen_ms << " ms");
}

TEST_CASE(
    "the watchdog abandons a stopped server over TCP and unix sockets, and the client reconnects "
    "later") {
  TempFolder folder;
  const std::string path = folder / "s.sock";
  ServerProcess server(kChild, path);
  const bool by_socket = GENERATE(false, true);
  const auto transport = MakeGrpcTransport(nullptr);
  auto channel = transport->Dial({.host_port = server.address(), .unix_path = path},
                                 {.use_unix = by_socket, .progress_timeout = 600ms});
  REQUIRE(channel.ok());
  auto data = (*channel)->OpenData();
  const auto results = Collect<DataResult>();
  data->Call(0, TextFrame("warm"), {}, Into(results));
  REQUIRE(results->Next()->ok());
  server.Stop();
  data->Call(0, TextFrame("lost"), {}, Into(results));
  const auto lost = results->Next();
  REQUIRE(lost);
  CHECK(lost->status().code() == absl::StatusCode::kUnavailable);
  server.Signal(SIGCONT);
  bool came_back = false;
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       !came_back && std::chrono::steady_clock::now() < until;) {
    data->Call(0, TextFrame("again"), {}, Into(results));
    came_back = results->Next()->ok();
  }
  CHECK(came_back);
}

TEST_CASE("64 streams that push 16 MiB each to a slow server use at most its budget") {
  // If lanes are allowed, only the first seven clients get one. The others push through the socket.
  const std::uint64_t ring_bytes = GENERATE(0u, 2u << 20);
  const std::uint64_t lane_bytes = ring_bytes == 0 ? 0 : kChildLanes;
  ServerProcess server(kChild, "");
  const auto transport = MakeGrpcTransport(nullptr);
  const auto lanes = Collect<absl::Status>();
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<std::unique_ptr<DataStream>> streams;
  const auto results = Collect<DataResult>();
  for (int i = 0; i < 64; ++i) {
    auto channel =
        transport->Dial({.host_port = server.address()},
                        {.lane_ring_bytes = ring_bytes,
                         .on_lane = [lanes](const absl::Status& status) { lanes->Put(status); }});
    REQUIRE(channel.ok());
    channels.push_back(*std::move(channel));
    streams.push_back(channels.back()->OpenData());
    streams.back()->Call(0, TextFrame("warm"), {}, Into(results));
  }
  for (int i = 0; i < 64; ++i) REQUIRE(results->Next()->ok());
  if (ring_bytes > 0) {
    int agreed = 0;
    for (int i = 0; i < 64; ++i) agreed += lanes->Next()->ok();
    CHECK(agreed == kChildLanes / (4u << 20) - 1);  // A lane has one page more than its rings.
  }
  const std::uint64_t base = server.RssBytes();
  std::uint64_t peak = base;
  const Frame push = Patterned(16u << 20, 1);
  for (auto& stream : streams) stream->Call(0, push, {.deadline = 120000ms}, Into(results));
  for (int i = 0; i < 64; ++i) {
    const auto result = results->Next(60000ms);
    peak = std::max(peak, server.RssBytes());
    REQUIRE(result);
    CHECK(result->ok());
  }
  WARN("server memory with lanes of " << (lane_bytes >> 20) << " MiB: base " << (base >> 20)
                                      << " MiB, peak " << (peak >> 20) << " MiB, budget "
                                      << (kChildBudget >> 20) << " MiB");
#if !defined(__SANITIZE_ADDRESS__)  // ASan keeps freed memory in quarantine.
  // This is rule 5: the sum of the base, the budget, gRPC's quota and the lanes.
  CHECK(peak <= base + kChildBudget + 2 * kChildBudget + lane_bytes);
#endif
}

// ---------------------------------------------------------------- lanes between processes

std::size_t OpenFiles() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}
std::size_t MappedLanes() {
  std::ifstream in("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(in, line);)
    count += line.find("evergrad-lane") != std::string::npos;
  return count;
}
std::size_t OpenLanes() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    count += std::filesystem::read_symlink(entry.path(), ignored).string().find("evergrad-lane") !=
             std::string::npos;
  }
  return count;
}
// Waits until `condition` is true. Other threads make it true soon.
bool Soon(const std::function<bool()>& condition) {
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       std::chrono::steady_clock::now() < until; std::this_thread::yield()) {
    if (condition()) return true;
  }
  return false;
}

TEST_CASE(
    "payload to a server process uses shared memory, and the server's death in mid-call leaves "
    "none of it") {
  const std::size_t files = OpenFiles();
  {
    const auto transport = MakeGrpcTransport(nullptr);
    for (int round = 0; round < 3; ++round) {
      ServerProcess server(kChild, "");
      const auto lanes = Collect<absl::Status>();
      auto channel =
          transport->Dial({.host_port = server.address()},
                          {.lane_ring_bytes = 1u << 20,
                           .on_lane = [lanes](const absl::Status& status) { lanes->Put(status); }});
      REQUIRE(channel.ok());
      auto data = (*channel)->OpenData();
      REQUIRE(lanes->Next()->ok());
      CHECK(MappedLanes() == 1);
      CHECK(OpenLanes() == 0);  // The file of a lane is open only while the lane is offered.
      const auto results = Collect<DataResult>();
      for (int i = 0; i < 8; ++i)
        data->Call(0, Patterned(16u << 20, 1), {.deadline = 60000ms}, Into(results));
      if (round > 0) REQUIRE(results->Next()->ok());  // Only four lanes are released at a time.
      server.Signal(SIGKILL);
      for (std::size_t i = round > 0 ? 1 : 0; i < 8; ++i) REQUIRE(results->Next());
      CHECK(MappedLanes() == 0);
      CHECK(OpenLanes() == 0);
    }
  }
  CHECK(Soon([&] { return OpenFiles() <= files + 8; }));  // gRPC keeps some files open.
}

TEST_CASE("the client process of the next test", "[.child]") {
  const std::string line = "started\n";
  REQUIRE(write(9, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  const auto transport = MakeGrpcTransport(nullptr);
  auto channel = transport->Dial({.host_port = std::getenv("EVERGRAD_TEST_ARGUMENT")},
                                 {.lane_ring_bytes = 256u << 10});
  REQUIRE(channel.ok());
  auto data = (*channel)->OpenData();
  const auto results = Collect<DataResult>();
  for (int i = 0; i < 4; ++i)
    data->Call(0, Patterned(8u << 20, 1), {.response_bytes_max = 8u << 20, .deadline = 60000ms},
               Into(results));
  while (results->Next())
    data->Call(0, Patterned(8u << 20, 1), {.response_bytes_max = 8u << 20, .deadline = 60000ms},
               Into(results));
}

TEST_CASE(
    "a client process killed in mid-call leaves no shared memory at the server, and other clients "
    "continue") {
  World<Grpc> world(Echoing(), {.lane_bytes_max = 8u << 20}, {.lane_ring_bytes = 256u << 10});
  auto data = world.channel->OpenData();
  const auto results = Collect<DataResult>();
  for (int round = 0; round < 4; ++round) {
    {
      ServerProcess client("the client process of the next test", world.server->address());
      const std::uint64_t before = world.server->stats().bytes_received;
      REQUIRE(Soon([&] {
        return world.server->stats().lanes == 2 &&
               world.server->stats().bytes_received >
                   before + (20u << 20) * static_cast<unsigned>(round);
      }));
      CHECK(world.server->stats().lane_bytes > 2 * (512u << 10));
      client.Signal(SIGKILL);
    }
    REQUIRE(Soon([&] { return world.server->stats().lanes == 1; }));
    CHECK(Soon([&] { return MappedLanes() == 2; }));  // Both ends are in this process.
    CHECK(OpenLanes() == 0);
    CHECK(Soon([&] { return world.server->stats().budget_used == 0; }));
    data->Call(0, Patterned(4u << 20, 7), {.response_bytes_max = 4u << 20}, Into(results));
    const auto result = results->Next();
    REQUIRE(result);
    REQUIRE(result->ok());
    CHECK(IsPatterned(View((*result)->bytes), 4u << 20, 7));
  }
  CHECK(world.server->stats().malformed_total == 0);
  data.reset();
  CHECK(Soon(
      [&] { return world.server->stats().lanes == 0 && world.server->stats().lane_bytes == 0; }));
  CHECK(MappedLanes() == 0);
}

TEST_CASE(
    "with TLS the lane is offered inside of the stream, and a peer without memory or with lanes "
    "off uses the socket") {
  TempFolder folder;
  const Authority ca;
  const TlsFiles worker = Issue(folder, "worker-7", ca, ca);
  const auto told = Collect<std::pair<std::string, absl::Status>>();
  World<Grpc> world(Echoing(),
                    {.tls = Issue(folder, "ps_server-0", ca, ca),
                     .lane_bytes_max = 1u << 20,
                     .on_lane =
                         [told](const std::string& address, const absl::Status& status) {
                           told->Put({address, status});
                         }},
                    {.tls = worker});
  const auto echo = [&](std::uint64_t ring_bytes) {
    const auto lanes = Collect<absl::Status>();
    auto channel = world.transport->Dial(
        {.host_port = world.server->address()},
        {.tls = worker,
         .lane_ring_bytes = ring_bytes,
         .on_lane = [lanes](const absl::Status& status) { lanes->Put(status); }});
    REQUIRE(channel.ok());
    auto data = (*channel)->OpenData();
    const auto status = ring_bytes == 0 ? absl::OkStatus() : *lanes->Next();
    const auto results = Collect<DataResult>();
    data->Call(0, Patterned(3u << 20, 1), {.response_bytes_max = 3u << 20}, Into(results));
    const auto result = results->Next();
    REQUIRE(result);
    REQUIRE(result->ok());
    CHECK(IsPatterned(View((*result)->bytes), 3u << 20, 1));
    CHECK(world.server->stats().lanes == (ring_bytes > 0 && status.ok() ? 1u : 0u));
    return status;
  };
  CHECK(echo(128u << 10).ok());
  CHECK(told->Next()->second.ok());
  CHECK(Soon([&] { return world.server->stats().lanes == 0; }));
  CHECK(echo(0).ok());
  CHECK(told->total() == 1);
  const auto full = echo(512u << 10);  // The rings would fit, but not with their first page.
  CHECK(Contains(full, "the lanes would exceed lane_bytes_max"));
  CHECK(Contains(told->Next()->second, "the lanes would exceed lane_bytes_max"));
  CHECK(world.server->stats().lane_bytes_refused == 1);
  for (const std::uint64_t bad : {std::uint64_t{1}, std::uint64_t{100000}, std::uint64_t{65} << 20})
    CHECK(
        world.transport
            ->Dial({.host_port = world.server->address()}, {.tls = worker, .lane_ring_bytes = bad})
            .status()
            .code() == absl::StatusCode::kInvalidArgument);
  World<Grpc> none(Echoing(), {}, {.lane_ring_bytes = 128u << 10});
  auto data = none.channel->OpenData();
  const auto results = Collect<DataResult>();
  data->Call(0, Patterned(1u << 20, 1), {.response_bytes_max = 1u << 20}, Into(results));
  CHECK(results->Next()->ok());
  CHECK(none.server->stats().lanes == 0);
}

}  // namespace
}  // namespace evergrad::transport
#endif
