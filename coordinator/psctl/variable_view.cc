#include "coordinator/psctl/variable_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/client/describe.h"
#include "common/config/job_spec.h"
#include "common/optimizers/registry.h"
#include "common/schema/scalar.h"
#include "common/tensor/wire_type.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

void Add(const Flow& more, Flow* sum) {
  sum->pulls += more.pulls;
  sum->pushes += more.pushes;
  sum->bytes_in += more.bytes_in;
  sum->bytes_out += more.bytes_out;
}

double OverMedian(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return median > 0 ? values.back() / median : std::nan("");
}

template <class Row>
Skew SkewOf(const std::vector<Row>& rows) {
  const auto over = [&](auto number) {
    std::vector<double> values;
    values.reserve(rows.size());
    for (const Row& row : rows) values.push_back(number(row.flow));
    return OverMedian(std::move(values));
  };
  return {over([](const Flow& f) { return f.pulls; }), over([](const Flow& f) { return f.pushes; }),
          over([](const Flow& f) { return f.bytes(); })};
}

std::string ServerOf(const v1::VariableRow& row, int i) {
  return i < row.servers_size() ? row.servers(i) : "";
}

// Returns the increase from `before` to `now`. A counter that fell has restarted from 0.
double Since(std::uint64_t now, std::uint64_t before) {
  return static_cast<double>(now >= before ? now - before : now);
}

VariableView View(const v1::VariableRow& row, const v1::VariableRow* before, double seconds) {
  VariableView view;
  view.seconds = seconds;
  std::map<std::uint32_t, std::pair<const v1::ShardState*, std::string>> earlier;
  std::map<std::int64_t, std::uint64_t> earlier_pushes;
  if (before != nullptr) {
    for (int i = 0; i < before->shards_size(); ++i)
      earlier[before->shards(i).shard()] = {&before->shards(i), ServerOf(*before, i)};
    for (const v1::HotId& hot : before->table().hottest()) earlier_pushes[hot.id()] = hot.pushes();
  }
  const double per = before == nullptr ? 1 : 1 / seconds;
  std::map<std::string, ServerFlow> servers;
  for (int i = 0; i < row.shards_size(); ++i) {
    const v1::ShardState& now = row.shards(i);
    ShardFlow shard{now.shard(), ServerOf(row, i), {}};
    v1::ShardState from;  // all counters 0
    const auto found = earlier.find(now.shard());
    if (found != earlier.end() && found->second.second == shard.server) from = *found->second.first;
    // If the shard did not answer at the first sample, its increase is not known.
    if (found == earlier.end() && before != nullptr && !before->complete()) from = now;
    // If one counter has fallen, all counters have restarted.
    if (now.pulls() < from.pulls() || now.pushes() < from.pushes() ||
        now.bytes_received() < from.bytes_received())
      from.Clear();
    shard.flow = {Since(now.pulls(), from.pulls()) * per, Since(now.pushes(), from.pushes()) * per,
                  Since(now.bytes_received(), from.bytes_received()) * per,
                  Since(now.bytes_sent(), from.bytes_sent()) * per};
    ServerFlow& server = servers[shard.server];
    server.server = shard.server;
    ++server.shards;
    Add(shard.flow, &server.flow);
    view.shards.push_back(std::move(shard));
  }
  std::stable_sort(
      view.shards.begin(), view.shards.end(),
      [](const ShardFlow& a, const ShardFlow& b) { return a.flow.bytes() > b.flow.bytes(); });
  for (auto& [name, server] : servers) view.servers.push_back(std::move(server));
  view.shard_skew = SkewOf(view.shards);
  view.server_skew = SkewOf(view.servers);
  for (const v1::HotId& hot : row.table().hottest()) {
    HotFlow id{hot.id(), hot.pushes(), hot.error(), std::nan("")};
    const auto found = earlier_pushes.find(hot.id());
    if (found != earlier_pushes.end() && hot.pushes() >= found->second)
      id.pushes_per_second = Since(hot.pushes(), found->second) * per;
    view.hottest.push_back(id);
  }
  return view;
}

// --- text

