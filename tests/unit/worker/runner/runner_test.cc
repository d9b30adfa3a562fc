// Tests the runner end to end. The test acts as the coordinator, and the servers are real, over the
// in-process transport.
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_replace.h"
#include "common/snapshot/checksum.h"
#include "runner_fixture.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/unit/worker/backend/cuda/emulated_library.h"
#include "worker/backend/backend.h"
#include "worker/params/layout.h"

namespace evergrad::worker {
namespace {

// There are 90 training examples in batches of 10, so an epoch has closures of 4, 4 and 1 steps.
// There are two epochs.
void WriteData(const Stage& stage, std::uint32_t train = 90, std::uint32_t eval = 50) {
  WriteIdx(stage.folder, "train", train);
  WriteIdx(stage.folder, "eval", eval);
}
double MeanLoss(const v1::Done& done) {
  return done.metrics().loss_sum() / static_cast<double>(done.metrics().examples());
}

TEST_CASE(
    "a describe closure tells examples, variables with initialiser and optimizer, fingerprint and "
    "summary") {
  Stage stage;
  WriteData(stage);
  const v1::DescribeResult d = stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  CHECK(d.train_examples() == 90);
  CHECK(d.eval_examples() == 50);
  REQUIRE(d.variables_size() == 4);
  CHECK(d.variables(0).name() == "hidden/kernel");
  CHECK(d.variables(0).shape(0) == 16);
  CHECK(d.variables(0).initializer().type() == "glorot_uniform");
  CHECK(d.variables(0).initializer().fan_in() == 16);
  CHECK(d.variables(0).initializer().seed() == 11);
  CHECK(d.variables(3).name() == "logits/bias");
  CHECK(d.variables(3).optimizer().type() == "sgd");
  CHECK(d.variables(3).optimizer().learning_rate() == 0.5);
  CHECK(d.parameters() == 16 * 8 + 8 + 8 * 3 + 3);
  CHECK_THAT(d.data_fingerprint(), Catch::Contains("images: size=") &&
                                       Catch::Contains("\nlabels: size=") &&
                                       Catch::Contains("sha256="));
  // The evaluation data is not a part of the plan.
  CHECK(std::count(d.data_fingerprint().begin(), d.data_fingerprint().end(), '\n') == 1);
  CHECK_THAT(d.model_summary(), Catch::Contains("hidden"));
}

TEST_CASE("a constant initializer of a layer reaches the variable with its value") {
  Stage stage;
  WriteData(stage);
  const std::string yaml = absl::StrReplaceAll(
      TrainingYaml(stage.folder),
      {{"units: 8, activation: tanh",
        "units: 8, activation: tanh, bias_initializer: {type: constant, value: 0.125}"}});
  const v1::DescribeResult d = stage.Begin(yaml, 2, SmallPlan());
  CHECK(d.variables(0).initializer().type() == "glorot_uniform");
  CHECK(d.variables(1).name() == "hidden/bias");
  CHECK(d.variables(1).initializer().type() == "constant");
  CHECK(d.variables(1).initializer().value() == 0.125);
}

TEST_CASE(
    "moving averages of batch normalization approach the batches, change once in each step of the "
    "plan, and are read by evaluation") {
  Stage stage;
  WriteData(stage);
  const std::string yaml = absl::StrReplaceAll(
      TrainingYaml(stage.folder),
      {{"      - {name: logits,",
        "      - {name: norm, type: batch_normalization, momentum: 0.5}\n      - {name: logits,"}});
  const v1::DescribeResult d = stage.Begin(yaml, 2, SmallPlan());
  REQUIRE(d.variables_size() == 8);
  CHECK(d.variables(4).name() == "norm/moving_mean");
  CHECK(d.variables(4).optimizer().type() == "moving_average");
  CHECK(d.variables(4).optimizer().momentum() == 0.5);
  CHECK(d.variables(3).optimizer().type() == "sgd");
  std::uint64_t steps = 0;
  std::vector<v1::Done> done;
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    stage.Grant(c);
    done.push_back(stage.Next(v1::TaskMessage::kDone).done());
    stage.Answer(done.back());
    steps += done.back().metrics().steps();
  }
  CHECK(MeanLoss(done.back()) < 0.5 * MeanLoss(done.front()));
  std::map<std::uint32_t, bool> moving;  // by shard
  for (const v1::ShardSpec& shard : stage.job.plan().shards())
    moving[shard.shard()] = shard.variable().optimizer().type() == "moving_average";
  std::uint64_t seen = 0;
  for (const SeenPush& push : stage.Seen()) {
    CHECK(push.kind == (moving[push.shard] ? v1::MOVING_AVERAGE : v1::GRADIENT));
    seen += moving[push.shard];
  }
  CHECK(seen == 4 * steps);  // the mean and the variance have two shards each
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == steps);
  // The moving averages must follow the batches. The loss of the evaluation is then near that of
  // the training. With the initial values of the moving averages it would not be.
  stage.Grant(0, v1::EVALUATE);
  const v1::Done evaluated = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(MeanLoss(evaluated) < 2 * MeanLoss(done.back()) + 0.05);
}

TEST_CASE(
    "the loss falls, every shard applies every update once, and the numbers of Done are those of "
    "the plan") {
  const int pipeline = GENERATE(0, 1);
  CAPTURE(pipeline);
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder, 0.5, pipeline), 2, SmallPlan());
  std::vector<v1::Done> done;
  // All closures are granted in advance. The values that the last push of a closure returns are
  // therefore used for the first step of the next closure.
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) stage.Grant(c);
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    done.push_back(stage.Next(v1::TaskMessage::kDone).done());
    stage.Answer(done.back());
  }
  CHECK(MeanLoss(done.back()) < 0.5 * MeanLoss(done.front()));
  std::uint64_t examples = 0, steps = 0;
  for (std::size_t c = 0; c < done.size(); ++c) {
    CHECK(done[c].closure() == c);
    CHECK(done[c].metrics().steps() == stage.plan->Closure(ClosureId(c)).steps);
    REQUIRE(done[c].metrics().step_records_size() == static_cast<int>(done[c].metrics().steps()));
    CHECK(done[c].metrics().step_records(0).global_step() ==
          stage.plan->Closure(ClosureId(c)).first_global_step);
    CHECK(done[c].metrics().sums(0).name() == "accuracy");
    CHECK(done[c].all_targets());
    // Each update touches every dense shard, which an empty list of shards means.
    CHECK((done[c].has_touched() && done[c].touched().shards().empty()));
    CHECK(done[c].v0().n() == 1);
    CHECK(done[c].v1().n() == 1);
    examples += done[c].metrics().examples();
    steps += done[c].metrics().steps();
  }
  CHECK(examples == 2 * 90);
  for (const v1::ShardState& state : stage.States()) {
    INFO(state.variable());
    CHECK(state.updates_applied() == steps);
    CHECK(state.duplicates_refused() == 0);
  }
  CHECK(stage.HoldsNothing());
  v1::WorkerProgress progress;
  stage.OnControl([&] { progress = stage.runner->Progress(); });
  CHECK(progress.steps() == steps);
  CHECK(stage.StepsLogged() == static_cast<int>(steps));
  CHECK(progress.steps_log_size() == 0);
  CHECK(progress.state() == "idle");
}

TEST_CASE("a large push asks for memory at the server while its gradients are computed") {
  Stage stage;
  WriteData(stage);
  const std::string yaml =
      absl::StrReplaceAll(TrainingYaml(stage.folder),
                          {{"units: 8, activation: tanh", "units: 8192, activation: tanh"}});
  stage.Begin(yaml, 2, SmallPlan());
  for (std::uint64_t c = 0; c < 3; ++c) stage.RunClosure(c);
  // As long as the duration of a step is not known, pushes are announced as early as possible. The
  // large pushes of the first step are therefore announced to both servers. The first pull of a
  // closure is never announced.
  const auto stats = stage.client.stats();
  CHECK(stats.announced >= 2);
  CHECK(stats.announced <= 2 * 9);
  CHECK(stats.calls > stats.announced);
  CHECK(stats.failures == 0);
}

