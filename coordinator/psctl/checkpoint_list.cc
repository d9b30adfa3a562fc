// psctl checkpoint list: lists every manifest below a folder, newest first.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/daemon/option_table.h"
#include "common/plan/plan.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "coordinator/psctl/checkpoint.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// The listed facts about one manifest. The manifest itself is released after it has been read,
// because a folder may have many manifests.
struct Row {
  std::string uri;
  std::uint64_t number = 0;
  std::string job;
  std::uint64_t job_uid = 0;
  std::int64_t written_ms = 0;
  bool complete = false;
  std::string plan;
  bool functions = false;  // a client scheduled the closures: the plan has no end and no epochs
  // closures_done counts closures that are done in every shard; closures counts the closures in the
  // plan.
  std::uint64_t closures_done = 0, closures = 0;
  std::uint64_t epochs_done = 0, epochs = 0;  // epochs_done counts complete epochs
  int shards = 0, from_seed = 0;
  std::uint64_t bytes = 0;  // size of the files that the manifest names
  // whole | damaged | missing, judged by names and sizes; `verify` reads the files.
  std::string state;
  std::vector<std::string> errors;
};

void CountClosures(const v1::Manifest& manifest, Row* row) {
  plan::PlanSpec spec;
  spec.train_examples = manifest.plan().train_examples();
  spec.batch_size = manifest.plan().batch_size();
  spec.steps_per_closure = manifest.plan().steps_per_closure();
  spec.epochs = manifest.plan().epochs();
  // A plan with invalid numbers is listed without the numbers, and resume refuses it.
  const auto plan = plan::Plan::Create(spec);
  std::optional<IntervalSet> common;
  IntervalSet refused;
  for (const v1::ShardFile& shard : manifest.shards()) {
    const IntervalSet done = *snapshot::FromProto(shard.done());  // DecodeManifest has checked them
    common = common ? common->Intersect(done) : done;
    refused.UnionWith(*snapshot::FromProto(shard.refused()));
  }
  row->closures_done = common->size();
  const config::ParsedJob parsed = config::ParseJob(manifest.yaml(), {});
  row->functions = parsed.spec && config::TypeOf(*parsed.spec).scheduled_by_client;
  if (!plan.ok() || row->functions) return;
  row->closures = plan->closures();
  row->epochs = spec.epochs;
  row->epochs_done = common->Union(refused).FirstMissing() / plan->closures_per_epoch();
}

Row ReadRow(fs::FileSystem& files, const std::string& folder, std::uint64_t number,
            const std::map<std::string, std::uint64_t>& sizes) {
  Row row;
  row.uri = fs::JoinUri(folder, snapshot::ManifestName(number));
  row.number = number;
  const auto manifest = snapshot::ReadManifest(files, row.uri);
  if (!manifest.ok()) {
    row.state = "damaged";
    row.errors.emplace_back(manifest.status().message());
    return row;
  }
  row.job = manifest->job_name();
  row.job_uid = manifest->job_uid();
  row.written_ms = manifest->written_ms();
  row.complete = manifest->complete();
  row.plan = manifest->plan().fingerprint();
  row.shards = manifest->shards_size();
  row.state = "whole";
  CountClosures(*manifest, &row);
  for (const v1::ShardFile& shard : manifest->shards()) {
    if (shard.file().empty()) {
      ++row.from_seed;
      continue;
    }
    row.bytes += shard.bytes();
    const auto found = sizes.find(shard.file());
    if (found == sizes.end()) {
      if (row.state == "whole") row.state = "missing";
      row.errors.push_back(absl::StrCat(
          "a file is missing: path=", fs::JoinUri(folder, shard.file()),
          shard.host().empty() ? ""
                               : absl::StrCat(" (a server on host ", shard.host(), " wrote it)")));
    } else if (found->second != shard.bytes()) {
      row.state = "damaged";
      row.errors.push_back(absl::StrCat(
          "a file does not have the size that its manifest states: path=",
          fs::JoinUri(folder, shard.file()), " want=", shard.bytes(), " got=", found->second));
    }
  }
  return row;
}

