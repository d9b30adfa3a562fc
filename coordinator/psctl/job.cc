// psctl job: run, submit, list, show, watch, cancel, validate, reference.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "common/schema/yaml_tree.h"
#include "coordinator/psctl/cluster_folder.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/fetch.h"
#include "coordinator/psctl/job_audit.h"
#include "coordinator/psctl/job_files.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/local_cluster.h"
#include "coordinator/psctl/one_job.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"
#include "coordinator/psctl/watch.h"

namespace evergrad::psctl {
namespace {

using daemon::OptionTable;

// A job file with its overrides, as the user gave them.
struct JobFile {
  std::string path;
  std::vector<std::string> sets, set_files;
};
void AddJobFile(OptionTable* table, JobFile* file) {
  table->AddArgument("JOB.yaml", &file->path, "the job file");
  table->Add("set", &file->sets,
             "replace one value of the file, for example spec.training.epochs=3; the new value is "
             "checked like the file");
  table->Add(
      "set_file", &file->set_files,
      "like --set, but the value is read from a file, for example spec.model.layers=layers.yaml");
}

struct LoadedJob {
  std::optional<config::JobSpec> spec;
  std::vector<config::Mistake> mistakes;
  std::vector<config::DataPath> paths;
};

// Reads and checks the file; an unreadable file counts as one mistake.
LoadedJob Load(Context& context, const JobFile& file) {
  LoadedJob loaded;
  auto refuse = [&](const std::string& where, std::string text) {
    loaded.mistakes.push_back({{where, 0, 0}, std::move(text)});
  };
  config::ParseOptions options;
  options.file_name = file.path;
  options.environment = context.environment;
  const std::string path = AbsolutePath(context, file.path);
  options.base_folder = std::filesystem::path(path).parent_path().string();
  int number = 0;
  for (const std::string& set : file.sets) {
    ++number;
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      refuse(absl::StrCat("<--set ", number, ">"),
             absl::StrCat("expected a.b.c=value, got `", Printable(set.substr(0, 60)), "`"));
    else
      options.overrides.push_back({set.substr(0, equals), set.substr(equals + 1), ""});
  }
  for (const std::string& set : file.set_files) {
    ++number;
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == set.size()) {
      refuse(absl::StrCat("<--set-file ", number, ">"),
             absl::StrCat("expected a.b.c=FILE, got `", Printable(set.substr(0, 60)), "`"));
      continue;
    }
    const std::string value_path = set.substr(equals + 1);
    auto value = fs::ReadFile(AbsolutePath(context, value_path), config::kYamlBytesMax);
    if (!value.ok())
      refuse(value_path, std::string(value.status().message()));
    else
      options.overrides.push_back({set.substr(0, equals), *std::move(value), value_path});
  }
  // At most one byte more than the limit is read. This byte is enough for the parser to report that
  // the file is too large.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    refuse(file.path, "is a folder: expected a job file");
    return loaded;
  }
  auto text = fs::ReadFile(path, config::kYamlBytesMax);
  if (!text.ok()) {
    refuse(file.path,
           absl::IsResourceExhausted(text.status())
               ? absl::StrCat("the file is too large: limit=", config::kYamlBytesMax, " bytes")
               : std::string(text.status().message()));
    return loaded;
  }
  config::ParsedJob parsed = config::ParseJob(*text, options);
  loaded.spec = std::move(parsed.spec);
  loaded.paths = std::move(parsed.paths);
  for (config::Mistake& mistake : parsed.mistakes) loaded.mistakes.push_back(std::move(mistake));
  if (!loaded.mistakes.empty()) loaded.spec.reset();
  return loaded;
}

nlohmann::json JsonOfMistakes(const std::vector<config::Mistake>& mistakes) {
  nlohmann::json list = nlohmann::json::array();
  for (const config::Mistake& m : mistakes)
    list.push_back({{"file", m.where.file},
                    {"line", m.where.line},
                    {"column", m.where.column},
                    {"text", m.text}});
  return list;
}

