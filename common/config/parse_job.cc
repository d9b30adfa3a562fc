// The parser has these stages: text, tree, overrides, variables, typed values, and rules between
// values. A stage adds the mistakes that it finds to one list, and the next stage runs
// nevertheless.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/nearest_name.h"
#include "common/config/job_schema.h"
#include "common/config/job_spec.h"
#include "common/config/model_rules.h"
#include "common/config/places.h"
#include "common/data_formats/data_format.h"
#include "common/optimizers/registry.h"
#include "common/schema/reference_text.h"
#include "common/schema/yaml_tree.h"

namespace evergrad::config {
namespace {

constexpr std::size_t kReferenceColumnsMax = 100;

bool IsVariableName(absl::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
}

// Returns the text with ${NAME} and ${NAME:-default} expanded, and ${ in place of $${. The result
// is not expanded again.
std::string Expand(const Node& node, const std::map<std::string, std::string>& environment,
                   Reader* reader, std::vector<std::string>* used) {
  const std::string& text = node.text;
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (absl::StartsWith(absl::string_view(text).substr(i), "$${")) {
      out += "${";
      i += 3;
      continue;
    }
    if (!absl::StartsWith(absl::string_view(text).substr(i), "${")) {
      out.push_back(text[i++]);
      continue;
    }
    const std::size_t end = text.find('}', i);
    const std::string inside = end == std::string::npos ? "" : text.substr(i + 2, end - i - 2);
    const std::size_t dash = inside.find(":-");
    const std::string name = inside.substr(0, dash);
    if (IsVariableName(name)) used->push_back(name);
    if (end == std::string::npos || !IsVariableName(name)) {
      reader->Report(node.where(),
                     absl::StrCat("expected ${NAME} or ${NAME:-default}, got ", node.Describe()));
      return out;
    }
    const auto found = environment.find(name);
    if (found != environment.end() && !(found->second.empty() && dash != std::string::npos))
      out += found->second;
    else if (dash != std::string::npos)
      out += inside.substr(dash + 2);
    else
      reader->Report(node.where(), absl::StrCat("the environment has no variable `", name,
                                                "`: set it, or write ${", name, ":-default}"));
    i = end + 1;
  }
  return out;
}

void ExpandAll(Node* node, const std::map<std::string, std::string>& environment, Reader* reader) {
  if (node->kind == Node::Kind::kScalar && node->text.find("${") != std::string::npos) {
    node->text = Expand(*node, environment, reader, &node->variables);
  }
  for (Node& item : node->items) ExpandAll(&item, environment, reader);
  for (YamlEntry& entry : node->entries) ExpandAll(&entry.value, environment, reader);
}

std::string Resolve(const std::string& path, const std::string& base) {
  if (base.empty() || path.empty() || path[0] == '/' || path.find("://") != std::string::npos)
    return path;
  return (std::filesystem::path(base) / path).lexically_normal().string();
}

void ApplyOverrides(Node* root, const std::vector<Override>& overrides,
                    std::vector<Mistake>* mistakes) {
  int number = 0;
  for (const Override& override_ : overrides) {
    ++number;
    const Location at{absl::StrCat("<--set", override_.file.empty() ? " " : "-file ", number, ">"),
                      1, 1};
    const TextOrigin origin = override_.file.empty()
                                  ? TextOrigin{at.file, static_cast<int>(override_.path.size()) + 2}
                                  : TextOrigin{override_.file};
    auto value = ReadYamlTree(override_.value, origin, mistakes);
    if (value) PutAt(root, override_.path, *std::move(value), at, mistakes);
  }
}

void CheckHeader(const Node& root, Reader* reader, JobSpec* spec) {
  struct Header {
    std::string api, kind;
  };
  static const NotBuilt kKindsNotBuilt = {"PredictionJob", "ServingJob", "EvaluationJob",
                                          "ClosureJob", "HyperparameterJob"};
  for (const YamlEntry& entry : root.entries) {
    if (entry.key == "apiVersion" || entry.key == "kind" || entry.key == "metadata" ||
        entry.key == "spec")
      continue;
    reader->Report(entry.where(),
                   absl::StrCat("unknown key `", entry.key.substr(0, 60), "` at the top level",
                                Suggestion(entry.key, {"apiVersion", "kind", "metadata", "spec"})));
  }
  if (const Node* api = root.Find("apiVersion")) {
    if (const auto text = reader->Text(*api, "apiVersion"); text && *text != kApiVersion)
      reader->Report(api->where(), absl::StrCat("`apiVersion`: expected ", kApiVersion, ", got ",
                                                api->Describe()));
  } else {
    reader->Report(root.where(), absl::StrCat("missing key `apiVersion`: expected ", kApiVersion));
  }
  if (const Node* kind = root.Find("kind")) {
    if (const auto text = reader->Text(*kind, "kind"); text && *text != "TrainingJob") {
      const bool planned =
          std::find(kKindsNotBuilt.begin(), kKindsNotBuilt.end(), *text) != kKindsNotBuilt.end();
      reader->Report(kind->where(),
                     planned ? absl::StrCat("not built yet: kind `", *text, "`")
                             : absl::StrCat("`kind`: expected TrainingJob, got ", kind->Describe(),
                                            Suggestion(*text, {"TrainingJob"})));
    }
  } else {
    reader->Report(root.where(), "missing key `kind`: expected TrainingJob");
  }
  const Node* metadata = root.Find("metadata");
  if (metadata == nullptr) {
    reader->Report(root.where(), "missing key `metadata`: expected {name: …}");
    return;
  }
  static const Table<JobSpec> table{
      "metadata",
      {Required(Key<JobSpec>{
          "name", "DNS label", "", false,
          [](Reader& r, const Node& n, JobSpec* t) {
            const auto text = r.Text(n, "name");
            if (!text) return;
            if (!IsDnsLabel(*text)) {
              std::string fixed = absl::AsciiStrToLower(*text);
              for (char& c : fixed)
                if (c == '_' || c == ' ' || c == '.') c = '-';
              r.Report(n.where(),
                       absl::StrCat(
                           "`name`: expected a DNS label (lower-case letters, digits and inner "
                           "dashes, at most 63), got ",
                           n.Describe(),
                           IsDnsLabel(fixed) ? absl::StrCat("; did you mean `", fixed, "`?") : ""));
            } else {
              t->name = *text;
            }
          },
          [](const JobSpec& t) { return std::optional<Node>(MakeText(t.name)); }})},
      {"labels", "annotations", "namespace", "uid"}};
  table.Read(*reader, *metadata, spec);
}

// Checks that the sources have one format and the fields match it, and makes the evaluation data of
// a split.
void CheckData(const Node& root, Reader* reader, JobSpec* spec) {
  const Node* const data = At(root, {"spec", "data"});
  if (data == nullptr || data->kind != Node::Kind::kMap) return;
  DataSpec& d = spec->data;
  ReadFields(*reader, *data, &d);
  if (d.train && d.eval && d.train->format != d.eval->format && !d.train->format.empty() &&
      !d.eval->format.empty())
    reader->Report(d.eval->where,
                   absl::StrCat("data.train and data.eval have different formats: train=",
                                d.train->format, " eval=", d.eval->format));
  if (d.eval && d.eval->split.modulo != 0)
    reader->Report(data->Find("eval")->Find("split")->where(),
                   "`split` is allowed only in data.train");
  if (d.train && d.train->split.modulo != 0) {
    if (data->Find("eval") != nullptr) {
      reader->Report(
          data->Find("eval")->where(),
          "data.train has a `split`, which makes data.eval: remove `split` or data.eval");
    } else {
      d.eval = d.train;
      d.eval->split.taken = true;
    }
  }
}

// Checks that the rows of a table, with their optimizer state, are within the limits.
void CheckTable(const Node& root, Reader* reader, const JobSpec& spec, const TableSpec& table) {
  const optimizers::Settings* const rule = OptimizerFor(spec, table.name);
  if (rule == nullptr)
    return reader->Report(
        table.where, absl::StrCat("no entry of `optimizers` fits the table `", table.name, "`"));
  if (table.dimension == 0) return;  // already refused
  const Node* const node = At(root, {"spec", "model", "tables", table.name.c_str()});
  const std::uint64_t floats = optimizers::RowFloats(*rule, table.dimension);
  if (floats > optimizers::kRowFloatsMax) {
    reader->Report(
        KeyPlace(node, "dimension", table.where),
        absl::StrCat("`dimension`: a row and its optimizer state have too many numbers: optimizer=",
                     rule->type, " got=", floats, " limit=", optimizers::kRowFloatsMax));
  }
  const std::uint64_t share = table.bytes_max / spec.strategy.table_slots,
                      row = floats * sizeof(float) + optimizers::kIndexBytesPerRow +
                            optimizers::CounterBytesPerRow(rule->type);
  if (table.bytes_max != 0 && share < row) {
    reader->Report(
        KeyPlace(node, "bytes_max", table.where),
        absl::StrCat("`bytes_max`: the share of one slot must hold at least one row: "
                     "strategy.table_slots=",
                     spec.strategy.table_slots, " share_bytes=", share, " row_bytes=", row));
  }
}

void CheckRest(const Node& root, Reader* reader, JobSpec* spec) {
  if (spec->strategy.deterministic && spec->strategy.pipeline != 0) {
    reader->Report(At(root, {"spec", "strategy", "deterministic"})->where(),
                   "`deterministic: true` needs pipeline 0 (and one worker): a pipelined pull "
                   "races with the pushes of the previous step");
  }
  const Node* const optimizer = At(root, {"spec", "optimizer"});
  if (optimizer != nullptr) CheckOptimizer(*reader, *optimizer, spec->optimizer);
  if (const Node* list = At(root, {"spec", "optimizers"}); list != nullptr && optimizer != nullptr)
    reader->Report(list->where(),
                   "`optimizers` and `optimizer` cannot both be set: remove one of the two");
  else if (TypeOf(*spec).trains_model && list == nullptr && optimizer == nullptr)
    reader->Report(At(root, {"spec"})->where(),
                   "missing key `optimizer` in spec: expected mapping");
  if (optimizer != nullptr && optimizers::IsForTablesOnly(spec->optimizer.type))
    reader->Report(
        optimizer->where(),
        absl::StrCat(spec->optimizer.type,
                     " is for embedding tables: name the tables with `match` in `optimizers`"));
  for (const TableSpec& table : spec->model.tables) CheckTable(root, reader, *spec, table);
  if (TypeOf(*spec).trains_model && !spec->data.eval) {
    if (const Node* every = At(root, {"spec", "training", "evaluate_every"});
        every != nullptr && At(root, {"spec", "data", "eval"}) == nullptr)
      reader->Report(every->where(), "`evaluate_every` needs `data.eval`");
  }
}

// Checks a job of unknown type. Reports only those mistakes that would be mistakes in a job of any
// type.
void JudgeJob(const Node& body, Reader* reader, JobSpec* spec) {
  std::vector<const Table<JobSpec>*> tables;
  for (const JobType* type : JobTypes()) tables.push_back(&type->table());
  Judge(*reader, body, tables, spec);
  if (const Node* data = body.Find("data");
      data != nullptr && data->kind == Node::Kind::kMap && data->Find("fields") != nullptr)
    ReadFields(*reader, *data, &spec->data);
}

// Reads `spec.type`; a misspelt type counts as the nearest one. Returns false if there is no
// nearest type.
bool ReadType(const Node& body, Reader* reader, JobSpec* spec) {
  const std::vector<std::string> types = NamesOfJobTypes();
  static const NotBuilt kTypesNotBuilt = {"prediction", "python", "tuning"};
  const Node* const type = body.Find("type");
  if (type == nullptr) return true;
  const auto text = reader->Text(*type, "type");
  if (!text) return false;
  if (std::find(kTypesNotBuilt.begin(), kTypesNotBuilt.end(), *text) != kTypesNotBuilt.end()) {
    reader->Report(type->where(), absl::StrCat("not built yet: spec.type `", *text, "`"));
    return false;
  }
  if (std::find(types.begin(), types.end(), *text) == types.end()) {
    reader->Report(type->where(), absl::StrCat("`type`: expected ", JoinWithOr(types), ", got ",
                                               type->Describe(), Suggestion(*text, types)));
    spec->type = NearestName(*text, types);
    return !spec->type.empty();
  }
  spec->type = *text;
  return true;
}

std::vector<DataPath> DataPaths(const Node& root, const JobSpec& spec) {
  std::vector<DataPath> paths;
  const std::pair<const char*, const std::optional<SourceSpec>*> sources[] = {
      {"train", &spec.data.train}, {"eval", &spec.data.eval}};
  for (const auto& [section, source] : sources) {
    for (const auto& [key, member] : AllSourceFiles()) {
      const Node* const node = At(root, {"spec", "data", section, key.c_str()});
      if (node == nullptr || !source->has_value() || ((**source).*member).empty()) continue;
      DataPath path{node->where(), (**source).*member, node->variables};
      if (std::none_of(paths.begin(), paths.end(),
                       [&](const DataPath& other) { return other.path == path.path; }))
        paths.push_back(std::move(path));
    }
  }
  return paths;
}

void LeaveOutUsual(Node* node) {
  std::erase_if(node->entries, [](const YamlEntry& entry) { return entry.usual; });
  for (YamlEntry& entry : node->entries) LeaveOutUsual(&entry.value);
  for (Node& item : node->items) LeaveOutUsual(&item);
}

}  // namespace

