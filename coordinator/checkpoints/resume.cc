// Finds the checkpoint from which a new submission resumes, and plans the resumption.
#include <algorithm>
#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/optimizers/registry.h"
#include "common/plan/plan.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "coordinator/checkpoints/checkpoints.h"

namespace evergrad::coordinator {
namespace {

void PassOver(std::vector<absl::Status>* passed_over, absl::Status status) {
  if (passed_over->size() < kWarningsMax) passed_over->push_back(std::move(status));
}

// ---- finding

// Returns the uid in "<name>-<16 hex>".
std::optional<JobUid> UidOfFolder(absl::string_view folder, absl::string_view job_name) {
  if (!absl::ConsumePrefix(&folder, job_name) || !absl::ConsumePrefix(&folder, "-"))
    return std::nullopt;
  std::uint64_t uid = 0;
  if (folder.size() != 16 || !absl::SimpleHexAtoi(folder, &uid) ||
      JobUidString(JobUid(uid)) != folder)
    return std::nullopt;
  return JobUid(uid);
}

// The folder of one job, and the numbers of its manifests.
struct Folder {
  std::string uri;
  JobUid job;
  std::vector<std::uint64_t> numbers;  // in rising order; the last number is checked next
};

absl::StatusOr<v1::Manifest> ReadOwn(fs::FileSystem& files, const Folder& folder,
                                     std::uint64_t number, absl::string_view job_name) {
  const std::string uri = fs::JoinUri(folder.uri, snapshot::ManifestName(number));
  EG_ASSIGN_OR_RETURN(v1::Manifest manifest, snapshot::ReadManifest(files, uri));
  if (manifest.number() != number || manifest.job_uid() != folder.job.value() ||
      manifest.job_name() != job_name) {
    return absl::DataLossError(absl::StrCat(
        "the manifest is in the folder of another job: path=", uri, " job=", manifest.job_name(),
        " job_uid=", JobUidString(JobUid(manifest.job_uid())), " number=", manifest.number()));
  }
  return manifest;
}

// Returns whether a job of `owner` may resume from this manifest.
bool MayResumeFrom(const v1::Manifest& manifest, const std::string& owner) {
  return owner.empty() || manifest.owner().empty() || manifest.owner() == owner ||
         owner == "admin" || absl::StartsWith(owner, "admin/");
}

// Reads manifests of `folder`, the newest first, until one is readable, and returns this manifest.
// The numbers of all manifests that were tried are removed from folder->numbers.
std::optional<v1::Manifest> NextReadable(fs::FileSystem& files, Folder* folder,
                                         absl::string_view job_name,
                                         std::vector<absl::Status>* passed_over) {
  while (!folder->numbers.empty()) {
    const std::uint64_t number = folder->numbers.back();
    folder->numbers.pop_back();
    auto manifest = ReadOwn(files, *folder, number, job_name);
    if (manifest.ok()) return *std::move(manifest);
    PassOver(passed_over, manifest.status());
  }
  return std::nullopt;
}

// The result of LookAtFiles.
struct Look {
  absl::Status damaged, unseen;  // the first error of each kind
  std::uint64_t open_closures = 0, open_end = 0;
  std::vector<std::uint64_t> updates;  // by shard
};
// Reads every byte of the files of the manifest. If a server found the damage later, the job could
// not use an older checkpoint any more.
Look LookAtFiles(fs::FileSystem& files, const std::string& folder, const v1::Manifest& manifest) {
  Look look;
  for (int i = 0; i < manifest.shards_size() && look.damaged.ok(); ++i) {
    look.updates.push_back(0);
    if (manifest.shards(i).file().empty()) continue;
    const auto report = snapshot::CheckShardOf(files, folder, manifest, i, /*whole=*/true);
    if (report.ok()) {
      look.open_closures += report->open_closures;
      if (!report->open.empty())
        look.open_end = std::max(look.open_end, report->open.back().first.value() + 1);
      look.updates.back() += report->counters.updates_applied();
      for (const v1::SkipCount& skip : report->counters.skips())
        look.updates.back() += skip.count();
    } else if (absl::IsDataLoss(report.status()) || absl::IsUnimplemented(report.status()))
      look.damaged = report.status();
    else
      look.unseen.Update(report.status());
  }
  return look;
}

// Returns the folders of other jobs of this name under `base`, with their manifests. `subfolder` is
// "", or the name of the folder of checkpoints in a job's folder.
absl::StatusOr<std::vector<Folder>> FoldersOf(fs::FileSystem& files, const std::string& base,
                                              absl::string_view subfolder,
                                              absl::string_view job_name, JobUid self,
                                              std::vector<absl::Status>* passed_over) {
  const auto entries = files.List(base);
  if (!entries.ok() && !absl::IsNotFound(entries.status())) return entries.status();
  std::vector<Folder> folders;
  for (const fs::ListedFile& entry : entries.ok() ? *entries : std::vector<fs::ListedFile>()) {
    const auto uid = UidOfFolder(entry.name, job_name);
    if (!entry.is_folder || !uid || *uid == self) continue;
    Folder folder{fs::JoinUri(base, entry.name), *uid, {}};
    if (!subfolder.empty()) folder.uri = fs::JoinUri(folder.uri, subfolder);
    auto numbers = snapshot::ListManifests(files, folder.uri);
    if (numbers.ok())
      folder.numbers = *std::move(numbers);
    else if (!absl::IsNotFound(numbers.status()))
      PassOver(passed_over, numbers.status());
    folders.push_back(std::move(folder));
  }
  return folders;
}

ResumePoint PointOf(const Folder& folder, std::uint64_t number, v1::Manifest manifest,
                    const Look& look) {
  ResumePoint point{std::move(manifest),
                    folder.uri,
                    fs::JoinUri(folder.uri, snapshot::ManifestName(number)),
                    std::nullopt,
                    {}};
  if (!look.damaged.ok() || !look.unseen.ok()) return point;
  point.open_closures = look.open_closures;
  point.open_end = look.open_end;
  point.updates = look.updates;
  point.whole = look.open_closures == 0 && snapshot::DoneSetsAreEqual(point.manifest);
  return point;
}

// The newest manifest of a folder that is readable and was not tried yet. Only its date and number
// are kept, so that at most one manifest is in memory.
struct Candidate {
  std::int64_t written_ms = 0;
  std::uint64_t number = 0;
  std::size_t folder = 0;
  bool operator<(const Candidate& other) const {
    return std::tie(written_ms, number, folder) <
           std::tie(other.written_ms, other.number, other.folder);
  }
};

std::string Joined(const std::vector<absl::Status>& statuses) {
  std::string text;
  for (const absl::Status& status : statuses) absl::StrAppend(&text, "; ", status.message());
  return text;
}

// ---- planning

absl::Status Refused(const ResumePoint& point, absl::string_view why, absl::string_view advice) {
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("cannot resume: ", why, ": checkpoint=", point.uri, " (", advice,
                   ", or leave out spec.checkpoint.resume to start from the beginning)")));
}