std::string Count(double number) { return ShowNumber(number, 0); }
std::string Bytes(double number) {
  return ShowBytes(static_cast<std::uint64_t>(std::llround(number)));
}
std::string Times(double skew) { return std::isnan(skew) ? "-" : absl::StrFormat("%.2f", skew); }
std::string SkewText(const Skew& skew) {
  return absl::StrCat("pulls ", Times(skew.pulls), ", pushes ", Times(skew.pushes), ", bytes ",
                      Times(skew.bytes));
}
std::string Server(const std::string& identity) {
  return identity.empty() ? "-" : absl::StrCat("ps_server/", Printable(identity));
}

std::string OptimizerText(const v1::Optimizer& optimizer) {
  const optimizers::Settings settings = client::OptimizerOf(optimizer);
  std::vector<std::string> parts = {Printable(settings.type)};
  for (const optimizers::Member& member : ShownMembers(settings.type)) {
    if (member.number != nullptr)
      parts.push_back(absl::StrCat(member.name, " ", config::FormatReal(settings.*member.number)));
    else if (settings.*member.flag)
      parts.emplace_back(member.name);
  }
  return absl::StrJoin(parts, ", ");
}

std::string InitializerText(const v1::Initializer& initializer) {
  std::string text = Printable(initializer.type());
  if (initializer.type() == "constant")
    absl::StrAppend(&text, " ", config::FormatReal(initializer.value()));
  if (initializer.type() == "truncated_normal")
    absl::StrAppend(&text, ", mean ", config::FormatReal(initializer.mean()), ", stddev ",
                    config::FormatReal(initializer.stddev()));
  return text;
}

const char* DTypeText(v1::DType dtype) {
  return tensor::WireTypeName(static_cast<tensor::WireType>(dtype));
}

std::string WireText(v1::DType dtype, v1::DType wire) {
  return wire == v1::DTYPE_UNSPECIFIED || wire == dtype
             ? ""
             : absl::StrCat(", on the wire ", DTypeText(wire));
}

std::string EvictionText(const v1::TableSpec& spec, const v1::TableState& table) {
  std::vector<std::string> parts;
  if (spec.ttl_steps() > 0)
    parts.push_back(
        absl::StrCat("rows are evicted after ", spec.ttl_steps(), " steps without a push"));
  if (spec.bytes_max() > 0) {
    // The size excludes the allocator's spare memory, as the limit does.
    const std::uint64_t counted =
        table.bytes() + table.slot_bytes() +
        (table.rows() + table.waiting()) * optimizers::kIndexBytesPerRow +
        table.rows() * optimizers::CounterBytesPerRow(spec.optimizer().type());
    parts.push_back(absl::StrCat("rows and their index entries take at most ",
                                 ShowBytes(spec.bytes_max()), ", now ", ShowBytes(counted)));
  }
  parts.emplace_back(
      spec.evict_lru() ? "at the limit, the rows that have gone longest without a push are evicted"
                       : "at the limit pushes are refused (OVER_BUDGET)");
  return absl::StrJoin(parts, "; ");
}

std::vector<std::string> ServerLines(const VariableView& view) {
  double all = 0;
  for (const ServerFlow& server : view.servers) all += server.flow.bytes();
  std::vector<std::vector<std::string>> rows;
  rows.reserve(view.servers.size());
  for (const ServerFlow& server : view.servers)
    rows.push_back({Server(server.server), absl::StrCat(server.shards), Count(server.flow.pulls),
                    Count(server.flow.pushes), Bytes(server.flow.bytes_in),
                    Bytes(server.flow.bytes_out),
                    all > 0 ? absl::StrFormat("%.0f %%", 100 * server.flow.bytes() / all) : "-"});
  const bool rates = view.seconds > 0;
  return RenderTable({{"server"},
                      {"shards", true},
                      {rates ? "pulls/s" : "pulls", true},
                      {rates ? "pushes/s" : "pushes", true},
                      {rates ? "in/s" : "in", true},
                      {rates ? "out/s" : "out", true},
                      {"of all", true}},
                     rows);
}

