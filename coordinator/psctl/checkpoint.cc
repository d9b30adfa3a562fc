// psctl checkpoint: describe, verify.
#include "coordinator/psctl/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file_system.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// One file of a checkpoint, or the reason why it cannot be used.
struct FileRow {
  std::uint32_t shard = 0;
  std::string file;  // "" if the shard starts from its seed
  absl::StatusOr<snapshot::ShardFileReport> report = absl::UnknownError("");
};
// The contents of a checkpoint path.
struct Checkpoint {
  std::string uri;  // URI of the manifest; "" if the path is a single shard file
  std::optional<v1::Manifest> manifest;
  std::vector<absl::Status> passed_over;  // newer manifests that cannot be read
  std::vector<FileRow> files;
  bool whole() const {
    return passed_over.empty() && std::all_of(files.begin(), files.end(), [](const FileRow& row) {
             return row.file.empty() || row.report.ok();
           });
  }
};

absl::StatusOr<Checkpoint> Load(fs::FileSystem& files, const std::string& uri, bool whole) {
  Checkpoint checkpoint;
  if (snapshot::ParseShardFileName(fs::NameOf(uri))) {
    FileRow row;
    row.file = fs::NameOf(uri);
    row.report =
        whole ? snapshot::VerifyShardFile(files, uri) : snapshot::DescribeShardFile(files, uri);
    if (absl::IsNotFound(row.report.status()) || absl::IsPermissionDenied(row.report.status()))
      return row.report.status();
    row.shard = snapshot::ParseShardFileName(row.file)->shard.value();
    checkpoint.files.push_back(std::move(row));
    return checkpoint;
  }
  EG_ASSIGN_OR_RETURN(FoundManifest found, FindManifest(files, uri));
  checkpoint.uri = std::move(found.uri);
  checkpoint.manifest = std::move(found.manifest);
  checkpoint.passed_over = std::move(found.passed_over);
  for (int i = 0; i < checkpoint.manifest->shards_size(); ++i) {
    const v1::ShardFile& entry = checkpoint.manifest->shards(i);
    FileRow row{entry.shard(), entry.file(), absl::UnknownError("")};
    if (!entry.file().empty())
      row.report = snapshot::CheckShardOf(files, fs::FolderOf(checkpoint.uri), *checkpoint.manifest,
                                          i, whole);
    checkpoint.files.push_back(std::move(row));
  }
  return checkpoint;
}

std::string StampText(const v1::Stamp& stamp) { return absl::StrCat(stamp.term(), ".", stamp.n()); }

nlohmann::json JsonOf(const FileRow& row) {
  nlohmann::json json = {{"shard", row.shard},
                         {"file", row.file},
                         {"state", row.file.empty()  ? "seed"
                                   : row.report.ok() ? "whole"
                                                     : "damaged"}};
  if (row.file.empty()) return json;
  if (!row.report.ok()) {
    json["error"] = std::string(row.report.status().message());
    return json;
  }
  const snapshot::ShardFileReport& r = *row.report;
  json["job_uid"] = ShowHex(r.header.job_uid());
  json["plan"] = r.header.plan_fingerprint();
  json["kind"] = r.header.kind() == v1::SHARD_KIND_DENSE ? "dense" : "table";
  if (r.header.kind() == v1::SHARD_KIND_DENSE) {
    json["variable"] = r.header.dense().variable().name();
    json["row_begin"] = r.header.dense().row_begin();
    json["row_end"] = r.header.dense().row_end();
  }
  json["epoch"] = StampText(r.header.epoch());
  json["start"] = StampText(r.header.start());
  json["lsn"] = r.header.lsn();
  json["vlsn"] = r.header.vlsn();
  json["updates_applied"] = r.counters.updates_applied();
  json["done"] = r.done.ToString();
  json["refused"] = r.refused.ToString();
  json["open_closures"] = r.open_closures;
  json["open"] = nlohmann::json::array();
  for (const auto& [closure, updates] : r.open)
    json["open"].push_back({{"closure", closure.value()}, {"updates", updates.ToString()}});
  json["bytes"] = r.bytes;
  json["value_bytes"] = r.value_bytes;
  json["slot_bytes"] = r.state_bytes;
  if (r.verified) {
    json["sha256"] = snapshot::Hex(r.sha256);
    json["digest"] = ShowHex(r.value_digest);
    json["slot_digest"] = ShowHex(r.state_digest);
  }
  return json;
}