std::string ShapeText(const v1::VariableSpec& variable) {
  return absl::StrCat("[", absl::StrJoin(variable.shape(), ", "), "]");
}
std::string RowsText(const v1::ShardSpec& shard) {
  return absl::StrCat(shard.row_begin(), "..", shard.row_end());
}

std::string Difference(absl::string_view what, const auto& was, const auto& is) {
  return absl::StrCat(what, " was=", was, " is=", is);
}

// Returns whether one of the two optimizers has an optimizer state that the other lacks, because of
// this setting.
bool SwitchesSlot(const optimizers::Member& member, const optimizers::Settings& was,
                  const optimizers::Settings& is) {
  if (member.number == nullptr || (was.*member.number != 0) == (is.*member.number != 0))
    return false;
  const auto& all = optimizers::All();
  return std::any_of(all.begin(), all.end(), [&](const optimizers::Descriptor& descriptor) {
    return std::any_of(
        descriptor.states.begin(), descriptor.states.end(),
        [&](const optimizers::State& state) { return state.only_with == member.number; });
  });
}

// Returns the first difference between the states of two optimizers, or "". `of` is appended to the
// name of the differing setting.
std::string SlotDifference(const v1::Optimizer& was, const v1::Optimizer& is,
                           absl::string_view of) {
  if (was.type() != is.type())
    return Difference(absl::StrCat("optimizer", of), was.type(), is.type());
  const optimizers::Settings a = client::OptimizerOf(was), b = client::OptimizerOf(is);
  for (const optimizers::Member& member : optimizers::Members())
    if (SwitchesSlot(member, a, b))
      return Difference(absl::StrCat(member.name, of), a.*member.number, b.*member.number);
  return "";
}