// Returns a digest of the values after two closures, with an evaluation between them.
std::uint64_t DigestOn(const std::string& device, int pipeline, double* ahead) {
  Stage::Settings settings;
  settings.device = device;
  settings.cuda_library = absl::StrCat(evergrad::test::BinDir(), "/libworker_cuda_emulated.so");
  Stage stage(settings);
  WriteIdx(stage.folder, "train", 90);
  WriteIdx(stage.folder, "eval", 30);
  stage.Begin(TrainingYaml(stage.folder, 0.5, pipeline), 2, SmallPlan());
  stage.RunClosure(0);
  stage.RunClosure(1ull << 32, v1::EVALUATE);
  stage.RunClosure(1);
  const std::string text = stage.registry.PrometheusText();
  const std::string name = "\nevergrad_worker_device_steps{how=\"ahead\"} ";
  const std::size_t at = text.find(name);
  // If a CPU does not have a measurement, it must not be reported as zero.
  v1::WorkerProgress progress;
  stage.OnControl([&] { progress = stage.runner->Progress(); });
  CHECK(progress.has_device() == (device == "gpu"));
  CHECK((text.find("evergrad_worker_device_memory_bytes{kind=\"used\"}") != std::string::npos) ==
        (device == "gpu"));
  if (device == "gpu") {
    CHECK(progress.device().name().find("emulated") != std::string::npos);
    CHECK(progress.device().measured_steps() == 8 + 3);
    CHECK(progress.device().memory_used() > 0);
    CHECK(progress.device().kernel_seconds() > 0);
    CHECK(progress.device().in_seconds() > 0);
    CHECK(progress.device().out_seconds() > 0);
    CHECK(progress.device().waits() >= 6);
    CHECK(progress.device().wait_seconds() > 0);
    CHECK(progress.device().utilization_from() == "kernels");
    CHECK((progress.device().utilization() > 0 && progress.device().utilization() <= 1));
    CHECK(progress.device().steps_eager() + progress.device().graph_captures() +
              progress.device().graph_replays() ==
          11);
  }
  *ahead = at == std::string::npos ? -1 : std::stod(text.substr(at + name.size()));
  return stage.Digest();
}

TEST_CASE(
    "a step's batch is on the device before the step begins, also in the first step of a closure; "
    "on the CPU nothing is copied ahead") {
  for (const int pipeline : {0, 1}) {
    double ahead = 0;
    DigestOn("cpu", pipeline, &ahead);
    CHECK(ahead == -1);
    const std::uint64_t first = DigestOn("gpu", pipeline, &ahead);
    CHECK(ahead == 8);  // all 8 steps
    if (pipeline == 0) CHECK(DigestOn("gpu", pipeline, &ahead) == first);
  }
}

double Sample(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(absl::StrCat("\n", name, " "));
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + name.size() + 2));
}

TEST_CASE(
    "the thread that computes copies no pulled value on its way to a device, and without "
    "page-locked memory steps are right all the same") {
  const std::string library = absl::StrCat(evergrad::test::BinDir(), "/libworker_cuda_emulated.so");
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  EmulatedControl& control =
      *reinterpret_cast<EmulatedControlEntry>(::dlsym(handle, "emulated_control"))();
  control = EmulatedControl{};
  const absl::Cleanup as_before = [&] { control = EmulatedControl{}; };
  const int pipeline = GENERATE(0, 1);
  const std::string wire = GENERATE(as<std::string>(), "", "wire_dtype: bf16, ");
  std::uint64_t digests[2] = {};
  for (const bool pinned : {true, false}) {
    INFO("pipeline " << pipeline << " " << wire << " page-locked " << pinned);
    Stage::Settings settings;
    settings.device = "gpu";
    settings.cuda_library = library;
    Stage stage(settings);
    WriteIdx(stage.folder, "train", 90);
    WriteIdx(stage.folder, "eval", 30);
    std::string yaml = TrainingYaml(stage.folder, 0.5, pipeline);
    yaml.replace(yaml.find("steps_per_closure"), 0, wire);
    stage.Begin(yaml, 8, SmallPlan());  // variables have several shards
    control.no_pinned = !pinned;
    stage.RunClosure(0);
    stage.RunClosure(1);
    stage.RunClosure(1ull << 32, v1::EVALUATE);
    control.no_pinned = false;
    digests[pinned] = stage.Digest();
    const std::string text = stage.registry.PrometheusText();
    const double direct = Sample(text, "evergrad_worker_device_in_bytes{how=\"direct\"}"),
                 staged = Sample(text, "evergrad_worker_device_in_bytes{how=\"staged\"}"),
                 refused = Sample(text, "evergrad_worker_device_staging_refused");
    std::uint64_t weights = 0;
    const auto layout = Layout::FromPlan(stage.job.plan());
    REQUIRE(layout.ok());
    for (const LaidVariable& variable : layout->variables()) weights += variable.wire_bytes();
    if (pinned) {
      // The direct bytes are those of images, labels and all pulled values, for each step and for
      // the evaluation. With pipeline 1, a step may find the values unchanged, or it may assemble a
      // variable in other memory from shards of two pulls. The staged bytes are those of the
      // dropout keys.
      const double pulls = (direct - 11 * (10 * (16 + 1) * 4)) / static_cast<double>(weights);
      CHECK((pipeline == 0 ? pulls == 9 : pulls >= 1 && pulls <= 9));
      CHECK(staged <= 11 * 8 + (pipeline == 0 ? 0 : 9 * static_cast<double>(weights)));
      CHECK(refused == 0);
    } else {
      CHECK(staged == 0);
      CHECK(refused > 0);
      CHECK(control.pageable_copies > 0);
    }
  }
  if (pipeline == 0) CHECK(digests[0] == digests[1]);
}

TEST_CASE(
    "with pipeline 0 one worker's values are a function of the plan, however many servers and "
    "shards there are") {
  std::uint64_t first = 0;
  for (const auto& [servers, shards] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{2, 8}}) {
    Stage::Settings settings;
    settings.servers = servers;
    Stage stage(settings);
    WriteData(stage);
    stage.Begin(TrainingYaml(stage.folder), static_cast<std::uint64_t>(shards), SmallPlan());
    for (std::uint64_t c = 0; c < 3; ++c) stage.RunClosure(c);
    if (first == 0) first = stage.Digest();
    CHECK(stage.Digest() == first);
  }
}

TEST_CASE(
    "a closure granted again under a higher attempt is answered with duplicates, and nothing "
    "changes") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.RunClosure(0);
  const std::uint64_t before = stage.Digest();
  const v1::Done again = stage.RunClosure(0);
  CHECK(again.attempt().n() == 3);
  CHECK(again.metrics().steps() == 4);
  CHECK(stage.Digest() == before);
  for (const v1::ShardState& state : stage.States()) {
    CHECK(state.updates_applied() == 4);
    CHECK(state.duplicates_refused() == 4);
  }
}

TEST_CASE("a repair run computes the whole step and pushes to its targets only") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  const v1::Done done = stage.RunClosure(1, v1::TRAIN, {3, 0});
  CHECK_FALSE(done.all_targets());
  CHECK(std::vector<std::uint32_t>(done.targets().begin(), done.targets().end()) ==
        std::vector<std::uint32_t>{0, 3});
  CHECK(done.metrics().steps() == 4);
  std::set<std::uint32_t> shards;
  for (const SeenPush& push : stage.Seen()) shards.insert(push.shard);
  CHECK(shards == std::set<std::uint32_t>{0, 3});
}

TEST_CASE(
    "STALE with a newer map waits for that map; the attempt keeps its V0 and reports the newer "
    "V1") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  // Shard 1 moves from server 1 to server 0 under a new epoch. The worker does not know this yet.
  stage.nodes[1]->Drop(1, {1, 1});
  stage.nodes[1]->Learn({1, 2});
  stage.nodes[0]->Assign(stage.job.plan().shards(1), {1, 2}, {0, 0}, {1, 2}, 8);
  runtime::WaitableEvent asked;
  stage.nodes[1]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>&) {
        for (const v1::PullSection& pull : header.pulls()) {
          if (pull.shard() == 1) asked.Set();
        }
        return false;
      });
  stage.Grant(0);
  asked.Wait();
  stage.map.mutable_shards(1)->mutable_epoch()->set_n(2);
  stage.map.mutable_shards(1)->set_server_identity("0");
  *stage.map.mutable_shards(1)->mutable_endpoint() = stage.nodes[0]->endpoint();
  stage.map.mutable_version()->set_n(2);
  stage.SendMap();
  const v1::Done done = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(done.v0().n() == 1);
  CHECK(done.v1().n() == 2);
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 4);
}

