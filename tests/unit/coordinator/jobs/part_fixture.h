// The surroundings of one part of a job, for tests without a Job object. They are two servers, a
// closure book of two shards and sixteen closures, and a record of the part's requests, in order.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evergrad/v1/journal.pb.h"
#include "fake_host.h"

namespace evergrad::coordinator {

struct PartFixture : JobActions {
  static constexpr TaskId kFirst{1}, kSecond{2};

  // Server "a" is the task kFirst, and server "b" is the task kSecond. Both servers are ready.
  virtual ~PartFixture() = default;
  explicit PartFixture(const MemoryStateStore::Options& store = {}) : host(store) {
    id.uid = JobUid(0xabc);
    id.spec.name = "part";
    id.runs_folder = "/runs/part";
    plan = *plan::Plan::Create({.train_examples = 64, .batch_size = 4, .steps_per_closure = 1});
    plan_message.set_fingerprint("plan");
    for (std::uint32_t p = 0; p < 2; ++p) {
      v1::ShardSpec* shard = plan_message.add_shards();
      shard->set_shard(p);
      shard->mutable_variable()->set_name("w");
      shard->mutable_variable()->add_shape(4);
      shard->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
      shard->mutable_variable()->mutable_optimizer()->set_type("counting");
      shard->set_row_begin(2 * p);
      shard->set_row_end(2 * p + 2);
    }
    shards.Plan({8, 8});
    AddServer(kFirst, "a");
    AddServer(kSecond, "b");
    book = std::make_unique<ClosureBook>(
        ClosureBook::Options{.closures = plan->closures(), .shards = 2}, DurableState{});
    book->BeginLife(Term(1));
    book->CloseWindow();
  }
  JobServer& AddServer(TaskId task, const std::string& identity) {
    JobServer& server = shards.servers()[task];
    server.task = task;
    server.identity = server.host = identity;
    server.ready = true;
    return server;
  }
  // Places shard 0 at server "a" and shard 1 at server "b".
  void Place() {
    shards.SetPlaced();
    for (std::uint32_t p = 0; p < 2; ++p) {
      book->Rollback(ShardId(p), p == 0 ? "a" : "b");
      shards.Give(ShardId(p), true);
    }
  }
  JobPart Part() { return {&host, options, id, plan, plan_message, book, shards, *this}; }
  v1::Stamp EpochOf(std::uint32_t shard) const {
    return client::ToProto(book->durable().map[shard].epoch);
  }
  // Returns the messages that were sent to `task` since the last call.
  std::vector<v1::CoordinatorMessage> Take(TaskId task) {
    std::deque<v1::CoordinatorMessage> sent = std::exchange(host.sent[task], {});
    return {sent.begin(), sent.end()};
  }
  // Runs the file thread until it has nothing to do.
  void RunFileThread() {
    while (!host.later.empty()) {
      auto work = std::move(host.later.front());
      host.later.pop_front();
      work();
    }
  }
  bool Said(const std::string& text) const {
    return std::any_of(said.begin(), said.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }

  bool Persist(const Record&) override {
    said.push_back("persist");
    return !store_fails;
  }
  bool PersistWhole() override { return Persist({}); }
  v1::JobNote* NoteIfJournaled() override { return &note; }
  void Event(absl::string_view kind, const std::string& text) override {
    said.push_back(absl::StrCat(kind, ": ", text));
  }
  void Touch() override {}
  void Pump() override { said.push_back("pump"); }
  void SendMap() override { said.push_back("map"); }
  void SendCloses() override { said.push_back("closes"); }
  void AfterRollback(absl::string_view why) override {
    said.push_back(absl::StrCat("after rollback: ", why));
  }
  void SayNotReproducible(const std::string& why) override {
    said.push_back("not reproducible: " + why);
  }
  bool grants_stopped() const override { return ending; }
  void Fail(v1::ErrorDetail cause, bool user) override {
    said.push_back(absl::StrCat("fail ", user ? "user" : "machine", ": ", cause.message()));
  }

  FakeHost host;
  JobOptions options;
  JobIdentity id;
  std::optional<plan::Plan> plan;
  v1::Plan plan_message;
  std::unique_ptr<ClosureBook> book;
  ShardTable shards;
  v1::JobNote note;
  std::vector<std::string> said;
  bool store_fails = false, ending = false;
};

}  // namespace evergrad::coordinator