// Returns the first difference between the shards of two plans, or "" if the files of the former
// plan fit the new plan.
std::string ShardDifference(const v1::Plan& was, const v1::Plan& is) {
  const auto differ = [](absl::string_view what, const auto& a, const auto& b) {
    return Difference(what, a, b);
  };
  for (int i = 0; i < std::min(was.shards_size(), is.shards_size()); ++i) {
    const v1::ShardSpec &a = was.shards(i), &b = is.shards(i);
    if (a.has_slot() != b.has_slot())
      return differ(absl::StrCat("kind of shard ", i), a.has_slot() ? "slot" : "dense",
                    b.has_slot() ? "slot" : "dense");
    // Tables are compared below. The comparison of the numbers of shards includes the slots.
    if (a.has_slot()) continue;
    const v1::VariableSpec &x = a.variable(), &y = b.variable();
    const std::string at = absl::StrCat("shard ", i, " (", y.name(), ")");
    if (x.name() != y.name())
      return differ(absl::StrCat("variable of shard ", i), x.name(), y.name());
    if (ShapeText(x) != ShapeText(y))
      return differ(absl::StrCat("shape of ", y.name()), ShapeText(x), ShapeText(y));
    if (x.dtype() != y.dtype())
      return differ(absl::StrCat("dtype of ", y.name()), v1::DType_Name(x.dtype()),
                    v1::DType_Name(y.dtype()));
    if (RowsText(a) != RowsText(b))
      return differ(absl::StrCat("rows of ", at), RowsText(a), RowsText(b));
    if (a.shard() != b.shard()) return differ("number of shard", a.shard(), b.shard());
    if (std::string optimizer = SlotDifference(x.optimizer(), y.optimizer(), "");
        !optimizer.empty())
      return optimizer;
  }
  if (was.shards_size() != is.shards_size())
    return differ("shards", was.shards_size(), is.shards_size());
  if (was.tables_size() != is.tables_size())
    return differ("tables", was.tables_size(), is.tables_size());
  for (int t = 0; t < is.tables_size(); ++t) {
    const v1::TableSpec &x = was.tables(t), &y = is.tables(t);
    if (x.name() != y.name()) return differ(absl::StrCat("table ", t), x.name(), y.name());
    if (x.dimension() != y.dimension())
      return differ(absl::StrCat("dimension of ", y.name()), x.dimension(), y.dimension());
    if (std::string optimizer =
            SlotDifference(x.optimizer(), y.optimizer(), absl::StrCat(" of ", y.name()));
        !optimizer.empty())
      return optimizer;
  }
  return "";
}

