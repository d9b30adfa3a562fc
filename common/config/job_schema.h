// The tables of the keys of a job file (Table in common/schema/schema.h). Each section of the job
// file has its own source file. Private to this room.
#pragma once

#include <initializer_list>

#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/schema/names.h"
#include "common/schema/reference_text.h"
#include "common/schema/schema.h"

namespace evergrad::config {

inline constexpr char kApiVersion[] = "evergrad.dev/v1alpha1";
inline constexpr std::size_t kLayersMax = 512, kTablesMax = 512;

const Table<DataSpec>& DataTable();
std::vector<Key<DataSpec>> CommonDataKeys();
extern const NotBuilt kDataKeysNotBuilt;
// Reads `fields` of `spec.data`. The sources must have been read, because they decide which keys a
// field may have.
void ReadFields(Reader& reader, const Node& data, DataSpec* spec);
const Table<ModelSpec>& ModelTable();
const Table<StrategySpec>& StrategyTable();
const Table<TrainingSpec>& TrainingTable();
const Table<CheckpointSpec>& CheckpointTable();
const Variant<optimizers::Settings>& OptimizerVariant();
const Variant<PartitionerSpec>& PartitionerVariant();
Key<JobSpec> OptimizerKey();
Key<JobSpec> OptimizersKey();
Key<JobSpec> CheckpointKey();
Key<JobSpec> ResourcesKey();
Key<TrainingSpec> WireTypeKey();
// Returns the keys of `spec` that are refused as not built yet, whatever the type of the job.
const NotBuilt& SpecKeysNotBuilt();

// Returns the key `type` of `spec`.
Key<JobSpec> TypeKey();
std::vector<std::string> NamesOfJobTypes();
extern const JobType kFunctionsJobs, kCountingJobs;

// Returns the node at the end of the path `path`, or nullptr.
const Node* At(const Node& root, std::initializer_list<const char*> path);
// Returns the place of a key of `map`, or `otherwise` if `map` is nullptr or lacks the key.
Location KeyPlace(const Node* map, const char* key, const Location& otherwise);

// Returns the key `match` of an entry that applies to the variables and tables whose names match a
// pattern. T must have a member `match`.
template <class T>
Key<T> MatchKey() {
  Key<T> key = PlainText<T>("match", &T::match, "", "\"emb/*\"");
  key.read = [](Reader& r, const Node& n, T* t) {
    const auto text = r.Text(n, "match");
    if (text && text->empty())
      r.Report(n.where(), "`match`: expected a pattern like `emb/*`, got nothing");
    if (text) t->match = *text;
  };
  return key;
}

// Writes the keys of each type of `variant` into the reference, as comments for every type except
// `shown`. `what` describes the key `type` ("the formula").
template <class T>
void ExplainAlternatives(const Variant<T>& variant, absl::string_view what, absl::string_view shown,
                         const std::string& indent, std::string* out) {
  for (const auto& c : variant.cases) {
    std::string text;
    absl::StrAppend(&text, "# ", what, " (one of ", absl::StrJoin(variant.Types(), ", "),
                    "; required)\ntype: ", c.type, "\n");
    c.table.Explain(c.defaults, "", &text);
    if (c.type != shown) absl::StrAppend(out, indent, "# or\n");
    AppendLines(text, c.type == shown ? indent : indent + "#   ", out);
  }
}

// Reports each rule between an optimizer's values that the mapping `node` violates.
void CheckOptimizer(Reader& reader, const Node& node, const optimizers::Settings& settings);

}  // namespace evergrad::config
