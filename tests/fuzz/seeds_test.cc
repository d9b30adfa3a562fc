// Makes the seeds of tests/fuzz/corpus with the encoders of the product, and compares them with the
// stored files.
//
// With EVERGRAD_WRITE_GOLDEN=1 the test writes the files. It fails for a seed if today's encoder
// makes other bytes than the file has. In this case write that file again. If older processes still
// send the old bytes, keep the old file under another name. Files with names that no seed has are
// findings of the fuzzer, and the test leaves them alone.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "coordinator/store/record_codec.h"
#include "evergrad/v1/journal.pb.h"
#include "tests/fuzz/coordinator_stage.h"
#include "tests/fuzz/session_steps.h"
#include "tests/fuzz/stream_input.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/paths.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"
#include "tests/unit/coordinator/jobs/job_fixture.h"
#include "tests/unit/ps_server/service/service_fixture.h"

namespace evergrad::fuzz {
namespace {

void Seed(const std::string& target, const std::string& name, const std::string& bytes) {
  const std::string folder = test::SourceDir() + "/tests/fuzz/corpus/" + target;
  const std::string path = folder + "/" + name;
  if (test::FromEnvironment("EVERGRAD_WRITE_GOLDEN", "") == "1") {
    std::filesystem::create_directories(folder);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string kept{std::istreambuf_iterator<char>(file), {}};
  INFO(path);
  CHECK(kept == bytes);
}

std::string TextOf(const tensor::AlignedBuffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}
std::string Unpacked(const std::vector<tensor::SharedBytes>& pieces) {
  return TextOf(ps_server::Gathered(pieces));
}
std::string Gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(text.size() + 128, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  packed[9] = 3;  // the gzip header names the operating system; 3 is Unix
  return packed;
}

// ---------------------------------------------------------------- files of a user

TEST_CASE("seeds of job files are the smallest of each type and one with every mistake") {
  const std::string head = "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\n";
  Seed("job_yaml", "counting",
       head +
           "metadata: {name: c}\nspec:\n  type: counting\n  counting: {examples: 8, shards: 2}\n"
           "  data: {batch_size: 4, shuffle: {seed: 7}}\n  training: {epochs: 1}\n");
  Seed("job_yaml", "anchors",
       head + "metadata: &a {name: c}\nspec: {<<: *a, type: counting, type: functions}\n");
  Seed("job_yaml", "environment",
       head +
           "metadata: {name: e}\nspec:\n  data:\n    train: {format: csv, path: "
           "\"$${X}/${EVERGRAD_DATA}/${NO:-there}.csv\"}\n"
           "    fields: {x: {column: 0, type: float}, y: {column: 1, type: int}}\n"
           "    batch_size: 4\n  model:\n    inputs: {x: {shape: []}}\n    layers:\n"
           "      - {name: d, type: dense, units: 1, input: x}\n"
           "    losses: {type: mean_squared_error, output: d, labels: y}\n"
           "  optimizer: {type: sgd, learning_rate: 0.1}\n  training: {epochs: 1}\n");
}

TEST_CASE("seeds of idx files are images with their labels, plain and packed") {
  const auto idx = [](char rank, std::initializer_list<char> dims, std::size_t elements) {
    std::string file{0, 0, 8, rank};
    for (const char dim : dims) file += std::string(3, '\0') + dim;
    for (std::size_t i = 0; i < elements; ++i) file += static_cast<char>(i % 3);
    return file;
  };
  const std::string images = idx(3, {3, 2, 2}, 12), labels = idx(1, {3}, 3);
  Seed("idx", "plain", Output().Piece(images).Rest(labels).bytes());
  Seed("idx", "gzip", Output().Piece(Gzip(images)).Rest(Gzip(labels)).bytes());
  Seed("idx", "two_members",
       Output().Piece(Gzip(images.substr(0, 9)) + Gzip(images.substr(9))).Rest(labels).bytes());
  Seed("idx", "short", Output().Piece(images.substr(0, 20)).Rest(labels).bytes());
}

TEST_CASE("seeds of csv files have each separator, quotes, a header, and each type") {
  const auto csv = [](int settings, int types, const std::string& text) {
    return Output().Choice(settings).Choice(types).Rest(text).bytes();
  };
  Seed("csv", "plain", csv(0, 0b100100, "1,2.5,a\n2,-1e3,b\r\n\n3,nan,a\n"));
  Seed("csv", "header", csv(8, 0b100100, "\xef\xbb\xbfx,y,z\n1,2,c\n"));
  Seed("csv", "quotes", csv(0, 0x40 | 0b101010, "\"a,\"\"b\",\"line\nend\",c\n"));
  Seed("csv", "tabs", csv(1, 0x80, "1\t\t3\n\t2\t4"));
  Seed("csv", "long_separator", csv(6, 0b010000, "1::2::3\n\"4::5::6\n"));
  Seed("csv", "gzip", csv(3, 0, Gzip("1;2;3\n4;5;6\n")));
}

TEST_CASE("seeds of jsonl files have each type, a missing value, and a packed file") {
  const auto jsonl = [](int settings, const std::string& text) {
    return Output().Choice(settings).Rest(text).bytes();
  };
  const std::string line = "{\"a\": 1, \"b\": 2.5, \"c\": \"x\"}\n";
  Seed("jsonl", "plain", jsonl(0b100100, line + "{\"c\":\"y\",\"b\":-1e3,\"a\":2}\r\n"));
  Seed("jsonl", "vocabulary", jsonl(0x40 | 0b101010, "{\"a\":\"1\",\"b\":\"\",\"c\":\"\\u00e9\"}"));
  Seed("jsonl", "missing", jsonl(0x80 | 0b100100, "{\"a\": null, \"d\": [1, {\"e\": 2}]}\n"));
  Seed("jsonl", "gzip", jsonl(0b100100, Gzip(line)));
}

// ---------------------------------------------------------------- answers of other services

TEST_CASE("seeds of store answers are one answer for each parser") {
  const auto answer = [](int parser, const std::string& body) {
    return Output().Choice(parser).Rest(body).bytes();
  };
  Seed("store_answers", "object",
       Output()
           .Choice(0)
           .Choice(0)
           .Choice(3)
           .Choice(1)
           .Choice(6)
           .Choice(3)
           .Piece("content-range")
           .Piece("bytes 0-3/9")
           .Piece("etag")
           .Piece("\"tag\"")
           .Piece("content-length")
           .Piece("4")
           .Rest("abcd")
           .bytes());
  Seed("store_answers", "page",
       answer(1,
              "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>page3"
              "</NextContinuationToken><Contents><Key>jobs/a</Key><Size>3</Size><ETag>&quot;e&quot;"
              "</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
              "<CommonPrefixes><Prefix>jobs/b/</Prefix></CommonPrefixes></ListBucketResult>"));
  Seed("store_answers", "upload",
       answer(2,
              "<InitiateMultipartUploadResult><UploadId>u1</UploadId>"
              "</InitiateMultipartUploadResult>"));
  Seed("store_answers", "completion",
       answer(3, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"));
  Seed("store_answers", "error",
       answer(4, "<Error><Code>SlowDown</Code><Message>later</Message></Error>"));
  Seed("store_answers", "aws",
       answer(5, R"({"AccessKeyId":"A","SecretAccessKey":"S","Token":"T",)"
                 R"("Expiration":"2026-01-01T00:00:00Z"})"));
  Seed("store_answers", "sts",
       answer(6,
              "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
              "<AccessKeyId>A</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>T"
              "</SessionToken><Expiration>2026-01-01T00:00:00Z</Expiration></Credentials>"
              "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"));
  Seed("store_answers", "token", answer(7, R"({"access_token":"t","expires_in":3599})"));
  Seed("store_answers", "impersonation",
       answer(8, R"({"accessToken":"t","expireTime":"2026-01-01T00:00:00Z"})"));
}

TEST_CASE("seeds of watches are each kind of event, and a whole job") {
  const auto watch = [](const std::string& lines) {
    return Output().Choice(20).Rest(lines).bytes();
  };
  const std::string metadata =
      R"("metadata":{"name":"a","uid":"u","resourceVersion":"7","generation":1)";
  Seed("kubernetes_watch", "job",
       watch(R"({"type":"ADDED","object":{)" + metadata +
             R"(,"finalizers":["evergrad.dev/cancel-job"]},"spec":{"type":"counting",)"
             R"("counting":{"examples":8,"shards":2},"data":{"batch_size":4,"shuffle":false},)"
             R"("training":{"epochs":1},"checkpoint":false}}})"
             "\n"));
  Seed("kubernetes_watch", "events",
       watch(R"({"type":"MODIFIED","object":{)" + metadata +
             R"(,"deletionTimestamp":"x"},"status":{"jobUid":"1","conditions":[)"
             R"({"type":"Finished","status":"True"}]}}})"
             "\n"
             R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}})"
             "\n"
             R"({"type":"DELETED","object":{)" +
             metadata +
             "}}}\n"
             R"({"type":"ERROR","object":{"code":410,"reason":"Expired"}})"
             "\n{\"type\":"));
}

// ---------------------------------------------------------------- snapshot files

TEST_CASE("seeds of snapshot files are those of the golden bytes") {
  fs::MemoryFileSystem files;
  snapshot::WriteSmall(files, "file:///dense", snapshot::SmallHeader());
  snapshot::WriteSmall(files, "file:///table", snapshot::SmallTableHeader());
  const auto read = [&](const char* uri) { return *fs::ReadWhole(files, uri, 1 << 20); };
  for (const int seal : {0, 1}) {
    const std::string way = seal == 1 ? "_sealed" : "";
    for (const std::string name : {"dense", "table"})
      Seed("shard_file", name + way,
           Output().Choice(seal).Rest(read(("file:///" + name).c_str())).bytes());
    Seed("manifest", "two_shards" + way,
         Output()
             .Choice(seal)
             .Rest(*snapshot::EncodeManifest(snapshot::SmallManifest(files)))
             .bytes());
  }
}

// ---------------------------------------------------------------- frames and streams

ps_server::RequestBuilder DenseRequest(std::uint64_t closure) {
  ps_server::RequestBuilder request;
  request.Push(2, closure, 0, {1, 2, 3, 4});
  request.Pull(2);
  return request;
}
ps_server::RequestBuilder SlotRequest(std::uint64_t closure) {
  ps_server::RequestBuilder request;
  request.PushRows(3, closure, 1, {-5, 7, 7}, {1, 2, 3, 4, 5, 6});
  request.PullRows(3, {7, 8});
  return request;
}

TEST_CASE("seeds of data frames are requests and an answer") {
  const auto frame = [](int choice, const std::string& bytes) {
    return Output().Choice(choice).Rest(bytes).bytes();
  };
  Seed("data_frames", "dense", frame(0, TextOf(DenseRequest(1).Frame())));
  Seed("data_frames", "slot", frame(0, TextOf(SlotRequest(1).Frame())));
  v1::ResponseHeader header;
  header.add_pushes()->set_answer(v1::APPLIED);
  header.add_pulls()->set_answer(v1::VALUES);
  header.add_pulls()->set_answer(v1::UNCHANGED);
  const std::string values(64, 'v');
  Seed("data_frames", "answer",
       frame(1, Unpacked(wire::BuildResponse(header, {{nullptr, BytesOf(values)}, {}}))));
}

class StreamSteps {
 public:
  // Adds a step that has the same number in both targets, client_stream and server_stream.
  StreamSteps& Message(const wire::StreamHeader& header, absl::string_view payload = "") {
    Do(ServerStep::kMessage);
    PutMessage(output_, header, payload);
    output_.Choice(3).Choice(200);  // says where the message is divided
    return *this;
  }
  StreamSteps& Bytes(absl::string_view bytes) {
    Do(ServerStep::kBytes);
    output_.Piece(bytes).Choice(64).Choice(1);
    return *this;
  }
  StreamSteps& Time(std::uint16_t ms) { return Do(ServerStep::kTime).With(ms); }
  StreamSteps& Send() { return Do(ServerStep::kSend); }
  template <class Step>
  StreamSteps& Do(Step step) {
    output_.Choice(static_cast<int>(step));
    return *this;
  }
  template <class T>
  StreamSteps& With(T value) {
    output_.Number(value);
    return *this;
  }
  std::string bytes() const { return output_.bytes(); }

