#include "common/config/crd.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/job_schema.h"

namespace evergrad::config {
namespace {

// The API server keeps bounds as double, which has all integers up to this one.
constexpr std::uint64_t kExactMax = 1ull << 53;

Node Map() {
  Node map;
  map.kind = Node::Kind::kMap;
  return map;
}

Node Open(Node schema) {
  Append(&schema, "x-kubernetes-preserve-unknown-fields", MakePlain("true"));
  return schema;
}

// Adds the bounds of "integer from 1 to 64" or "integer of at least 1".
void AddBounds(absl::string_view type, Node* schema) {
  const auto add = [&](const char* key, absl::string_view text) {
    std::uint64_t bound = 0;
    if (absl::SimpleAtoi(text, &bound) && bound <= kExactMax)
      Append(schema, key, MakePlain(absl::StrCat(bound)));
  };
  if (absl::ConsumePrefix(&type, "integer of at least ")) return add("minimum", type);
  if (!absl::ConsumePrefix(&type, "integer from ")) return;
  const std::pair<std::string, std::string> bounds = absl::StrSplit(type, " to ");
  add("minimum", bounds.first);
  add("maximum", bounds.second);
}

// Returns whether a value may be something else than this text: several words describe the value,
// and YAML 1.1, which kubectl reads, has some words as booleans.
bool IsNoPlainText(absl::string_view word) {
  if (absl::StrContains(word, ' ')) return true;
  for (const char* boolean : {"on", "off", "yes", "no", "true", "false", "y", "n"})
    if (absl::EqualsIgnoreCase(word, boolean)) return true;
  return false;
}

Node ObjectOf(const std::vector<KeyDoc>& keys, absl::string_view description) {
  Node schema = Map();
  if (!description.empty()) Append(&schema, "description", MakeText(description));
  Append(&schema, "type", MakeText("object"));
  std::vector<Node> required;
  Node properties = Map();
  for (const KeyDoc& key : keys) {
    if (key.required) required.push_back(MakeText(key.name));
    Append(&properties, key.name, SchemaOf(key));
  }
  if (!required.empty()) Append(&schema, "required", MakeList(std::move(required)));
  if (!properties.entries.empty()) Append(&schema, "properties", std::move(properties));
  return Open(std::move(schema));
}

// The keys of `spec` of all types of jobs that users may submit. A key is required if every type
// requires it.
std::vector<KeyDoc> SpecKeys() {
  std::vector<KeyDoc> keys;
  for (const JobType* type : JobTypes()) {
    if (type->for_tests_only) continue;
    const std::vector<KeyDoc> its = type->table().Document();
    const auto in = [](const std::vector<KeyDoc>& all, const KeyDoc& key) {
      return std::find_if(all.begin(), all.end(),
                          [&](const KeyDoc& other) { return other.name == key.name; });
    };
    if (!keys.empty()) {
      for (KeyDoc& key : keys) {
        const auto same = in(its, key);
        key.required = key.required && same != its.end() && same->required;
      }
    }
    const bool first = keys.empty();
    for (const KeyDoc& key : its) {
      if (in(keys, key) != keys.end()) continue;
      keys.push_back(key);
      keys.back().required = first && key.required;
    }
  }
  return keys;
}

void AddKeysThatMayBeOff(const std::vector<KeyDoc>& keys, const std::string& prefix,
                         std::vector<std::string>* out) {
  for (const KeyDoc& key : keys) {
    const std::string path = absl::StrCat(prefix, ".", key.name);
    if (absl::EndsWith(key.type, ", or off")) out->push_back(path);
    AddKeysThatMayBeOff(key.keys, path, out);
  }
}

Node Field(const char* type, const char* description) {
  Node schema = Map();
  Append(&schema, "description", MakeText(description));
  Append(&schema, "type", MakeText(type));
  return schema;
}

Node StatusSchema() {
  Node condition = Map();
  Append(&condition, "type", MakeText("object"));
  Node fields = Map();
  for (const char* name : {"type", "status", "reason", "message"})
    Append(&fields, name, Field("string", "as in the conditions of other Kubernetes objects"));
  Node time = Field("string", "time at which `status` changed last");
  Append(&time, "format", MakeText("date-time"));
  Append(&fields, "lastTransitionTime", std::move(time));
  Append(&fields, "observedGeneration", Field("integer", "generation that the condition is about"));
  Append(&condition, "properties", std::move(fields));
  std::vector<Node> required;
  for (const char* name : {"type", "status"}) required.push_back(MakeText(name));
  Append(&condition, "required", MakeList(std::move(required)));
  Node conditions = Map();
  Append(&conditions, "type", MakeText("array"));
  Append(&conditions, "items", std::move(condition));
  Append(&conditions, "x-kubernetes-list-type", MakeText("map"));
  std::vector<Node> list_keys;
  list_keys.push_back(MakeText("type"));
  Append(&conditions, "x-kubernetes-list-map-keys", MakeList(std::move(list_keys)));

  Node properties = Map();
  Append(&properties, "state",
         Field("string",
               "state of the job: QUEUED, STARTING, RUNNING, SUCCEEDED, FAILED, CANCELLED; INVALID "
               "if the spec was refused; UNKNOWN if the coordinator no longer knows the job"));
  Append(&properties, "jobUid", Field("string", "uid of the job at the coordinator"));
  Append(&properties, "step", Field("integer", "steps that are done"));
  Append(&properties, "steps", Field("integer", "steps of the whole job; 0 if not known yet"));
  Append(&properties, "loss", Field("string", "newest training loss"));
  Append(&properties, "metric", Field("string", "newest result of the evaluation, with its name"));
  Append(&properties, "workers", Field("integer", "workers that serve the job now"));
  Append(&properties, "message", Field("string", "why the job waits or has failed"));
  Append(&properties, "runsFolder", Field("string", "folder of the run on the coordinator's host"));
  Append(&properties, "submittedGeneration",
         Field("integer", "generation of the spec that was submitted, or is about to be"));
  Append(&properties, "observedGeneration",
         Field("integer", "generation that the operator has seen"));
  Append(&properties, "conditions", std::move(conditions));
  Node status = Map();
  Append(&status, "type", MakeText("object"));
  Append(&status, "properties", std::move(properties));
  return status;
}

Node Columns() {
  struct Column {
    const char *name, *type, *path;
  };
  std::vector<Node> columns;
  for (const Column& one :
       {Column{"State", "string", ".status.state"}, Column{"Step", "integer", ".status.step"},
        Column{"Steps", "integer", ".status.steps"}, Column{"Loss", "string", ".status.loss"},
        Column{"Metric", "string", ".status.metric"},
        Column{"Workers", "integer", ".status.workers"},
        Column{"Age", "date", ".metadata.creationTimestamp"}}) {
    Node column = Map();
    Append(&column, "name", MakeText(one.name));
    Append(&column, "type", MakeText(one.type));
    Append(&column, "jsonPath", MakeText(one.path));
    columns.push_back(std::move(column));
  }
  return MakeList(std::move(columns));
}

Node Version() {
  Node properties = Map();
  Append(&properties, "apiVersion", Field("string", kApiVersion));
  Append(&properties, "kind", Field("string", "TrainingJob"));
  Node metadata = Map();
  Append(&metadata, "type", MakeText("object"));
  Append(&properties, "metadata", std::move(metadata));
  Append(&properties, "spec", ObjectOf(SpecKeys(), "the job, as in a job file"));
  Append(&properties, "status", StatusSchema());
  Node root = Map();
  Append(&root, "description", MakeText("A training job of an Evergrad cluster."));
  Append(&root, "type", MakeText("object"));
  std::vector<Node> required;
  required.push_back(MakeText("spec"));
  Append(&root, "required", MakeList(std::move(required)));
  Append(&root, "properties", std::move(properties));
  Node schema = Map();
  Append(&schema, "openAPIV3Schema", std::move(root));

  Node version = Map();
  Append(&version, "name", MakeText("v1alpha1"));
  Append(&version, "served", MakePlain("true"));
  Append(&version, "storage", MakePlain("true"));
  Node subresources = Map();
  Append(&subresources, "status", Map());
  Append(&version, "subresources", std::move(subresources));
  Append(&version, "additionalPrinterColumns", Columns());
  Append(&version, "schema", std::move(schema));
  return version;
}

}  // namespace

const std::vector<std::string>& KeysThatMayBeOff() {
  static const auto keys = [] {
    std::vector<std::string> found;
    AddKeysThatMayBeOff(SpecKeys(), "spec", &found);
    return found;
  }();
  return keys;
}

Node SchemaOf(const KeyDoc& key) {
  if (!key.keys.empty()) {
    // A section that may also be a plain value ("mapping, or off") is open, but shows its keys.
    if (key.type == "mapping") return ObjectOf(key.keys, key.help);
  }
  Node schema = Map();
  Append(&schema, "description", MakeText(absl::StrCat(key.help, " (", key.type, ")")));
  const absl::string_view type = key.type;
  const auto typed = [&](const char* name) {
    Append(&schema, "type", MakeText(name));
    return schema;
  };
  if (type == "integer" || absl::StartsWith(type, "integer from ") ||
      absl::StartsWith(type, "integer of at least ")) {
    typed("integer");
    Append(&schema, "format", MakeText("int64"));
    AddBounds(type, &schema);
    return schema;
  }
  if (type == "true or false") return typed("boolean");
  if (type == "number" || absl::StartsWith(type, "number from ") ||
      absl::StartsWith(type, "number of at least ") || absl::StartsWith(type, "number above "))
    return typed("number");
  if (type == "text" || absl::StartsWith(type, "duration from ")) return typed("string");
  if (absl::StartsWith(type, "size from ")) {
    Append(&schema, "x-kubernetes-int-or-string", MakePlain("true"));
    return schema;
  }
  if (absl::StartsWith(type, "one of ")) {
    const std::vector<std::string> words = absl::StrSplit(type.substr(7), ", ");
    if (std::none_of(words.begin(), words.end(), IsNoPlainText)) {
      typed("string");
      std::vector<Node> items;
      for (const std::string& word : words) items.push_back(MakeText(word));
      Append(&schema, "enum", MakeList(std::move(items)));
      return schema;
    }
  }
  return Open(std::move(schema));
}

std::string TrainingJobCrd() {
  Node names = Map();
  Append(&names, "kind", MakeText("TrainingJob"));
  Append(&names, "listKind", MakeText("TrainingJobList"));
  Append(&names, "plural", MakeText("trainingjobs"));
  Append(&names, "singular", MakeText("trainingjob"));
  std::vector<Node> shorts;
  shorts.push_back(MakeText("tj"));
  Append(&names, "shortNames", MakeList(std::move(shorts)));

  std::vector<Node> versions;
  versions.push_back(Version());
  Node spec = Map();
  Append(&spec, "group", MakeText("evergrad.dev"));
  Append(&spec, "scope", MakeText("Namespaced"));
  Append(&spec, "names", std::move(names));
  Append(&spec, "versions", MakeList(std::move(versions)));
  Node metadata = Map();
  Append(&metadata, "name", MakeText("trainingjobs.evergrad.dev"));
  Node root = Map();
  Append(&root, "apiVersion", MakeText("apiextensions.k8s.io/v1"));
  Append(&root, "kind", MakeText("CustomResourceDefinition"));
  Append(&root, "metadata", std::move(metadata));
  Append(&root, "spec", std::move(spec));
  return absl::StrCat("# The kind TrainingJob, generated from the tables of job files.\n",
                      PrintYaml(root));
}

}  // namespace evergrad::config
