// Tests that cuts are written to files and read back. A file must have the same bits as the cut,
// and exactly the updates that its ledger names, whatever is pushed meanwhile. Every reason for a
// refusal is tested, too.
#include "ps_server/snapshot/cut_file.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/snapshot/manifest.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/temp_folder.h"

namespace evergrad::ps_server {
namespace {

const char kFolder[] = "file:///job";

ShardSettings Settings(const std::string& optimizer, std::uint64_t rows, double momentum = 0) {
  ShardSettings s;
  s.job = JobUid(0xabc);
  s.shard = ShardId(3);
  s.variable = "dense/kernel";
  s.variable_shape = tensor::Shape{rows * 2, 5};
  s.row_begin = rows;
  s.row_end = rows * 2;
  s.initializer = {"glorot_uniform", 0, 0, 0.05, 7, 5, 11};
  s.optimizer.type = optimizer;
  s.optimizer.momentum = momentum;
  return s;
}

std::unique_ptr<Shard> Seeded(const ShardSettings& settings) {
  return *Shard::FromSeed(settings, {1, 5}, {1, 2}, {});
}

Push Update(std::uint64_t c, std::uint32_t u, const std::vector<float>& gradient,
            ShardEpoch epoch = {1, 5}) {
  Push push;
  push.epoch = epoch;
  push.closure = ClosureId(c);
  push.update = UpdateIndex(u);
  push.attempt = {1, c + 1};
  push.rows = gradient.size() / 5;
  push.payload = std::as_bytes(std::span(gradient));
  return push;
}

CutTarget Target(fs::FileSystem& files, fault::Failpoints* failpoints = nullptr) {
  return {&files, kFolder, "plan", failpoints, nullptr};
}
CutSource Source(fs::FileSystem& files, const DurableCut& durable) {
  return {&files,
          fs::JoinUri(kFolder, durable.file),
          snapshot::ShardFileReader::Expected{durable.digest.bytes, durable.digest.sha256},
          JobUid(0xabc),
          "plan",
          nullptr,
          nullptr};
}
RestoreOptions Restoring(fs::FileSystem& files, const DurableCut& durable,
                         const ShardSettings& settings) {
  return {Source(files, durable), settings, {2, 9}, {2, 8}, {}, false};
}

struct State {
  std::uint64_t lsn, vlsn, applied, digest, slot_digest;
  Ledger ledger;
  std::map<std::string, std::uint64_t> skips;
  std::vector<float> values;
  friend bool operator==(const State&, const State&) = default;
};
State StateOf(const Shard& s) {
  return {s.lsn(),         s.vlsn(),   s.updates_applied(), s.Digest(),
          s.StateDigest(), s.ledger(), s.skips(),           s.Values()};
}

TEST_CASE("a restored shard has the bits of the cut, and continues with the bits of the original") {
  // 700,000 floats are eleven chunks in memory and three blocks in a file. The last chunk and the
  // last block are short.
  const struct {
    const char* optimizer;
    double momentum;
    std::uint64_t rows;
  } cases[] = {{"counting", 0, 4}, {"sgd", 0, 1}, {"sgd", 0.9, 33}, {"adam", 0, 140'000}};
  for (const auto& c : cases) {
    INFO(c.optimizer << " " << c.momentum << " " << c.rows);
    fs::MemoryFileSystem files;
    const ShardSettings settings = Settings(c.optimizer, c.rows, c.momentum);
    const auto shard = Seeded(settings);
    std::mt19937 random(1);
    std::vector<float> gradient(c.rows * 5);
    const auto draw = [&] {
      for (float& g : gradient)
        g = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 0.001f;
    };
    for (std::uint32_t u = 0; u < 3; ++u) {
      draw();
      REQUIRE(shard->Apply(Update(7, u, gradient)).code == PushCode::kApplied);
    }
    Push skip = Update(8, 70, {});
    skip.kind = UpdateKind::kSkip;
    skip.rows = 0;
    skip.skip_reason = "nan";
    REQUIRE(shard->Apply(skip).code == PushCode::kApplied);
    REQUIRE(shard->Close({1, 5}, {1, 9}, IntervalSet{1, 2, 3}, IntervalSet{5}));

    const auto durable = WriteCut(shard->Cut(), Target(files));
    REQUIRE(durable.ok());
    CHECK(durable->file == snapshot::ShardFileName(ShardId(3), {1, 5}, shard->lsn()));
    CHECK(durable->done == IntervalSet{1, 2, 3});
    CHECK(durable->refused == IntervalSet{5});
    const auto restored = RestoreShard(Restoring(files, *durable, settings));
    REQUIRE(restored.ok());
    CHECK(StateOf(**restored) == StateOf(*shard));
    CHECK((*restored)->epoch() == ShardEpoch{2, 9});
    CHECK((*restored)->start() == MapVersion{2, 8});
    const auto report = snapshot::VerifyShardFile(files, fs::JoinUri(kFolder, durable->file));
    REQUIRE(report.ok());
    CHECK(report->value_digest == shard->Digest());
    CHECK(report->state_digest == shard->StateDigest());

    draw();
    CHECK(shard->Apply(Update(7, 3, gradient)).code == PushCode::kApplied);
    CHECK((*restored)->Apply(Update(7, 3, gradient, {2, 9})).code == PushCode::kApplied);
    CHECK((*restored)->Apply(Update(7, 2, gradient, {2, 9})).code == PushCode::kDuplicate);
    CHECK((*restored)->Apply(Update(2, 0, gradient, {2, 9})).code == PushCode::kDuplicate);
    CHECK((*restored)->Apply(Update(5, 0, gradient, {2, 9})).code == PushCode::kRefused);
    CHECK((*restored)->Apply(Update(7, 4, gradient)).code == PushCode::kStale);
    CHECK(StateOf(**restored) == StateOf(*shard));
  }
}

TEST_CASE("the bytes of a file are a function of the cut") {
  fs::MemoryFileSystem a, b;
  const auto shard = Seeded(Settings("adam", 9));
  REQUIRE(shard->Apply(Update(0, 0, std::vector<float>(45, 1))).code == PushCode::kApplied);
  const auto first = WriteCut(shard->Cut(), Target(a)), second = WriteCut(shard->Cut(), Target(b));
  CHECK(first->digest.sha256 == second->digest.sha256);
  CHECK(first->file == second->file);
}

TEST_CASE("a restore adds refused closures (LEDGER line 21) and removes attempts (line 28)") {
  fs::MemoryFileSystem files;
  const ShardSettings settings = Settings("counting", 2);
  const auto shard = Seeded(settings);
  const std::vector<float> gradient(10, 1);
  for (const std::uint64_t c : {3u, 4u})
    REQUIRE(shard->Apply(Update(c, 0, gradient)).code == PushCode::kApplied);
  const auto durable = WriteCut(shard->Cut(), Target(files));
  RestoreOptions options = Restoring(files, *durable, settings);
  options.refused = IntervalSet{4, 9};
  options.forget_attempts = true;
  const auto restored = RestoreShard(options);
  REQUIRE(restored.ok());
  CHECK((*restored)->ledger().refused() == IntervalSet{4, 9});
  CHECK((*restored)->ledger().open().size() == 1);
  CHECK((*restored)->ledger().open().at(ClosureId(3)).attempt == Attempt{});
  CHECK((*restored)->lsn() == shard->lsn() + 1);
}

// Each update of a closure adds 1 to one element that no other update changes. The values therefore
// show which updates were applied.
TEST_CASE("random pushes, cuts and restores give the values, states and ledger of an exact map") {
  constexpr std::uint64_t kRows = 24, kElements = kRows * 5;
  constexpr std::uint32_t kUpdates = 5;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO(seed);
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    fs::MemoryFileSystem files;
    ShardSettings settings = Settings("counting", kRows);
    settings.initializer = {};
    auto shard = Seeded(settings);
    ShardEpoch epoch{1, 5};
    // Here begins the simple second implementation.
    std::map<std::pair<std::uint64_t, std::uint32_t>, int> applied;
    std::set<std::uint64_t> done;
    struct Kept {
      DurableCut durable;
      decltype(applied) was;
      std::set<std::uint64_t> was_done;
    };
    std::vector<Kept> kept;
    const auto push = [&] {
      const std::uint64_t c = random() % (kElements / kUpdates);
      const std::uint32_t u = random() % kUpdates;
      std::vector<float> gradient(kElements, 0);
      gradient[c * kUpdates + u] = 1;
      const PushResult result = shard->Apply(Update(c, u, gradient, epoch));
      const bool is_new = done.count(c) == 0 && applied.count({c, u}) == 0;
      CHECK(result.code == (is_new ? PushCode::kApplied : PushCode::kDuplicate));
      if (is_new) ++applied[{c, u}];
    };
    const auto check = [&](const Shard& s, const decltype(applied)& want,
                           const std::set<std::uint64_t>& ended) {
      std::vector<float> values(kElements, 0);
      for (const auto& [key, n] : want)
        values[key.first * kUpdates + key.second] = static_cast<float>(n);
      CHECK(s.Values() == values);
      for (std::uint64_t c = 0; c < kElements / kUpdates; ++c)
        for (std::uint32_t u = 0; u < kUpdates; ++u)
          if (s.ledger().Has(ClosureId(c), UpdateIndex(u)) !=
              (ended.count(c) > 0 || want.count({c, u}) > 0))
            FAIL("ledger differs at " << c << " " << u);
    };
    for (int event = 0; event < 60; ++event) {
      switch (random() % 8) {
        case 0: {  // a cut is written during pushes
          CutTarget target = Target(files);
          const auto was = applied;
          const auto was_done = done;
          target.cancelled = [&] {
            for (std::uint32_t n = random() % 4; n > 0; --n) push();
            return false;
          };
          const auto durable = WriteCut(shard->Cut(), target);
          REQUIRE(durable.ok());
          kept.push_back({*durable, was, was_done});
          break;
        }
        case 1: {  // the owner is lost, and an earlier cut is restored
          if (kept.empty()) break;
          const Kept& chosen = kept[random() % kept.size()];
          epoch = {2, static_cast<std::uint64_t>(event) + 10};
          RestoreOptions options = Restoring(files, chosen.durable, settings);
          options.epoch = epoch;
          auto restored = RestoreShard(options);
          REQUIRE(restored.ok());
          shard = *std::move(restored);
          applied = chosen.was;
          done = chosen.was_done;
          break;
        }
        case 2: {  // a closure ends if all its updates are applied
          const std::uint64_t c = random() % (kElements / kUpdates);
          bool whole = true;
          for (std::uint32_t u = 0; u < kUpdates; ++u) whole = whole && applied.count({c, u}) > 0;
          if (!whole) break;
          CHECK(shard->Close(epoch, {3, 0}, IntervalSet{c}, {}));
          done.insert(c);
          break;
        }
        default:
          for (int n = 0; n < 6; ++n) push();
      }
      check(*shard, applied, done);
    }
    for (const Kept& one : kept) {
      const auto restored = RestoreShard(Restoring(files, one.durable, settings));
      REQUIRE(restored.ok());
      check(**restored, one.was, one.was_done);
      CHECK((*restored)->StateDigest() != 0);
    }
  }
}

TEST_CASE("a file of another job, plan, shard, cut or optimizer is refused by name") {
  fs::MemoryFileSystem files;
  const ShardSettings settings = Settings("adam", 4);
  const auto durable = WriteCut(Seeded(settings)->Cut(), Target(files));
  const struct {
    const char* words;
    absl::StatusCode code;
    std::function<void(RestoreOptions*)> change;
  } cases[] = {
      {"another job", absl::StatusCode::kFailedPrecondition,
       [](auto* o) { o->source.file_job = JobUid(1); }},
      {"another plan", absl::StatusCode::kFailedPrecondition,
       [](auto* o) { o->source.plan_fingerprint = "other"; }},
      {"another shard", absl::StatusCode::kFailedPrecondition,
       [](auto* o) { o->settings.shard = ShardId(4); }},
      {"another cut", absl::StatusCode::kFailedPrecondition,
       [](auto* o) { o->settings.row_end -= 1; }},
      {"another cut", absl::StatusCode::kFailedPrecondition,
       [](auto* o) { o->settings.variable = "x"; }},
      {"another cut", absl::StatusCode::kFailedPrecondition,
       [](auto* o) {
         o->settings.variable_shape = tensor::Shape{8, 6};
       }},
      {"optimizer", absl::StatusCode::kInvalidArgument,
       [](auto* o) { o->settings.optimizer.type = "sgd"; }},
      {"sha256 differs", absl::StatusCode::kDataLoss,
       [](auto* o) { o->source.expected->sha256[0] ^= std::byte{1}; }},
      {"file size differs", absl::StatusCode::kDataLoss,
       [](auto* o) { o->source.expected->bytes += 1; }},
      {"no such file", absl::StatusCode::kNotFound, [](auto* o) { o->source.uri += "x"; }},
  };
  for (const auto& c : cases) {
    INFO(c.words);
    RestoreOptions options = Restoring(files, *durable, settings);
    c.change(&options);
    const absl::Status status = RestoreShard(options).status();
    CHECK(status.code() == c.code);
    CHECK(status.message().find(c.words) != std::string::npos);
  }
  // The learning rate is not a part of the plan, so a restored shard may have another one.
  RestoreOptions options = Restoring(files, *durable, settings);
  options.settings.optimizer.learning_rate = 0.5;
  CHECK(RestoreShard(options).ok());
}

TEST_CASE("K2 for one shard: a file with any flipped bit or missing byte is not restored") {
  fs::MemoryFileSystem files;
  const ShardSettings settings = Settings("sgd", 3, 0.9);
  const auto durable = WriteCut(Seeded(settings)->Cut(), Target(files));
  const RestoreOptions options = Restoring(files, *durable, settings);
  for (std::uint64_t at = 0; at < durable->digest.bytes; ++at) {
    const std::byte flip{static_cast<unsigned char>(1u << (at % 8))};
    REQUIRE(files.Damage(options.source.uri, at, flip).ok());
    for (const bool expected : {true, false}) {
      RestoreOptions one = options;
      if (!expected) one.source.expected.reset();
      const absl::Status status = RestoreShard(one).status();
      if (status.code() != absl::StatusCode::kDataLoss)
        FAIL("byte " << at << ": " << status.ToString());
    }
    REQUIRE(files.Damage(options.source.uri, at, flip).ok());
  }
  CHECK(RestoreShard(options).ok());
  REQUIRE(files.Truncate(options.source.uri, durable->digest.bytes - 1).ok());
  CHECK(RestoreShard(options).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE(
    "a commit without a known result is written again, and the file of another job is unchanged") {
  fault::Failpoints failpoints;
  fs::MemoryFileSystem files({&failpoints});
  const auto shard = Seeded(Settings("counting", 4));
  REQUIRE(failpoints.Arm("snapshot.after_commit=1*error", 1).ok());
  CHECK(WriteCut(shard->Cut(), Target(files, &failpoints)).status().code() ==
        absl::StatusCode::kInternal);
  CHECK(files.List(kFolder)->size() == 1);
  CHECK(WriteCut(shard->Cut(), Target(files, &failpoints)).ok());
  // The file exists, but only its first bytes, because the disk had reported a sync that it had not
  // done. The file must be written again.
  REQUIRE(files.Truncate(fs::JoinUri(kFolder, files.List(kFolder)->at(0).name), 10).ok());
  const auto durable = WriteCut(shard->Cut(), Target(files));
  REQUIRE(durable.ok());
  CHECK(RestoreShard(Restoring(files, *durable, Settings("counting", 4))).ok());
  ShardSettings other = Settings("counting", 4);
  other.job = JobUid(0xdef);
  const absl::Status status = WriteCut(Seeded(other)->Cut(), Target(files)).status();
  CHECK(status.code() == absl::StatusCode::kAlreadyExists);
  CHECK(status.message().find("two jobs") != std::string::npos);
}

TEST_CASE("an error at each step leaves no name, and promised files survive a loss of power") {
  for (const char* failpoint : {"snapshot.write", "fs.write", "snapshot.before_commit", "fs.sync",
                                "fs.link", "fs.sync_folder", "none"}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      INFO(failpoint << " " << seed);
      fault::Failpoints failpoints;
      fs::MemoryFileSystem files({&failpoints});
      const ShardSettings settings = Settings("adam", 40);
      const auto shard = Seeded(settings);
      const auto old = WriteCut(shard->Cut(), Target(files, &failpoints));
      REQUIRE(old.ok());
      REQUIRE(shard->Apply(Update(0, 0, std::vector<float>(200, 1))).code == PushCode::kApplied);
      if (failpoint != std::string("none"))
        REQUIRE(failpoints.Arm(absl::StrCat(failpoint, "=error"), 1).ok());
      const auto newer = WriteCut(shard->Cut(), Target(files, &failpoints));
      CHECK(newer.ok() == (failpoint == std::string("none")));
      files.Crash(seed);
      CHECK(RestoreShard(Restoring(files, *old, settings)).ok());
      if (newer.ok())
        CHECK((*RestoreShard(Restoring(files, *newer, settings)))->Digest() == shard->Digest());
      const std::vector<fs::ListedFile> entries = *files.List(kFolder);
      for (const fs::ListedFile& entry : entries)
        CHECK(snapshot::VerifyShardFile(files, fs::JoinUri(kFolder, entry.name)).ok());
    }
  }
}

// This is scenario K1 with a real process and a real disk.
TEST_CASE("SIGKILL at each step leaves the old file, and the new one whole or not at all") {
  for (const char* failpoint :
       {"snapshot.write=2*kill", "fs.write=3*kill", "snapshot.before_commit=kill", "fs.sync=kill",
        "fs.link=kill", "fs.sync_folder=kill", "snapshot.after_commit=kill"}) {
    for (const bool unnamed : {true, false}) {
      INFO(failpoint << " " << unnamed);
      test::TempFolder folder;
      const std::string uri = "file://" + (folder / "job");
      const ShardSettings settings = Settings("adam", 100'000);
      const auto shard = Seeded(settings);
      const auto files = fs::MakeLocalFileSystem({nullptr, unnamed});
      const auto old = WriteCut(shard->Cut(), {files.get(), uri, "plan", nullptr, nullptr});
      REQUIRE(old.ok());
      REQUIRE(shard->Apply(Update(0, 0, std::vector<float>(500'000, 1))).code ==
              PushCode::kApplied);
      const pid_t child = ::fork();
      if (child == 0) {
        fault::Failpoints failpoints;
        if (!failpoints.Arm(failpoint, 1).ok()) ::_exit(2);
        const auto in_child = fs::MakeLocalFileSystem({&failpoints, unnamed});
        (void)WriteCut(shard->Cut(), {in_child.get(), uri, "plan", &failpoints, nullptr}).ok();
        ::_exit(3);
      }
      int result = 0;
      REQUIRE(::waitpid(child, &result, 0) == child);
      REQUIRE(WIFSIGNALED(result));
      CHECK(WTERMSIG(result) == SIGKILL);
      std::size_t whole = 0;
      const std::vector<fs::ListedFile> entries = *files->List(uri);
      for (const fs::ListedFile& entry : entries) {
        CHECK(snapshot::VerifyShardFile(*files, fs::JoinUri(uri, entry.name)).ok());
        ++whole;
      }
      const bool named = absl::StrContains(failpoint, "fs.sync_folder") ||
                         absl::StrContains(failpoint, "after_commit");
      CHECK(whole == (named ? 2 : 1));
      // The next process must be able to write the same state, whatever files the killed process
      // has left.
      const auto again = WriteCut(shard->Cut(), {files.get(), uri, "plan", nullptr, nullptr});
      REQUIRE(again.ok());
      CHECK(files->List(uri)->size() == 2);
    }
  }
}

TEST_CASE("an error in the middle of a restore gives no shard") {
  fault::Failpoints failpoints;
  fs::MemoryFileSystem files;
  const ShardSettings settings = Settings("adam", 100'000);
  const auto durable = WriteCut(Seeded(settings)->Cut(), Target(files));
  REQUIRE(failpoints.Arm("snapshot.restore=2*error", 1).ok());
  RestoreOptions options = Restoring(files, *durable, settings);
  options.source.failpoints = &failpoints;
  CHECK(RestoreShard(options).status().code() == absl::StatusCode::kInternal);
  CHECK(RestoreShard(options).ok());
}

}  // namespace
}  // namespace evergrad::ps_server
