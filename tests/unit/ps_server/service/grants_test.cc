// Tests that a server refuses pushes of closures that the coordinator has not granted to their
// sender (LEDGER line 35), and which pushes the certificate of a sender allows.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/grants/grant_proof.h"
#include "ps_server/service/data_sender.h"
#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

using Floats = std::vector<float>;

constexpr char kKey[] = "known to the coordinator and the servers";

struct Guarded : HostFixture {
  Guarded() {
    host->jobs().Learn(JobUid(kJob), {1, 9}, 8);
    host->jobs().SetGrantKey(JobUid(kJob), kKey);
    for (std::uint32_t shard = 0; shard < 3; ++shard) Hold(CountingShard(shard));
  }
};

// Returns a push by worker/7 of closure 3 and attempt (1, 1), with the proof of its Grant.
RequestBuilder Granted(std::uint32_t shard = 1) {
  RequestBuilder request;
  request.header.set_client_name("worker/7");
  request.Push(shard, 3, 2, Floats(4, 1));
  v1::GrantProof& grant = *request.header.add_grants();
  grant.set_closure(3);
  *grant.mutable_attempt() = client::ToProto(Attempt{1, 1});
  grant.set_mac(grants::MakeProof(kKey, JobUid(kJob), ClosureId(3), Attempt{1, 1}, "7"));
  return request;
}

std::string StateOf(HostFixture& f) {
  std::string text;
  for (v1::ShardState state : f.Report()) text += state.SerializeAsString();
  return text;
}

double Counted(HostFixture& f, const std::string& name) {
  const std::string text = f.registry.PrometheusText();
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size() + 2);
}

TEST_CASE("a push that was granted to its sender is applied, by every shard of the request") {
  Guarded f;
  RequestBuilder request = Granted(0);
  request.Push(1, 3, 2, Floats(4, 1));
  request.Push(2, 3, 2, Floats(4, 1));
  request.Pull(2);
  const auto reply = f.Send(request);
  for (int i = 0; i < 3; ++i) CHECK(reply->push(i) == v1::APPLIED);
  CHECK(reply->values() == Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::DUPLICATE);
}

TEST_CASE("a push without a grant is INVALID by name, is counted, and changes nothing") {
  struct Case {
    const char* name;
    std::function<void(RequestBuilder&)> spoil;
  };
  const std::vector<Case> cases = {
      {"no proof", [](RequestBuilder& r) { r.header.clear_grants(); }},
      {"a closure that was never granted",
       [](RequestBuilder& r) { r.header.mutable_pushes(0)->set_closure(1000000000); }},
      {"closure 2^63",
       [](RequestBuilder& r) { r.header.mutable_pushes(0)->set_closure(1ull << 63); }},
      {"closure and proof named alike",
       [](RequestBuilder& r) {
         r.header.mutable_pushes(0)->set_closure(4);
         r.header.mutable_grants(0)->set_closure(4);
       }},
      {"an attempt above all granted ones",
       [](RequestBuilder& r) {
         *r.header.mutable_pushes(0)->mutable_attempt() = client::ToProto(Attempt{9, 9});
         *r.header.mutable_grants(0)->mutable_attempt() = client::ToProto(Attempt{9, 9});
       }},
      {"another worker's proof", [](RequestBuilder& r) { r.header.set_client_name("worker/8"); }},
      {"a server's name", [](RequestBuilder& r) { r.header.set_client_name("ps_server/7"); }},
      {"no name", [](RequestBuilder& r) { r.header.clear_client_name(); }},
      {"a proof cut short",
       [](RequestBuilder& r) {
         r.header.mutable_grants(0)->set_mac(r.header.grants(0).mac().substr(0, 8));
       }},
      {"another key's proof",
       [](RequestBuilder& r) {
         r.header.mutable_grants(0)->set_mac(
             grants::MakeProof("guessed", JobUid(kJob), ClosureId(3), Attempt{1, 1}, "7"));
       }},
      {"a skip",
       [](RequestBuilder& r) {
         r.header.clear_grants();
         r.header.mutable_pushes(0)->set_kind(v1::SKIP);
         r.header.mutable_pushes(0)->set_skip_reason("nan");
         r.payloads[0] = {};
       }},
  };
  Guarded f;
  // After this push, a repeat that is accepted would get DUPLICATE.
  CHECK(f.Send(Granted())->push() == v1::APPLIED);
  const std::string before = StateOf(f);
  double refused = 0;
  for (const Case& c : cases) {
    INFO(c.name);
    RequestBuilder request = Granted();
    c.spoil(request);
    const auto reply = f.Send(request);
    CHECK(reply->push() == v1::INVALID);
    CHECK(reply->response.header->pushes(0).message().find(
              "the coordinator has not granted this attempt to the sender of the push") !=
          std::string::npos);
    CHECK(Counted(f, "evergrad_ps_server_unproved_pushes_total") == ++refused);
  }
  CHECK(StateOf(f) == before);
}

