// Tests orders to cut shards, and shards that are restored from files. Executors and I/O threads
// are real. The tests check the messages to the coordinator and the answers that workers get
// meanwhile.
#include <algorithm>
#include <cstdio>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/service/control.h"
#include "service_fixture.h"
#include "stage.h"
#include "tests/support/temp_folder.h"

namespace evergrad::ps_server {
namespace {

TEST_CASE("a cut is restored bit for bit under a new owner, including the open closures") {
  Stage a;
  for (const std::uint32_t shard : {0u, 1u, 2u}) a.Hold(shard);
  for (const std::uint32_t shard : {0u, 1u, 2u})
    for (std::uint32_t u = 0; u <= shard; ++u) REQUIRE(a.Push(shard, 7, u) == v1::APPLIED);
  a.Give(Stage::CloseOf(1, {1, 2}, {5}));
  REQUIRE(a.Next().closed().taken());
  a.Give(Stage::CutOf({0, 1, 2}));
  std::map<std::uint32_t, v1::ShardFile> files;
  for (int i = 0; i < 3; ++i) {
    const v1::ShardDurable durable = a.NextDurable();
    CHECK(durable.job_uid() == kJob);
    CHECK(client::FromProto<ShardEpoch>(durable.epoch()) == kEpoch);
    REQUIRE_FALSE(durable.has_error());
    files[durable.shard()] = durable.file();
  }
  REQUIRE(files.size() == 3);
  const auto states = a.Report();
  for (const auto& [shard, file] : files) {
    CHECK(file.shard() == shard);
    CHECK(file.file() == snapshot::ShardFileName(ShardId(shard), kEpoch, states[shard].lsn()));
    CHECK(file.lsn() == states[shard].lsn());
    CHECK(file.vlsn() == states[shard].vlsn());
    CHECK(client::FromProto<ShardEpoch>(file.epoch()) == kEpoch);
    CHECK(client::FromProto<MapVersion>(file.start()) == kStart);
    const auto report = snapshot::VerifyShardFile(a.files, fs::JoinUri(kFolder, file.file()));
    REQUIRE(report.ok());
    CHECK(report->bytes == file.bytes());
    CHECK(std::string(reinterpret_cast<const char*>(report->sha256.data()), 32) == file.sha256());
    CHECK(report->value_digest == states[shard].digest());
    CHECK(report->header.plan_fingerprint() == kPlan);
    // The file must have all fields of the shard's description. For example, a job could not resume
    // the second variable of a plan without the index of the variable.
    CHECK(report->header.dense().SerializeAsString() ==
          Stage::AssignOf(shard).assign().spec().SerializeAsString());
  }
  CHECK(*client::FromProto(files[1].done()) == IntervalSet{1, 2});
  CHECK(*client::FromProto(files[1].refused()) == IntervalSet{5});
  a.On([] {});
  CHECK_THAT(a.Log(), Catch::Matchers::Contains("info snapshot written: shards=3 bytes="));

  // One more update is applied after the cut. Then the server loses the shard, and must restore it
  // from the file.
  REQUIRE(a.Push(1, 7, 9) == v1::APPLIED);
  v1::CoordinatorMessage assign = Stage::RestoreOf(files[1], {1, 8});
  *assign.mutable_assign()->mutable_refused() = client::ToProto(IntervalSet{30});
  a.Give(assign);
  REQUIRE(a.NextAssigned().ok());
  const auto restored = a.Report();
  REQUIRE(restored.size() == 3);
  CHECK(restored[1].digest() == states[1].digest());
  CHECK(restored[1].slot_digest() == states[1].slot_digest());
  // The restored shard has one more refused closure, and this change raises the lsn.
  CHECK(restored[1].lsn() == states[1].lsn() + 1);
  CHECK(restored[1].vlsn() == states[1].vlsn());
  CHECK(restored[1].updates_applied() == states[1].updates_applied());
  CHECK(restored[1].open_closures() == 1);
  const v1::Hello hello = a.Hello();
  REQUIRE(hello.shards_size() == 3);
  CHECK_FALSE(hello.shards(1).loading());
  CHECK(*client::FromProto(hello.shards(1).done()) == IntervalSet{1, 2});
  CHECK(*client::FromProto(hello.shards(1).refused()) == IntervalSet{5, 30});
  CHECK(a.control->Progress().bytes() == 3 * 32);
  const ShardEpoch epoch{1, 8};
  CHECK(a.Push(1, 7, 0) == v1::STALE);
  CHECK(a.Push(1, 7, 0, epoch) == v1::DUPLICATE);
  CHECK(a.Push(1, 7, 1, epoch) == v1::DUPLICATE);
  CHECK(a.Push(1, 2, 0, epoch) == v1::DUPLICATE);
  CHECK(a.Push(1, 5, 0, epoch) == v1::REFUSED);
  CHECK(a.Push(1, 30, 0, epoch) == v1::REFUSED);
  CHECK(a.Push(1, 7, 9, epoch) == v1::APPLIED);  // applied after the cut
  CHECK_THAT(a.Log(),
             Catch::Matchers::Contains(absl::StrCat("info shard restored: shard=1 file=", kFolder,
                                                    "/", files[1].file(), " lsn=")));
  // A restored shard has changed since its file was written, so a new cut must write a new file.
  CHECK(a.Cut(1, epoch).file() != files[1].file());
}

TEST_CASE(
    "a partition of tables is assigned, cut during pushes, and restored to exactly the updates of "
    "its ledger") {
  Stage a;
  v1::CoordinatorMessage assign;
  assign.mutable_assign()->CopyFrom(Stage::AssignOf(1).assign());
  Stage::MakeSlot(assign.mutable_assign()->mutable_spec());
  a.Give(assign);
  REQUIRE(a.NextAssigned().ok());
  constexpr std::int64_t kIds = 20'000;
  const auto push = [&](std::uint64_t closure, std::uint32_t update, ShardEpoch epoch = kEpoch) {
    std::vector<std::int64_t> ids(kIds);
    for (std::int64_t i = 0; i < kIds; ++i) ids[static_cast<std::size_t>(i)] = i * 3;
    RequestBuilder request;
    *request.PushRows(1, closure, update, std::move(ids), std::vector<float>(2 * kIds, 1))
         .mutable_epoch() = client::ToProto(epoch);
    const auto shared = a.Start(request);
    shared->event.Wait();
    return shared->reply->push();
  };
  std::uint32_t updates = 0;
  v1::ServerProgress progress;
  a.On([&] { progress = a.control->Progress(); });
  CHECK(progress.bytes() < 64 * 1024);
  REQUIRE(push(0, updates++) == v1::APPLIED);
  a.On([&] { progress = a.control->Progress(); });
  CHECK(progress.bytes() > 4 * sizeof(float) * kIds);
  for (std::uint64_t n = 0; n < 3; ++n) {
    a.Give(Stage::CutOf({1}, {1, kEpoch.n + n}));
    for (int i = 0; i < 5; ++i) REQUIRE(push(0, updates++, {1, kEpoch.n + n}) == v1::APPLIED);
    const v1::ShardDurable durable = a.NextDurable();
    INFO(durable.error().message());
    REQUIRE_FALSE(durable.has_error());
    const auto report =
        snapshot::VerifyShardFile(a.files, fs::JoinUri(kFolder, durable.file().file()));
    REQUIRE(report.ok());
    REQUIRE(report->open.size() == 1);
    const std::uint64_t inside = report->open[0].second.size();

    v1::CoordinatorMessage restore = assign;
    *restore.mutable_assign()->mutable_epoch() = client::ToProto(ShardEpoch{1, kEpoch.n + n + 1});
    *restore.mutable_assign()->mutable_snapshot() = Stage::Source(durable.file());
    a.Give(restore);
    const v1::Assigned assigned = a.NextAssigned();
    INFO(assigned.error().message());
    REQUIRE(assigned.ok());
    RequestBuilder pull;
    *pull.PullRows(1, {0, 3 * (kIds - 1), 1}).mutable_epoch() =
        client::ToProto(ShardEpoch{1, kEpoch.n + n + 1});
    const auto shared = a.Start(pull);
    shared->event.Wait();
    const auto count = static_cast<float>(inside);
    CHECK(shared->reply->values() == std::vector<float>{count, count, count, count, 0, 0});
    updates = static_cast<std::uint32_t>(inside);
    // The job's memory is that of its table, whether its rows were pushed or restored. It consists
    // of values and optimizer state, the index, and spare memory for further rows.
    a.On([&] { progress = a.control->Progress(); });
    REQUIRE(progress.jobs_size() == 1);
    CHECK(progress.jobs(0).bytes() == a.Report()[0].tables(0).memory_bytes());
    CHECK(progress.jobs(0).bytes() > 4 * sizeof(float) * kIds);
    CHECK(progress.bytes() == progress.jobs(0).bytes());
  }
}

TEST_CASE("an unusable file is answered with its path and the reason, and the shard is not held") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  const v1::ShardFile file = a.Cut(0);
  const std::string path = fs::JoinUri(kFolder, file.file());
  ShardEpoch epoch{1, 8};
  const auto refusal = [&](absl::StatusCode code, const char* words,
                           const std::function<void(v1::Assign*)>& change) {
    INFO(words);
    v1::CoordinatorMessage assign = Stage::RestoreOf(file, epoch);
    change(assign.mutable_assign());
    a.Give(assign);
    const v1::Assigned assigned = a.NextAssigned();
    CHECK_FALSE(assigned.ok());
    CHECK(client::FromProto<ShardEpoch>(assigned.epoch()) == epoch);
    CHECK(assigned.error().code() == static_cast<int>(code));
    CHECK_FALSE(assigned.error().retryable());
    CHECK_THAT(assigned.error().message(),
               Catch::Matchers::Contains(words) &&
                   Catch::Matchers::Contains(assign.assign().snapshot().uri()));
    CHECK(a.Hello().shards_size() == 0);
    CHECK(a.Report().empty());
    ++epoch.n;
  };
  refusal(absl::StatusCode::kNotFound, "no such file",
          [](v1::Assign* x) { x->mutable_snapshot()->set_uri("file:///job/gone.egshard"); });
  refusal(absl::StatusCode::kFailedPrecondition, "another job",
          [](v1::Assign* x) { x->mutable_snapshot()->set_job_uid(kJob + 1); });
  refusal(absl::StatusCode::kFailedPrecondition, "another plan",
          [](v1::Assign* x) { x->mutable_snapshot()->set_plan_fingerprint("other"); });
  refusal(absl::StatusCode::kFailedPrecondition, "another shard",
          [](v1::Assign* x) { x->mutable_spec()->set_shard(1); });
  refusal(absl::StatusCode::kDataLoss, "sha256 differs", [](v1::Assign* x) {
    x->mutable_snapshot()->mutable_sha256()->at(3) =
        static_cast<char>(x->snapshot().sha256()[3] ^ 1);
  });
  refusal(absl::StatusCode::kDataLoss, "file size differs",
          [](v1::Assign* x) { x->mutable_snapshot()->set_bytes(x->snapshot().bytes() + 1); });
  refusal(absl::StatusCode::kInvalidArgument, "optimizer", [](v1::Assign* x) {
    x->mutable_spec()->mutable_variable()->mutable_optimizer()->set_type("sgd");
  });
  REQUIRE(a.failpoints.Arm("snapshot.restore=1*error", 1).ok());
  refusal(absl::StatusCode::kInternal, "snapshot.restore", [](v1::Assign*) {});
  REQUIRE(a.files.Damage(path, file.bytes() / 2, std::byte{4}).ok());
  refusal(absl::StatusCode::kDataLoss, "", [](v1::Assign*) {});
  REQUIRE(a.files.Damage(path, file.bytes() / 2, std::byte{4}).ok());
  a.Give(Stage::RestoreOf(file, epoch));
  CHECK(a.NextAssigned().ok());
}

TEST_CASE(
    "line 28: attempts are forgotten on request, and another plan's ledger replaces the file's "
    "unless a closure is open in it") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 3, 0, kEpoch, 4, {1, 9}) == v1::APPLIED);
  const v1::ShardFile open = a.Cut(0);
  a.Give(Stage::RestoreOf(open, {1, 6}));
  REQUIRE(a.NextAssigned().ok());
  CHECK(a.Push(0, 3, 1, {1, 6}, 4, {1, 2}) == v1::SUPERSEDED);
  v1::CoordinatorMessage assign = Stage::RestoreOf(open, {1, 7});
  assign.mutable_assign()->mutable_snapshot()->set_resumed(true);
  a.Give(assign);
  REQUIRE(a.NextAssigned().ok());
  CHECK(a.Push(0, 3, 0, {1, 7}, 4, {1, 2}) == v1::DUPLICATE);
  CHECK(a.Push(0, 3, 1, {1, 7}, 4, {1, 2}) == v1::APPLIED);

  const auto replaced = [&](const v1::ShardFile& file, ShardEpoch epoch) {
    v1::CoordinatorMessage message = Stage::RestoreOf(file, epoch);
    message.mutable_assign()->mutable_snapshot()->set_replace_ledger(true);
    *message.mutable_assign()->mutable_snapshot()->mutable_done() =
        client::ToProto(IntervalSet::Range(0, 100));
    return message;
  };
  a.Give(replaced(open, {1, 8}));
  const v1::Assigned refused = a.NextAssigned();
  CHECK(refused.error().code() == static_cast<int>(absl::StatusCode::kFailedPrecondition));
  CHECK_THAT(refused.error().message(),
             Catch::Matchers::Contains("the snapshot has an open closure") &&
                 Catch::Matchers::Contains("shard=0 closure=3") &&
                 Catch::Matchers::Contains(open.file()));
  a.Give(Stage::RestoreOf(open, {1, 9}));
  REQUIRE(a.NextAssigned().ok());
  a.Give(Stage::CloseOf(0, {3}, {200}, {1, 9}));
  REQUIRE(a.Next().closed().taken());
  const v1::ShardFile whole = a.Cut(0, {1, 9});
  a.Give(replaced(whole, {1, 10}));
  REQUIRE(a.NextAssigned().ok());
  CHECK(*client::FromProto(a.Hello().shards(0).done()) == IntervalSet::Range(0, 100));
  CHECK(a.Hello().shards(0).refused().bounds_size() == 0);
  CHECK(a.Push(0, 99, 0, {1, 10}) == v1::DUPLICATE);
  CHECK(a.Push(0, 200, 0, {1, 10}) == v1::APPLIED);
}