 private:
  Output output_;
};

using wire::MessageKind;

TEST_CASE(
    "seeds of server streams are small and announced requests, cancelled requests and withdrawn "
    "grants") {
  const std::string small(100, 's'), part(4096, 'p');
  const auto seed = [](const std::string& name, const StreamSteps& steps) {
    Seed("server_stream", name, steps.bytes());
  };
  const wire::StreamHeader announce{.kind = MessageKind::kAnnounce,
                                    .request_id = 2,
                                    .frame_bytes = 100000,
                                    .response_bytes_max = 50000};
  const wire::StreamHeader request{.kind = MessageKind::kRequest,
                                   .request_id = 1,
                                   .frame_bytes = 100,
                                   .bytes = 100,
                                   .response_bytes_max = 1000};
  seed("small", StreamSteps()
                    .Send()
                    .Message(request, small)
                    .Do(ServerStep::kAnswer)
                    .With<std::uint16_t>(500)
                    .Send()
                    .Send());
  seed("announced",
       StreamSteps()
           .Message(announce)
           .Send()
           .Message(
               {.kind = MessageKind::kRequest, .request_id = 2, .frame_bytes = 8192, .bytes = 4096},
               part)
           .Time(100)
           .Message({.kind = MessageKind::kRequest,
                     .request_id = 2,
                     .frame_bytes = 8192,
                     .offset = 4096,
                     .bytes = 4096},
                    part)
           .Do(ServerStep::kFail)
           .Send());
  seed("taken_back", StreamSteps()
                         .Message(announce)
                         .Do(ServerStep::kOther)
                         .With<std::uint32_t>(200001)
                         .Time(1500)
                         .Time(1500)
                         .Message({.kind = MessageKind::kCancel, .request_id = 2})
                         .Do(ServerStep::kOther)
                         .With<std::uint32_t>(4));
  seed("lane", StreamSteps()
                   .Message({.kind = MessageKind::kLane, .bytes = 64}, std::string(64, 'l'))
                   .Send()
                   .Message({.kind = MessageKind::kRequest,
                             .flags = wire::kInLane,
                             .request_id = 1,
                             .frame_bytes = 4096,
                             .bytes = 4096})
                   .Do(ServerStep::kLane)
                   .With<std::uint16_t>(8)
                   .With<std::uint64_t>(64)
                   .Do(ServerStep::kAnswer)
                   .With<std::uint16_t>(20000)
                   .Send());
  const auto ping = wire::EncodeStreamHeader({.kind = MessageKind::kPing});
  seed("ping", StreamSteps().Bytes({reinterpret_cast<const char*>(ping.data()), ping.size()}));
}

TEST_CASE("seeds of client streams are answered, granted, refused and truncated calls") {
  const wire::StreamHeader hello{.kind = MessageKind::kHello,
                                 .frame_bytes = 1u << 20,
                                 .offset = 64u << 10,
                                 .response_bytes_max = 1u << 20};
  const auto call = [](StreamSteps steps, std::uint32_t bytes, std::uint32_t response) {
    return steps.Do(ClientStep::kCall).With<std::uint8_t>(0).With(bytes).With(response);
  };
  const auto seed = [](const std::string& name, const StreamSteps& steps) {
    Seed("client_stream", name, steps.bytes());
  };
  const std::string answer(100, 'a');
  seed("answered",
       call(StreamSteps().Message(hello), 100, 1000)
           .Send()
           .Message(
               {.kind = MessageKind::kAnswer, .request_id = 1, .frame_bytes = 200, .bytes = 100},
               answer)
           .Message({.kind = MessageKind::kAnswer,
                     .request_id = 1,
                     .frame_bytes = 200,
                     .offset = 100,
                     .bytes = 100},
                    answer));
  seed("granted", call(StreamSteps().Message(hello), 100000, 100000)
                      .Send()
                      .Message({.kind = MessageKind::kGrant,
                                .request_id = 1,
                                .frame_bytes = 100000,
                                .response_bytes_max = 100000})
                      .Send()
                      .Message({.kind = MessageKind::kError, .request_id = 1}, "why")
                      .Do(ClientStep::kLinkDown));
  seed("lane",
       call(StreamSteps().Message(hello).Send().Message({.kind = MessageKind::kLane}), 60000, 100)
           .Send()
           .Do(ClientStep::kLane)
           .With<std::uint16_t>(8)
           .With<std::uint64_t>(1000)
           .Send());
  seed("ticket", StreamSteps()
                     .Message(hello)
                     .Do(ClientStep::kAnnounce)
                     .With<std::uint32_t>(90000)
                     .With<std::uint32_t>(10)
                     .Time(6000)
                     .Do(ClientStep::kAbandon)
                     .With<std::uint8_t>(1)
                     .Time(6000));
}

// ---------------------------------------------------------------- a server

std::string Piece(OrderStep step, const std::string& bytes) {
  return Output().Choice(static_cast<int>(step)).Piece(bytes).bytes();
}
std::string Order(const v1::CoordinatorMessage& message) {
  return Piece(OrderStep::kMessage, message.SerializeAsString());
}
v1::ShardSpec DenseSpec(std::uint32_t shard) {
  v1::ShardSpec spec = snapshot::SmallSpec(0, 4);
  spec.set_shard(shard);
  spec.mutable_variable()->clear_shape();
  spec.mutable_variable()->add_shape(4);
  spec.mutable_variable()->add_shape(1);
  return spec;
}
v1::CoordinatorMessage AssignOf(const v1::ShardSpec& spec) {
  v1::CoordinatorMessage message;
  v1::Assign& assign = *message.mutable_assign();
  assign.set_job_uid(ps_server::kJob);
  *assign.mutable_spec() = spec;
  *assign.mutable_epoch() = client::ToProto(ps_server::kEpoch);
  *assign.mutable_start() = *assign.mutable_version() = client::ToProto(ps_server::kStart);
  assign.set_shards_total(8);
  return message;
}
// Sets the message's job, and the epoch with which the shard was assigned.
template <class Message>
Message Of(std::uint32_t shard, Message message) {
  message.set_job_uid(ps_server::kJob);
  message.set_shard(shard);
  *message.mutable_epoch() = client::ToProto(ps_server::kEpoch);
  return message;
}

TEST_CASE("seeds of server orders cover a shard from its assignment to its removal") {
  v1::ShardSpec slot;
  slot.set_shard(3);
  slot.mutable_slot()->set_slots(1);
  v1::TableSpec& table = *slot.mutable_slot()->add_tables();
  table.set_name("user");
  table.set_dtype(v1::DTYPE_FLOAT32);
  table.set_dimension(2);
  table.mutable_initializer()->set_type("zeros");
  table.mutable_optimizer()->set_type("adagrad");
  table.mutable_optimizer()->set_learning_rate(0.1);
  const std::string dense = Order(AssignOf(DenseSpec(2))), rows = Order(AssignOf(slot));
  Seed("server_orders", "assigned", dense + rows);
  Seed("server_orders", "pushed",
       dense + rows + Piece(OrderStep::kRequest, TextOf(DenseRequest(1).Frame())) +
           Piece(OrderStep::kRequest, TextOf(SlotRequest(1).Frame())));

  v1::CoordinatorMessage cut, close, seal, stop, drop, report, logs, ended, restore, receive;
  cut.mutable_cut()->set_job_uid(ps_server::kJob);
  cut.mutable_cut()->set_folder("file:///job");
  cut.mutable_cut()->set_plan_fingerprint("plan");
  for (const std::uint32_t shard : {2u, 3u}) {
    v1::CutShard& one = *cut.mutable_cut()->add_shards();
    one.set_shard(shard);
    *one.mutable_epoch() = client::ToProto(ps_server::kEpoch);
  }
  *close.mutable_close() = Of(2, v1::Close());
  *close.mutable_close()->mutable_version() = client::ToProto(MapVersion{9, 9});
  *close.mutable_close()->mutable_done() = client::ToProto(IntervalSet{0, 1});
  *seal.mutable_seal() = Of(2, v1::Seal());
  *stop.mutable_stop() = Of(2, v1::StopShard());
  stop.mutable_stop()->set_plan_fingerprint("plan");
  *drop.mutable_drop() = Of(2, v1::Drop());
  report.mutable_report_shards()->set_job_uid(ps_server::kJob);
  report.mutable_report_shards()->set_request_id(1);
  logs.mutable_read_logs()->set_request_id(2);
  ended.mutable_job_ended()->set_job_uid(ps_server::kJob);
  restore = AssignOf(DenseSpec(2));
  restore.mutable_assign()->mutable_epoch()->set_n(6);
  v1::SnapshotSource& source = *restore.mutable_assign()->mutable_snapshot();
  source.set_uri("file:///job/none");
  source.set_sha256(std::string(32, 'x'));
  source.set_job_uid(ps_server::kJob);
  receive.mutable_receive()->set_job_uid(ps_server::kJob);
  *receive.mutable_receive()->mutable_spec() = DenseSpec(4);
  receive.mutable_receive()->set_sha256(std::string(32, 'x'));
  receive.mutable_receive()->set_bytes(1000);
  Seed("server_orders", "cut", dense + rows + Order(cut));
  Seed("server_orders", "closed", dense + Order(close) + Order(seal) + Order(report));
  Seed("server_orders", "moved", dense + Order(stop) + Order(receive) + Order(drop));
  Seed("server_orders", "restored",
       dense + Order(restore) + Output().Choice(static_cast<int>(OrderStep::kSettle)).bytes());
  v1::Registered registered;
  registered.set_term(2);
  Seed("server_orders", "sessions",
       dense + Output().Choice(static_cast<int>(OrderStep::kLost)).bytes() +
           Piece(OrderStep::kRegistered, registered.SerializeAsString()) + Order(logs) +
           Order(ended));
}

std::string Built(const ps_server::RequestBuilder& request) {
  Output output;
  output.Choice(static_cast<int>(RequestStep::kBuilt)).Piece(request.header.SerializeAsString());
  for (const auto* list : {&request.payloads, &request.push_ids, &request.pull_ids})
    for (const tensor::SharedBytes& one : *list)
      output.Piece({reinterpret_cast<const char*>(one.bytes.data()), one.bytes.size()});
  return output.bytes();
}
std::string Whole(const ps_server::RequestBuilder& request) {
  return Output()
      .Choice(static_cast<int>(RequestStep::kFrame))
      .Piece(TextOf(request.Frame()))
      .bytes();
}

TEST_CASE("seeds of server requests are pushes and pulls of each kind of shard") {
  Seed("server_requests", "dense", Built(DenseRequest(1)) + Whole(DenseRequest(2)));
  Seed("server_requests", "slot", Built(SlotRequest(1)) + Whole(SlotRequest(2)));
  ps_server::RequestBuilder skip, half, proved, image, old;
  skip.Push(2, 1, 0, {}).set_kind(v1::SKIP);
  skip.header.mutable_pushes(0)->set_skip_reason("nan");
  Seed("server_requests", "skip", Built(skip));
  half.Push(4, 1, 0, {1, 2}).set_rows(4);
  half.header.mutable_pushes(0)->set_dtype(v1::DTYPE_BFLOAT16);
  half.Pull(4);
  Seed("server_requests", "bfloat16", Built(half));
  proved.header.set_job_uid(ps_server::kJob + 1);
  proved.header.set_client_name("worker/0");
  proved.Push(5, 1, 0, {1, 1, 1, 1});
  v1::GrantProof& grant = *proved.header.add_grants();
  grant.set_closure(1);
  *grant.mutable_attempt() = client::ToProto(Attempt{1, 1});
  grant.set_mac(std::string(16, 'm'));
  Seed("server_requests", "unproved", Built(proved));
  image.Pull(2).mutable_image()->set_bytes(1000);
  Seed("server_requests", "image", Built(image));
  old.Push(2, 1, 0, {1, 2, 3, 4}).mutable_epoch()->set_n(1);
  v1::PullSection& pull = old.Pull(2);
  pull.set_has(true);
  *pull.mutable_have_start() = client::ToProto(ps_server::kStart);
  Seed("server_requests", "stale", Built(old));
}

// ---------------------------------------------------------------- a coordinator

std::string Batch(SessionStep step, const v1::TaskMessage& message, int session = 0) {
  v1::TaskBatch batch;
  *batch.add_messages() = message;
  Output output;
  output.Choice(static_cast<int>(step));
  if (step == SessionStep::kPeer) output.Choice(session);
  return output.Piece(batch.SerializeAsString()).bytes();
}
std::string Seconds(int seconds) {
  return Output()
      .Choice(static_cast<int>(SessionStep::kTime))
      .Number(static_cast<std::uint16_t>(seconds * 1000))
      .bytes();
}

TEST_CASE("seeds of task sessions are the messages of a worker, a server and a new task") {
  CoordinatorStage stage;
  REQUIRE(!stage.grants().empty());
  REQUIRE(!stage.assigns().empty());
  std::string all_done;
  for (const v1::Grant& grant : stage.grants()) {
    v1::TaskMessage message;
    v1::Done& done = *message.mutable_done();
    done.set_job_uid(CoordinatorStage::kThisJob);
    done.set_closure(grant.closure());
    *done.mutable_attempt() = grant.attempt();
    done.set_kind(grant.kind());
    done.set_all_targets(grant.all_targets());
    *done.mutable_v0() = *done.mutable_v1() = grant.attempt();
    done.mutable_metrics()->set_examples(8);
    done.mutable_metrics()->set_steps(2);
    all_done += Batch(SessionStep::kWorker, message);
  }
  Seed("task_session", "done", all_done + Seconds(1));

  const v1::Grant& grant = stage.grants().front();
  v1::TaskMessage failed, dropped, heartbeat, leaving, lines, file, hello, durable, report, closed;
  v1::Failed& cause = *failed.mutable_failed();
  cause.set_job_uid(CoordinatorStage::kThisJob);
  cause.set_closure(grant.closure());
  *cause.mutable_attempt() = grant.attempt();
  cause.set_kind(grant.kind());
  cause.mutable_cause()->set_code(13);
  cause.mutable_cause()->set_message("broken");
  dropped.mutable_dropped()->set_job_uid(CoordinatorStage::kThisJob);
  dropped.mutable_dropped()->set_closure(grant.closure());
  *dropped.mutable_dropped()->mutable_attempt() = grant.attempt();
  heartbeat.mutable_heartbeat()->set_sequence(7);
  v1::WorkerProgress& progress = *heartbeat.mutable_heartbeat()->mutable_worker();
  progress.set_state("running");
  progress.set_running_closure(grant.closure());
  *progress.mutable_running_attempt() = grant.attempt();
  progress.set_job_uid(CoordinatorStage::kThisJob);
  progress.set_steps(1);
  progress.add_steps_log()->set_loss(0.5);
  leaving.mutable_leaving()->set_reason("notice");
  lines.mutable_log_lines()->set_request_id(1);
  lines.mutable_log_lines()->add_lines()->set_text("line");
  file.mutable_run_file()->set_job_uid(CoordinatorStage::kThisJob);
  file.mutable_run_file()->set_name("weights.npz");
  Seed("task_session", "worker",
       Batch(SessionStep::kWorker, heartbeat) + Batch(SessionStep::kWorker, failed) +
           Batch(SessionStep::kWorker, dropped) + Batch(SessionStep::kWorker, lines) +
           Batch(SessionStep::kWorker, file) + Batch(SessionStep::kWorker, leaving));

  const v1::Assign& assign = stage.assigns().front();
  const auto about = [&](auto* message) {
    message->set_job_uid(CoordinatorStage::kThisJob);
    message->set_shard(assign.spec().shard());
    *message->mutable_epoch() = assign.epoch();
  };
  about(durable.mutable_shard_durable());
  durable.mutable_shard_durable()->mutable_file()->set_file("x.egshard");
  about(closed.mutable_closed());
  closed.mutable_closed()->set_taken(true);
  about(report.mutable_shard_report()->add_shards());
  Seed("task_session", "server",
       Batch(SessionStep::kServer, durable) + Batch(SessionStep::kServer, closed) +
           Batch(SessionStep::kServer, report) + Batch(SessionStep::kServer, leaving) +
           Output().Choice(static_cast<int>(SessionStep::kEnd)).Choice(1).bytes() + Seconds(8));

  v1::Hello& newcomer = *hello.mutable_hello();
  newcomer.set_protocol_version(client::kProtocolVersion);
  newcomer.set_role(v1::ROLE_PS_SERVER);
  newcomer.set_identity("1");
  newcomer.set_process_uid(99);
  newcomer.mutable_endpoint()->set_address("server:1");
  newcomer.set_highest_term(1);
  v1::HeldShard& held = *newcomer.add_shards();
  held.set_job_uid(CoordinatorStage::kThisJob);
  held.set_shard(assign.spec().shard());
  *held.mutable_epoch() = assign.epoch();
  *held.mutable_done() = client::ToProto(IntervalSet{0});
  std::string twice = Batch(SessionStep::kPeer, hello, 2) + Batch(SessionStep::kPeer, heartbeat, 2);
  newcomer.set_role(v1::ROLE_WORKER);
  newcomer.set_identity("");
  newcomer.clear_shards();
  v1::HeldAttempt& attempt = *newcomer.add_attempts();
  attempt.set_job_uid(CoordinatorStage::kThisJob);
  attempt.set_closure(grant.closure());
  *attempt.mutable_attempt() = grant.attempt();
  attempt.set_kind(grant.kind());
  Seed("task_session", "newcomers", twice + Batch(SessionStep::kPeer, hello, 3) + Seconds(2));
  newcomer.set_protocol_version(9);
  Seed("task_session", "refused",
       Batch(SessionStep::kPeer, hello, 2) + Batch(SessionStep::kPeer, heartbeat, 3) +
           Output().Choice(static_cast<int>(SessionStep::kPeer)).Choice(4).Piece("\xff").bytes());
}

template <class Request>
std::string Call(const Request& request) {
  return Output()
      .Choice(static_cast<int>(kCallSteps + MethodOf<Request>()))
      .Piece(request.SerializeAsString())
      .bytes();
}

TEST_CASE("seeds of Control calls are one of each method") {
  v1::SubmitJobRequest submit;
  submit.set_yaml(
      "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: calls}\n"
      "spec: {type: functions}\n");
  submit.set_source_name("job.yaml");
  v1::GetJobRequest get;
  get.set_job(CoordinatorStage::kJobName);
  get.set_wait_ms(100);
  get.set_seen_revision(1u << 30);
  v1::CancelJobRequest cancel;
  cancel.set_job(CoordinatorStage::kJobName);
  v1::DeleteJobRequest remove;
  remove.set_job(CoordinatorStage::kJobName);
  v1::DrainTaskRequest drain;
  drain.set_task("worker/0");
  v1::CordonTaskRequest cordon;
  cordon.set_task("worker/0");
  cordon.set_on(true);
  v1::ListVariablesRequest variables;
  variables.set_job(CoordinatorStage::kJobName);
  v1::ReadTaskLogsRequest logs;
  logs.add_tasks("worker/0");
  v1::ListRunFilesRequest files;
  files.set_job(CoordinatorStage::kJobName);
  v1::ReadRunFileRequest file;
  file.set_job(CoordinatorStage::kJobName);
  Seed("control_calls", "job",
       Call(get) + Call(v1::ListJobsRequest()) + Call(cancel) + Call(files) + Call(file) +
           Call(remove));
  Seed("control_calls", "tasks",
       Call(v1::ListTasksRequest()) + Call(variables) + Call(logs) + Call(drain) + Call(cordon) +
           Call(v1::GetClusterInfoRequest()));
  v1::ScheduleClosureRequest schedule;
  schedule.set_job("calls");
  schedule.set_function("f");
  v1::JoinClosuresRequest join;
  join.set_job("calls");
  v1::FinishJobRequest finish;
  finish.set_job("calls");
  v1::ClosuresDoneRequest done;
  done.set_job("calls");
  v1::FetchResultRequest fetch;
  fetch.set_job("calls");
  v1::CancelClosuresRequest stop;
  stop.set_job("calls");
  v1::ReleaseResultsRequest release;
  release.set_job("calls");
  Seed("control_calls", "functions",
       Call(submit) + Call(cancel) + Call(schedule) + Call(join) + Call(done) + Call(fetch) +
           Call(stop) + Call(release) + Call(finish));
  Seed("control_calls", "unknown",
       Output()
           .Choice(static_cast<int>(CallStep::kNamed))
           .Piece("/evergrad.v1.Control/None")
           .Piece("")
           .bytes());
}

// ---------------------------------------------------------------- the journal

std::string RowsOf(const coordinator::StoredJob& stored) {
  Output output;
  output.Piece(coordinator::EncodeState(stored.state)).Piece(stored.snapshot);
  for (const std::string& note : stored.notes) {
    v1::JournalEntry entry;
    entry.add_notes(note);
    output.Piece(entry.SerializeAsString());
  }
  return output.bytes();
}

TEST_CASE("seeds of journal rows are the rows of one job at three moments") {
  coordinator::FakeCluster cluster({}, {.persistent = true});
  const auto rows = [&] { return RowsOf(*cluster.host.memory.LoadJob(cluster.job->uid())); };
  Seed("journal", "submitted", rows());
  cluster.hold = [](const coordinator::FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN;
  };
  cluster.AddServer("0");
  coordinator::FakeWorker& worker = cluster.AddWorker("0");
  cluster.job->Start();
  REQUIRE(cluster.Run([&] { return worker.held.size() >= 2; }));
  cluster.Finish(worker, v1::Grant(worker.held.front()));
  cluster.Deliver();
  Seed("journal", "training", rows());
  cluster.hold = [](const coordinator::FakeWorker&, const v1::Grant&) { return false; };
  cluster.FinishHeld(worker);
  REQUIRE(cluster.RunToEnd());
  Seed("journal", "ended", rows());
  coordinator::Record record;
  record.term = Term(1);
  record.version = MapVersion{1, 5};
  record.map[0] = {"0", {1, 3}, {1, 3}};
  record.todo_add[1] = IntervalSet{2};
  record.lost_add[2] = IntervalSet{3};
  record.snapshot_remove[0].insert("file:///runs/x/shard-0");
  v1::JournalEntry entry;
  coordinator::EncodeRecord(record, entry.mutable_record());
  Seed("journal", "record", Output().Piece("").Piece("").Piece(entry.SerializeAsString()).bytes());
}

}  // namespace
}  // namespace evergrad::fuzz
