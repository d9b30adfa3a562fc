// Tests membership with scripts. Each line of a script is an event, and its output is the reaction
// to the event. The command `at` moves the clock and ticks every 10 ms.
#include <catch2/catch.hpp>

#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/membership/membership.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

// Runs scripts of these commands. N is the number of a registration, counted from 1.
//
//   worker NAME UID, server NAME UID      registers a task, whose process has the number UID. The
//                                         name "-" means no name, and "=3" means no name and that a
//                                         coordinator has given the task the number 3 before
//   heard N                               the task of this registration has sent a message
//   closed N                              the stream of this registration has ended
//   leaving N                             the task of this registration announces that it leaves
//   host NAME                             sets the host of the tasks that register from here on
//   at MS                                 moves the clock in steps of 10 ms, with a tick after each
//   sleep MS                              moves the clock without a tick
//   tick                                  makes one tick
//   show NAME                             prints the state of the tasks with this name
class Transcript {
 public:
  explicit Transcript(MembershipOptions options = {}) : membership_(options) {}

  std::string Run(const std::string& script) {
    std::istringstream lines(script);
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string verb, a, b;
      words >> verb >> a >> b;
      if (verb.empty()) continue;
      if (verb == "worker" || verb == "server")
        out += Register(verb, a == "-" ? std::string() : a, std::stoull(b));
      if (verb == "host") host_ = a;
      if (verb == "heard") membership_.Heard(now_, TaskId(std::stoull(a)));
      if (verb == "closed") out += Say(membership_.StreamClosed(now_, TaskId(std::stoull(a))));
      if (verb == "leaving") membership_.Leaving(now_, TaskId(std::stoull(a)), "SIGTERM");
      if (verb == "sleep") now_ = std::chrono::milliseconds(std::stoull(a));
      if (verb == "at") {
        while (now_ < std::chrono::milliseconds(std::stoull(a))) {
          now_ += std::chrono::milliseconds(10);
          out += Say(membership_.Tick(now_));
        }
      }
      if (verb == "tick") out += Say(membership_.Tick(now_));
      if (verb == "show") {
        for (const TaskEntry* entry : membership_.List()) {
          if (entry->identity != a) continue;
          absl::StrAppend(
              &out, RoleName(entry->role), "/", a, " is ", TaskStateName(entry->state),
              entry->reason.empty() ? "" : absl::StrCat(" (", entry->reason, ")"),
              " registrations=", entry->registrations,
              entry->backoff_until > now_
                  ? absl::StrCat(" backoff=", std::chrono::duration_cast<std::chrono::milliseconds>(
                                                  entry->backoff_until - now_)
                                                  .count())
                  : "",
              "\n");
        }
      }
    }
    return out;
  }
  Membership& membership() { return membership_; }

 private:
  std::string Register(const std::string& role, const std::string& name, std::uint64_t uid) {
    TaskHello hello;
    hello.role = role == "worker" ? Role::kWorker : Role::kPsServer;
    hello.numbered = name.starts_with('=');
    hello.identity = name.substr(hello.numbered);
    hello.process_uid = uid;
    hello.pid = static_cast<std::int64_t>(uid * 10);
    hello.host = host_;
    const RegisterVerdict v = membership_.Register(now_, hello);
    if (!v.accepted)
      return absl::StrCat("refused ", v.kind, v.exit ? " exit" : "", ": ", v.message, "\n");
    return absl::StrCat(v.task.value(), " is ", role, "/", v.identity,
                        v.former ? absl::StrCat(" in place of ", v.former->value(),
                                                v.former_same_process ? " (itself)"
                                                : v.former_was_gone   ? " (gone)"
                                                                      : "")
                                 : "",
                        "\n");
  }
  static std::string Say(const std::vector<MembershipChange>& changes) {
    std::string out;
    for (const MembershipChange& c : changes) {
      const char* kind = c.kind == MembershipChange::Kind::kSuspected ? "suspected"
                         : c.kind == MembershipChange::Kind::kGone    ? "gone"
                                                                      : "lost";
      absl::StrAppend(&out, c.task.value(), " ", RoleName(c.role), "/", c.identity, " ", kind,
                      c.close_session ? " close" : "", c.leaving ? " left" : "", ": ", c.reason,
                      "\n");
    }
    return out;
  }
  Membership membership_;
  MonoTime now_{0};
  std::string host_ = std::string(1, 'h');  // g++ 12 warns about the literal "h"
};

}  // namespace