constexpr int kLooksMax = 3;  // repeated reads of a manifest that seems damaged

// Reads the manifests of one folder and returns its sub-folders.
std::vector<std::string> ReadFolder(fs::FileSystem& files, const std::string& folder,
                                    const std::vector<fs::ListedFile>& entries,
                                    std::vector<Row>* rows) {
  std::map<std::string, std::uint64_t> sizes;
  std::vector<std::string> folders;
  std::vector<std::uint64_t> numbers;
  for (const fs::ListedFile& entry : entries) {
    if (entry.is_folder)
      folders.push_back(fs::JoinUri(folder, entry.name));
    else if (const auto number = snapshot::ParseManifestName(entry.name))
      numbers.push_back(*number);
    else
      sizes.emplace(entry.name, entry.bytes);
  }
  std::sort(numbers.begin(), numbers.end());
  std::int64_t written_ms = 0;
  for (const std::uint64_t number : numbers) {
    Row row = ReadRow(files, folder, number, sizes);
    // A running job deletes its oldest manifests, and then the shard files that only those
    // manifests named. Therefore a manifest that has disappeared is not damaged.
    bool retired = false;
    for (int look = 0; look < kLooksMax && row.state != "whole" && !retired; ++look) {
      const auto now = files.List(folder);
      if (!now.ok()) break;
      sizes.clear();
      retired = true;
      for (const fs::ListedFile& entry : *now) {
        if (entry.is_folder) continue;
        sizes.emplace(entry.name, entry.bytes);
        retired = retired && entry.name != snapshot::ManifestName(number);
      }
      if (!retired) row = ReadRow(files, folder, number, sizes);
    }
    if (retired) continue;
    // A damaged manifest has no time, so it is listed beside the previous manifest.
    if (row.written_ms == 0) row.written_ms = written_ms;
    written_ms = row.written_ms;
    rows->push_back(std::move(row));
  }
  return folders;
}

struct Listing {
  std::vector<Row> rows;
  std::vector<absl::Status> unreadable;  // folders that cannot be read
};
absl::StatusOr<Listing> Collect(fs::FileSystem& files, const std::string& uri) {
  Listing listing;
  EG_ASSIGN_OR_RETURN(const std::vector<fs::ListedFile> entries, files.List(uri));
  // Searches the folder, its sub-folders, and the folder `checkpoint` in each sub-folder. The
  // searched folder may be a checkpoint's folder, a job's runs folder, or a directory of either.
  for (const std::string& folder : ReadFolder(files, uri, entries, &listing.rows)) {
    const auto inside = files.List(folder);
    if (!inside.ok()) {
      listing.unreadable.push_back(inside.status());
      continue;
    }
    for (const std::string& below : ReadFolder(files, folder, *inside, &listing.rows)) {
      if (fs::NameOf(below) != "checkpoint") continue;
      const auto deepest = files.List(below);
      if (deepest.ok())
        ReadFolder(files, below, *deepest, &listing.rows);
      else
        listing.unreadable.push_back(deepest.status());
    }
  }
  std::stable_sort(listing.rows.begin(), listing.rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.written_ms, a.number) > std::pair(b.written_ms, b.number);
  });
  return listing;
}

nlohmann::json JsonOf(const Row& row) {
  nlohmann::json json = {
      {"path", row.uri}, {"number", row.number}, {"state", row.state}, {"errors", row.errors}};
  if (row.shards == 0) return json;
  json["job"] = row.job;
  json["job_uid"] = ShowHex(row.job_uid);
  json["written_ms"] = row.written_ms;
  json["complete"] = row.complete;
  json["plan"] = row.plan;
  json["closures_done"] = row.closures_done;
  json["closures"] = row.functions ? nlohmann::json(nullptr) : nlohmann::json(row.closures);
  json["epochs_done"] = row.epochs_done;
  json["epochs"] = row.epochs;
  json["shards"] = row.shards;
  json["shards_from_seed"] = row.from_seed;
  json["bytes"] = row.bytes;
  return json;
}