TEST_CASE(
    "while a shard is loaded from its file pushes are stale, a close is ignored, and a cut waits") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  const v1::ShardFile file = a.Cut(0);
  a.gated.Close();
  a.Give(Stage::RestoreOf(file, {1, 8}));
  a.gated.AwaitSomebody();
  REQUIRE(a.Hello().shards_size() == 1);
  CHECK(a.Hello().shards(0).loading());
  CHECK(client::FromProto<ShardEpoch>(a.Hello().shards(0).epoch()) == ShardEpoch{1, 8});
  CHECK(a.Report().empty());  // the old copy must be freed before the new one is loaded
  RequestBuilder request;
  *request.Push(0, 0, 1, Floats(4, 1)).mutable_epoch() = client::ToProto(ShardEpoch{1, 8});
  const auto shared = a.Start(request);
  shared->event.Wait();
  CHECK(shared->reply->push() == v1::STALE);
  CHECK(client::FromProto<MapVersion>(shared->reply->response.header->pushes(0).version()) ==
        MapVersion{1, 8});
  a.Give(Stage::CloseOf(0, {4}, {}, {1, 8}));
  CHECK_FALSE(a.Next().closed().taken());
  a.Give(Stage::CutOf({0}, {1, 8}));
  const v1::ShardDurable later = a.NextDurable();
  CHECK(later.error().code() == static_cast<int>(absl::StatusCode::kUnavailable));
  CHECK(later.error().retryable());
  a.Give(Stage::RestoreOf(file, {1, 8}));  // the order is repeated, and one answer is sent for both
  a.gated.Release();
  CHECK(a.NextAssigned().ok());
  CHECK(a.Hello().shards(0).done().bounds_size() == 0);
  a.Settle();
  CHECK(a.Unread() == 0);
}