TEST_CASE(
    "a worker whose stream closes is suspected at once and declared gone after the grace period") {
  Transcript t;
  CHECK(t.Run("worker a 1\nat 50\nclosed 1\nshow a\nat 140\nshow a\nat 160\nshow a") ==
        "1 is worker/a\n"
        "1 worker/a suspected: its session closed\n"
        "worker/a is suspected (its session closed) registrations=1\n"
        "worker/a is suspected (its session closed) registrations=1\n"
        "1 worker/a gone: its session closed\n"
        "worker/a is gone (its session closed) registrations=1\n");
}

TEST_CASE("a process that returns within the grace period keeps its place") {
  Transcript t;
  CHECK(t.Run("worker a 1\nclosed 1\nat 50\nworker a 1\nat 300\nshow a") ==
        "1 is worker/a\n"
        "1 worker/a suspected: its session closed\n"
        "2 is worker/a in place of 1 (itself)\n"
        "worker/a is alive registrations=2\n");
}

TEST_CASE("a silent worker is declared gone after its lease, and its session is closed") {
  Transcript t;
  CHECK(t.Run("worker a 1\nat 1000\nheard 1\nat 2490\nat 2500\nshow a\nworker a 1") ==
        "1 is worker/a\n"
        "1 worker/a gone close: no message arrived within its lease: ms=1500\n"
        "worker/a is gone (no message arrived within its lease: ms=1500) registrations=1\n"
        "2 is worker/a in place of 1 (itself)\n");
}

TEST_CASE("after a gap between the coordinator's own ticks every lease restarts") {
  Transcript t;
  CHECK(t.Run("worker a 1\nserver 0 2\nat 100\nsleep 60000\ntick\nat 61400\nat 61500\n") ==
        "1 is worker/a\n"
        "2 is server/0\n"
        "2 ps_server/0 suspected: no message arrived within its lease\n"
        "1 worker/a gone close: no message arrived within its lease: ms=1500\n");
  CHECK(t.membership().lease_restarts() == 1);
}

TEST_CASE(
    "the newer of two workers of one identity is served, and the older exits and may not return") {
  Transcript t;
  CHECK(t.Run("worker a 1\nat 10\nworker a 2\nat 20\nworker a 1\nworker a 2") ==
        "1 is worker/a\n"
        "2 is worker/a in place of 1\n"
        "refused replaced exit: a newer process has taken this identity: worker/a is pid 20 on h, "
        "registration 2\n"
        "3 is worker/a in place of 2 (itself)\n");
}

TEST_CASE("a second server of a living identity waits, and is told the holder") {
  Transcript t;
  CHECK(t.Run("server 0 1\nat 10\nserver 0 2\nat 500\nclosed 1\nserver 0 2\nat 1490\nserver 0 "
              "2\nat 1510\nserver 0 2") ==
        "1 is server/0\n"
        "refused identity_taken: server identity taken: identity=0 held_by=pid 10 on h, "
        "registration 1, its session is open\n"
        "1 ps_server/0 suspected: its session closed\n"
        "refused identity_taken: server identity taken: identity=0 held_by=pid 10 on h, "
        "registration 1, its lease runs\n"
        "refused identity_taken: server identity taken: identity=0 held_by=pid 10 on h, "
        "registration 1, its lease runs\n"
        "2 is server/0 in place of 1\n");
}