ParsedJob ParseJob(absl::string_view yaml, const ParseOptions& options) {
  ParsedJob result;
  Reader reader(&result.mistakes);
  JobSpec spec;
  auto root = ReadYamlTree(yaml, {options.file_name}, &result.mistakes);
  if (!root) {
    SortMistakes(options.file_name, &result.mistakes);
    return result;
  }
  ApplyOverrides(&*root, options.overrides, &result.mistakes);
  if (root->kind != Node::Kind::kMap) {
    reader.Report(root->where(),
                  absl::StrCat("expected a mapping with apiVersion, kind, metadata and spec, got ",
                               root->Describe()));
    SortMistakes(options.file_name, &result.mistakes);
    return result;
  }
  CheckHeader(*root, &reader, &spec);
  if (Node* body = root->Find("spec"); body == nullptr) {
    reader.Report(root->where(), "missing key `spec`: expected a mapping");
  } else if (reader.IsMap(*body, "spec")) {
    for (const char* key : {"data", "checkpoint"})
      if (Node* node = body->Find(key)) ExpandAll(node, options.environment, &reader);
    const bool known = ReadType(*body, &reader, &spec);
    if (!known) {
      JudgeJob(*body, &reader, &spec);
    } else {
      TypeOf(spec).table().Read(reader, *body, &spec);
      if (TypeOf(spec).trains_model) {
        CheckData(*root, &reader, &spec);
        CheckModel(*root, &reader, &spec);
      }
      CheckRest(*root, &reader, &spec);
      for (std::optional<SourceSpec>* source : {&spec.data.train, &spec.data.eval}) {
        if (!source->has_value()) continue;
        for (const SourceFile& file : AllSourceFiles())
          (**source).*file.member = Resolve((**source).*file.member, options.base_folder);
      }
      spec.checkpoint.directory = Resolve(spec.checkpoint.directory, options.base_folder);
    }
  }
  if (result.mistakes.empty()) {
    if (options.submission) ReadPlaces(yaml, &spec);
    if (TypeOf(spec).trains_model) CheckShapes(spec, &reader);
  }
  SortMistakes(options.file_name, &result.mistakes);
  if (!result.mistakes.empty()) return result;
  result.paths = DataPaths(*root, spec);
  result.spec = std::move(spec);
  return result;
}