// Returns the differences between two plans that have different fingerprints, as one text.
std::string PlanDifferences(const v1::Plan& was, const v1::Plan& is) {
  std::vector<std::string> all;
  const auto compare = [&](absl::string_view what, const auto& a, const auto& b) {
    if (a != b) all.push_back(absl::StrCat(what, " was=", a, " is=", b));
  };
  compare("training examples", was.train_examples(), is.train_examples());
  compare("spec.data.batch_size", was.batch_size(), is.batch_size());
  compare("spec.training.steps_per_closure", was.steps_per_closure(), is.steps_per_closure());
  compare("spec.data.shuffle", was.shuffle() ? "on" : "off", is.shuffle() ? "on" : "off");
  if (was.shuffle() && is.shuffle())
    compare("spec.data.shuffle.seed", was.shuffle_seed(), is.shuffle_seed());
  if (const std::string shard_difference = ShardDifference(was, is); !shard_difference.empty())
    all.push_back(shard_difference);
  const auto compare_rules = [&](const auto& x, const auto& y) {
    const std::size_t before = all.size();
    compare("spec.training.seed", x.initializer().seed(), y.initializer().seed());
    compare(absl::StrCat("initializer of ", y.name()), x.initializer().type(),
            y.initializer().type());
    const v1::Optimizer &a = x.optimizer(), &b = y.optimizer();
    if (a.type() == b.type()) {
      const optimizers::Settings was_set = client::OptimizerOf(a), is_set = client::OptimizerOf(b);
      for (const optimizers::Member& member : optimizers::Members()) {
        const std::string key = absl::StrCat("spec.optimizer.", member.name);
        if (member.flag != nullptr)
          compare(key, was_set.*member.flag, is_set.*member.flag);
        else if (member.name != "learning_rate" && !SwitchesSlot(member, was_set, is_set))
          compare(key, was_set.*member.number, is_set.*member.number);
      }
    }
    return all.size() > before;
  };
  for (int i = 0; i < std::min(was.shards_size(), is.shards_size()); ++i) {
    if (was.shards(i).has_slot() || is.shards(i).has_slot()) continue;
    // One variable is enough, because the remaining variables differ in the same way.
    if (compare_rules(was.shards(i).variable(), is.shards(i).variable())) break;
  }
  for (int t = 0; t < std::min(was.tables_size(), is.tables_size()); ++t) {
    const v1::TableSpec &x = was.tables(t), &y = is.tables(t);
    if (compare_rules(x, y)) break;
    compare(absl::StrCat("admit_after of ", y.name()), x.admit_after(), y.admit_after());
    compare(absl::StrCat("default_row of ", y.name()), x.default_row(), y.default_row());
    compare(absl::StrCat("ttl_steps of ", y.name()), x.ttl_steps(), y.ttl_steps());
    compare(absl::StrCat("bytes_max of ", y.name()), x.bytes_max(), y.bytes_max());
    compare(absl::StrCat("evict of ", y.name()), x.evict_lru() ? "lru" : "none",
            y.evict_lru() ? "lru" : "none");
  }
  if (all.empty())
    return "the data (files, their contents, fields) or the model (layers without weights, loss) "
           "differ";
  return absl::StrJoin(all, ", ");
}

Snapshot SnapshotOf(const ResumePoint& point, const v1::ShardFile& entry) {
  Snapshot s;
  s.folder = point.folder;
  s.file = entry.file();
  s.bytes = entry.bytes();
  s.sha256 = entry.sha256();
  s.job = JobUid(point.manifest.job_uid());
  s.plan_fingerprint = point.manifest.plan().fingerprint();
  s.epoch = snapshot::FromProto<ShardEpoch>(entry.epoch());
  s.start = snapshot::FromProto<MapVersion>(entry.start());
  s.lsn = entry.lsn();
  s.vlsn = entry.vlsn();
  s.resumed = true;
  return s;
}

bool EndsWithin(const IntervalSet& set, std::uint64_t end) {
  const auto beyond = set.FirstAtLeast(end);
  return !beyond.has_value();
}

// The closures that have ended, according to a manifest.
struct Sets {
  std::vector<IntervalSet> done, refused;  // by shard
  IntervalSet common;                      // done at every shard
  IntervalSet ended;                       // done at every shard, or refused at some
};
absl::StatusOr<Sets> ReadSets(const ResumePoint& point) {
  Sets sets;
  for (const v1::ShardFile& entry : point.manifest.shards()) {
    auto done = snapshot::FromProto(entry.done()), refused = snapshot::FromProto(entry.refused());
    if (!done.ok() || !refused.ok())
      return absl::DataLossError(absl::StrCat("the manifest has a malformed set of closures: path=",
                                              point.uri, " shard=", entry.shard()));
    sets.done.push_back(*std::move(done));
    sets.refused.push_back(*std::move(refused));
  }
  sets.common = sets.done[0];
  IntervalSet dead = sets.refused[0];
  for (std::size_t i = 1; i < sets.done.size(); ++i) {
    sets.common = sets.common.Intersect(sets.done[i]);
    dead.UnionWith(sets.refused[i]);
  }
  sets.ended = sets.common.Union(dead);
  return sets;
}

std::string ContinuesFrom(const ResumePoint& point) {
  return absl::StrCat("continues from checkpoint ", point.manifest.number(), " of job ",
                      JobUidString(JobUid(point.manifest.job_uid())), ": ");
}