TEST_CASE("a newcomer that proves the former process's end does not wait for the server's lease") {
  using std::chrono::milliseconds;
  Membership membership{MembershipOptions{}};
  const auto hello = [](std::uint64_t uid, const std::string& lifeline, std::uint64_t ended) {
    return TaskHello{Role::kPsServer, "0",  uid, static_cast<std::int64_t>(uid), "h",
                     lifeline,        ended};
  };
  const TaskId first = membership.Register(milliseconds(0), hello(1, "boot/net", 0)).task;

  // A proof that a server's process has ended does not count while the session of the server is
  // open.
  RegisterVerdict verdict = membership.Register(milliseconds(10), hello(2, "boot/net", 1));
  CHECK(verdict.kind == "identity_taken");
  REQUIRE(verdict.holder);
  CHECK(verdict.holder->lives);
  CHECK(verdict.retry_after > milliseconds(0));
  membership.StreamClosed(milliseconds(20), first);

  // Without a proof, the verdict names the process whose end must be proved. The new process may
  // then register again at once.
  verdict = membership.Register(milliseconds(30), hello(2, "boot/net", 0));
  CHECK(verdict.kind == "identity_taken");
  CHECK(verdict.retry_after == milliseconds(0));
  REQUIRE(verdict.holder);
  CHECK(verdict.holder->process_uid == 1);
  CHECK(verdict.holder->lifeline == "boot/net");
  CHECK(verdict.holder->host == "h");
  CHECK_FALSE(verdict.holder->lives);
  CHECK(verdict.holder->free_identity == "1");

  // A proof must not be accepted if it is about another process, comes from another place, or has
  // no place.
  for (const TaskHello& no_proof :
       {hello(2, "boot/net", 7), hello(2, "boot/other", 1), hello(2, "", 1)})
    CHECK(membership.Register(milliseconds(40), no_proof).kind == "identity_taken");
  verdict = membership.Register(milliseconds(50), hello(2, "boot/net", 1));
  CHECK(verdict.accepted);
  CHECK(verdict.former == first);
  CHECK_FALSE(verdict.former_same_process);

  // If nobody can prove that the process of a server has ended, its lease must expire first.
  Membership others{MembershipOptions{}};
  others.StreamClosed(milliseconds(0), others.Register(milliseconds(0), hello(1, "", 0)).task);
  CHECK(others.Register(milliseconds(10), hello(2, "", 1)).kind == "identity_taken");
}

TEST_CASE("a server that announced its exit is replaced at once") {
  Transcript t;
  CHECK(t.Run("server 0 1\nleaving 1\nat 10\nclosed 1\nserver 0 2") ==
        "1 is server/0\n"
        "1 ps_server/0 suspected left: announced that it leaves: SIGTERM\n"
        "2 is server/0 in place of 1\n");
}

TEST_CASE("a server is lost after server_lost_after, also if its session is open") {
  MembershipOptions options;
  options.server_lost_after = std::chrono::seconds(3);
  Transcript t(options);
  CHECK(t.Run("server 0 1\nserver 1 2\nat 10\nclosed 1\nat 1000\nheard 2\nat 2990\nheard 2\nat "
              "3010\nserver 0 1\nat 4000\nheard 3\nat 5000\nheard 3\nat 6000") ==
        "1 is server/0\n"
        "2 is server/1\n"
        "1 ps_server/0 suspected: its session closed\n"
        "2 ps_server/1 suspected: no message arrived within its lease\n"
        "1 ps_server/0 lost: disconnected for longer than server_lost_after: ms=3000\n"
        "3 is server/0 in place of 1 (itself)\n"
        "2 ps_server/1 suspected: no message arrived within its lease\n"
        "2 ps_server/1 lost close: disconnected for longer than server_lost_after: ms=3000\n");
}

TEST_CASE("a server that is silent and then speaks again was only suspected") {
  Transcript t;
  CHECK(t.Run("server 0 1\nat 1600\nshow 0\nheard 1\nshow 0") ==
        "1 is server/0\n"
        "1 ps_server/0 suspected: no message arrived within its lease\n"
        "ps_server/0 is suspected (no message arrived within its lease) registrations=1\n"
        "ps_server/0 is alive registrations=1\n");
}