TEST_CASE(
    "a newer assignment, a drop, a seal or the end of the job ends a restore: nothing of it is "
    "held or answered") {
  for (const std::string way : {"seed", "file", "drop", "sealed", "ended"}) {
    INFO(way);
    Stage a;
    a.Hold(0);
    REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
    const v1::ShardFile file = a.Cut(0);
    a.gated.Close();
    a.Give(Stage::RestoreOf(file, {1, 8}));
    a.gated.AwaitSomebody();
    if (way == "seed") a.Give(Stage::AssignOf(0, {1, 9}));
    if (way == "file") a.Give(Stage::RestoreOf(file, {1, 9}));
    if (way == "drop") a.Give(Stage::DropOf(0, {1, 8}));
    if (way == "sealed") {
      v1::CoordinatorMessage seal;
      seal.mutable_seal()->set_job_uid(kJob);
      *seal.mutable_seal()->mutable_epoch() = client::ToProto(ShardEpoch{1, 8});
      a.Give(seal);
      CHECK(a.Next().has_sealed());
    }
    if (way == "ended") {
      v1::CoordinatorMessage ended;
      ended.mutable_job_ended()->set_job_uid(kJob);
      a.Give(ended);
    }
    if (way == "seed")
      CHECK(client::FromProto<ShardEpoch>(a.NextAssigned().epoch()) ==
            ShardEpoch{1, 9});  // this shard starts from the seed and needs no file
    a.gated.Release();
    if (way == "file")
      CHECK(client::FromProto<ShardEpoch>(a.NextAssigned().epoch()) == ShardEpoch{1, 9});
    a.Settle();
    CHECK(a.Unread() == 0);
    const auto states = a.Report();
    REQUIRE(states.size() == (way == "seed" || way == "file" ? 1 : 0));
    CHECK(a.Hello().shards_size() == static_cast<int>(states.size()));
    if (!states.empty()) {
      CHECK(states[0].epoch().n() == 9);
      CHECK(states[0].lsn() == (way == "file" ? 1 : 0));
    }
    CHECK(a.registry
              .GetCounter("evergrad_ps_server_restores_total",
                          "Shards read from their files, by outcome", {{"result", "cancelled"}})
              .value() == 1);
  }
}