// Continues with the closures of the checkpoint. The plan is the checkpoint's plan, apart from the
// number of epochs.
absl::Status ResumeSamePlan(const ResumePoint& point, const Sets& sets, const v1::Plan& plan,
                            const plan::Plan& now, Resumption* out) {
  for (std::size_t i = 0; i < sets.done.size(); ++i) {
    if (!EndsWithin(sets.done[i], now.closures()) || !EndsWithin(sets.refused[i], now.closures())) {
      return Refused(
          point,
          absl::StrCat("the checkpoint is beyond the end of this job: spec.training.epochs=",
                       plan.epochs()),
          absl::StrCat("give at least ", point.manifest.plan().epochs(), " epochs"));
    }
  }
  // If the values contained updates of a closure that this plan does not have, the check of updates
  // at the end of the job would report them as forged.
  if (point.open_end > now.closures()) {
    return Refused(
        point,
        absl::StrCat(
            "the checkpoint has open closures beyond the end of this job: spec.training.epochs=",
            plan.epochs()),
        absl::StrCat("give at least ", (point.open_end - 1) / now.closures_per_epoch() + 1,
                     " epochs"));
  }
  for (int i = 0; i < point.manifest.shards_size(); ++i) {
    out->snapshots.push_back(SnapshotOf(point, point.manifest.shards(i)));
    out->snapshots.back().done = sets.done[static_cast<std::size_t>(i)];
    out->snapshots.back().refused = sets.refused[static_cast<std::size_t>(i)];
  }
  out->closures_done = sets.common.size();
  out->epochs_done = sets.ended.FirstMissing() / now.closures_per_epoch();
  out->text = absl::StrCat(ContinuesFrom(point), out->closures_done, " of ", now.closures(),
                           " closures are done (", out->epochs_done, " whole epochs)");
  return absl::OkStatus();
}

