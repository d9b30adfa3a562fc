#include "coordinator/service/waiting_calls.h"

#include <catch2/catch.hpp>

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Answers {
  struct Responder final : transport::UnaryResponder {
    explicit Responder(std::vector<std::string>* to) : to_(to) {}
    void Answer(absl::StatusOr<std::string> response) override {
      to_->push_back(response.ok() ? *response : std::string(response.status().message()));
    }
    std::vector<std::string>* to_;
  };
  std::vector<std::string> said;
  std::shared_ptr<OpenCall> Call() {
    return std::make_shared<OpenCall>(std::make_shared<Responder>(&said));
  }
};

}  // namespace

TEST_CASE("calls are tried in order, and answered when possible or at their deadline") {
  Answers answers;
  WaitingCalls calls;
  bool ready = false;
  const auto add = [&](const std::string& name, MonoTime deadline) {
    calls.Add(deadline, [&ready, name, call = answers.Call()](bool late) {
      if (!ready && !late) return false;
      call->Answer(name + (ready ? "" : " late"));
      return true;
    });
  };
  add("a", MonoTime{30});
  add("b", MonoTime{10});
  add("c", MonoTime{30});
  calls.Check(MonoTime{9});
  CHECK(answers.said.empty());
  calls.Check(MonoTime{10});
  CHECK(answers.said == std::vector<std::string>{"b late"});
  ready = true;
  calls.Check(MonoTime{11});
  CHECK(answers.said == std::vector<std::string>{"b late", "a", "c"});
  calls.Check(MonoTime{40});
  CHECK(answers.said.size() == 3);
}

TEST_CASE("a call may be added during an attempt, and dropped calls are answered") {
  Answers answers;
  WaitingCalls calls;
  calls.Add(MonoTime{1}, [&](bool) {
    calls.Add(MonoTime{5}, [call = answers.Call()](bool) { return false; });
    return true;
  });
  calls.Check(MonoTime{1});
  CHECK(answers.said.empty());
  calls.Clear();
  CHECK(answers.said == std::vector<std::string>{"the coordinator is stopping"});
}