std::string EmitSubmission(const JobSpec& spec) {
  std::string yaml = EmitYaml(spec);
  const std::string places = PrintPlaces(spec);
  if (yaml.size() + places.size() <= kYamlBytesMax) yaml += places;
  return yaml;
}

std::string EmitYaml(const JobSpec& spec) {
  Node root;
  Append(&root, "apiVersion", MakeText(kApiVersion));
  Append(&root, "kind", MakeText("TrainingJob"));
  Node metadata;
  Append(&metadata, "name", MakeText(spec.name));
  Append(&root, "metadata", std::move(metadata));
  Node body;
  TypeOf(spec).table().Write(spec, &body);
  // Without evaluation data, the key `evaluate_every` must not be written, because the parser
  // refuses it.
  if (TypeOf(spec).trains_model && !spec.data.eval) {
    if (Node* training = body.Find("training"))
      training->entries.erase(
          std::remove_if(training->entries.begin(), training->entries.end(),
                         [](const YamlEntry& e) { return e.key == "evaluate_every"; }),
          training->entries.end());
  }
  Append(&root, "spec", std::move(body));
  std::string text = PrintYaml(root);
  if (!spec.checkpoint.given) {
    Node checkpoint;
    CheckpointTable().Write(spec.checkpoint, &checkpoint);
    absl::StrAppend(&text, "  # checkpoint: ", PrintFlow(checkpoint), "\n");
  }
  return text;
}