int ReportMistakes(Context& context, const LoadedJob& loaded, absl::string_view path, bool json) {
  if (json) {
    context.out << Dump({{"valid", false}, {"mistakes", JsonOfMistakes(loaded.mistakes)}}) << "\n";
    return kUsage;
  }
  for (const config::Mistake& mistake : loaded.mistakes)
    context.err << Printable(mistake.ToString()) << "\n";
  const std::size_t n = loaded.mistakes.size();
  context.err << "psctl: "
              << (n >= config::kMistakesMax ? absl::StrCat(n, " or more mistakes")
                  : n == 1                  ? "one mistake"
                                            : absl::StrCat(n, " mistakes"))
              << " in " << Printable(path) << "; nothing was started\n";
  return kUsage;
}

v1::SubmitJobRequest SubmissionOf(const config::JobSpec& spec, const std::string& source) {
  v1::SubmitJobRequest request;
  request.set_yaml(config::EmitSubmission(spec));
  request.set_source_name(source);
  return request;
}

absl::StatusOr<std::vector<Requirement>> ParseRequirements(const std::vector<std::string>& texts) {
  std::vector<Requirement> requirements;
  for (const std::string& text : texts) {
    EG_ASSIGN_OR_RETURN(Requirement requirement, ParseRequirement(text));
    requirements.push_back(std::move(requirement));
  }
  return requirements;
}

// ---------------------------------------------------------------- run

struct RunOptions {
  JobFile file;
  Connection connection;
  bool local = false, supervise = false;
  LocalOptions cluster;
  std::string runs = "runs", output = "text", fetch = "auto";
  std::vector<std::string> requirements;
  std::chrono::milliseconds reconnect_timeout = WatchOptions().reconnect_timeout;
};

void AddReconnectOption(OptionTable* table, std::chrono::milliseconds* timeout) {
  table->Add("reconnect_timeout", timeout,
             "how long to wait for a coordinator that disconnects while the job is watched");
}

int RunRemote(Context& context, const RunOptions& options, const config::JobSpec& spec,
              const std::vector<Requirement>& requirements,
              std::function<std::optional<WatchOptions::Broken>(ProgressPrinter&)> tick,
              std::string* runs_folder) {
  auto client = ControlClient::Connect(context, options.connection);
  if (!client.ok()) return Report(context, client.status());
  const auto submitted =
      (*client)->Call<v1::SubmitJobResponse>(SubmissionOf(spec, options.file.path));
  if (!submitted.ok()) return Report(context, submitted.status());
  *runs_folder = submitted->runs_folder();
  if (options.output == "text")
    context.out << "submitted " << Printable(submitted->name()) << " ("
                << ShowHex(submitted->job_uid()) << ")\n"
                << std::flush;
  WatchOptions watch;
  watch.job = ShowHex(submitted->job_uid());
  watch.json = options.output == "json";
  watch.cancel_on_interrupt = true;
  watch.requirements = requirements;
  watch.unreachable_after = options.connection.wait;
  watch.reconnect_timeout = options.reconnect_timeout;
  watch.files_here = options.local;
  if (options.fetch == "auto" && !options.local)
    watch.fetch_to = AbsolutePath(context, options.runs);
  watch.tick = std::move(tick);
  const WatchOutcome outcome = WatchJob(context, **client, watch);
  if (outcome.last) *runs_folder = outcome.last->runs_folder();
  return outcome.exit_code;
}