void Print(Context& context, const std::string& uri, const Listing& listing) {
  if (listing.rows.empty()) context.out << "no checkpoints: path=" << Printable(uri) << "\n";
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : listing.rows) {
    const std::string path = Printable(ShowPath(context, row.uri));
    const std::string state = row.state == "whole"     ? "whole"
                              : row.state == "missing" ? "FILES MISSING"
                                                       : "DAMAGED";
    if (row.shards == 0) {
      cells.push_back({absl::StrCat(row.number), "-", "-", "-", "-", "-", "-", "-", state, path});
      continue;
    }
    cells.push_back(
        {absl::StrCat(row.number), absl::StrCat(Printable(row.job), "-", ShowHex(row.job_uid)),
         ShowTime(row.written_ms),
         row.functions ? absl::StrCat(row.closures_done)
                       : absl::StrCat(row.closures_done, "/", row.closures),
         row.functions ? "-" : absl::StrCat(row.epochs_done, "/", row.epochs),
         row.complete ? "yes" : "no",
         row.from_seed == 0 ? absl::StrCat(row.shards)
                            : absl::StrCat(row.shards - row.from_seed, " of ", row.shards),
         ShowBytes(row.bytes), state, path});
  }
  if (!cells.empty()) {
    for (const std::string& line : RenderTable({{"number", true},
                                                {"job"},
                                                {"written"},
                                                {"closures", true},
                                                {"epochs", true},
                                                {"complete"},
                                                {"shards", true},
                                                {"bytes", true},
                                                {"state"},
                                                {"manifest"}},
                                               cells))
      context.out << line << "\n";
  }
  for (const Row& row : listing.rows)
    for (const std::string& error : row.errors)
      context.err << "psctl: " << Printable(error) << "\n";
  for (const absl::Status& status : listing.unreadable)
    context.err << "psctl: " << Printable(status.message()) << "\n";
}

}  // namespace

int ListCheckpoints(Context& context, const std::vector<std::string>& args) {
  std::string output = "text", path;
  daemon::OptionTable table(
      "psctl checkpoint list",
      "shows the checkpoints below a folder, newest first; checks names and sizes only (verify "
      "reads every byte). Exit code 1 if a checkpoint is damaged or lacks files",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument("FOLDER", &path,
                    "a coordinator's runs folder, a checkpoint.directory, or one job's folder in "
                    "either; a plain path, file://, s3:// or gs://");
  object_store::StoreOptions stores;
  AddOutputOption(&table, &output);
  object_store::AddStoreOptions(&table, &stores);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const auto files = OpenFiles(context, stores);
  if (!files.ok()) return Report(context, files.status());
  return ListCheckpointsOf(context, **files, UriOf(context, path), output == "json");
}

int ListCheckpointsOf(Context& context, fs::FileSystem& files, const std::string& uri,
                      bool as_json) {
  const auto listing = Collect(files, uri);
  if (!listing.ok()) return ReportCheckpoint(context, listing.status());
  const bool whole = listing->unreadable.empty() &&
                     std::all_of(listing->rows.begin(), listing->rows.end(),
                                 [](const Row& row) { return row.state == "whole"; });
  if (as_json) {
    nlohmann::json json = {{"folder", uri},
                           {"whole", whole},
                           {"checkpoints", nlohmann::json::array()},
                           {"unreadable", nlohmann::json::array()}};
    for (const Row& row : listing->rows) json["checkpoints"].push_back(JsonOf(row));
    for (const absl::Status& status : listing->unreadable)
      json["unreadable"].push_back(std::string(status.message()));
    context.out << Dump(json) << "\n";
  } else {
    Print(context, uri, *listing);
  }
  return whole ? kSucceeded : kFailed;
}

}  // namespace evergrad::psctl