TEST_CASE(
    "after STALE with the held map, BUSY or a lost answer the push is sent again under the same "
    "identity until it is settled") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 1, SmallPlan());
  // Three cases follow each other: a STALE answer although the server has the worker's own map
  // version, then BUSY, and then an answer that is lost after the push was applied.
  int n = 0;
  stage.nodes[0]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0 || n >= 2) return false;
        v1::ResponseHeader response;
        for (const v1::PushSection& push : header.pushes()) {
          v1::PushResult& result = *response.add_pushes();
          result.set_shard(push.shard());
          result.set_answer(n == 0 ? v1::STALE : v1::BUSY);
          *result.mutable_version() = client::ToProto(MapVersion{1, 1});
          result.set_busy_after_ms(1);
        }
        for (const v1::PullSection& pull : header.pulls()) {
          v1::PullResult& result = *response.add_pulls();
          result.set_shard(pull.shard());
          result.set_answer(v1::UNCHANGED);
        }
        ++n;
        transport::Frame frame;
        frame.pieces = wire::BuildResponse(
            std::move(response),
            std::vector<tensor::SharedBytes>(static_cast<std::size_t>(header.pulls_size())));
        responder->Answer(std::move(frame));
        return true;
      });
  int lost = 0;
  stage.nodes[1]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0 || lost++ > 0) return false;
        responder->Fail(absl::UnavailableError("lost on the way"));
        return true;
      });
  stage.RunClosure(0);
  CHECK(n == 2);
  CHECK(lost > 1);
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 4);
}

TEST_CASE("a server that is disconnected for a while only delays the job") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.RunClosure(0);
  stage.nodes[0]->StopListening();
  stage.Grant(1);
  stage.nodes[0]->Listen();
  stage.Next(v1::TaskMessage::kDone);
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 8);
}

// Answers the request in place of the server: every push with `answer`, and every pull with
// UNCHANGED.
void AnswerInstead(const v1::RequestHeader& header, v1::PushAnswer answer,
                   absl::string_view message, transport::DataResponder& responder) {
  v1::ResponseHeader response;
  for (const v1::PushSection& push : header.pushes()) {
    v1::PushResult& result = *response.add_pushes();
    result.set_shard(push.shard());
    result.set_answer(answer);
    result.set_message(std::string(message));
  }
  for (const v1::PullSection& pull : header.pulls()) {
    v1::PullResult& result = *response.add_pulls();
    result.set_shard(pull.shard());
    result.set_answer(v1::UNCHANGED);
  }
  transport::Frame frame;
  frame.pieces = wire::BuildResponse(
      std::move(response),
      std::vector<tensor::SharedBytes>(static_cast<std::size_t>(header.pulls_size())));
  responder.Answer(std::move(frame));
}

TEST_CASE("SUPERSEDED and REFUSED drop the attempt, and the next one runs") {
  const auto answer = GENERATE(v1::SUPERSEDED, v1::REFUSED);
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  bool once = true;
  stage.nodes[0]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0 || !std::exchange(once, false)) return false;
        AnswerInstead(header, answer, "", *responder);
        return true;
      });
  const std::uint64_t first = stage.Grant(0);
  const v1::TaskMessage dropped = stage.Next(v1::TaskMessage::kDropped);
  CHECK(dropped.dropped().attempt().n() == first);
  // A correct shard never answers SUPERSEDED to the newest attempt.
  CHECK(dropped.dropped().superseded() == (answer == v1::SUPERSEDED));
  CHECK(dropped.dropped().shard() % 2 == 0);  // the shard belongs to the first server
  CHECK(stage.HoldsNothing());
  const v1::Done done = stage.RunClosure(0);
  CHECK(done.attempt().n() == first + 1);
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 4);
}

TEST_CASE("each push has the name and the proof of its grant, also when it is sent again") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  std::vector<v1::RequestHeader> seen;
  int lost = 0;
  stage.nodes[0]->SetIntercept(
      [&](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0) return false;
        seen.push_back(header);
        if (lost++ % 2 == 1) return false;
        responder.reset();  // the answer is lost
        return true;
      });
  const v1::Done done = stage.RunClosure(0);
  REQUIRE(seen.size() >= 2);
  for (const v1::RequestHeader& header : seen) {
    CHECK(header.client_name() == "worker/0");
    REQUIRE(header.grants_size() == 1);
    CHECK(header.grants(0).closure() == 0);
    CHECK(client::FromProto<Attempt>(header.grants(0).attempt()) ==
          client::FromProto<Attempt>(done.attempt()));
    CHECK(header.grants(0).mac() == grants::MakeProof(kGrantKey, JobUid(kJob), ClosureId(0),
                                                      client::FromProto<Attempt>(done.attempt()),
                                                      "0"));
  }
}

TEST_CASE("a worker whose grant proves nothing fails its closure with the server's words") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.OnControl([&] { stage.runner->SetIdentity("another"); });
  stage.Grant(0);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK_FALSE(failed.user_error());
  CHECK_THAT(failed.cause().message(),
             Catch::Matchers::Contains(
                 "the coordinator has not granted this attempt to the sender of the push"));
}

TEST_CASE("INVALID ends the attempt with the server's words, not as a user's error") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.nodes[0]->SetIntercept(
      [](const v1::RequestHeader& header, std::unique_ptr<transport::DataResponder>& responder) {
        if (header.pushes_size() == 0) return false;
        AnswerInstead(header, v1::INVALID, "gradient bytes mismatch", *responder);
        return true;
      });
  stage.Grant(0);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK_FALSE(failed.user_error());
  CHECK_THAT(failed.cause().message(), Catch::Contains("gradient bytes mismatch"));
  CHECK(failed.cause().origin_text() == "ps_server/0");
  CHECK(stage.HoldsNothing());
}

// Answers pushes to this node with OVER_BUDGET while `*full` is set, and counts them in `*refused`.
Node::Intercept FullWhile(const std::atomic<bool>* full, std::atomic<int>* refused) {
  return [full, refused](const v1::RequestHeader& header,
                         std::unique_ptr<transport::DataResponder>& responder) {
    if (header.pushes_size() == 0 || !*full) return false;
    ++*refused;
    AnswerInstead(
        header, v1::OVER_BUDGET,
        "server's tables are above memory_bytes_max: table=movies held=1000 memory_bytes_max=900",
        *responder);
    return true;
  };
}

TEST_CASE("out of memory at a server fails the job with server, table, bytes, limit and a remedy") {
  std::atomic<bool> full{true};
  std::atomic<int> refused{0};
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.nodes[1]->SetIntercept(FullWhile(&full, &refused));
  stage.Grant(0);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.user_error());
  CHECK(failed.cause().origin_text() == "ps_server/1");
  CHECK_THAT(failed.cause().message(),
             Catch::StartsWith("out of memory at ps_server/1: ") &&
                 Catch::Contains("table=movies held=1000 memory_bytes_max=900") &&
                 Catch::Contains("closure=0 update=0") &&
                 Catch::Contains("training.on_over_budget: pause"));
  CHECK(refused == 1);
  CHECK(stage.HoldsNothing());
}