// Moves the daemons' logs into the folder of their run, or else into the runs folder under a
// visible name. No hidden folder stays behind. If the user interrupted psctl before a run existed,
// the logs are removed. Returns `code`.
int LeaveLogs(Context& context, const LocalOptions& cluster, const std::string& runs_folder,
              int code) {
  std::error_code error;
  if (!std::filesystem::exists(cluster.folder, error)) return code;
  const bool has_run = !runs_folder.empty() && fs::Exists(runs_folder);
  if (!has_run && (code == kSucceeded || code == kInterrupted)) {
    std::filesystem::remove_all(cluster.folder, error);
    std::filesystem::remove(cluster.runs, error);  // succeeds only if the folder is empty
    return code;
  }
  const std::string logs = has_run ? absl::StrCat(runs_folder, "/logs")
                                   : absl::StrCat(cluster.runs, "/logs-", ::getpid());
  std::filesystem::rename(cluster.folder, logs, error);
  if (code == kFailed || code == kUnreachable || code == kUsage || error)
    context.err << "psctl: logs: " << ShowPath(context, error ? cluster.folder : logs) << "\n";
  return code;
}

int RunLocal(Context& context, RunOptions options, const config::JobSpec& spec,
             const std::vector<Requirement>& requirements) {
  options.cluster.bin = std::filesystem::path(context.program).parent_path().string();
  options.cluster.runs = AbsolutePath(context, options.runs);
  // The folder is hidden in the runs folder until the job has its own folder, to which the logs
  // then move.
  options.cluster.folder = absl::StrCat(options.cluster.runs, "/.local-", ::getpid());
  options.cluster.supervise = options.supervise;
  options.cluster.logs_move = true;
  if (config::TypeOf(spec).for_tests_only && options.cluster.failpoints.empty())
    return Report(context, UserError(absl::InvalidArgumentError(
                               absl::StrCat(spec.type,
                                            " jobs are for tests and need --failpoints: give "
                                            "--failpoints none together with --local"))));
  if (const absl::Status made = fs::MakeDirectories(options.cluster.runs); !made.ok())
    return Report(
        context,
        UserError(absl::Status(
            absl::StatusCode::kFailedPrecondition,
            absl::StrCat(
                "cannot create the folder for the run's files (--runs DIR names another): ",
                made.message()))));
  context.handles_signals->store(true);
  // Removes the journal of an earlier run that could not clean up.
  const std::string state_folder = absl::StrCat(options.cluster.folder, "/state");
  std::error_code ignored;
  std::filesystem::remove_all(state_folder, ignored);
  bool interrupted = false;
  const auto pause = [&](std::chrono::milliseconds wait) {
    const auto happening = context.inbox->Take(wait);
    if (happening && happening->signal != 0) interrupted = true;
    return !(happening && happening->signal != 0);
  };
  LocalCluster cluster(options.cluster, context.clock, pause);
  if (const absl::Status started = cluster.Start(); !started.ok()) {
    cluster.Stop();
    if (interrupted) return LeaveLogs(context, options.cluster, "", kInterrupted);
    const int code = Report(context, started);
    return LeaveLogs(context, options.cluster, "", code == kUnreachable ? kFailed : code);
  }
  if (options.output == "text") {
    context.out << "local cluster: coordinator " << cluster.coordinator_address() << ", "
                << options.cluster.servers
                << (options.cluster.servers == 1 ? " server, " : " servers, ")
                << options.cluster.workers
                << (options.cluster.workers == 1 ? " worker" : " workers") << "\n";
  }
  options.connection = Connection{};
  options.connection.coordinator = cluster.coordinator_address();
  std::string runs_folder;
  const auto tick = [&](ProgressPrinter& printer) -> std::optional<WatchOptions::Broken> {
    for (const std::string& line : cluster.Tick()) printer.Say(line);
    const auto broken = cluster.broken();
    if (!broken) return std::nullopt;
    return WatchOptions::Broken{broken->coordinator ? kUnreachable : kFailed, broken->text};
  };
  const int code = RunRemote(context, options, spec, requirements, tick, &runs_folder);
  cluster.Stop();
  std::filesystem::remove_all(state_folder, ignored);  // the journal of a cluster that has ended
  return LeaveLogs(context, options.cluster, runs_folder, code);
}

