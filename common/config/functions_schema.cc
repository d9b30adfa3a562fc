// The keys of a functions job.
#include <algorithm>
#include <set>

#include "absl/strings/str_split.h"
#include "common/base/checked_math.h"
#include "common/config/job_schema.h"
#include "common/layers/initializers.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kVariableNameBytesMax = 128;

// Accepts "w" and "dense/kernel": a name has parts that are named like layers, with slashes between
// them.
bool IsVariableName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return name.size() <= kVariableNameBytesMax &&
         std::all_of(parts.begin(), parts.end(), IsPartName);
}

void ReadShape(Reader& r, const Node& n, FunctionVariable* t) {
  if (!r.IsList(n, "shape", "integers")) return;
  if (n.items.size() > 8) {
    r.Report(n.where(), absl::StrCat("`shape`: expected at most 8 integers, got ", n.items.size()));
    return;
  }
  std::vector<std::uint64_t> dims;
  for (const Node& item : n.items)
    if (const auto v = r.Unsigned(item, "shape", 1, 1ull << 32)) dims.push_back(*v);
  if (const auto elements = CheckedProduct(dims); !elements || *elements > (1ull << 34))
    r.Report(n.where(), "`shape`: too many elements: limit=17179869184");
  else
    t->shape = std::move(dims);
}

const Table<FunctionVariable>& VariableTable() {
  static const Table<FunctionVariable> table = [] {
    Key<FunctionVariable> name = Required(PlainText<FunctionVariable>(
        "name", &FunctionVariable::name, "name that closures use", "weights"));
    name.type = "names joined by slashes";
    name.read = [](Reader& r, const Node& n, FunctionVariable* t) {
      const auto v = r.Text(n, "name");
      if (!v) return;
      if (!IsVariableName(*v))
        r.Report(n.where(), absl::StrCat("`name`: expected names of letters, digits, `_`, `-` or "
                                         "`.` joined by `/`, at most ",
                                         kVariableNameBytesMax, " bytes; got ", n.Describe()));
      else
        t->name = *v;
    };
    Key<FunctionVariable> shape{"shape",
                                "list of up to 8 integers",
                                "shape of the variable; [] means one number",
                                true,
                                ReadShape,
                                [](const FunctionVariable& t) {
                                  std::vector<Node> dims;
                                  for (const std::uint64_t d : t.shape)
                                    dims.push_back(MakePlain(absl::StrCat(d)));
                                  return std::optional<Node>(MakeList(std::move(dims)));
                                }};
    shape.example = "[64, 8]";
    Key<FunctionVariable> initializer = InitializerKey<FunctionVariable>(
        "initializer", &FunctionVariable::initializer, "initial values");
    Key<FunctionVariable> optimizer{
        "optimizer",
        "mapping",
        "optimizer of this variable, with the keys of spec.optimizer. If omitted, "
        "spec.optimizer applies",
        false,
        [](Reader& r, const Node& n, FunctionVariable* t) {
          optimizers::Settings& settings = t->optimizer.emplace();
          if (OptimizerVariant().Read(r, n, &settings)) CheckOptimizer(r, n, settings);
        },
        [](const FunctionVariable& t) {
          return t.optimizer ? std::optional<Node>(OptimizerVariant().Write(*t.optimizer))
                             : std::nullopt;
        }};
    return Table<FunctionVariable>{
        "a variable",
        {name, shape, initializer, optimizer},
        {"dtype", "trainable", "aggregation", "regularizer", "constraint"}};
  }();
  return table;
}

Key<FunctionsSpec> VariablesKey() {
  Key<FunctionsSpec> key{
      "variables",
      "list of variables",
      "variables that closures pull and push",
      true,
      [](Reader& r, const Node& n, FunctionsSpec* t) {
        if (!r.IsList(n, "variables", "variables")) return;
        if (n.items.empty())
          r.Report(n.where(), "`variables`: expected at least one variable, got none");
        if (n.items.size() > kVariablesMax) {
          r.Report(n.where(), absl::StrCat("too many variables: limit=", kVariablesMax,
                                           " got=", n.items.size()));
          return;
        }
        std::set<std::string> names;
        for (const Node& item : n.items) {
          FunctionVariable variable;
          VariableTable().Read(r, item, &variable);
          if (!variable.name.empty() && !names.insert(variable.name).second)
            r.Report(item.where(), absl::StrCat("duplicate variable `", variable.name, "`"));
          t->variables.push_back(std::move(variable));
        }
      },
      [](const FunctionsSpec& t) {
        std::vector<Node> items;
        for (const FunctionVariable& variable : t.variables) {
          Node item;
          VariableTable().Write(variable, &item);
          items.push_back(std::move(item));
        }
        return items.empty() ? std::nullopt : std::optional<Node>(MakeList(std::move(items)));
      }};
  key.explain_inner = [](std::string* out, const std::string& indent) {
    absl::StrAppend(out, indent, "-\n");
    VariableTable().Explain(FunctionVariable{}, indent + "  ", out);
  };
  return key;
}