std::vector<std::string> ShardLines(const VariableView& view, std::size_t count) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(count, view.shards.size()); ++i) {
    const ShardFlow& shard = view.shards[i];
    rows.push_back({absl::StrCat(shard.shard), Server(shard.server), Count(shard.flow.pulls),
                    Count(shard.flow.pushes), Bytes(shard.flow.bytes_in),
                    Bytes(shard.flow.bytes_out)});
  }
  const bool rates = view.seconds > 0;
  return RenderTable({{rows.size() < view.shards.size() ? "busiest shards" : "shard", true},
                      {"server"},
                      {rates ? "pulls/s" : "pulls", true},
                      {rates ? "pushes/s" : "pushes", true},
                      {rates ? "in/s" : "in", true},
                      {rates ? "out/s" : "out", true}},
                     rows);
}

std::vector<std::string> HotLines(const VariableView& view, std::size_t count) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(count, view.hottest.size()); ++i) {
    const HotFlow& hot = view.hottest[i];
    std::vector<std::string> row = {absl::StrCat(hot.id), absl::StrCat(hot.pushes),
                                    absl::StrCat(hot.error)};
    if (view.seconds > 0) row.push_back(Count(hot.pushes_per_second));
    rows.push_back(std::move(row));
  }
  std::vector<Column> columns = {
      {"hottest ids", true}, {"pushes, about", true}, {"error at most", true}};
  if (view.seconds > 0) columns.push_back({"pushes/s, about", true});
  return RenderTable(columns, rows);
}

void Append(std::vector<std::string> more, std::vector<std::string>* lines) {
  lines->emplace_back();
  std::move(more.begin(), more.end(), std::back_inserter(*lines));
}

void AppendTraffic(const v1::VariableRow& row, const VariableView& view, std::size_t count,
                   std::vector<std::string>* lines) {
  Append(ServerLines(view), lines);
  Append(ShardLines(view, count), lines);
  Append({absl::StrCat("largest / median: of shards ", SkewText(view.shard_skew), "; of servers ",
                       SkewText(view.server_skew))},
         lines);
  if (!row.has_table()) return;
  if (view.hottest.empty())
    Append({"hottest ids: none yet (one push in 127 is sampled)"}, lines);
  else
    Append(HotLines(view, count), lines);
}

nlohmann::json Number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}
nlohmann::json JsonOf(const Flow& flow) {
  return {{"pulls", Number(flow.pulls)},
          {"pushes", Number(flow.pushes)},
          {"bytes_in", Number(flow.bytes_in)},
          {"bytes_out", Number(flow.bytes_out)}};
}
nlohmann::json JsonOf(const Skew& skew) {
  return {{"pulls", Number(skew.pulls)},
          {"pushes", Number(skew.pushes)},
          {"bytes", Number(skew.bytes)}};
}

// The lines of a description, each with a name and a text. The name is "" if the line continues the
// line above it.
using Facts = std::vector<std::pair<std::string, std::string>>;

void AddMemoryFacts(const v1::TableState& table, Facts* facts) {
  const double rows = static_cast<double>(std::max<std::uint64_t>(1, table.rows()));
  const std::uint64_t content = std::min(table.memory_bytes(), table.bytes() + table.slot_bytes());
  facts->emplace_back(
      "memory", absl::StrCat(ShowBytes(table.memory_bytes()), " = values ",
                             ShowBytes(table.bytes()), " + optimizer ",
                             ShowBytes(table.slot_bytes()), " + index, counters and free space ",
                             ShowBytes(table.memory_bytes() - content)));
  if (table.rows() > 0)
    facts->emplace_back(
        "", absl::StrFormat("%.1f bytes per row, %.1f of them index, counters and free space",
                            static_cast<double>(table.memory_bytes()) / rows,
                            static_cast<double>(table.memory_bytes() - content) / rows));
  facts->emplace_back("index load",
                      table.index_places() == 0
                          ? std::string("-")
                          : absl::StrFormat("%.2f of %d entries",
                                            static_cast<double>(table.rows() + table.waiting()) /
                                                static_cast<double>(table.index_places()),
                                            table.index_places()));
}