void AddRunOptions(OptionTable* table, RunOptions* options) {
  AddJobFile(table, &options->file);
  table->Add("local", &options->local,
             "start a cluster on this machine for the job; the cluster ends with the job");
  table->Add("workers", &options->cluster.workers, "with --local: number of workers", {1, 256});
  table->Add("gpus", &options->cluster.gpus,
             "with --local: start one worker per GPU of this machine, instead of --workers");
  table->Add("servers", &options->cluster.servers, "with --local: number of parameter servers",
             {1, 256});
  table->Add(
      "threads", &options->cluster.worker_threads,
      "with --local: compute threads of each worker; 0: the machine's cores divided by the workers",
      {0, 256});
  table->Add("device", &options->cluster.device,
             "with --local: device of the workers: auto, cpu, gpu or gpu:N; empty: auto");
  table->Add("runs", &options->runs,
             "folder for the files of runs: with --local the coordinator writes them there; "
             "otherwise psctl copies them there at the end of the job, unless this machine sees "
             "the coordinator's runs folder");
  table->AddChoice("fetch", &options->fetch, {"auto", "never"},
                   "never: do not copy files that this machine does not see (psctl job fetch "
                   "copies them later)");
  table->Add("supervise", &options->supervise,
             "with --local: restart processes that die, as a cluster manager would");
  table->Add("failpoints", &options->cluster.failpoints,
             "with --local, for tests: failpoints of every daemon; `none` allows counting jobs");
  table->Add("require", &options->requirements,
             "requirement on the result, for example accuracy>=0.86; if it is not met, psctl ends "
             "with exit code 5");
  AddReconnectOption(table, &options->reconnect_timeout);
  AddConnectionOptions(table, &options->connection);
  AddOutputOption(table, &options->output);
}

// Refuses options of `job run` that cannot be set together.
absl::Status CheckRunOptions(const OptionTable& table, const RunOptions& options) {
  const auto refused = [](auto... text) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(text...)));
  };
  for (const char* name :
       {"workers", "gpus", "servers", "threads", "device", "supervise", "failpoints"})
    if (!options.local && table.IsSet(name))
      return refused("--", name,
                     " needs --local, because it sets up the cluster that --local starts");
  if (options.local && table.IsSet("fetch"))
    return refused(
        "--fetch together with --local: with --local the files are already on this machine");
  for (const auto& [name, flag] : {std::pair{"coordinator", "--coordinator"},
                                   {"folder", "--folder"},
                                   {"tls.ca", "--tls-…"},
                                   {"tls.cert", "--tls-…"},
                                   {"tls.key", "--tls-…"}})
    if (options.local && table.IsSet(name))
      return refused(flag, " together with --local: give one of them");
  for (const char* name : {"workers", "device"})
    if (options.cluster.gpus && table.IsSet(name))
      return refused("--gpus together with --", name, ": give one of them");
  return absl::OkStatus();
}

// With --gpus, sets the number of workers. Returns Cancelled if a signal arrived while the GPUs
// were counted.
absl::Status CountWorkers(Context& context, RunOptions* options) {
  if (!options->cluster.gpus) return absl::OkStatus();
  options->cluster.bin = std::filesystem::path(context.program).parent_path().string();
  options->cluster.folder =
      absl::StrCat(AbsolutePath(context, options->runs), "/.local-", ::getpid());
  context.handles_signals->store(true);
  const auto workers = CountGpus(options->cluster, *context.clock, Pause(context));
  if (!workers.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(options->cluster.folder, ignored);
    return workers.status();
  }
  options->cluster.workers = *workers;
  return absl::OkStatus();
}