TEST_CASE(
    "an order is answered in its own session; in the next one an unchanged shard is answered with "
    "its existing file") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  a.gated.Close();
  a.Give(Stage::CutOf({0}));
  a.gated.AwaitSomebody();
  a.On([&] { a.control->OnLost(); });
  a.Register();
  a.gated.Release();
  a.Settle();
  const v1::ShardFile file = a.Cut(0);  // `durable` and `unchanged` may come in either order
  CHECK(a.Cuts("durable") == 1);
  CHECK(a.Cuts("unchanged") == 1);
  CHECK(a.files.List(kFolder)->size() == 1);
  // The server must write a new file in three cases: the order names another folder, the file was
  // removed, or the same state has a newer epoch.
  v1::CoordinatorMessage elsewhere = Stage::CutOf({0});
  elsewhere.mutable_cut()->set_folder("file:///other");
  a.Give(elsewhere);
  CHECK(a.NextDurable().file().sha256() == file.sha256());
  CHECK(a.files.List("file:///other")->size() == 1);
  a.Cut(0);
  REQUIRE(a.files.Remove(fs::JoinUri(kFolder, file.file())).ok());
  a.Cut(0);
  CHECK(a.files.Exists(fs::JoinUri(kFolder, file.file())).value());
  a.Give(Stage::RestoreOf(file, {1, 8}));
  REQUIRE(a.NextAssigned().ok());
  const v1::ShardFile next = a.Cut(0, {1, 8});
  CHECK(next.lsn() == file.lsn());
  CHECK(next.file() != file.file());
  CHECK(client::FromProto<ShardEpoch>(next.epoch()) == ShardEpoch{1, 8});
}

