#include "common/config/job_schema.h"

#include "absl/strings/str_replace.h"
#include "common/fs/object_uri.h"

namespace evergrad::config {
namespace {

constexpr std::chrono::milliseconds kEveryMin{10}, kEveryMax{24 * 3600 * 1000};

Key<CheckpointSpec> EveryKey() {
  return {
      "every",
      absl::StrCat("duration from ", FormatDuration(kEveryMin), " to ", FormatDuration(kEveryMax)),
      "time between two checkpoints. If a server is lost, the job loses, on average, the work of "
      "half this interval",
      false,
      [](Reader& r, const Node& n, CheckpointSpec* t) {
        const auto text = r.Text(n, "every");
        if (!text) return;
        const auto every = ParseDuration(*text);
        if (!every.ok())
          r.Report(n.where(), absl::StrCat("`every`: ", every.status().message()));
        else if (*every < kEveryMin || *every > kEveryMax)
          r.Report(n.where(),
                   absl::StrCat("`every`: expected a duration from ", FormatDuration(kEveryMin),
                                " to ", FormatDuration(kEveryMax), ", got ", n.Describe()));
        else
          t->every = *every;
      },
      [](const CheckpointSpec& t) {
        return std::optional<Node>(MakePlain(FormatDuration(t.every)));
      }};
}
Key<CheckpointSpec> DirectoryKey() {
  Key<CheckpointSpec> key = PlainText<CheckpointSpec>(
      "directory", &CheckpointSpec::directory,
      "folder that all daemons share, or a folder in an object store that all daemons reach: "
      "s3://bucket/folder or gs://bucket/folder. Each job writes to its own subfolder, "
      "NAME-JOB_UID. If omitted, the job writes to checkpoint/ in its runs folder");
  key.type = "path, or file://, s3:// or gs:// URI";
  key.read = [](Reader& r, const Node& n, CheckpointSpec* t) {
    const auto text = r.Text(n, "directory");
    if (!text) return;
    const absl::Status uri = fs::CheckUri(*text);
    if (text->empty())
      r.Report(n.where(), "`directory`: expected a folder, got an empty text");
    else if (!uri.ok())
      r.Report(n.where(), absl::StrCat("`directory`: ", uri.message()));
    else
      t->directory = *text;
  };
  key.write = [](const CheckpointSpec& t) {
    return t.directory.empty()
               ? std::nullopt
               : std::optional<Node>(MakeText(absl::StrReplaceAll(t.directory, {{"${", "$${"}})));
  };
  return key;
}

}  // namespace

Key<JobSpec> CheckpointKey() {
  Key<JobSpec> key = Section<JobSpec, CheckpointSpec>(
      "checkpoint", &JobSpec::checkpoint, &CheckpointTable(),
      "how the job is saved. If the section is omitted, the defaults below apply, and a job that "
      "cannot be saved continues with a warning");
  key.type = "mapping, or off";
  key.read = [](Reader& r, const Node& n, JobSpec* t) {
    t->checkpoint.given = true;
    if (n.kind == Node::Kind::kScalar) {
      if (!n.quoted && n.text == "off")
        t->checkpoint.on = false;
      else
        r.Report(n.where(),
                 absl::StrCat("`checkpoint`: expected a mapping or off, got ", n.Describe(),
                              n.text == "false" || n.text == "no" ? "; did you mean `off`?" : ""));
      return;
    }
    CheckpointTable().Read(r, n, &t->checkpoint);
  };
  key.write = [write = key.write](const JobSpec& t) {
    if (!t.checkpoint.given) return std::optional<Node>();
    return t.checkpoint.on ? write(t) : std::optional<Node>(MakePlain("off"));
  };
  return key;
}

const Table<CheckpointSpec>& CheckpointTable() {
  static const Table<CheckpointSpec> table{
      "spec.checkpoint",
      {EveryKey(),
       Integer<CheckpointSpec>("keep", &CheckpointSpec::keep, 1, 100,
                               "number of checkpoints that are kept"),
       Flag<CheckpointSpec>(
           "resume", &CheckpointSpec::resume,
           "whether the job resumes from the newest checkpoint of an earlier job of this name. "
           "Without such a checkpoint, the job begins at its first step. A checkpoint that does "
           "not fit the job is an error"),
       DirectoryKey()},
      {"every_steps", "steps", "on_end", "codec", "compression", "async", "format", "best"}};
  return table;
}

}  // namespace evergrad::config