TEST_CASE("a worker without a name is numbered, and keeps its number when it returns") {
  Transcript t;
  CHECK(t.Run("worker - 1\nworker - 2\nworker 2 3\nworker - 4\nclosed 2\nworker - 2\nclosed 5\nat "
              "200\nworker - 9") ==
        "1 is worker/0\n"
        "2 is worker/1\n"
        "3 is worker/2\n"
        "4 is worker/3\n"
        "2 worker/1 suspected: its session closed\n"
        "5 is worker/1 in place of 2 (itself)\n"
        "5 worker/1 suspected: its session closed\n"
        "5 worker/1 gone: its session closed\n"
        "6 is worker/1 in place of 5 (gone)\n");
}

TEST_CASE("a numbered worker whose number was reassigned gets another one, and no worker exits") {
  Transcript t;
  // The worker that got the number 0 is gone, and a process has registered with the name 0.
  CHECK(t.Run("worker - 1\nclosed 1\nat 200\nworker 0 2\nworker =0 1\nworker =1 1\nworker 0 "
              "2\nshow 0\nshow 1") ==
        "1 is worker/0\n"
        "1 worker/0 suspected: its session closed\n"
        "1 worker/0 gone: its session closed\n"
        "2 is worker/0 in place of 1 (gone)\n"
        "3 is worker/1\n"
        "4 is worker/1 in place of 3 (itself)\n"
        "5 is worker/0 in place of 2 (itself)\n"
        "worker/0 is alive registrations=3\n"
        "worker/1 is alive registrations=2\n");
  // At a new coordinator, a process without a name registers before the worker that had the number
  // 0.
  Transcript anew;
  CHECK(anew.Run("worker - 2\nworker =0 1\nworker =0 2") ==
        "1 is worker/0\n"
        "2 is worker/1\n"
        "3 is worker/0 in place of 1 (itself)\n");
  // A process registers with the name 0 while the worker that got the number 0 lives. The process
  // gets the name, and the worker gets another number.
  Transcript named;
  CHECK(named.Run("worker - 1\nworker 0 2\nworker =0 1\nworker 0 2") ==
        "1 is worker/0\n"
        "2 is worker/0 in place of 1\n"
        "3 is worker/1\n"
        "4 is worker/0 in place of 2 (itself)\n");
}

TEST_CASE("a worker whose chosen name was given as a number gets it back, and no worker exits") {
  Transcript t;
  std::string script;
  for (int n = 0; n < 8; ++n) absl::StrAppend(&script, "worker ", n, " ", n + 1, "\n");
  for (int n = 0; n < 8; ++n) absl::StrAppend(&script, "closed ", n + 1, "\n");
  t.Run(script + "at 200\n");
  CHECK(t.Run("worker - 100\nworker 0 1\nworker =0 100") ==
        "9 is worker/0 in place of 1 (gone)\n"
        "10 is worker/0 in place of 9\n"
        "11 is worker/8\n");
}

TEST_CASE(
    "a new process without a name gets an unused number, not the back-off of a dead process") {
  Transcript t;
  std::string script = "host loops\n";
  for (int i = 1; i <= 6; ++i)
    absl::StrAppend(&script, "worker - ", i, "\nclosed ", i, "\nat ", i * 200, "\n");
  t.Run(script);
  // A worker that is started again on the same host keeps its number. It backs off, because it has
  // died several times.
  CHECK(t.Run("show 0\nworker - 7\nshow 0\nclosed 7\nat 1400") ==
        "worker/0 is gone (its session closed) registrations=6\n"
        "7 is worker/0 in place of 6 (gone)\n"
        "worker/0 is alive registrations=7 backoff=400\n"
        "7 worker/0 suspected: its session closed\n"
        "7 worker/0 gone: its session closed\n");
  CHECK(t.Run("host healthy\nworker - 8\nshow 1") ==
        "8 is worker/1\nworker/1 is alive registrations=1\n");
}

TEST_CASE("numbers do not grow while unnamed workers die on one host after another") {
  Transcript t;
  t.Run("host first\nworker - 1\n");
  std::set<std::string> numbers;
  for (int i = 2; i <= 100; ++i) {
    t.Run(absl::StrCat("heard 1\nhost h", i, "\nworker - ", i, "\nheard ", i, "\nclosed ", i,
                       "\nat ", i * 200, "\n"));
  }
  for (const TaskEntry* entry : t.membership().List()) numbers.insert(entry->identity);
  CHECK(numbers.size() == 9);
  CHECK(numbers.count("8") == 1);
  CHECK(t.membership().FindIdentity(Role::kWorker, "1")->flaps > 3);
}