void AddTableFacts(const v1::VariableRow& row, std::size_t servers, Facts* facts) {
  const v1::TableState& table = row.table();
  const v1::TableSpec& spec = row.table_spec();
  facts->emplace_back(
      "rows", absl::StrCat(table.rows(), " of ", spec.dimension(), " x ", DTypeText(row.dtype()),
                           WireText(row.dtype(), spec.wire_dtype())));
  facts->emplace_back("initializer", InitializerText(spec.initializer()));
  facts->emplace_back("optimizer", OptimizerText(spec.optimizer()));
  facts->emplace_back("slots", absl::StrCat(row.shards_size(), " on ", servers,
                                            servers == 1 ? " server" : " servers"));
  facts->emplace_back("admission", spec.admit_after() <= 1
                                       ? std::string("with the first push to an id")
                                       : absl::StrCat("with push ", spec.admit_after(),
                                                      " to an id; until then it reads ",
                                                      config::FormatReal(spec.default_row()), ", ",
                                                      table.waiting(), " ids wait"));
  facts->emplace_back("eviction", EvictionText(spec, table));
  AddMemoryFacts(table, facts);
  facts->emplace_back("admitted", absl::StrCat(table.admitted(), " rows"));
  facts->emplace_back("evicted", absl::StrCat(table.evicted_ttl(), " rows by age, ",
                                              table.evicted_lru(), " for capacity"));
  facts->emplace_back("dropped", absl::StrCat(table.gradients_dropped(),
                                              " gradients of ids that were not admitted yet"));
  facts->emplace_back("duplicates",
                      absl::StrCat(table.duplicates(),
                                   " gradients of ids that one push named more than once, summed"));
  facts->emplace_back("refused", absl::StrCat(table.refused(), " pushes over the memory limit"));
}

void AddDenseFacts(const v1::VariableRow& row, std::size_t servers, Facts* facts) {
  const v1::VariableSpec& spec = row.variable_spec();
  std::uint64_t slot_bytes = 0;
  for (const v1::ShardState& shard : row.shards()) slot_bytes += shard.slot_bytes();
  facts->emplace_back(
      "shape", absl::StrCat("[", absl::StrJoin(row.shape(), ", "), "] x ", DTypeText(row.dtype()),
                            WireText(row.dtype(), spec.wire_dtype())));
  facts->emplace_back("initializer", InitializerText(spec.initializer()));
  facts->emplace_back("optimizer", OptimizerText(spec.optimizer()));
  facts->emplace_back("partitions", absl::StrCat(row.shards_size(), " on ", servers,
                                                 servers == 1 ? " server" : " servers"));
  facts->emplace_back("bytes", absl::StrCat("values ", ShowBytes(row.bytes()), ", optimizer ",
                                            ShowBytes(slot_bytes)));
}

void AddUpdateFacts(const v1::VariableRow& row, Facts* facts) {
  std::uint64_t updates = 0, duplicates = 0;
  for (const v1::ShardState& shard : row.shards()) {
    updates = std::max(updates, shard.updates_applied());
    duplicates += shard.duplicates_refused();
  }
  facts->emplace_back("updates", absl::StrCat("at most ", updates, " applied in one shard; ",
                                              duplicates, " repeated pushes refused"));
  facts->emplace_back("digest", row.complete() ? absl::StrCat(ShowHex(row.digest()), ", optimizer ",
                                                              ShowHex(row.slot_digest()))
                                               : "(not every shard answered)");
}

}  // namespace

std::vector<optimizers::Member> ShownMembers(const std::string& type) {
  const optimizers::Descriptor* const descriptor = optimizers::Find(type);
  std::vector<optimizers::Member> shown;
  for (const optimizers::Member& member : optimizers::Members()) {
    const bool read = descriptor == nullptr
                          ? member.name == "learning_rate"
                          : std::any_of(descriptor->parameters.begin(),
                                        descriptor->parameters.end(), [&](const auto& parameter) {
                                          return parameter.member.name == member.name;
                                        });
    if (read) shown.push_back(member);
  }
  // `epsilon` is moved to the end, because it is the least interesting number.
  std::stable_partition(shown.begin(), shown.end(),
                        [](const auto& member) { return member.name != "epsilon"; });
  return shown;
}