TEST_CASE(
    "with on_over_budget: pause the worker names the memory that it waits for, and continues when "
    "there is enough") {
  std::atomic<bool> full{true};
  std::atomic<int> refused{0};
  Stage stage;
  WriteData(stage);
  const std::string yaml = absl::StrReplaceAll(
      TrainingYaml(stage.folder), {{"training: {", "training: {on_over_budget: pause, "}});
  REQUIRE(yaml.find("on_over_budget") != std::string::npos);
  stage.Begin(yaml, 2, SmallPlan());
  stage.nodes[1]->SetIntercept(FullWhile(&full, &refused));
  const auto progress = [&] {
    v1::WorkerProgress now;
    stage.OnControl([&] { now = stage.runner->Progress(); });
    return now;
  };
  const auto until_paused = [&] {
    const MonoTime began = stage.clock.Now();
    while (progress().state() != "paused" && stage.clock.Now() - began < std::chrono::seconds(20)) {
    }
    CHECK(
        progress().waiting_for() ==
        "memory at ps_server/1: server's tables are above memory_bytes_max: table=movies held=1000 "
        "memory_bytes_max=900");
  };
  const std::uint64_t first = stage.Grant(0);
  until_paused();
  full = false;
  const v1::Done done = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(done.attempt().n() == first);
  stage.Answer(done);
  CHECK(refused >= 1);
  CHECK(progress().state() == "idle");
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 4);

  // If the attempt is recalled while the worker waits, the worker becomes free for another job.
  // When the closure runs again, updates that were applied before must not be applied again.
  full = true;
  const std::uint64_t second = stage.Grant(1);
  until_paused();
  v1::CoordinatorMessage recall;
  recall.mutable_recall()->set_job_uid(kJob);
  *recall.mutable_recall()->mutable_attempt() = client::ToProto(Attempt{1, second});
  stage.Message(recall);
  const v1::AttemptDropped dropped = stage.Next(v1::TaskMessage::kDropped).dropped();
  CHECK(dropped.attempt().n() == second);
  CHECK_THAT(dropped.reason(), Catch::Contains("waited for memory"));
  CHECK(stage.HoldsNothing());
  full = false;
  CHECK(stage.RunClosure(1).attempt().n() == second + 1);
  for (const v1::ShardState& state : stage.States()) CHECK(state.updates_applied() == 8);
}

TEST_CASE(
    "Done is kept and resent unchanged in every session until it is answered; what is not adopted "
    "is dropped") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.LoseSession();
  v1::CoordinatorMessage ignored;
  const std::uint64_t first = stage.Grant(0);
  const std::uint64_t second = stage.Grant(1);
  // Both closures end without a session. While the worker has no session with the coordinator, it
  // continues with the values and grants that it holds [17].
  v1::Hello hello;
  runtime::WaitableEvent never;
  do {
    never.WaitFor(std::chrono::milliseconds(1));
    hello.Clear();
    stage.OnControl([&] { stage.runner->FillHello(&hello); });
    std::uint64_t updates = 0;
    for (const v1::ShardState& state : stage.States()) updates += state.updates_applied();
    if (updates < 8 * 8) continue;
    break;
  } while (true);
  REQUIRE(hello.attempts_size() == 2);
  stage.Register({first, second});
  const v1::Done once = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(once.attempt().n() == first);
  const v1::Done other = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(other.attempt().n() == second);
  stage.Register({first, second}, 2);
  CHECK(stage.Next(v1::TaskMessage::kDone).done().SerializeAsString() == once.SerializeAsString());
  stage.Answer(once);
  stage.Register({}, 3);  // the second attempt is not adopted, so it is dropped
  CHECK(stage.HoldsNothing());
}

TEST_CASE("an attempt that has not begun is given back when recalled; a running one continues") {
  Stage::Settings settings;
  Stage stage(settings);
  stage.Begin(CountingYaml(90, 20), 3, SmallPlan());
  const std::uint64_t running = stage.Grant(0);
  const std::uint64_t queued = stage.Grant(1);
  for (const std::uint64_t attempt : {queued, running}) {
    v1::CoordinatorMessage message;
    message.mutable_recall()->set_job_uid(kJob);
    *message.mutable_recall()->mutable_attempt() = client::ToProto(Attempt{1, attempt});
    stage.OnControl([] {});  // after one task the first attempt has begun
    stage.Message(message);
  }
  CHECK(stage.Next(v1::TaskMessage::kDropped).dropped().attempt().n() == queued);
  CHECK(stage.Next(v1::TaskMessage::kDone).done().attempt().n() == running);
  // If a worker serves several jobs, attempts are recalled all the time. This must not be logged at
  // the default log level.
  for (const log::Line& line : stage.logger.Read(0, 0, "", 1000))
    CHECK(line.text.find("given back") == std::string::npos);
}

TEST_CASE("a running attempt that the coordinator supersedes ends, and pushes nothing more") {
  Stage stage;
  stage.Begin(CountingYaml(90, 5), 3, SmallPlan());
  const std::uint64_t first = stage.Grant(0);
  v1::Done superseded;
  superseded.set_job_uid(kJob);
  *superseded.mutable_attempt() = client::ToProto(Attempt{1, first});
  stage.Answer(superseded, true);
  const v1::Done done = stage.RunClosure(1);
  CHECK(done.closure() == 1);
  CHECK(stage.HoldsNothing());
}

TEST_CASE(
    "evaluation counts every example once, over however many closures, and agrees with itself") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  for (std::uint64_t c = 0; c < 6; ++c) stage.RunClosure(c);
  const auto round = [&](std::uint64_t r) {
    std::uint64_t examples = 0;
    std::int64_t correct = 0;
    for (std::uint64_t n = 0; n < stage.plan->eval_closures(); ++n) {
      const v1::Done done = stage.RunClosure(r << 32 | n, v1::EVALUATE);
      examples += done.metrics().examples();
      CHECK(done.metrics().sums(0).name() == "accuracy");
      CHECK(done.metrics().sums(0).is_integer());
      correct += done.metrics().sums(0).count();
      CHECK(done.metrics().loss_sum() > 0);
    }
    return std::pair(examples, correct);
  };
  REQUIRE(stage.plan->eval_closures() == 2);
  const auto first = round(1);
  CHECK(first.first == 50);
  CHECK(first.second >= 45);  // more than by chance (three classes): the model has learned
  CHECK(round(2) == first);
  for (const SeenPush& push : stage.Seen()) CHECK(push.closure < 6);
}

TEST_CASE("the exported files hold the servers' values") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 3, SmallPlan());
  stage.RunClosure(0);
  stage.ShareRunsFolder();
  const v1::Done done = stage.RunClosure(7ull << 33, v1::EXPORT);
  REQUIRE(done.export_().files_size() == 2);
  CHECK_FALSE(done.export_().uploaded());
  CHECK(done.export_().host() == "here");
  CHECK(done.export_().files(0) == stage.folder / "runs/weights.npz");
  CHECK(done.export_().files(1) == stage.folder / "runs/weights.safetensors");
  // A Python program with numpy reads the files. They are compared with each other. They are also
  // compared with the servers' values, by a sum over the elements of each variable.
  const std::string program = R"(import json, struct, sys
try: import numpy
except ImportError: sys.exit(77)
z = numpy.load(sys.argv[1]); raw = open(sys.argv[2], 'rb').read()
n = struct.unpack('<Q', raw[:8])[0]; header = json.loads(raw[8:8 + n])
assert list(z) == ['hidden/kernel', 'hidden/bias', 'logits/kernel', 'logits/bias'], list(z)
assert n % 8 == 0
for name in z:
    a, b = header[name]['data_offsets']
    s = numpy.frombuffer(raw[8 + n + a:8 + n + b], '<f4').reshape(header[name]['shape'])
    assert header[name]['dtype'] == 'F32' and z[name].dtype == numpy.float32 and z[name].tobytes() == s.tobytes(), name
assert z['hidden/kernel'].shape == (16, 8) and z['logits/bias'].shape == (3,)
M = (1 << 64) - 1
def mix(i, bits):
    x = (i * 0x9E3779B97F4A7C15 + bits + 1) & M
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M
    return x ^ (x >> 31)