TEST_CASE(
    "an identity that repeatedly dies young backs off visibly, and a long life clears the "
    "back-off") {
  Transcript t;
  std::string script;
  for (int i = 1; i <= 6; ++i)
    absl::StrAppend(&script, "worker a ", i, "\nshow a\nclosed ", i, "\n");
  CHECK(
      t.Run(script) ==
      "1 is worker/a\nworker/a is alive registrations=1\n1 worker/a suspected: its session closed\n"
      "2 is worker/a in place of 1\nworker/a is alive registrations=2\n2 worker/a suspected: its "
      "session closed\n"
      "3 is worker/a in place of 2\nworker/a is alive registrations=3\n3 worker/a suspected: its "
      "session closed\n"
      "4 is worker/a in place of 3\nworker/a is alive registrations=4\n4 worker/a suspected: its "
      "session closed\n"
      "5 is worker/a in place of 4\nworker/a is alive registrations=5 backoff=100\n5 worker/a "
      "suspected: its session closed\n"
      "6 is worker/a in place of 5\nworker/a is alive registrations=6 backoff=200\n6 worker/a "
      "suspected: its session closed\n");
  t.Run("worker a 7");
  for (int ms = 500; ms <= 6000; ms += 500) t.Run(absl::StrCat("at ", ms, "\nheard 7\n"));
  CHECK(t.Run("worker a 8\nshow a") ==
        "8 is worker/a in place of 7\nworker/a is alive registrations=8\n");
}

TEST_CASE("malformed and excessive messages are refused and change nothing") {
  MembershipOptions options;
  options.tasks_max = 1;
  Transcript t(options);
  CHECK(
      t.Run("worker a/b 1\nserver - 1\nworker a 0\nworker a 1\nworker b 2\nworker a 3") ==
      "refused malformed: identity holds a character that is not allowed (blank, control or '/')\n"
      "refused malformed: server identity missing\n"
      "refused malformed: process uid missing\n"
      "1 is worker/a\n"
      "refused limit: too many tasks: limit=1\n"
      "2 is worker/a in place of 1\n");
  CHECK(t.membership().refused() == 4);
}

TEST_CASE("the list of gone tasks is bounded") {
  MembershipOptions options;
  options.gone_kept_max = 3;
  Transcript t(options);
  for (int i = 1; i <= 10; ++i) t.Run(absl::StrCat("worker w", i, " ", i, "\nclosed ", i, "\n"));
  t.Run("at 200");
  CHECK(t.membership().List().size() == 3);
}

TEST_CASE(
    "a server that exits after its notice is lost after its lease, and a disconnected one "
    "returns") {
  Transcript t;
  CHECK(t.Run("server 0 1\nserver 1 2\nleaving 1\nat 10\nclosed 1\nclosed 2\nat 1600\nshow 0\nshow "
              "1") ==
        "1 is server/0\n2 is server/1\n1 ps_server/0 suspected left: announced that it leaves: "
        "SIGTERM\n2 ps_server/1 suspected: its session closed\n"
        "1 ps_server/0 lost left: announced that it leaves: SIGTERM\nps_server/0 is gone "
        "(announced that it leaves: SIGTERM) registrations=1\n"
        "ps_server/1 is suspected (its session closed) registrations=1\n");
  Transcript back;
  CHECK(back.Run("server 0 1\nleaving 1\nat 10\nclosed 1\nat 500\nserver 0 1\nleaving 2\nat "
                 "510\nheard 2\nat 2000\nheard 2\nshow 0") ==
        "1 is server/0\n1 ps_server/0 suspected left: announced that it leaves: SIGTERM\n2 is "
        "server/0 "
        "in place of 1 (itself)\n"
        "ps_server/0 is leaving (announced that it leaves: SIGTERM) registrations=2\n");
}