int Run(Context& context, const std::vector<std::string>& args) {
  RunOptions options;
  OptionTable table(
      "psctl job run",
      "submits a job, shows its progress and its result; Ctrl-C asks whether to cancel it",
      OptionTable::Kind::kCommand);
  AddRunOptions(&table, &options);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (const absl::Status fit = CheckRunOptions(table, options); !fit.ok())
    return Report(context, fit);
  const auto requirements = ParseRequirements(options.requirements);
  if (!requirements.ok()) return Report(context, requirements.status());
  if (const absl::Status counted = CountWorkers(context, &options); !counted.ok())
    return absl::IsCancelled(counted) ? kInterrupted : Report(context, counted);
  LoadedJob loaded = Load(context, options.file);
  if (loaded.spec && options.local) {  // the workers read the same disks
    FileNotes notes = LookAtFiles(loaded.paths, context.environment);
    loaded.mistakes = std::move(notes.mistakes);
    std::move(notes.missing.begin(), notes.missing.end(), std::back_inserter(loaded.mistakes));
    config::SortMistakes(options.file.path, &loaded.mistakes);
  }
  if (!loaded.mistakes.empty())
    return ReportMistakes(context, loaded, options.file.path, options.output == "json");
  if (options.local && loaded.spec->strategy.deterministic && options.cluster.workers != 1)
    return Report(context, UserError(absl::InvalidArgumentError(absl::StrCat(
                               "`deterministic: true` needs one worker: give --workers 1: got=",
                               options.cluster.workers))));
  if (options.local) return RunLocal(context, std::move(options), *loaded.spec, *requirements);
  options.connection.instead = "add --local --workers 2 --servers 2 to start a cluster for the job";
  std::string runs_folder;
  return RunRemote(context, options, *loaded.spec, *requirements, nullptr, &runs_folder);
}

// ---------------------------------------------------------------- the other verbs

int Validate(Context& context, const std::vector<std::string>& args) {
  JobFile file;
  std::string output = "text";
  bool effective = false;
  OptionTable table(
      "psctl job validate",
      "checks a job file and lists every mistake with line and column; starts nothing",
      OptionTable::Kind::kCommand);
  AddJobFile(&table, &file);
  table.Add("effective", &effective,
            "print the effective YAML, with defaults, variables and --set applied");
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  LoadedJob loaded = Load(context, file);
  FileNotes notes;
  if (loaded.spec) {
    notes = LookAtFiles(loaded.paths, context.environment);
    loaded.mistakes = notes.mistakes;
  }
  if (!loaded.mistakes.empty()) return ReportMistakes(context, loaded, file.path, output == "json");
  if (output == "text")
    for (const config::Mistake& missing : notes.missing)
      context.err << "warning: " << Printable(missing.ToString())
                  << "; the job can run if the workers have the file\n";
  // Strings that need double quotes are quoted, because YAML must read the same value.
  if (effective && output == "text")
    context.out << JsonWithoutHidden(config::EmitYaml(*loaded.spec));
  else if (output == "json")
    context.out << Dump({{"valid", true},
                         {"mistakes", nlohmann::json::array()},
                         {"warnings", JsonOfMistakes(notes.missing)},
                         {"effective", effective ? nlohmann::json(config::EmitYaml(*loaded.spec))
                                                 : nlohmann::json(nullptr)}})
                << "\n";
  else
    context.out << Printable(file.path) << ": valid: job " << loaded.spec->name << ", "
                << (config::TypeOf(*loaded.spec).trains_model
                        ? absl::StrCat(loaded.spec->model.layers.size(), " layers, ")
                        : "")
                << loaded.spec->training.epochs
                << (loaded.spec->training.epochs == 1 ? " epoch\n" : " epochs\n");
  return kSucceeded;
}

int Submit(Context& context, const std::vector<std::string>& args) {
  JobFile file;
  Connection connection;
  std::string output = "text";
  OptionTable table("psctl job submit", "submits a job and returns at once",
                    OptionTable::Kind::kCommand);
  AddJobFile(&table, &file);
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const LoadedJob loaded = Load(context, file);
  if (!loaded.spec) return ReportMistakes(context, loaded, file.path, output == "json");
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  const auto submitted =
      (*client)->Call<v1::SubmitJobResponse>(SubmissionOf(*loaded.spec, file.path));
  if (!submitted.ok()) return Report(context, submitted.status());
  if (output == "json") {
    context.out << Dump({{"job_uid", ShowHex(submitted->job_uid())},
                         {"name", submitted->name()},
                         {"state", submitted->state()},
                         {"runs_folder", submitted->runs_folder()}})
                << "\n";
  } else {
    context.out << "submitted " << Printable(submitted->name()) << " ("
                << ShowHex(submitted->job_uid()) << "): " << Printable(submitted->state())
                << "; psctl job watch " << Printable(submitted->name()) << " follows it\n";
  }
  return kSucceeded;
}