digest = sum(mix(i, int(b)) for name in z for i, b in enumerate(z[name].ravel().view(numpy.uint32))) & M
assert digest == int(sys.argv[3]), (digest, sys.argv[3])
)";
  const std::string script = stage.folder / "check.py";
  std::ofstream(script) << program;
  const std::string command =
      absl::StrCat("/usr/bin/python3 '", script, "' '", done.export_().files(0), "' '",
                   done.export_().files(1), "' ", stage.Digest());
  if (!std::filesystem::exists("/usr/bin/python3")) {
    test::Skip("the file was not read back: there is no /usr/bin/python3");
    return;
  }
  const int status = std::system(command.c_str());
  if (WEXITSTATUS(status) == 77) {
    test::Skip("the file was not read back: numpy is not installed");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE(
    "a worker without the runs folder sends its files one after another, and restarts the present "
    "one after a lost session") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 3, SmallPlan());
  stage.RunClosure(0);
  // First the worker itself writes the files. The uploads are compared with them later.
  stage.ShareRunsFolder();
  stage.RunClosure(7ull << 33, v1::EXPORT);
  const auto contents = [&](const std::string& name) {
    std::ifstream file(stage.folder / ("runs/" + name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::map<std::string, std::string> want = {
      {"weights.npz", contents("weights.npz")},
      {"weights.safetensors", contents("weights.safetensors")}};
  std::filesystem::remove_all(stage.folder / "runs");

  const std::uint64_t attempt = stage.Grant((7ull << 33) + 1, v1::EXPORT);
  std::map<std::string, std::string> got;
  bool lost = false;
  while (got.size() < 2 ||
         got["weights.safetensors"].size() < want.at("weights.safetensors").size()) {
    const v1::RunFileChunk chunk = stage.Next(v1::TaskMessage::kRunFile).run_file();
    REQUIRE(want.count(chunk.name()) == 1);
    CHECK(chunk.closure() == (7ull << 33) + 1);
    CHECK(chunk.bytes() == want.at(chunk.name()).size());
    CHECK(chunk.crc32c() == snapshot::Crc32c(snapshot::BytesOf(chunk.data())));
    if (chunk.offset() == 0) got[chunk.name()].clear();
    REQUIRE(chunk.offset() == got[chunk.name()].size());
    got[chunk.name()] += chunk.data();
    if (chunk.name() == "weights.safetensors" && !std::exchange(lost, true)) {
      stage.LoseSession();
      stage.Register({attempt});
      got[chunk.name()].clear();
      got["weights.safetensors"] = "";
      continue;
    }
    if (!chunk.sha256().empty()) {
      snapshot::Sha256 hash;
      hash.Update(snapshot::BytesOf(got[chunk.name()]));
      CHECK(snapshot::Hex(snapshot::BytesOf(chunk.sha256())) == snapshot::Hex(hash.Value()));
    }
    stage.Confirm(chunk);
  }
  CHECK(lost);
  CHECK(got == want);
  const v1::Done done = stage.Next(v1::TaskMessage::kDone).done();
  CHECK(done.export_().uploaded());
  CHECK(done.export_().files_size() == 0);
  REQUIRE(done.export_().exported_size() == 2);
  CHECK(done.export_().exported(0).name() == "weights.npz");
  CHECK(done.export_().exported(0).bytes() == want.at("weights.npz").size());
  CHECK_FALSE(std::filesystem::exists(stage.folder / "runs"));
}

TEST_CASE(
    "a coordinator that is out of disk space gets the export back; a coordinator that refuses a "
    "file is told that the attempt failed") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 3, SmallPlan());
  stage.RunClosure(0);
  stage.Grant(7ull << 33, v1::EXPORT);
  stage.Confirm(stage.Next(v1::TaskMessage::kRunFile).run_file(),
                absl::ResourceExhaustedError("no space left"));
  CHECK(stage.Next(v1::TaskMessage::kDropped, v1::TaskMessage::kFailed).has_dropped());
  stage.Grant((7ull << 33) + 1, v1::EXPORT);
  stage.Confirm(stage.Next(v1::TaskMessage::kRunFile).run_file(),
                absl::PermissionDeniedError("not writable"));
  const v1::TaskMessage failed = stage.Next(v1::TaskMessage::kDropped, v1::TaskMessage::kFailed);
  REQUIRE(failed.has_failed());
  CHECK_FALSE(failed.failed().user_error());
  CHECK(failed.failed().cause().message().find("not writable") != std::string::npos);
  CHECK(stage.HoldsNothing());
}

TEST_CASE("a coordinator whose disk is full for a while does not fill the workers' logs") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 3, SmallPlan());
  stage.RunClosure(0);
  for (std::uint64_t n = 0; n < 3; ++n) {
    stage.Grant((7ull << 33) + n, v1::EXPORT);
    stage.Confirm(stage.Next(v1::TaskMessage::kRunFile).run_file(),
                  absl::ResourceExhaustedError("no space left"));
    CHECK(stage.Next(v1::TaskMessage::kDropped, v1::TaskMessage::kFailed).has_dropped());
  }
  int refused = 0, given_back = 0;
  for (const log::Line& line : stage.logger.Read(0, 0, "", 1000)) {
    refused += line.text.find("refuses a file") != std::string::npos;
    given_back += line.text.find("attempt handed back") != std::string::npos;
  }
  CHECK(refused == 1);
  CHECK(given_back == 1);
}

TEST_CASE(
    "a user's errors are final and say where: a missing file, YAML that does not fit, a label out "
    "of range, data that changed") {
  Stage stage;
  WriteData(stage);
  SECTION("a missing file") {
    std::filesystem::remove(stage.folder / "train-labels");
    stage.Submit(TrainingYaml(stage.folder));
    stage.Register();
    stage.Grant(1ull << 32, v1::DESCRIBE);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK(failed.cause().kind() == "user");
    CHECK_THAT(failed.cause().message(), Catch::Contains("train-labels"));
    CHECK(failed.cause().origin_text() == "worker/0");
    CHECK(failed.lack() == v1::INPUT);  // another worker may have this input
  }
  SECTION("an input shape that is not the data's") {
    std::string yaml = TrainingYaml(stage.folder);
    yaml.replace(yaml.find("[4, 4, 1]"), 9, "[5, 4, 1]");
    stage.Submit(yaml);
    stage.Register();
    stage.Grant(1ull << 32, v1::DESCRIBE);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK(failed.lack() == v1::NO_LACK);
    CHECK_THAT(failed.cause().message(), Catch::Contains("input shape mismatch") &&
                                             Catch::Contains("(5, 4, 1)") &&
                                             Catch::Contains("(4, 4, 1)"));
  }
  SECTION("a label that the model has no class for") {
    std::string yaml = TrainingYaml(stage.folder);
    yaml.replace(yaml.find("units: 3"), 8, "units: 2");
    stage.Begin(yaml, 2, SmallPlan());
    stage.Grant(0);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK_THAT(failed.cause().message(),
               Catch::Contains("label") && Catch::Contains("closure=0 step=0"));
  }
  SECTION("a file that changed since the plan was made") {
    stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
    stage.job.mutable_plan()->set_train_examples(60);
    v1::CoordinatorMessage ended;
    ended.mutable_job_ended()->set_job_uid(kJob);
    stage.Message(ended);
    stage.Register();
    stage.Grant(0);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK(failed.lack() == v1::INPUT);
    CHECK_THAT(failed.cause().message(), Catch::Contains("want=60 examples got=90"));
    // When the files have been repaired, the worker must read them again.
    WriteData(stage, 60);
    for (;;) {
      stage.Grant(0);
      const v1::TaskMessage answer = stage.Next(v1::TaskMessage::kFailed, v1::TaskMessage::kDone);
      if (answer.has_done()) break;
      REQUIRE(answer.failed().lack() == v1::INPUT);
      runtime::WaitableEvent().WaitFor(std::chrono::milliseconds(20));
    }
  }
  SECTION(
      "a file of the same size with other contents: what is trained on is never exchanged silently "
      "(K7)") {
    stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
    stage.job.mutable_plan()->set_data_fingerprint(
        "images: size=1 sha256=00\nlabels: size=1 sha256=00");
    v1::CoordinatorMessage ended;
    ended.mutable_job_ended()->set_job_uid(kJob);
    stage.Message(ended);
    stage.Register();
    stage.Grant(1);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK(failed.lack() == v1::INPUT);
    CHECK_THAT(failed.cause().message(),
               Catch::Contains("the data have changed since the plan was made: file=") &&
                   Catch::Contains("closure=1 epoch=1 examples=[") &&
                   Catch::Contains("want=images: size=1 sha256=00, labels: size=1") &&
                   Catch::Contains("got=images: size="));
  }
}