TEST_CASE(
    "a shard that is not held at that epoch is answered at once; a drop ends the cut that is being "
    "written") {
  Stage a;
  a.Hold(0);
  a.Hold(1);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  v1::CoordinatorMessage none = Stage::CutOf({0});
  none.mutable_cut()->clear_folder();
  a.Give(none);
  CHECK(a.NextDurable().error().code() == static_cast<int>(absl::StatusCode::kInvalidArgument));
  a.Give(Stage::CutOf({0}, {1, 4}));
  CHECK(a.NextDurable().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  a.Give(Stage::CutOf({9}));
  CHECK_THAT(a.NextDurable().error().message(),
             Catch::Matchers::Contains("shard is not held at this epoch: shard=9"));
  a.gated.Close();
  a.Give(Stage::CutOf({0, 1}));
  a.gated.AwaitSomebody();  // shard 0's file is being written
  a.Give(Stage::DropOf(0));
  a.Give(Stage::DropOf(1));
  CHECK(a.NextDurable().shard() == 1);
  a.gated.Release();
  const v1::ShardDurable dropped = a.NextDurable();
  CHECK(dropped.shard() == 0);
  CHECK(dropped.error().code() == static_cast<int>(absl::StatusCode::kCancelled));
  CHECK(a.files.List(kFolder)->empty());
  CHECK(a.Report().empty());
}

TEST_CASE("an order that a newer one replaced is answered once, by the newer one") {
  Stage a;
  a.Hold(0);
  a.Hold(1);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  a.gated.Close();
  a.Give(Stage::CutOf({0, 1}));
  a.gated.AwaitSomebody();
  for (int i = 0; i < 3; ++i) a.Give(Stage::CutOf({1}));
  REQUIRE(a.Push(1, 0, 0) == v1::APPLIED);
  a.gated.Release();
  CHECK(a.NextDurable().shard() == 0);
  const v1::ShardDurable one = a.NextDurable();
  CHECK(one.shard() == 1);
  CHECK(one.file().lsn() == 1);  // the cut was taken after the file of shard 0
  a.Settle();
  CHECK(a.Unread() == 0);
}

TEST_CASE(
    "sealed shards are cut: what was admitted before the seal is in the file, nothing after it") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  v1::CoordinatorMessage seal;
  seal.mutable_seal()->set_job_uid(kJob);
  *seal.mutable_seal()->mutable_epoch() = client::ToProto(kEpoch);
  a.Give(seal);
  REQUIRE(a.Next().has_sealed());
  CHECK(a.Push(0, 0, 1) == v1::REFUSED);
  const v1::ShardFile file = a.Cut(0);
  CHECK(file.lsn() == 1);
  a.Give(Stage::RestoreOf(file, {1, 8}));
  REQUIRE(a.NextAssigned().ok());
  CHECK(a.Push(0, 0, 1, {1, 8}) == v1::APPLIED);  // a snapshot does not contain the seal
}