const Table<FunctionsSpec>& FunctionsTable() {
  static const Table<FunctionsSpec> table{
      "spec.functions",
      {VariablesKey(),
       Integer<FunctionsSpec>("queue_limit", &FunctionsSpec::queue_limit, 1, 65536,
                              "largest number of closures that are scheduled and have not ended; "
                              "schedule() waits while this number is reached"),
       ByteSize<FunctionsSpec>(
           "argument_bytes_max", &FunctionsSpec::argument_bytes_max, 1u << 20, 1u << 28,
           "memory limit for arguments, which are kept until a checkpoint contains the effects of "
           "their closures. At the limit, a checkpoint is made and schedule() waits"),
       ByteSize<FunctionsSpec>("result_bytes_max", &FunctionsSpec::result_bytes_max, 1u << 20,
                               1u << 28,
                               "memory limit for results, which are kept until their handles are "
                               "released. At the limit, the oldest results are discarded")},
      {"functions", "retries", "timeout", "priority", "tables"}};
  return table;
}

const Table<JobSpec>& FunctionsJobTable() {
  static const Table<StrategySpec> strategy = [] {
    Table<StrategySpec> t{
        "spec.strategy of a functions job",
        {},
        {"deterministic", "pipeline", "staleness", "workers", "codec", "replicas", "durability"}};
    for (const Key<StrategySpec>& key : StrategyTable().keys) {
      if (key.name == "mode" || key.name == "partitioner") t.keys.push_back(key);
    }
    return t;
  }();
  static const Table<TrainingSpec> training{
      "spec.training of a functions job",
      {Integer<TrainingSpec>("seed", &TrainingSpec::seed, 0, kAny,
                             "seed of the initializers and of the random numbers in a step"),
       WireTypeKey()},
      {}};
  static const Table<JobSpec> table = [] {
    Key<JobSpec> checkpoint = CheckpointKey();
    checkpoint.read = [read = checkpoint.read](Reader& r, const Node& n, JobSpec* t) {
      read(r, n, t);
      if (const Node* resume = n.kind == Node::Kind::kMap ? n.Find("resume") : nullptr;
          resume != nullptr && t->checkpoint.resume)
        r.Report(resume->where(),
                 "not built yet: `resume: true` of a functions job: checkpoints do not hold the "
                 "arguments of its closures");
    };
    return Table<JobSpec>{
        "spec of a functions job",
        {TypeKey(),
         Required(Section<JobSpec, FunctionsSpec>("functions", &JobSpec::functions,
                                                  &FunctionsTable(),
                                                  "the variables and limits of the closures")),
         OptimizerKey(),
         Section<JobSpec, StrategySpec>("strategy", &JobSpec::strategy, &strategy,
                                        "how variables are partitioned"),
         Section<JobSpec, TrainingSpec>("training", &JobSpec::training, &training, "the seed"),
         checkpoint, ResourcesKey()},
        SpecKeysNotBuilt()};
  }();
  return table;
}

void ExplainFunctionsJob(std::string* out) {
  absl::StrAppend(out,
                  "\n# A functions job (spec.type: functions; docs/closures.md) has, instead of "
                  "data and model:\n#   functions:\n");
  FunctionsTable().Explain(FunctionsSpec{}, "#     ", out);
  absl::StrAppend(
      out,
      "# The other sections may have only these keys: optimizer, strategy.mode and .partitioner, "
      "training.seed and .wire_dtype, checkpoint without resume, resources.\n");
}

}  // namespace

const JobType kFunctionsJobs = {.name = "functions",
                                .scheduled_by_client = true,
                                .table = FunctionsJobTable,
                                .explain = ExplainFunctionsJob};

}  // namespace evergrad::config