int List(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  std::string output = "text";
  OptionTable table("psctl job list", "lists the jobs that the coordinator knows, oldest first",
                    OptionTable::Kind::kCommand);
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  const auto jobs = (*client)->Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  if (!jobs.ok()) return Report(context, jobs.status());
  if (output == "json") {
    nlohmann::json rows = nlohmann::json::array();
    for (const v1::JobStatus& job : jobs->jobs()) rows.push_back(JsonOf(job));
    context.out << Dump({{"jobs", rows}}) << "\n";
    return kSucceeded;
  }
  for (const std::string& line : JobTable(*jobs)) context.out << line << "\n";
  return kSucceeded;
}

int Show(Context& context, const std::vector<std::string>& args) {
  OneJob one;
  OptionTable table("psctl job show", "shows one job: state, progress, epochs, events",
                    OptionTable::Kind::kCommand);
  if (const auto code = OpenJob(context, &table, args, &one)) return *code;
  v1::GetJobRequest request;
  request.set_job(one.job);
  const auto answer = one.client->Call<v1::GetJobResponse>(request);
  if (!answer.ok()) return Report(context, answer.status());
  if (one.output == "json") {
    context.out << Dump(JsonOf(answer->job())) << "\n";
    return kSucceeded;
  }
  v1::JobStatus status = answer->job();
  const RunPlace place{SeesRun(status), ""};
  if (place.here) {
    status.set_runs_folder(ShowPath(context, status.runs_folder()));
    if (status.has_checkpoint())
      status.mutable_checkpoint()->set_uri(ShowPath(context, status.checkpoint().uri()));
  }
  context.out << JobTitle(status) << "\n" << ProgressLine(status) << "\n";
  context.out << absl::StrFormat(
      "closures: %d of %d succeeded, %d failed, %d cancelled; %d attempts\n",
      status.closures_succeeded(), status.closures_total(), status.closures_failed(),
      status.closures_cancelled(), status.attempts());
  if (status.servers_size() > 0) {
    context.out << absl::StrFormat("share %g: %d %s now; on servers:", status.share(),
                                   status.workers_serving(),
                                   status.workers_serving() == 1 ? "worker" : "workers");
    for (const v1::ServerRow& row : status.servers())
      context.out << " ps_server/" << Printable(row.identity()) << " " << row.shards()
                  << (row.shards() == 1 ? " shard, " : " shards, ") << ShowBytes(row.bytes())
                  << ";";
    context.out << " planned " << ShowBytes(status.server_bytes())
                << (status.server_bytes_max() == 0
                        ? ""
                        : " of at most " + ShowBytes(status.server_bytes_max()))
                << "\n";
  }
  for (const v1::WorkerRow& row : status.workers())
    for (const std::string& line : DeviceLines(row)) context.out << line << "\n";
  for (const v1::TaskBackoff& backoff : status.backing_off())
    context.out << BackoffLine(backoff) << "\n";
  for (const v1::WorkerRow& row : status.workers())
    for (const v1::UnreachedServer& unreached : row.unreached())
      context.out << UnreachedLine(row.identity(), unreached) << "\n";
  const bool counting =
      std::any_of(status.epoch_rows().begin(), status.epoch_rows().end(),
                  [](const v1::EpochRow& row) { return row.counting_sum() != 0; });
  const std::vector<std::string> metrics = EpochMetrics(status);
  if (status.epoch_rows_size() > 0) context.out << EpochHeader(counting, metrics) << "\n";
  for (const v1::EpochRow& row : status.epoch_rows())
    context.out << EpochLine(row, counting, metrics) << "\n";
  for (const v1::Event& event : status.events()) context.out << EventLine(event) << "\n";
  for (const std::string& line : SummaryLines(status, {}, place)) context.out << line << "\n";
  return kSucceeded;
}