std::string EmitGiven(const JobSpec& spec) {
  Node body;
  TypeOf(spec).table().Write(spec, &body);
  LeaveOutUsual(&body);
  return PrintFlow(body);
}

std::string ReferenceYaml() {
  std::string out =
      "# Every key of a job file, with its purpose, type, bounds and default. Generated by `psctl "
      "job reference` from the table that also reads job files; a test compares this file with the "
      "table. This "
      "file is itself a job that `psctl job validate` accepts.\n# Sizes: 65536, 64KiB, 1MiB. In "
      "`data` and `checkpoint`, ${NAME} and ${NAME:-default} come from the submitter's "
      "environment, and $${ means ${ itself. Duplicate keys, anchors, aliases, tags and "
      "numbers with leading zeros are refused.\n# the only version (required)\napiVersion: "
      "evergrad.dev/v1alpha1\n# the only kind (required)\nkind: TrainingJob\nmetadata:\n  # a DNS "
      "label: lower-case letters, digits and inner dashes, at most 63 (required)\n  name: "
      "reference\nspec:\n";
  TypeOf(JobSpec{}).table().Explain(JobSpec{}, "  ", &out);
  // The reference shows the job type with the fewest keys first, which is the last one of
  // JobTypes().
  const auto types = JobTypes();
  for (auto type = types.rbegin(); type != types.rend(); ++type)
    if ((*type)->explain != nullptr) (*type)->explain(&out);
  return WrapComments(out, kReferenceColumnsMax);
}

}  // namespace evergrad::config