TEST_CASE(
    "a worker that lacks only the data of the evaluation trains, and evaluates once they exist") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_job_uid(kJob);
  stage.Message(ended);
  std::filesystem::rename(stage.folder / "eval-labels", stage.folder / "away");
  stage.Register();
  stage.Grant(1ull << 32, v1::DESCRIBE);  // this closure also opens the model and the training data
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.lack() == v1::INPUT);
  CHECK_THAT(failed.cause().message(), Catch::Contains("eval-labels"));
  stage.Grant(0);
  CHECK(stage.Next(v1::TaskMessage::kDone).done().metrics().steps() == 4);
  std::filesystem::rename(stage.folder / "away", stage.folder / "eval-labels");
  std::uint64_t examples = 0;
  for (std::uint64_t n = 0; n < stage.plan->eval_closures(); ++n)
    examples += stage.RunClosure(1ull << 32 | n, v1::EVALUATE).metrics().examples();
  CHECK(examples == 50);
}

TEST_CASE(
    "a loss that is not finite is a user's error naming closure, step and examples, or a counted "
    "SKIP") {
  const bool skip = GENERATE(false, true);
  Stage::Settings settings;
  settings.skip_not_finite = skip;
  Stage stage(settings);
  WriteData(stage);
  std::string yaml = TrainingYaml(stage.folder);
  // 255 times 1e38 exceeds the range of float32
  yaml.replace(yaml.find("0.00392156862"), 13, "1e38");
  stage.Begin(yaml, 2, SmallPlan());
  stage.Grant(0);
  if (skip) {
    const v1::Done done = stage.Next(v1::TaskMessage::kDone).done();
    CHECK(done.metrics().steps() == 4);
    std::uint64_t skips = 0;
    for (const v1::ShardState& state : stage.States()) {
      CHECK(state.updates_applied() + state.skips() == 4);
      skips += state.skips();
    }
    CHECK(skips > 0);
  } else {
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK_THAT(failed.cause().message(), Catch::Contains("not finite") &&
                                             Catch::Contains("closure=0 step=") &&
                                             Catch::Contains("examples="));
  }
}

TEST_CASE("a step that is skipped because it is not finite is in no metric of its closure") {
  Stage::Settings settings;
  settings.skip_not_finite = true;
  Stage stage(settings);
  WriteData(stage);
  std::string yaml = absl::StrReplaceAll(
      TrainingYaml(stage.folder),
      {{"units: 3", "units: 1"},
       {"sparse_categorical_crossentropy, from_logits: true", "mean_squared_error"},
       {"[accuracy]", "[root_mean_squared_error]"},
       {"0.00392156862", "1e38"}});
  stage.Begin(yaml, 2, SmallPlan());
  stage.Grant(0);
  const v1::Done done = stage.Next(v1::TaskMessage::kDone).done();
  std::uint64_t skips = 0;
  for (const v1::ShardState& state : stage.States()) skips += state.skips();
  CHECK(skips > 0);
  CHECK(std::isfinite(done.metrics().loss_sum()));
  REQUIRE(done.metrics().sums_size() == 1);
  CHECK(std::isfinite(done.metrics().sums(0).sum()));
}

TEST_CASE(
    "with a 16-bit wire type the loss falls, two runs have the same bits however the variables are "
    "cut, and the bytes halve") {
  for (const std::string type : {"bf16", "fp16"}) {
    std::uint64_t first = 0;
    for (const auto& [servers, shards] : {std::pair{1, 1}, std::pair{2, 3}}) {
      Stage::Settings settings;
      settings.servers = servers;
      Stage stage(settings), plain(settings);
      std::vector<v1::Done> done;
      std::uint64_t bytes[2][2];
      for (Stage* s : {&stage, &plain}) {
        WriteData(*s);
        std::string yaml = TrainingYaml(s->folder);
        if (s == &stage)
          yaml.replace(yaml.find("steps_per_closure"), 0, "wire_dtype: " + type + ", ");
        s->Begin(yaml, static_cast<std::uint64_t>(shards), SmallPlan());
        for (std::uint64_t c = 0; c < s->plan->closures(); ++c) {
          const v1::Done end = s->RunClosure(c);
          if (s == &stage) done.push_back(end);
        }
        std::uint64_t(&counted)[2] = bytes[s == &plain];
        counted[0] =
            s->server_registry
                .GetCounter("evergrad_ps_server_applied_bytes_total", "Bytes of gradients applied")
                .value();
        counted[1] = s->server_registry
                         .GetCounter("evergrad_ps_server_pulled_bytes_total",
                                     "Bytes of values sent in answers to pulls")
                         .value();
      }
      CHECK(MeanLoss(done.back()) < 0.5 * MeanLoss(done.front()));
      if (first == 0) first = stage.Digest();
      CHECK(stage.Digest() == first);
      CHECK(stage.Digest() != plain.Digest());
      for (int way = 0; way < 2; ++way) {
        CHECK(bytes[0][way] > 0);
        CHECK(2 * bytes[0][way] == bytes[1][way]);
      }
    }
  }
}

// Compares the losses with those of the same steps in float32, for each closure.
void CheckSameCurve(const Stage::Settings& settings, const std::string& precision,
                    double tolerance) {
  Stage stage(settings), plain(settings);
  std::vector<v1::Done> curves[2];
  for (Stage* s : {&stage, &plain}) {
    WriteData(*s);
    std::string yaml = TrainingYaml(s->folder);
    if (s == &stage)
      yaml.replace(yaml.find("steps_per_closure"), 0, "precision: " + precision + ", ");
    s->Begin(yaml, 2, SmallPlan());
    for (std::uint64_t c = 0; c < s->plan->closures(); ++c)
      curves[s == &plain].push_back(s->RunClosure(c));
  }
  REQUIRE(curves[0].size() == curves[1].size());
  for (std::size_t c = 0; c < curves[0].size(); ++c)
    CHECK(MeanLoss(curves[0][c]) == Approx(MeanLoss(curves[1][c])).epsilon(tolerance));
  CHECK(MeanLoss(curves[0].back()) < 0.5 * MeanLoss(curves[0].front()));
  CHECK(stage.Digest() != plain.Digest());
  for (const v1::ShardState& state : stage.States()) CHECK(state.skips() == 0);
}

TEST_CASE("in mixed_bfloat16 the loss falls as it does in float32") {
  if (const absl::Status can =
          MakeBackend({"cpu", 1}).value()->CheckPrecision(Precision::kMixedBFloat16);
      !can.ok()) {
    std::printf("\nskipped: %s\n", std::string(can.message()).c_str());
    return;
  }
  Stage::Settings settings;
  settings.device = "cpu";
  CheckSameCurve(settings, "mixed_bfloat16", 2e-2);
}

constexpr char kScaleHelp[] = "Loss scale of the last step (mixed_float16)";
constexpr char kOverflowsHelp[] =
    "Steps whose update was skipped because the loss scale was too large";

Stage::Settings OnEmulatedGpu() {
  Stage::Settings settings;
  settings.device = "gpu";
  settings.cuda_library = evergrad::test::BinDir() + "/libworker_cuda_emulated.so";
  return settings;
}

TEST_CASE(
    "with a 16-bit wire type the loss falls on a device as with float32, whether kernels read "
    "values as they came or widened") {
  for (const std::string wire : {"bf16", "fp16"}) {
    INFO(wire);
    std::map<std::string, double> losses;
    for (const std::string precision : {"float32", "mixed_bfloat16"}) {
      Stage stage(OnEmulatedGpu());
      WriteData(stage);
      std::string yaml = TrainingYaml(stage.folder);
      yaml.replace(yaml.find("steps_per_closure"), 0,
                   absl::StrCat("precision: ", precision, ", wire_dtype: ", wire, ", "));
      stage.Begin(yaml, 2, SmallPlan());
      for (std::uint64_t c = 0; c < stage.plan->closures(); ++c)
        losses[precision] = MeanLoss(stage.RunClosure(c));
    }
    CHECK(losses["mixed_bfloat16"] == Approx(losses["float32"]).epsilon(2e-2));
  }
}