int Watch(Context& context, const std::vector<std::string>& args) {
  OneJob one;
  std::vector<std::string> require;
  OptionTable table("psctl job watch",
                    "follows a job to its end; Ctrl-C stops watching, the job continues",
                    OptionTable::Kind::kCommand);
  WatchOptions options;
  table.Add("require", &require,
            "requirement on the result, for example accuracy>=0.86; if it is not met, psctl ends "
            "with exit code 5");
  AddReconnectOption(&table, &options.reconnect_timeout);
  if (const auto code = OpenJob(context, &table, args, &one)) return *code;
  const auto requirements = ParseRequirements(require);
  if (!requirements.ok()) return Report(context, requirements.status());
  options.job = one.job;
  options.unreachable_after = one.connection.wait;
  options.json = one.output == "json";
  options.requirements = *requirements;
  return WatchJob(context, *one.client, options).exit_code;
}

int Reference(Context& context, const std::vector<std::string>& args) {
  OptionTable table("psctl job reference",
                    "prints every key of a job file with its type, bounds and default",
                    OptionTable::Kind::kCommand);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  context.out << config::ReferenceYaml();
  return kSucceeded;
}

}  // namespace

std::vector<std::string> JobTable(const v1::ListJobsResponse& jobs) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::JobStatus& job : jobs.jobs()) {
    // The final size of tables is not known in advance, so their current size at the servers is
    // shown.
    std::uint64_t held = 0;
    for (const v1::ServerRow& row : job.servers()) held += row.bytes();
    const std::uint64_t bytes = std::max(held, job.server_bytes());
    rows.push_back(
        {Printable(job.name()), ShowHex(job.job_uid()),
         job.owner().empty() ? "-" : Printable(job.owner()), Printable(job.state()),
         absl::StrCat(job.epoch(), "/", job.epochs()),
         absl::StrCat(job.steps_done(), "/", job.steps_total()), absl::StrCat(job.share()),
         absl::StrCat(job.workers_serving()), bytes == 0 ? "-" : ShowBytes(bytes),
         ShowTime(job.submitted_ms()),
         Printable(job.state() == "FAILED" ? job.first_cause().message() : job.waiting_for())});
  }
  return RenderTable({{"name"},
                      {"uid"},
                      {"owner"},
                      {"state"},
                      {"epoch", true},
                      {"steps", true},
                      {"share", true},
                      {"workers", true},
                      {"memory", true},
                      {"submitted"},
                      {"note"}},
                     rows);
}

std::string JobTitle(const v1::JobStatus& job) {
  return absl::StrCat(Printable(job.name()), " (", ShowHex(job.job_uid()), "), submitted ",
                      job.owner().empty() ? "" : absl::StrCat("by ", Printable(job.owner()), " "),
                      ShowTime(job.submitted_ms()));
}

std::vector<Verb> JobVerbs() {
  return {
      {"job", "run", "submit a job and follow it to its end; --local starts a cluster for it", Run},
      {"job", "submit", "submit a job and return at once", Submit},
      {"job", "list", "list jobs", List},
      {"job", "show", "show one job", Show},
      {"job", "watch", "follow a job to its end", Watch},
      {"job", "wait", "wait until a job is in a state", WaitForJob},
      {"job", "cancel", "cancel a job", CancelJob},
      {"job", "delete", "forget a job that has ended", DeleteJob},
      {"job", "fetch", "copy the files of a run to this machine", FetchJob},
      {"job", "audit", "prove from a job's ledgers which examples were applied, and how often",
       AuditJob},
      {"job", "validate", "check a job file; lists every mistake", Validate},
      {"job", "reference", "print every key of a job file", Reference}};
}

}  // namespace evergrad::psctl