nlohmann::json JsonOf(const Checkpoint& checkpoint) {
  nlohmann::json json = {{"whole", checkpoint.whole()},
                         {"passed_over", nlohmann::json::array()},
                         {"files", nlohmann::json::array()}};
  for (const absl::Status& status : checkpoint.passed_over)
    json["passed_over"].push_back(std::string(status.message()));
  for (const FileRow& row : checkpoint.files) json["files"].push_back(JsonOf(row));
  if (!checkpoint.manifest) return json;
  const v1::Manifest& m = *checkpoint.manifest;
  json["manifest"] = {{"path", checkpoint.uri},
                      {"number", m.number()},
                      {"job", m.job_name()},
                      {"job_uid", ShowHex(m.job_uid())},
                      {"complete", m.complete()},
                      {"written_ms", m.written_ms()},
                      {"seed", m.seed()},
                      {"plan", m.plan().fingerprint()},
                      {"version", StampText(m.version())},
                      {"metrics", nlohmann::json::array()}};
  for (const v1::FinishedMetric& metric : m.metrics()) {
    json["manifest"]["metrics"].push_back({{"scope", metric.scope()},
                                           {"epoch", metric.epoch()},
                                           {"global_step", metric.global_step()},
                                           {"name", metric.name()},
                                           {"value", metric.value()},
                                           {"examples", metric.examples()}});
  }
  return json;
}

std::string Short(const IntervalSet& set) {
  constexpr std::size_t kWidth = 32;
  const std::string text = set.ToString();
  return text.empty()            ? "-"
         : text.size() <= kWidth ? text
                                 : absl::StrCat(text.substr(0, kWidth - 3), "...");
}

void Print(Context& context, const Checkpoint& checkpoint, bool verified) {
  if (checkpoint.manifest) {
    const v1::Manifest& m = *checkpoint.manifest;
    context.out << "job        " << Printable(m.job_name()) << "  " << ShowHex(m.job_uid()) << "\n"
                << "manifest   " << Printable(ShowPath(context, checkpoint.uri)) << "\n"
                << "written    " << ShowTime(m.written_ms()) << "\n"
                << "complete   "
                << (m.complete() ? "yes: every shard holds the same closures"
                                 : "no: shards hold different closures; resume needs the same plan")
                << "\n"
                << "plan       " << Printable(m.plan().fingerprint()) << "\n";
    for (const v1::FinishedMetric& metric : m.metrics()) {
      // The steps are left out, because the other metrics have them after "at step".
      if (metric.scope() == "train" && metric.name() == "steps") continue;
      context.out << "metric     " << Printable(metric.scope()) << " " << Printable(metric.name())
                  << " " << ShowNumber(metric.value(), 4) << " at step " << metric.global_step()
                  << "\n";
    }
    context.out << "\n";
  }
  std::vector<std::vector<std::string>> rows;
  for (const FileRow& row : checkpoint.files) {
    if (row.file.empty()) {
      rows.push_back({absl::StrCat(row.shard), "-", "-", "-", "-", "-", "-",
                      "from the seed: the shard has not been saved yet"});
      continue;
    }
    if (!row.report.ok()) {
      rows.push_back({absl::StrCat(row.shard), "-", "-", "-", "-", "-", "-", "DAMAGED, see below"});
      continue;
    }
    const snapshot::ShardFileReport& r = *row.report;
    const v1::ShardSpec& spec = r.header.dense();
    const bool dense = r.header.kind() == v1::SHARD_KIND_DENSE;
    rows.push_back({absl::StrCat(row.shard),
                    dense ? Printable(spec.variable().name())
                          : absl::StrCat(r.header.table_rows_size(), " tables"),
                    dense ? absl::StrCat(spec.row_begin(), "..", spec.row_end()) : "-",
                    ShowBytes(r.bytes), absl::StrCat(r.header.lsn()), Short(r.done),
                    absl::StrCat(r.open_closures),
                    verified ? (dense ? ShowHex(r.value_digest) : "whole")
                             : "header, footer, ledger checked"});
  }
  for (const std::string& line : RenderTable({{"shard", true},
                                              {"variable"},
                                              {"rows"},
                                              {"bytes", true},
                                              {"lsn", true},
                                              {"done"},
                                              {"open", true},
                                              {verified ? "digest" : "state"}},
                                             rows))
    context.out << line << "\n";
  for (const FileRow& row : checkpoint.files)
    if (!row.file.empty() && !row.report.ok())
      context.err << "psctl: " << Printable(row.report.status().message()) << "\n";
  for (const absl::Status& status : checkpoint.passed_over)
    context.err << "psctl: skipped a newer checkpoint: " << Printable(status.message()) << "\n";
}