TEST_CASE("in the precisions of a GPU the loss falls as it does in float32, on an emulated one") {
  CheckSameCurve(OnEmulatedGpu(), "mixed_bfloat16", 2e-2);
  CheckSameCurve(OnEmulatedGpu(), "mixed_float16", 2e-2);
}

TEST_CASE(
    "in mixed_float16 a step whose scaled gradients overflow is a SKIP, the next steps have a "
    "smaller scale, and every update is counted once") {
  Stage stage(OnEmulatedGpu());
  WriteData(stage);
  std::string yaml = TrainingYaml(stage.folder);
  yaml.replace(yaml.find("steps_per_closure"), 0, "precision: mixed_float16, ");
  // The kernels have a standard deviation of a thousand. Gradients that come back through them are
  // larger than 65504, the largest float16, at first.
  const std::string logits = "{name: logits, type: dense, ";
  REQUIRE(yaml.find(logits) != std::string::npos);
  yaml.replace(yaml.find(logits), logits.size(),
               logits + "kernel_initializer: {type: truncated_normal, stddev: 1000}, ");
  stage.Begin(yaml, 2, SmallPlan());
  std::uint64_t steps = 0;
  for (std::uint64_t c = 0; c < stage.plan->closures(); ++c) {
    const v1::Done done = stage.RunClosure(c);
    CHECK(std::isfinite(MeanLoss(done)));
    steps += done.metrics().steps();
  }
  const auto overflows = static_cast<std::uint64_t>(
      stage.registry.GetCounter("evergrad_worker_loss_scale_overflows_total", kOverflowsHelp)
          .value());
  CHECK(overflows > 0);
  CHECK(overflows < 15);
  const double left = 32768.0 / static_cast<double>(std::uint64_t{1} << overflows),
               last = stage.registry.GetGauge("evergrad_worker_loss_scale", kScaleHelp).value();
  // The gauge shows the scale of the last step, which may still have been too large.
  CHECK((last == left || last == 2 * left));
  for (const v1::ShardState& state : stage.States()) {
    CHECK(state.skips() == overflows);
    CHECK(state.updates_applied() + state.skips() == steps);
  }
}

TEST_CASE("in mixed_float16 a true NaN is a user's error once the scale is at its minimum") {
  Stage stage(OnEmulatedGpu());
  WriteData(stage);
  std::string yaml = TrainingYaml(stage.folder);
  yaml.replace(yaml.find("steps_per_closure"), 0, "precision: mixed_float16, ");
  // 255 times 1e38 exceeds the range of float32
  yaml.replace(yaml.find("0.00392156862"), 13, "1e38");
  stage.Begin(yaml, 2, SmallPlan());
  for (std::uint64_t c = 0; c < 4; ++c)
    CHECK(stage.RunClosure(c).metrics().steps() == (c == 2 ? 1 : 4));  // 13 steps in total
  stage.Grant(4);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.user_error());
  CHECK_THAT(failed.cause().message(),
             Catch::Contains("loss or gradient is not finite (NaN or Inf): closure=4 step=2"));
  CHECK(stage.registry.GetCounter("evergrad_worker_loss_scale_overflows_total", kOverflowsHelp)
            .value() == 15);
}

TEST_CASE(
    "a precision that the worker's device lacks is a user's error with key, device and reason, "
    "before anything is written") {
  for (const std::string precision : {"tf32", "mixed_float16"}) {
    Stage::Settings settings;
    settings.device = "cpu";
    Stage stage(settings);
    WriteData(stage);
    std::string yaml = TrainingYaml(stage.folder);
    yaml.replace(yaml.find("steps_per_closure"), 0, "precision: " + precision + ", ");
    stage.Submit(yaml);
    stage.Register();
    stage.Grant(1ull << 32, v1::DESCRIBE);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK(failed.lack() == v1::ABILITY);
    CHECK_THAT(failed.cause().message(),
               Catch::Contains("training.precision=" + precision + " device=cpu (oneDNN") &&
                   Catch::Contains(precision == "tf32" ? "only NVIDIA's GPUs have TF32"
                                                       : "no float16 products for CPUs"));
  }
}

TEST_CASE(
    "a gradient that fp16 cannot represent follows the policy for NaN and is named, also if a "
    "device narrows it") {
  const bool skip = GENERATE(false, true), device = GENERATE(false, true);
  Stage::Settings settings = device ? OnEmulatedGpu() : Stage::Settings();
  settings.skip_not_finite = skip;
  Stage stage(settings);
  WriteData(stage);
  std::string yaml = TrainingYaml(stage.folder);
  yaml.replace(yaml.find("0.00392156862"), 13, "10000");  // so that gradients are about a million
  yaml.replace(yaml.find("steps_per_closure"), 0,
               "wire_dtype: [{match: \"hidden/*\", dtype: bf16}, {match: \"*\", dtype: fp16}], ");
  yaml.replace(yaml.find("activation: tanh"), 16, "activation: relu");
  stage.Begin(yaml, 2, SmallPlan());
  stage.Grant(0);
  if (skip) {
    CHECK(stage.Next(v1::TaskMessage::kDone).done().metrics().steps() == 4);
    std::uint64_t skips = 0;
    for (const v1::ShardState& state : stage.States()) {
      CHECK(state.updates_applied() + state.skips() == 4);
      skips += state.skips();
    }
    CHECK(skips > 0);
  } else {
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK_THAT(failed.cause().message(),
               Catch::Contains("gradient exceeds the range of its wire type: "
                               "variable=logits/kernel wire_dtype=fp16 closure=0 step="));
  }
}

TEST_CASE("failpoints act at their sites: between two servers' pushes, at a step, before Done") {
  SECTION("between_pushes sends to one server at a time") {
    Stage::Settings settings;
    settings.failpoints = "worker.between_pushes=2*error";
    Stage stage(settings);
    stage.Begin(CountingYaml(90), 4, SmallPlan());
    stage.Grant(0);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK_FALSE(failed.user_error());
    CHECK_THAT(failed.cause().message(), Catch::Contains("worker.between_pushes"));
    std::map<std::uint32_t, std::set<std::string>> servers;
    for (const SeenPush& push : stage.Seen()) servers[push.update].insert(push.server);
    CHECK(servers[0].size() == 2);
    CHECK(servers[1].size() == 1);  // the second update has reached only one server
    const v1::Done done = stage.RunClosure(0);
    CHECK(done.metrics().steps() == 4);
    for (const v1::ShardState& state : stage.States()) {
      if (state.variable() == "counting/updates") CHECK(state.updates_applied() == 4);
    }
  }
  SECTION("a user's error at a step") {
    Stage::Settings settings;
    settings.failpoints = "worker.step=3*user_error";
    Stage stage(settings);
    stage.Begin(CountingYaml(90), 4, SmallPlan());
    stage.Grant(0);
    const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
    CHECK(failed.user_error());
    CHECK_THAT(failed.cause().message(), Catch::Contains("closure=0 step=2"));
  }
  SECTION("a Done that is not sent is sent in the next session") {
    Stage::Settings settings;
    // the first Done is that of the describe closure
    settings.failpoints = "worker.before_done=2*drop";
    Stage stage(settings);
    stage.Begin(CountingYaml(90), 4, SmallPlan());
    const std::uint64_t first = stage.Grant(0);
    stage.Grant(1);
    CHECK(stage.Next(v1::TaskMessage::kDone).done().closure() == 1);
    stage.Register({first, first + 1});
    CHECK(stage.Next(v1::TaskMessage::kDone).done().closure() == 0);
  }
}

