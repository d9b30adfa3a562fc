// Tests the Kubernetes definition of TrainingJob against the rules of structural schemas.
#include "common/config/crd.h"

#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/schema/yaml_tree.h"

namespace evergrad::config {
namespace {

Node Parsed(const std::string& text) {
  std::vector<Mistake> mistakes;
  const auto tree = ReadYamlTree(text, {"crd.yaml"}, &mistakes);
  for (const Mistake& mistake : mistakes) INFO(mistake.ToString());
  REQUIRE(mistakes.empty());
  REQUIRE(tree);
  return *tree;
}

const Node* Below(const Node* node, const std::vector<std::string>& path) {
  for (const std::string& key : path) {
    REQUIRE(node != nullptr);
    INFO(key);
    node = node->kind == Node::Kind::kSequence ? &node->items.at(0) : node->Find(key);
  }
  return node;
}

const Node* Schema(const Node& root) {
  return Below(&root, {"spec", "versions", "0", "schema", "openAPIV3Schema"});
}

// A node of a structural schema has a type, or is open, or is an integer or a text.
void CheckStructural(const Node& schema, const std::string& path) {
  INFO(path);
  const Node* const type = schema.Find("type");
  CHECK((type != nullptr || schema.Find("x-kubernetes-preserve-unknown-fields") != nullptr ||
         schema.Find("x-kubernetes-int-or-string") != nullptr));
  if (const Node* properties = schema.Find("properties")) {
    REQUIRE(type != nullptr);
    CHECK(type->text == "object");
    for (const YamlEntry& entry : properties->entries)
      CheckStructural(entry.value, absl::StrCat(path, ".", entry.key));
    if (const Node* required = schema.Find("required"))
      for (const Node& name : required->items) CHECK(properties->Find(name.text) != nullptr);
  }
  if (const Node* items = schema.Find("items")) {
    REQUIRE(type != nullptr);
    CHECK(type->text == "array");
    CheckStructural(*items, path + "[]");
  }
}

TEST_CASE("the definition of TrainingJob is structural and small enough for kubectl apply") {
  const std::string text = TrainingJobCrd();
  CHECK(text.size() < 200u << 10);
  const Node root = Parsed(text);
  CheckStructural(*Schema(root), "");
  // People read the file, so it is in block style. The longest lines are help texts.
  for (const absl::string_view line : absl::StrSplit(text, '\n')) CHECK(line.size() < 800);
  const Node* const names = Below(&root, {"spec", "names"});
  CHECK(names->Find("plural")->text == "trainingjobs");
  CHECK(root.Find("metadata")->Find("name")->text == "trainingjobs.evergrad.dev");
  CHECK(Below(&root, {"spec", "versions", "0", "subresources", "status"}) != nullptr);
}

TEST_CASE("the spec of the definition has the keys of a job file, with their types and bounds") {
  const Node root = Parsed(TrainingJobCrd());
  const Node* const spec = Below(Schema(root), {"properties", "spec"});
  const auto of = [&](const std::vector<std::string>& path) {
    const Node* node = spec;
    for (const std::string& key : path) node = Below(node, {"properties", key});
    REQUIRE(node != nullptr);
    return node;
  };
  CHECK(of({"training", "epochs"})->Find("type")->text == "integer");
  CHECK(of({"training", "epochs"})->Find("minimum") != nullptr);
  CHECK(of({"training"})->Find("type")->text == "object");
  CHECK(of({"resources", "server_memory_bytes_max"})->Find("x-kubernetes-int-or-string"));
  // `checkpoint: off` arrives as false, so this key is open.
  CHECK(of({"checkpoint"})->Find("type") == nullptr);
  // A mistyped key must reach the operator, which reports it.
  CHECK(spec->Find("x-kubernetes-preserve-unknown-fields")->text == "true");
  CHECK(of({"training"})->Find("x-kubernetes-preserve-unknown-fields")->text == "true");
  // A key that only one type of job requires is not required.
  const Node* const required = spec->Find("required");
  if (required != nullptr)
    for (const Node& name : required->items) CHECK(name.text != "data");
  CHECK(of({"type"})->Find("enum")->items.size() >= 2);
}

TEST_CASE("each kind of key has a schema that refuses no valid value") {
  const struct {
    const char *type, *schema;
  } cases[] = {
      {"integer", "type: integer"},
      {"integer from 1 to 64", "type: integer"},
      {"integer of at least 1", "type: integer"},
      {"true or false", "type: boolean"},
      {"text", "type: string"},
      {"number above 0", "type: number"},
      {"duration from 10ms to 24h", "type: string"},
      {"one of a, b", "enum: [a, b]"},
      {"one of a, b, or list of {match, dtype}", "x-kubernetes-preserve-unknown-fields: true"},
      {"one of auto, off", "x-kubernetes-preserve-unknown-fields: true"},
      {"size from 0 to 1PiB", "x-kubernetes-int-or-string: true"},
      {"number or mapping", "x-kubernetes-preserve-unknown-fields: true"},
      {"mapping, or off", "x-kubernetes-preserve-unknown-fields: true"},
      {"list of layers", "x-kubernetes-preserve-unknown-fields: true"},
  };
  for (const auto& c : cases) {
    const std::string flow = PrintFlow(SchemaOf({"key", c.type, "help", false, {}}));
    INFO(c.type << " gives " << flow);
    CHECK(flow.find(c.schema) != std::string::npos);
    CHECK(flow.find("help (") != std::string::npos);
  }
}

TEST_CASE("the keys whose value may be the word off are those of the tables") {
  // A new key appears here by itself, if its type ends in `, or off`.
  CHECK(KeysThatMayBeOff() == std::vector<std::string>{"spec.data.shuffle", "spec.checkpoint"});
}

}  // namespace
}  // namespace evergrad::config
