// Scenario S6 of the faults, on a real cluster: makes every error that a push can have, over a real
// gRPC stream, while a job runs. The job is a counting job. If it has tables, it has at least two.
//
//   evergrad-wrong-pushes --coordinator ADDR --job NAME --server IDENTITY=ADDR … [--quiet]
//
// Each case must get the right typed answer. With --quiet no worker trains meanwhile. Then every
// shard must have the same digests of values and optimizer state, lsn, vlsn, counters and ledger
// sizes before and after. The program prints one line per case; exit code 0 means that all answers
// were right. It registers as a worker and keeps its grants while it runs. A malformed push is
// therefore refused for its form and not for a missing grant.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/mutex.h"
#include "common/client/control.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/wire/data_frame.h"
#include "evergrad/v1/api.pb.h"
#include "tests/support/grant_holder.h"

namespace {

using namespace evergrad;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{10000};
constexpr char kNotGranted[] =
    "the coordinator has not granted this attempt to the sender of the push";

struct Cluster {
  std::unique_ptr<transport::Transport> transport = transport::MakeGrpcTransport(nullptr);
  std::unique_ptr<transport::Channel> coordinator;
  std::map<std::string, std::string> servers;  // identity -> address
  std::string job;
};

struct Held {
  v1::ShardState state;
  std::string server;
};

int failures = 0;
// The grant that this program holds as a worker, and a header with the proof of that grant.
v1::Grant granted;
v1::RequestHeader proved;

void Say(bool good, const std::string& name, const std::string& got) {
  std::printf("%s %-34s %s\n", good ? "ok    " : "WRONG ", name.c_str(), got.c_str());
  failures += good ? 0 : 1;
}

// Returns the shards in the order of their numbers, or nullopt if a shard has not answered.
std::optional<std::vector<Held>> Shards(Cluster& cluster) {
  v1::ListVariablesRequest request;
  request.set_job(cluster.job);
  const auto variables =
      client::CallControl<v1::ListVariablesResponse>(*cluster.coordinator, request, kDeadline);
  if (!variables.ok()) {
    std::fprintf(stderr, "no list of variables: %s\n", variables.status().ToString().c_str());
    return std::nullopt;
  }
  std::vector<Held> shards;
  for (const v1::VariableRow& variable : variables->variables()) {
    if (!variable.complete()) return std::nullopt;
    for (int i = 0; i < variable.shards_size(); ++i)
      shards.push_back({variable.shards(i), variable.servers(i)});
  }
  return shards.empty() ? std::nullopt : std::optional(std::move(shards));
}

std::string Text(std::vector<Held> shards) {
  std::string text;
  for (Held& held : shards) {
    held.state.clear_duplicates_refused();  // a DUPLICATE changes nothing but this counter
    absl::StrAppend(&text, held.server, " ", held.state.ShortDebugString(), "\n");
  }
  return text;
}

// Waits until no shard has changed for three intervals of the coordinator's Closes (100 ms each),
// so that everything in flight has arrived. Then returns the shards.
std::optional<std::vector<Held>> SettledShards(Cluster& cluster) {
  constexpr milliseconds kRest{300}, kGiveUp{10000};
  runtime::WaitableEvent never;
  const auto begin = std::chrono::steady_clock::now();
  auto since = begin;
  std::optional<std::vector<Held>> last;
  for (auto now = begin; now - begin < kGiveUp; now = std::chrono::steady_clock::now()) {
    auto seen = Shards(cluster);
    if (!seen || !last || Text(*seen) != Text(*last)) since = now;
    last = std::move(seen);
    if (last && now - since >= kRest) return last;
    never.WaitFor(milliseconds(20));
  }
  return std::nullopt;
}

absl::StatusOr<client::ParameterClient::Answer> Send(client::ParameterClient& client,
                                                     const std::string& address,
                                                     v1::RequestHeader header,
                                                     std::vector<tensor::SharedBytes> payloads,
                                                     std::vector<tensor::SharedBytes> ids = {}) {
  v1::Endpoint endpoint;
  endpoint.set_address(address);
  std::optional<absl::StatusOr<client::ParameterClient::Answer>> got;
  runtime::WaitableEvent done;
  constexpr std::uint64_t kResponseBytesMax = 1 << 20;
  client.Send(
      endpoint, std::move(header), std::move(payloads), kResponseBytesMax, kDeadline,
      [&](auto answer) {
        got.emplace(std::move(answer));
        done.Set();
      },
      nullptr, std::move(ids));
  done.Wait();
  return *std::move(got);
}

absl::StatusOr<transport::ReceivedFrame> SendRaw(transport::DataStream& stream,
                                                 transport::Frame frame) {
  std::optional<absl::StatusOr<transport::ReceivedFrame>> got;
  runtime::WaitableEvent done;
  stream.Call(0, std::move(frame), {1 << 16, kDeadline}, [&](auto answer) {
    got.emplace(std::move(answer));
    done.Set();
  });
  done.Wait();
  return *std::move(got);
}

tensor::SharedBytes Bytes(std::vector<std::byte> bytes) {
  auto owned = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {owned, std::span<const std::byte>(*owned)};
}

// Returns a valid push of ones to `held`. Each case puts one error into this push. The number of
// its update is above those of the job, so that the push would be applied without the error.
v1::RequestHeader Good(const Held& held, std::vector<tensor::SharedBytes>* payloads) {
  v1::RequestHeader header = proved;
  header.set_job_uid(held.state.job_uid());
  v1::PushSection* push = header.add_pushes();
  push->set_shard(held.state.shard());
  *push->mutable_epoch() = held.state.epoch();
  push->set_closure(granted.closure());
  push->set_update(4000);
  *push->mutable_attempt() = granted.attempt();
  push->set_kind(v1::GRADIENT);
  push->set_dtype(v1::DTYPE_FLOAT32);
  push->set_rows(held.state.row_end() - held.state.row_begin());
  std::vector<std::byte> ones(held.state.bytes());
  for (std::size_t i = 0; i + 4 <= ones.size(); i += 4) {
    const float one = 1;
    std::memcpy(ones.data() + i, &one, sizeof one);
  }
  *payloads = {Bytes(std::move(ones))};
  return header;
}

void Judge(const std::string& name, const absl::StatusOr<client::ParameterClient::Answer>& answer,
           v1::PushAnswer want, const char* words) {
  if (!answer.ok() || answer->header->pushes_size() != 1)
    return Say(false, name, answer.ok() ? "no section" : answer.status().ToString());
  const v1::PushResult& got = answer->header->pushes(0);
  Say(got.answer() == want && got.message().find(words) != std::string::npos, name,
      absl::StrCat(v1::PushAnswer_Name(got.answer()), " ", got.message()));
}

void Sections(Cluster& cluster, client::ParameterClient& client, const Held& held,
              const Held& elsewhere, std::uint32_t shards) {
  struct Case {
    const char* name;
    std::function<void(v1::RequestHeader&, v1::PushSection&, std::vector<tensor::SharedBytes>&)>
        spoil;
    v1::PushAnswer want;
    const char* words;
  };
  using H = v1::RequestHeader&;
  using P = v1::PushSection&;
  using B = std::vector<tensor::SharedBytes>&;
  const std::vector<Case> cases = {
      {"too few bytes for the shape",
       [](H, P, B b) { b[0].bytes = b[0].bytes.first(b[0].bytes.size() - 4); }, v1::INVALID,
       "gradient bytes mismatch"},
      {"too many bytes for the shape",
       [](H, P, B b) { b[0] = Bytes(std::vector<std::byte>(b[0].bytes.size() + 4)); }, v1::INVALID,
       "gradient bytes mismatch"},
      {"no bytes", [](H, P, B b) { b[0] = {}; }, v1::INVALID, "gradient bytes mismatch"},
      {"a million times as large",
       [](H, P, B b) { b[0] = Bytes(std::vector<std::byte>(70 << 20)); }, v1::INVALID,
       "gradient bytes mismatch"},
      {"wrong rows", [](H, P p, B) { p.set_rows(p.rows() + 1); }, v1::INVALID,
       "gradient rows mismatch"},
      {"rows that overflow", [](H, P p, B) { p.set_rows(~0ull); }, v1::INVALID,
       "gradient rows mismatch"},
      {"wrong dtype", [](H, P p, B) { p.set_dtype(v1::DTYPE_INT64); }, v1::INVALID,
       "gradient dtype mismatch"},
      {"dtype from the future", [](H, P p, B) { p.set_dtype(static_cast<v1::DType>(4711)); },
       v1::INVALID, "gradient dtype mismatch"},
      {"no dtype", [](H, P p, B) { p.clear_dtype(); }, v1::INVALID, "gradient dtype mismatch"},
      {"codec", [](H, P p, B) { p.set_codec(static_cast<v1::Codec>(3)); }, v1::INVALID,
       "codec is not built"},
      {"kind ASSIGN", [](H, P p, B) { p.set_kind(v1::ASSIGN); }, v1::INVALID,
       "update kind is not built"},
      {"kind MOVING_AVERAGE", [](H, P p, B) { p.set_kind(v1::MOVING_AVERAGE); }, v1::INVALID,
       "update kind mismatch"},
      {"no kind", [](H, P p, B) { p.clear_kind(); }, v1::INVALID, "update kind is not built"},
      {"kind from the future", [](H, P p, B) { p.set_kind(static_cast<v1::UpdateKind>(77)); },
       v1::INVALID, "update kind is not built"},
      {"ids for a dense shard", [](H, P p, B) { p.mutable_ids(); }, v1::INVALID,
       "takes no id list"},
      {"skip with bytes",
       [](H, P p, B) {
         p.set_kind(v1::SKIP);
         p.set_skip_reason("nan");
       },
       v1::INVALID, "must have no payload"},
      {"skip without a reason",
       [](H, P p, B b) {
         p.set_kind(v1::SKIP);
         p.set_rows(0);
         b[0] = {};
       },
       v1::INVALID, "needs a reason"},
      {"update number", [](H, P p, B) { p.set_update(4096); }, v1::INVALID,
       "update number is out of range"},
      {"closure number", [](H, P p, B) { p.set_closure(~0ull); }, v1::INVALID, kNotGranted},
      {"a closure that nobody was granted", [](H, P p, B) { p.set_closure(1000000000); },
       v1::INVALID, kNotGranted},
      {"closure 2^63", [](H, P p, B) { p.set_closure(1ull << 63); }, v1::INVALID, kNotGranted},
      {"an attempt that nobody was granted",
       [](H, P p, B) { p.mutable_attempt()->set_n(p.attempt().n() + 1); }, v1::INVALID,
       kNotGranted},
      {"an attempt above all others",
       [](H h, P p, B) {
         p.mutable_attempt()->set_term(9);
         p.mutable_attempt()->set_n(9);
         *h.mutable_grants(0)->mutable_attempt() = p.attempt();
       },
       v1::INVALID, kNotGranted},
      {"the true attempt, of another worker",
       [](H h, P, B) { h.set_client_name("worker/mallory"); }, v1::INVALID, kNotGranted},
      {"the true attempt, without its proof", [](H h, P, B) { h.clear_grants(); }, v1::INVALID,
       kNotGranted},
      {"a skip that nobody was granted",
       [](H, P p, B b) {
         p.set_closure(p.closure() + 1);
         p.set_kind(v1::SKIP);
         p.set_skip_reason("nan");
         p.set_rows(0);
         b[0] = {};
       },
       v1::INVALID, kNotGranted},
      {"older epoch", [](H, P p, B) { p.mutable_epoch()->set_n(p.epoch().n() - 1); }, v1::STALE,
       ""},
      {"epoch to come", [](H, P p, B) { p.mutable_epoch()->set_n(p.epoch().n() + 1); }, v1::STALE,
       ""},
      {"epoch of another term",
       [](H, P p, B) { p.mutable_epoch()->set_term(p.epoch().term() + 1); }, v1::STALE, ""},
      {"no epoch", [](H, P p, B) { p.clear_epoch(); }, v1::STALE, ""},
      {"another job", [](H h, P, B) { h.set_job_uid(h.job_uid() + 1); }, v1::STALE, ""},
      {"no job", [](H h, P, B) { h.clear_job_uid(); }, v1::STALE, ""},
      {"a partition that does not exist", [&](H, P p, B) { p.set_shard(shards); }, v1::INVALID,
       "unknown shard"},
  };
  const std::string& address = cluster.servers.at(held.server);
  const auto one = [&](const Case& c, const Held& of) {
    std::vector<tensor::SharedBytes> payloads;
    v1::RequestHeader header = Good(of, &payloads);
    c.spoil(header, *header.mutable_pushes(0), payloads);
    const auto answer = Send(client, address, std::move(header), std::move(payloads));
    Judge(c.name, answer, c.want, c.words);
  };
  for (const Case& c : cases) one(c, held);
  if (elsewhere.server != held.server) {
    one({"a partition that another server holds", [](H, P, B) {}, v1::STALE, ""}, elsewhere);
  }

  // A sender without a grant must not learn whether a closure is done or open.
  std::map<std::string, int> answers;
  for (std::uint64_t c = 0; c < 64; ++c) {
    std::vector<tensor::SharedBytes> payloads;
    v1::RequestHeader header = Good(held, &payloads);
    header.mutable_pushes(0)->set_closure(c);
    header.mutable_pushes(0)->set_update(4095);
    header.mutable_pushes(0)->clear_attempt();
    header.mutable_pushes(0)->set_rows(0);
    const auto answer = Send(client, address, std::move(header), std::move(payloads));
    ++answers[answer.ok() ? v1::PushAnswer_Name(answer->header->pushes(0).answer())
                          : answer.status().ToString()];
  }
  std::string seen;
  int typed = 0;
  for (const auto& [name, n] : answers) {
    absl::StrAppend(&seen, name, " x", n, " ");
    if (name == "INVALID") typed += n;
  }
  Say(typed == 64, "attempt (0,0) over 64 closures", seen);
}

// Tests pushes to a slot of a counting job. The push has two rows each of table 0 and table 1,
// whose rows have 1 and 2 elements. Each case puts one error into it.
void Slots(Cluster& cluster, client::ParameterClient& client, const Held& slot) {
  struct Case {
    const char* words;
    std::function<void(v1::PushSection&, std::vector<std::int64_t>&, std::size_t& payload_bytes)>
        spoil;
  };
  using P = v1::PushSection&;
  using I = std::vector<std::int64_t>&;
  using B = std::size_t&;
  const std::vector<Case> cases = {
      {"a slot needs an id list", [](P, I ids, B) { ids.clear(); }},
      {"the numbers of rows and of ids differ: rows=2 ids=3",
       [](P, I ids, B) { ids.push_back(3); }},
      {"the numbers of rows and of ids differ: rows=4294967296 ids=2",
       [](P p, I, B) { p.set_table_rows(1, ~0u); }},
      {"the numbers of tables and of row counts differ: tables=2 rows=1",
       [](P p, I, B) { p.mutable_table_rows()->RemoveLast(); }},
      {"no such table: table=4294967295", [](P p, I, B) { p.set_tables(1, ~0u); }},
      {"table numbers are not ascending: table=0 after=0", [](P p, I, B) { p.set_tables(1, 0); }},
      {"a table has no rows: table=1", [](P p, I, B) { p.set_table_rows(1, 0); }},
      {"gradient rows mismatch: want=2 got=3", [](P p, I, B) { p.set_rows(3); }},
      {"gradient bytes mismatch: want=12 got=8", [](P, I, B bytes) { bytes = 8; }},
      {"gradient bytes mismatch: want=12 got=0", [](P, I, B bytes) { bytes = 0; }},
      {"gradient dtype mismatch", [](P p, I, B) { p.set_dtype(v1::DTYPE_INT64); }},
  };
  for (const Case& c : cases) {
    std::vector<tensor::SharedBytes> payloads;
    v1::RequestHeader header = Good(slot, &payloads);
    v1::PushSection* push = header.mutable_pushes(0);
    push->set_rows(2);
    for (const std::uint32_t table : {0u, 1u}) {
      push->add_tables(table);
      push->add_table_rows(1);
    }
    std::vector<std::int64_t> ids = {INT64_MIN, -1};
    std::size_t bytes = 3 * sizeof(float);
    c.spoil(*push, ids, bytes);
    std::vector<std::byte> list(ids.size() * sizeof(std::int64_t));
    if (!list.empty()) std::memcpy(list.data(), ids.data(), list.size());
    const auto answer = Send(client, cluster.servers.at(slot.server), std::move(header),
                             {Bytes(std::vector<std::byte>(bytes))}, {Bytes(std::move(list))});
    Judge(absl::StrCat("slot: ", c.words), answer, v1::INVALID, c.words);
  }
}

void Frames(Cluster& cluster, const Held& held, std::uint64_t seed) {
  auto channel = cluster.transport->Dial({cluster.servers.at(held.server), ""},
                                         {.frame_bytes_max = 4ull << 30});
  if (!channel.ok()) return Say(false, "channel", channel.status().ToString());
  const auto stream = (*channel)->OpenData();
  std::vector<tensor::SharedBytes> payloads;
  const v1::RequestHeader good = Good(held, &payloads);
  // Builds a frame as the frame builder does, with a header that `spoil` has changed.
  const auto frame = [&](const std::function<void(v1::RequestHeader&)>& spoil) {
    v1::RequestHeader header = good;
    header.mutable_pushes(0)->set_payload_offset(256);
    header.mutable_pushes(0)->set_payload_bytes(held.state.bytes());
    spoil(header);
    const std::string text = header.SerializeAsString();
    std::vector<std::byte> bytes(256 + held.state.bytes());
    const auto length = static_cast<std::uint32_t>(text.size());
    std::memcpy(bytes.data(), &length, sizeof length);
    std::memcpy(bytes.data() + 4, text.data(), text.size());
    return bytes;
  };
  const auto refused = [&](const std::string& name, std::vector<std::byte> bytes,
                           const char* words) {
    const auto got = SendRaw(*stream, {{Bytes(std::move(bytes))}});
    if (!got.ok()) return Say(false, name, got.status().ToString());
    const auto parsed = wire::ParseResponse({got->bytes.data(), got->bytes.size()});
    const bool typed = parsed.ok() && parsed->header->has_error() &&
                       parsed->header->pushes_size() == 0 && !parsed->header->error().retryable();
    Say(typed && parsed->header->error().message().find(words) != std::string::npos, name,
        parsed.ok() ? parsed->header->error().message() : parsed.status().ToString());
  };
  refused("bytes beyond the frame",
          frame([](v1::RequestHeader& h) { h.mutable_pushes(0)->set_payload_bytes(1 << 20); }),
          "exceed the frame");
  refused("bytes that overflow",
          frame([](v1::RequestHeader& h) { h.mutable_pushes(0)->set_payload_bytes(~0ull); }),
          "exceed the frame");
  refused("ids beyond the frame", frame([](v1::RequestHeader& h) {
            h.mutable_pushes(0)->mutable_ids()->set_count(1 << 20);
            h.mutable_pushes(0)->mutable_ids()->set_offset(256);
            h.mutable_pushes(0)->mutable_ids()->set_bytes(8 << 20);
          }),
          "ids");
  refused("an offset inside the header",
          frame([](v1::RequestHeader& h) { h.mutable_pushes(0)->set_payload_offset(0); }),
          "overlap");
  refused("an offset that is not aligned",
          frame([](v1::RequestHeader& h) { h.mutable_pushes(0)->set_payload_offset(257); }),
          "not aligned");
  std::vector<std::byte> torn = frame([](v1::RequestHeader&) {});
  torn.resize(100);
  refused("a frame cut short", torn, "");
  std::vector<std::byte> noise(5000);
  std::uint64_t state = seed;
  for (std::byte& b : noise)
    b = static_cast<std::byte>((state = state * 6364136223846793005ull + 1442695040888963407ull) >>
                               56);
  refused("noise", noise, "");
  refused("nothing", {}, "");

  // The frame is larger than any that a server accepts. It must be refused when it is announced,
  // before any byte of it is sent.
  transport::Frame huge;
  const tensor::SharedBytes piece = Bytes(std::vector<std::byte>(16 << 20));
  for (int i = 0; i < 80; ++i) huge.pieces.push_back(piece);
  const auto got = SendRaw(*stream, std::move(huge));
  Say(!got.ok() && got.status().code() != absl::StatusCode::kUnavailable &&
          got.status().code() != absl::StatusCode::kDeadlineExceeded,
      "1.25 GiB, above the limit of a frame", got.ok() ? "answered" : got.status().ToString());
  refused("noise again: the stream lives", noise, "");
}

int Run(int argc, char** argv) {
  Cluster cluster;
  std::string coordinator;
  bool quiet = false;
  std::uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--quiet") {
      quiet = true;
      continue;
    }
    ++i;
    if (flag == "--coordinator") {
      coordinator = value;
    } else if (flag == "--job") {
      cluster.job = value;
    } else if (flag == "--seed") {
      seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--server") {
      const std::pair<std::string, std::string> pair =
          absl::StrSplit(value, absl::MaxSplits('=', 1));
      cluster.servers.insert(pair);
    } else {
      std::fprintf(stderr, "unknown option %s\n", flag.c_str());
      return 2;
    }
  }
  auto channel = cluster.transport->Dial({coordinator, ""}, {});
  if (!channel.ok()) {
    std::fprintf(stderr, "%s\n", channel.status().ToString().c_str());
    return 2;
  }
  cluster.coordinator = *std::move(channel);
  std::optional<test::GrantHolder> worker;
  if (const auto first = Shards(cluster)) {
    worker.emplace(cluster.transport.get(), coordinator, "stranger");
    const auto grant = worker->WaitGrant(first->front().state.job_uid(), kDeadline);
    if (!grant) {
      std::fprintf(stderr, "nothing of %s was granted\n", cluster.job.c_str());
      return 2;
    }
    granted = *grant;
    worker->Prove(granted, &proved);
  }
  const auto before = quiet ? SettledShards(cluster) : Shards(cluster);
  if (!before) {
    std::fprintf(stderr, "the shards of %s did not all answer, or did not come to rest\n",
                 cluster.job.c_str());
    return 2;
  }
  std::vector<const Held*> dense, slots;
  for (const Held& one : *before)
    (one.state.variable().rfind("slot ", 0) == 0 ? slots : dense).push_back(&one);
  const Held& held = *dense[seed % dense.size()];
  const Held* elsewhere = &held;
  for (const Held* other : dense) {
    if (other->server != held.server) elsewhere = other;
  }
  std::printf("shard %u of %s on server %s, bytes=%llu\n", held.state.shard(),
              held.state.variable().c_str(), held.server.c_str(),
              static_cast<unsigned long long>(held.state.bytes()));
  {
    client::ParameterClient client(cluster.transport.get(), {}, "wrong-pushes");
    Sections(cluster, client, held, *elsewhere, static_cast<std::uint32_t>(before->size()));
    if (!slots.empty()) Slots(cluster, client, *slots[seed % slots.size()]);
  }
  Frames(cluster, held, seed);
  if (quiet) {
    const auto after = Shards(cluster);
    const bool same = after && Text(*before) == Text(*after);
    Say(same, "values, slots, ledgers unchanged", absl::StrCat(before->size(), " shards"));
    if (!same && after)
      std::printf("before:\n%safter:\n%s", Text(*before).c_str(), Text(*after).c_str());
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return Run(argc, argv); }