TEST_CASE(
    "a drain returns attempts that have not begun, ends the running step and accepts no new work") {
  Stage stage;
  stage.Begin(CountingYaml(90, 10), 4, SmallPlan());
  const std::uint64_t first = stage.Grant(0);
  const std::uint64_t second = stage.Grant(1);
  stage.OnControl([] {});
  runtime::WaitableEvent drained;
  stage.OnControl([&] { stage.runner->Drain([&] { drained.Set(); }); });
  CHECK(stage.Next(v1::TaskMessage::kDropped).dropped().attempt().n() == second);
  CHECK(stage.Next(v1::TaskMessage::kDropped).dropped().attempt().n() == first);
  drained.Wait();
  CHECK(stage.HoldsNothing());
  stage.Grant(2);
  CHECK(stage.Next(v1::TaskMessage::kDropped).dropped().reason() == "draining");
  // Each step that ran must be settled either at all servers or at none. All counts are therefore
  // equal.
  std::set<std::uint64_t> counts;
  for (const v1::ShardState& state : stage.States()) {
    if (state.variable() == "counting/updates") counts.insert(state.updates_applied());
  }
  CHECK(counts.size() == 1);
}

TEST_CASE(
    "a drain without a session waits neither for servers that do not answer nor for the "
    "acknowledgement of a Done") {
  Stage::Settings settings;
  // The drain must end long before these times.
  settings.drain_step_max = settings.drain_done_max = std::chrono::minutes(10);
  Stage stage(settings);
  stage.Begin(CountingYaml(90), 4, SmallPlan());
  runtime::WaitableEvent drained;
  SECTION("the step's pushes are never answered, and the session ends during the drain") {
    // The list is used on the transport's threads, which end before the list is destroyed.
    std::vector<std::unique_ptr<transport::DataResponder>> kept;
    Mutex mu;
    runtime::WaitableEvent asked;
    for (const auto& node : stage.nodes) {
      node->SetIntercept(
          [&](const v1::RequestHeader&, std::unique_ptr<transport::DataResponder>& responder) {
            MutexLock lock(&mu);
            kept.push_back(std::move(responder));
            asked.Set();
            return true;
          });
    }
    stage.Grant(0);
    asked.Wait();
    stage.OnControl([&] { stage.runner->Drain([&] { drained.Set(); }); });
    stage.LoseSession();
    CHECK(drained.WaitFor(std::chrono::seconds(20)));
    CHECK(stage.HoldsNothing());
    for (const auto& node : stage.nodes) node->SetIntercept({});
    MutexLock lock(&mu);
    kept.clear();
  }
  SECTION("a Done is not acknowledged, and the session has ended before") {
    stage.Grant(0);
    CHECK(stage.Next(v1::TaskMessage::kDone).done().closure() == 0);
    stage.LoseSession();
    stage.OnControl([&] { stage.runner->Drain([&] { drained.Set(); }); });
    CHECK(drained.WaitFor(std::chrono::seconds(20)));
  }
}

TEST_CASE(
    "a Done above the message limit is a user's error that names size and limit, and the Done is "
    "dropped") {
  Stage::Settings settings;
  settings.message_bytes_max = 200;
  Stage stage(settings);
  stage.Submit(CountingYaml(90));
  stage.Register();
  stage.Grant(1ull << 32, v1::DESCRIBE);
  const v1::Failed failed = stage.Next(v1::TaskMessage::kFailed).failed();
  CHECK(failed.user_error());
  CHECK(failed.cause().kind() == "user");
  CHECK_THAT(failed.cause().message(), Catch::Contains("exceeds the largest size of a message") &&
                                           Catch::Contains("kind=DESCRIBE") &&
                                           Catch::Contains("limit=200"));
  CHECK(stage.HoldsNothing());
}

TEST_CASE(
    "a Hello has the proof of each held attempt's grant, under the name that the worker had at "
    "that time") {
  Stage stage;
  stage.Begin(CountingYaml(90, 1000), 4, SmallPlan());
  std::map<std::uint64_t, std::uint64_t> granted;  // attempt -> closure
  for (std::uint64_t closure = 0; closure < 3; ++closure) granted[stage.Grant(closure)] = closure;
  stage.OnControl([&] { stage.runner->SetIdentity("another"); });
  v1::Hello hello;
  stage.OnControl([&] { stage.runner->FillHello(&hello); });
  REQUIRE(hello.attempts_size() == 3);
  for (const v1::HeldAttempt& held : hello.attempts()) {
    CHECK(held.granted_to() == "0");
    const auto attempt = client::FromProto<Attempt>(held.attempt());
    CHECK(granted.at(attempt.n) == held.closure());
    CHECK(held.proof() ==
          grants::MakeProof(kGrantKey, JobUid(kJob), ClosureId(held.closure()), attempt, "0"));
  }
}

TEST_CASE(
    "a Hello never exceeds the message limit; attempts that it leaves out are not adopted and are "
    "dropped") {
  Stage::Settings settings;
  settings.message_bytes_max = 2000;
  Stage stage(settings);
  stage.Begin(CountingYaml(90, 1000), 4, SmallPlan());
  for (int i = 0; i < 200; ++i) stage.Grant(0);
  v1::Hello hello;
  stage.OnControl([&] { stage.runner->FillHello(&hello); });
  CHECK(hello.ByteSizeLong() <= 2000);
  REQUIRE(hello.attempts_size() > 10);
  CHECK(hello.attempts_size() < 200);
  std::vector<std::uint64_t> adopted;
  for (const v1::HeldAttempt& attempt : hello.attempts()) adopted.push_back(attempt.attempt().n());
  stage.Register(adopted);
  v1::Hello next;
  stage.OnControl([&] { stage.runner->FillHello(&next); });
  CHECK(next.attempts_size() == hello.attempts_size());
}

TEST_CASE("the end of a job drops its attempts, and a new job runs on the same worker") {
  Stage stage;
  stage.Begin(CountingYaml(90, 10), 4, SmallPlan());
  stage.Grant(0);
  stage.Register({}, 2, /*with_job=*/false);  // a new coordinator, which knows no job
  CHECK(stage.HoldsNothing());
  stage.Grant(1);
  CHECK_THAT(stage.Next(v1::TaskMessage::kDropped).dropped().reason(),
             Catch::Contains("unknown job"));
  stage.Register({}, 3);
  CHECK(stage.RunClosure(2).closure() == 2);
}

TEST_CASE(
    "a job that follows another one reads its own batches, although its attempts have the same "
    "numbers") {
  Stage stage;
  WriteData(stage);
  stage.Begin(TrainingYaml(stage.folder), 2, SmallPlan());
  stage.RunClosure(0);
  for (const auto& node : stage.nodes) node->StopListening();
  // One closure has begun and waits for its values. Meanwhile the batches of the next closures are
  // read in advance.
  stage.GrantTogether({1, 2});
  const std::uint64_t first = stage.LastAttempt() - 1;
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_job_uid(kJob);
  stage.Message(ended);
  for (const auto& node : stage.nodes) node->Listen();
  stage.Register();
  stage.NextAttempt(first);
  REQUIRE(stage.plan->closures() >= 6);
  for (std::uint64_t closure = 3; closure < 6; ++closure) {
    stage.Grant(closure);
    const v1::TaskMessage answer = stage.Next(v1::TaskMessage::kDone, v1::TaskMessage::kFailed);
    INFO(answer.ShortDebugString());
    REQUIRE(answer.has_done());
    stage.Answer(answer.done());
  }
}

TEST_CASE("each malformed grant is refused by name") {
  Stage stage;
  stage.Begin(CountingYaml(90), 4, SmallPlan());
  stage.Grant(1000);
  CHECK_THAT(stage.Next(v1::TaskMessage::kFailed).failed().cause().message(),
             Catch::Contains("beyond the plan"));
  stage.Grant(0, v1::TRAIN, {99});
  CHECK_THAT(stage.Next(v1::TaskMessage::kFailed).failed().cause().message(),
             Catch::Contains("target beyond the plan"));
  stage.Grant(1ull << 32 | 1000, v1::EVALUATE);
  CHECK_THAT(stage.Next(v1::TaskMessage::kFailed).failed().cause().message(),
             Catch::Contains("beyond the plan"));
  stage.Grant(0, v1::WORK_KIND_UNSPECIFIED);
  CHECK_THAT(stage.Next(v1::TaskMessage::kDropped).dropped().reason(),
             Catch::Contains("unknown kind"));
  CHECK(stage.RunClosure(0).closure() == 0);
}

}  // namespace
}  // namespace evergrad::worker