// Resumes under another plan: continues with the next whole epoch of the new plan if the shards fit
// it. `shard_difference` is the first difference of the shards, or "".
absl::Status ResumeOtherPlan(const ResumePoint& point, const Sets& sets,
                             const std::string& shard_difference, const v1::Plan& plan,
                             const plan::Plan& now, const plan::Plan& then, Resumption* out) {
  const std::string differences = PlanDifferences(point.manifest.plan(), plan);
  const auto refuse = [&](absl::string_view why) {
    return Refused(
        point,
        absl::StrCat("the checkpoint was saved under another plan (", differences, ") and ", why),
        "submit the job with its original settings");
  };
  if (!shard_difference.empty()) return refuse("its shards do not match the shards of this job");
  if (!snapshot::DoneSetsAreEqual(point.manifest))
    return refuse("it is not complete: its shards hold different closures");
  const std::uint64_t end = sets.ended.FirstMissing(), per_epoch = then.closures_per_epoch();
  if (sets.ended != IntervalSet::Range(0, end) || end % per_epoch != 0) {
    return refuse(absl::StrCat("it does not end with an epoch: closures_done=", sets.ended.size(),
                               " closures_per_epoch=", per_epoch));
  }
  if (point.open_closures.value_or(0) != 0)
    return refuse("it has partly applied closures: open=" + absl::StrCat(*point.open_closures));
  out->epochs_done = end / per_epoch;
  if (out->epochs_done > plan.epochs()) {
    return Refused(point,
                   absl::StrCat("the checkpoint is beyond the end of this job: epochs_done=",
                                out->epochs_done, " spec.training.epochs=", plan.epochs()),
                   "give more epochs");
  }
  out->closures_done = out->epochs_done * now.closures_per_epoch();
  for (const v1::ShardFile& entry : point.manifest.shards()) {
    Snapshot s = SnapshotOf(point, entry);
    s.replace_ledger = true;
    s.done = IntervalSet::Range(0, out->closures_done);
    out->snapshots.push_back(std::move(s));
  }
  out->text = absl::StrCat(ContinuesFrom(point), out->epochs_done,
                           " epochs are done, under another plan (", differences, ")");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResumePoint> FindResumePoint(fs::FileSystem& files,
                                            const config::CheckpointSpec& spec,
                                            absl::string_view runs_folder,
                                            absl::string_view job_name, JobUid self,
                                            const std::string& owner) {
  const bool own = !spec.directory.empty();
  const std::string base = own ? spec.directory : fs::FolderOf(absl::StripSuffix(runs_folder, "/"));
  const std::string where =
      absl::StrCat(fs::JoinUri(base, job_name), "-*", own ? "" : "/checkpoint");
  std::vector<absl::Status> passed_over;

  EG_ASSIGN_OR_RETURN(std::vector<Folder> folders, FoldersOf(files, base, own ? "" : "checkpoint",
                                                             job_name, self, &passed_over));
  std::priority_queue<Candidate> candidates;
  std::size_t others = 0;  // folders of jobs of other owners
  const auto offer = [&](std::size_t i) {
    const auto manifest = NextReadable(files, &folders[i], job_name, &passed_over);
    if (!manifest) return;
    if (MayResumeFrom(*manifest, owner))
      candidates.push({manifest->written_ms(), manifest->number(), i});
    else
      ++others;
  };
  for (std::size_t i = 0; i < folders.size(); ++i) offer(i);

  std::optional<ResumePoint> unseen;
  while (!candidates.empty()) {
    const Candidate candidate = candidates.top();
    candidates.pop();
    const Folder& folder = folders[candidate.folder];
    auto manifest = ReadOwn(files, folder, candidate.number, job_name);
    if (!manifest.ok()) {
      PassOver(&passed_over, manifest.status());
    } else {
      const Look look = LookAtFiles(files, folder.uri, *manifest);
      ResumePoint point = PointOf(folder, candidate.number, *std::move(manifest), look);
      if (look.damaged.ok() && look.unseen.ok()) {
        point.passed_over = std::move(passed_over);
        return point;
      }
      PassOver(&passed_over, look.damaged.ok() ? look.unseen : look.damaged);
      if (look.damaged.ok() && !unseen) unseen = std::move(point);
    }
    offer(candidate.folder);
  }
  if (unseen) {
    unseen->passed_over = std::move(passed_over);
    return *std::move(unseen);
  }
  const std::string text = absl::StrCat(
      "cannot resume: no earlier job of this name has a readable checkpoint: job=", job_name,
      " looked_at=", where, " folders=", folders.size(),
      others == 0 ? "" : absl::StrCat(" folders_of_other_users=", others), Joined(passed_over));
  return UserError(passed_over.empty() ? absl::NotFoundError(text) : absl::DataLossError(text));
}

absl::StatusOr<Resumption> PlanResumption(const ResumePoint& point, const v1::Plan& plan,
                                          JobUid self) {
  const v1::Manifest& manifest = point.manifest;
  const v1::Plan& was = manifest.plan();
  if (manifest.job_uid() == self.value())
    return absl::InvalidArgumentError(
        absl::StrCat("a job cannot resume from its own checkpoint: checkpoint=", point.uri));
  if (manifest.shards_size() != was.shards_size() || manifest.shards_size() == 0)
    return absl::DataLossError(
        absl::StrCat("the manifest lacks entries of shards: path=", point.uri));
  const auto now = plan::Plan::Create(client::PlanSpecOf(plan)),
             then = plan::Plan::Create(client::PlanSpecOf(was));
  if (!now.ok()) return now.status();
  if (!then.ok())
    return absl::DataLossError(absl::StrCat("the manifest has an invalid plan: path=", point.uri,
                                            " reason=", then.status().message()));
  for (const v1::ShardFile& entry : manifest.shards()) {
    if (entry.file().empty())
      return Refused(point, absl::StrCat("shard ", entry.shard(), " was not saved yet"),
                     "use an older or a newer checkpoint");
  }

  Resumption out;
  out.same_plan = was.fingerprint() == plan.fingerprint();
  const std::string shard_difference = ShardDifference(was, plan);
  if (out.same_plan && !shard_difference.empty())
    return absl::DataLossError(
        absl::StrCat("the shards of the manifest do not match its plan: path=", point.uri, " ",
                     shard_difference));
  EG_ASSIGN_OR_RETURN(const Sets sets, ReadSets(point));
  EG_RETURN_IF_ERROR(out.same_plan
                         ? ResumeSamePlan(point, sets, plan, *now, &out)
                         : ResumeOtherPlan(point, sets, shard_difference, plan, *now, *then, &out));
  return out;
}

}  // namespace evergrad::coordinator