int Show(Context& context, const std::vector<std::string>& args, bool verify) {
  std::string output = "text", path;
  daemon::OptionTable table(
      verify ? "psctl checkpoint verify" : "psctl checkpoint describe",
      verify ? "reads every byte of a checkpoint and checks the checksums, the hashes, and that "
               "the files belong together. Exit code 1 if a file is damaged"
             : "shows the contents of a checkpoint; reads the manifest, and "
               "the header, footer and ledger of each shard file",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument("PATH", &path,
                    "a job's checkpoint folder or runs folder (its newest manifest is used), a "
                    "manifest, or one shard file; a plain path, file://, s3:// or gs://");
  object_store::StoreOptions stores;
  AddOutputOption(&table, &output);
  object_store::AddStoreOptions(&table, &stores);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const auto files = OpenFiles(context, stores);
  if (!files.ok()) return Report(context, files.status());
  const auto checkpoint = Load(**files, UriOf(context, path), verify);
  if (!checkpoint.ok()) return ReportCheckpoint(context, checkpoint.status());
  if (output == "json") {
    context.out << Dump(JsonOf(*checkpoint)) << "\n";
  } else {
    Print(context, *checkpoint, verify);
    if (verify && checkpoint->whole())
      context.out << "\nwhole: every byte of " << checkpoint->files.size()
                  << " shard(s) was read and checked\n";
  }
  return checkpoint->whole() ? kSucceeded : kFailed;
}

}  // namespace

std::string UriOf(const Context& context, const std::string& path) {
  return absl::StrContains(path, "://") ? path : AbsolutePath(context, path);
}

absl::StatusOr<std::unique_ptr<fs::FileSystem>> OpenFiles(
    const Context& context, const object_store::StoreOptions& stores) {
  EG_RETURN_IF_ERROR(object_store::CheckStoreOptions(stores));
  object_store::FileSystemParts parts;
  parts.store = stores;
  parts.variables = [&context](const std::string& name) -> std::optional<std::string> {
    const auto found = context.environment.find(name);
    if (found == context.environment.end()) return std::nullopt;
    return found->second;
  };
  parts.clock = context.clock;
  return object_store::MakeFileSystem(std::move(parts));
}

int ReportCheckpoint(Context& context, const absl::Status& status) {
  return Report(context, absl::IsUnimplemented(status) ? UserError(status) : status);
}

absl::StatusOr<FoundManifest> FindManifest(fs::FileSystem& files, const std::string& uri) {
  FoundManifest found;
  if (snapshot::ParseManifestName(fs::NameOf(uri))) {
    EG_ASSIGN_OR_RETURN(found.manifest, snapshot::ReadManifest(files, uri));
    found.uri = uri;
    return found;
  }
  const auto there = files.List(uri);
  if (absl::IsFailedPrecondition(there.status())) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "neither a checkpoint's folder, nor a manifest (manifest-….egmanifest), nor a shard file "
        "(shard-….egshard): path=",
        uri)));
  }
  if (!there.ok()) return there.status();
  const auto has = [&](const auto& wanted) {
    return std::any_of(there->begin(), there->end(), wanted);
  };
  if (!has([](const fs::ListedFile& entry) {
        return snapshot::ParseManifestName(entry.name).has_value();
      }) &&
      has([](const fs::ListedFile& entry) {
        return entry.is_folder && entry.name == "checkpoint";
      })) {
    return FindManifest(files, fs::JoinUri(uri, "checkpoint"));
  }
  auto newest = snapshot::FindNewestManifest(files, uri);
  if (!newest.ok()) {
    // A folder in which all manifests are unreadable is a damaged checkpoint, not a mistake of the
    // caller.
    const auto numbers = snapshot::ListManifests(files, uri);
    if (numbers.ok() && !numbers->empty()) return absl::DataLossError(newest.status().message());
    return newest.status();
  }
  return FoundManifest{std::move(newest->uri), std::move(newest->manifest),
                       std::move(newest->passed_over)};
}

std::vector<Verb> CheckpointVerbs() {
  return {
      {"checkpoint", "list", "show the checkpoints below a folder, from their files alone",
       ListCheckpoints},
      {"checkpoint", "describe", "show the contents of a checkpoint, from its files alone",
       [](Context& context, const std::vector<std::string>& args) {
         return Show(context, args, false);
       }},
      {"checkpoint", "verify", "read and check every byte of a checkpoint, from its files alone",
       [](Context& context, const std::vector<std::string>& args) {
         return Show(context, args, true);
       }},
      {"checkpoint", "export",
       "write the weights of a checkpoint as .npz or .safetensors, from its files alone",
       ExportCheckpoint}};
}

}  // namespace evergrad::psctl