TEST_CASE("an attempt without a grant does not fence the granted one off") {
  Guarded f;
  CHECK(f.Send(Granted())->push() == v1::APPLIED);
  RequestBuilder forged = Granted();
  *forged.header.mutable_pushes(0)->mutable_attempt() = client::ToProto(Attempt{~0ull, ~0ull});
  CHECK(f.Send(forged)->push() == v1::INVALID);
  RequestBuilder next;
  next.header = Granted().header;
  next.header.clear_pushes();
  next.Push(1, 3, 3, Floats(4, 1));
  CHECK(f.Send(next)->push() == v1::APPLIED);
}

TEST_CASE(
    "each push of a request has its own proof, and a push without a proof does not delay the "
    "others") {
  Guarded f;
  RequestBuilder request = Granted(0);
  request.Push(1, 4, 2, Floats(4, 1));
  const auto reply = f.Send(request);
  CHECK(reply->push(0) == v1::APPLIED);
  CHECK(reply->push(1) == v1::INVALID);
}

TEST_CASE("a shard whose Assign has no key asks for no proof") {
  HostFixture f;
  f.Hold(CountingShard(1));
  RequestBuilder request;
  request.Push(1, 3, 2, Floats(4, 1));
  CHECK(f.Send(request)->push() == v1::APPLIED);
}

TEST_CASE("a request with more proofs than a worker can have work is refused as a whole") {
  Guarded f;
  RequestBuilder request = Granted();
  while (request.header.grants_size() <= grants::kProofsPerRequestMax)
    *request.header.add_grants() = request.header.grants(0);
  const auto reply = f.Send(request);
  REQUIRE(reply->response.header->has_error());
  CHECK(reply->response.header->error().message().find(
            "too many proofs of grants in a request: max=16 got=17") != std::string::npos);
}

TEST_CASE("a proof is computed once, however many pushes carry it") {
  grants::GrantGuard guard(JobUid(kJob), kKey);
  const std::string proof = grants::MakeProof(kKey, JobUid(kJob), ClosureId(3), Attempt{1, 1}, "7");
  for (int i = 0; i < 1000; ++i) CHECK(guard.Fits(proof, ClosureId(3), Attempt{1, 1}, "7"));
  CHECK(guard.proofs_computed() == 1);
  CHECK_FALSE(guard.Fits(proof, ClosureId(3), Attempt{1, 1}, "8"));
  CHECK_FALSE(guard.Fits(proof, ClosureId(4), Attempt{1, 1}, "7"));
  std::string changed = proof;
  changed[3] = static_cast<char>(changed[3] ^ 1);
  CHECK_FALSE(guard.Fits(changed, ClosureId(3), Attempt{1, 1}, "7"));
}

TEST_CASE("a certificate decides which requests its holder may send to a server") {
  RequestBuilder push = Granted(), pull, image, nothing;
  pull.header.set_client_name("worker/7");
  pull.Pull(1);
  image.header.set_client_name("ps_server/1");
  image.Pull(1).mutable_image()->set_bytes(100);
  struct Case {
    std::string certificate;
    const RequestBuilder& request;
    bool may;
  };
  const std::vector<Case> cases = {
      {"", push, true},
      {"", image, true},
      {"worker/7", push, true},
      {"worker/7", pull, true},
      {"worker", push, true},
      {"worker/8", push, false},
      {"worker/8", pull, false},
      {"worker/7", image, false},
      {"ps_server/1", image, true},
      {"ps_server/1", push, false},
      {"ps_server/1", pull, false},
      {"user/alice", pull, false},
      {"user/alice", push, false},
      {"user", image, false},
      {"coordinator", push, false},
      {"worker/7", nothing, false},
  };
  for (const Case& c : cases) {
    INFO(c.certificate << " " << c.request.header.client_name());
    const absl::Status status = CheckSender(c.certificate, c.request.header);
    CHECK(status.ok() == c.may);
    CHECK((c.may || absl::IsPermissionDenied(status)));
  }
}

TEST_CASE(
    "a server's certificate cannot push, even with a worker's proof; the refusal is counted and "
    "changes nothing") {
  Guarded f;
  const std::string before = StateOf(f);
  auto reply = std::make_shared<Reply>();
  f.host->Handle({Granted().Frame(), nullptr},
                 std::make_unique<RecordingResponder>(reply, &f.answers), "ps_server/1");
  f.RunAll();
  REQUIRE(reply->response.header->has_error());
  CHECK(reply->response.header->error().message().find(
            "may only read the images of shards that move") != std::string::npos);
  CHECK(Counted(f, "evergrad_ps_server_senders_refused_total") == 1);
  CHECK(StateOf(f) == before);
  CHECK(f.Send(Granted())->push() == v1::APPLIED);
}

}  // namespace
}  // namespace evergrad::ps_server