TEST_CASE(
    "while the disk is full the coordinator and the log are told once about the retries; with disk "
    "space the file has the newest state") {
  Stage a;
  a.Hold(0);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  a.files.SetBytesMax(10);
  a.Give(Stage::CutOf({0}));
  std::uint32_t u = 1;
  while (a.Cuts("dropped") < 3) REQUIRE(a.Push(0, 0, u++) == v1::APPLIED);
  const v1::ShardDurable trouble = a.NextDurable();
  CHECK(trouble.shard() == 0);
  CHECK(trouble.tried_again());
  CHECK(trouble.error().code() == static_cast<int>(absl::StatusCode::kResourceExhausted));
  CHECK(a.Unread() == 0);
  a.On([] {});
  CHECK_THAT(a.Log(), Catch::Matchers::Contains("warning cannot write the snapshot of a shard; the "
                                                "server retries until the write succeeds: shard=0 "
                                                "cause="));
  a.files.SetBytesMax(1 << 20);
  const v1::ShardDurable saved = a.NextDurable();
  CHECK_FALSE(saved.tried_again());
  CHECK(saved.file().lsn() > 1);
  // An order that would fail in every retry is not retried, and must be answered.
  v1::CoordinatorMessage bucket = Stage::CutOf({0});
  bucket.mutable_cut()->set_folder("s3://bucket/job");
  a.Give(bucket);
  const v1::ShardDurable refused = a.NextDurable();
  CHECK(refused.error().code() == static_cast<int>(absl::StatusCode::kUnimplemented));
  CHECK_FALSE(refused.error().retryable());
  a.On([] {});
  CHECK_THAT(a.Log(),
             Catch::Matchers::Contains("warning snapshot failed: shards=1 of=1 first_cause="));
}