VariableView ViewOf(const v1::VariableRow& row) { return View(row, nullptr, 0); }
VariableView ViewOf(const v1::VariableRow& row, const v1::VariableRow& before, double seconds) {
  return View(row, &before, std::max(seconds, 1e-3));
}

std::vector<std::string> VariableDescription(const v1::VariableRow& row, absl::string_view job,
                                             std::size_t count) {
  const bool is_table = row.has_table();
  const VariableView view = ViewOf(row);
  Facts facts;
  if (is_table)
    AddTableFacts(row, view.servers.size(), &facts);
  else
    AddDenseFacts(row, view.servers.size(), &facts);
  AddUpdateFacts(row, &facts);
  std::vector<std::string> lines = {absl::StrCat(Printable(row.name()), ": ",
                                                 is_table ? "embedding table" : "dense variable",
                                                 " of job ", Printable(job))};
  std::size_t width = 0;
  for (const auto& [name, text] : facts) width = std::max(width, name.size());
  for (const auto& [name, text] : facts)
    lines.push_back(absl::StrCat("  ", name, std::string(width - name.size() + 2, ' '), text));
  Append({is_table ? "traffic since the servers got the shards; the traffic of a slot is the sum "
                     "over all its tables"
                   : "traffic since the servers got the shards"},
         &lines);
  lines.emplace_back();
  std::vector<std::string> traffic;
  AppendTraffic(row, view, count, &traffic);
  std::move(traffic.begin() + 1, traffic.end(), std::back_inserter(lines));
  return lines;
}

std::vector<std::string> VariableTop(const v1::VariableRow& row, const VariableView& view,
                                     absl::string_view job, std::size_t count) {
  Flow all;
  for (const ServerFlow& server : view.servers) Add(server.flow, &all);
  std::string head = absl::StrCat(Printable(row.name()), " of job ", Printable(job), ", ");
  if (row.has_table())
    absl::StrAppend(&head, row.table().rows(), " rows, ", ShowBytes(row.table().memory_bytes()),
                    ", ");
  absl::StrAppend(&head, row.complete() ? "" : "not every shard answered, ",
                  view.seconds > 0 ? absl::StrFormat("over the last %.1f s", view.seconds)
                                   : "since the servers got the shards",
                  row.has_table() ? " (the traffic of a slot is the sum over all its tables)" : "");
  const char* per = view.seconds > 0 ? "/s" : "";
  std::vector<std::string> lines = {
      head,
      absl::StrCat("pulls", per, " ", Count(all.pulls), "  pushes", per, " ", Count(all.pushes),
                   "  in", per, " ", Bytes(all.bytes_in), "  out", per, " ", Bytes(all.bytes_out))};
  AppendTraffic(row, view, count, &lines);
  return lines;
}

nlohmann::json JsonOf(const VariableView& view, std::size_t count) {
  nlohmann::json servers = nlohmann::json::array(), shards = nlohmann::json::array(),
                 hottest = nlohmann::json::array();
  for (const ServerFlow& server : view.servers) {
    nlohmann::json json = JsonOf(server.flow);
    json["server"] = server.server;
    json["shards"] = server.shards;
    servers.push_back(std::move(json));
  }
  for (std::size_t i = 0; i < std::min(count, view.shards.size()); ++i) {
    nlohmann::json json = JsonOf(view.shards[i].flow);
    json["shard"] = view.shards[i].shard;
    json["server"] = view.shards[i].server;
    shards.push_back(std::move(json));
  }
  for (std::size_t i = 0; i < std::min(count, view.hottest.size()); ++i) {
    const HotFlow& hot = view.hottest[i];
    hottest.push_back({{"id", hot.id},
                       {"pushes", hot.pushes},
                       {"error", hot.error},
                       {"pushes_per_second", Number(hot.pushes_per_second)}});
  }
  return {{"seconds", view.seconds == 0 ? nlohmann::json(nullptr) : Number(view.seconds)},
          {"servers", servers},
          {"busiest_shards", shards},
          {"shard_skew", JsonOf(view.shard_skew)},
          {"server_skew", JsonOf(view.server_skew)},
          {"hottest", hottest}};
}

}  // namespace evergrad::psctl