TEST_CASE("cuts during continuous pushes are restored to exactly the updates of their ledgers") {
  constexpr std::uint64_t kRows = 600'000;  // the apply takes more than two turns
  Stage a;
  a.Hold(0, kRows);
  std::vector<std::shared_ptr<SharedReply>> replies;
  std::vector<v1::ShardFile> files;
  std::uint64_t next = 0;
  for (int i = 0; i < 5; ++i) {
    a.Give(Stage::CutOf({0}));
    do {
      RequestBuilder request;
      request.Push(0, next / 4, static_cast<std::uint32_t>(next % 4), Floats(kRows, 1));
      ++next;
      replies.push_back(a.Start(request));
      if (replies.size() > 3) replies[replies.size() - 3]->event.Wait();
    } while (a.Unread() == 0);
    files.push_back(a.NextDurable().file());
  }
  for (const auto& reply : replies) {
    reply->event.Wait();
    CHECK(reply->reply->push() == v1::APPLIED);
  }
  ShardEpoch epoch{1, 8};
  for (const v1::ShardFile& file : files) {
    a.Give(Stage::RestoreOf(file, epoch, kRows));
    REQUIRE(a.NextAssigned().ok());
    CHECK(a.Report()[0].updates_applied() == file.lsn());
    RequestBuilder pull;
    *pull.Pull(0).mutable_epoch() = client::ToProto(epoch);
    const auto shared = a.Start(pull);
    shared->event.Wait();
    const Floats values = shared->reply->values();
    REQUIRE(values.size() == kRows);
    CHECK(std::all_of(values.begin(), values.end(),
                      [&](float v) { return v == static_cast<float>(file.lsn()); }));
    if (file.lsn() > 0)
      CHECK(a.Push(0, (file.lsn() - 1) / 4, static_cast<std::uint32_t>((file.lsn() - 1) % 4), epoch,
                   kRows) == v1::DUPLICATE);
    ++epoch.n;
  }
}

// This is a measurement, not a test. Run it by name on a quiet machine. It pushes to a shard of 16
// MiB with as much optimizer state. The pushes go through the shard's executor, one at a time, and
// the disk is a real one.
TEST_CASE("measured: pushes through an executor while snapshots are written all the time",
          "[.measure]") {
  constexpr std::uint64_t kRows = 4u << 20;
  test::TempFolder folder;
  const auto disk = fs::MakeLocalFileSystem();
  Stage a(disk.get());
  a.Hold(0, kRows);
  std::uint64_t next = 0;
  const auto push = [&](std::vector<double>* ms) {
    RequestBuilder request;
    request.Push(0, next / 64, static_cast<std::uint32_t>(next % 64), Floats(kRows, 1));
    ++next;
    tensor::AlignedBuffer frame = request.Frame();
    auto shared = std::make_shared<SharedReply>();
    const MonoTime begin = a.clock.Now();
    a.host->Handle({std::move(frame), nullptr}, std::make_unique<EventResponder>(shared));
    shared->event.Wait();
    ms->push_back(std::chrono::duration<double, std::milli>(a.clock.Now() - begin).count());
    REQUIRE(shared->reply->push() == v1::APPLIED);
  };
  const auto show = [](const char* name, std::vector<double> ms) {
    std::sort(ms.begin(), ms.end());
    std::printf("%-14s n=%zu p50=%.1f ms p99=%.1f ms max=%.1f ms\n", name, ms.size(),
                ms[ms.size() / 2], ms[ms.size() * 99 / 100], ms.back());
  };
  std::vector<double> alone, beside;
  for (int round = 0; round < 8;
       ++round) {  // the cases alternate, so that other load on the machine affects both
    for (int i = 0; i < 40; ++i) push(&alone);
    v1::CoordinatorMessage cut = Stage::CutOf({0});
    cut.mutable_cut()->set_folder(folder / "job");
    a.Give(cut);
    while (a.Unread() == 0) push(&beside);
    REQUIRE_FALSE(a.NextDurable().has_error());
  }
  show("no snapshot", alone);
  show("with snapshots", beside);
}

TEST_CASE("a server ends while orders wait on both sides") {
  Stage a;
  for (std::uint32_t shard = 0; shard < 8; ++shard) a.Hold(shard);
  REQUIRE(a.Push(0, 0, 0) == v1::APPLIED);
  const v1::ShardFile file = a.Cut(0);
  REQUIRE(a.Push(1, 0, 0) == v1::APPLIED);
  a.gated.Close();
  for (std::uint32_t shard = 4; shard < 8; ++shard) {
    v1::ShardFile other = file;
    other.set_shard(shard);
    a.Give(Stage::RestoreOf(other, {1, 8}));
  }
  a.Give(Stage::CutOf({1, 2, 3}));
  a.gated.AwaitSomebody(2);  // one order reads a file, and one writes a file
  for (const auto& executor : a.executors) executor->Shutdown();
  a.executor->Shutdown();
  a.gated.Release();
  a.Stop();
  CHECK(a.Unread() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server
