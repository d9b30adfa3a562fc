#include "common/layers/initializers.h"

#include <algorithm>

#include "common/layers/named.h"

namespace evergrad::config {
namespace {

// Returns the initializers that can be given by name alone, including `truncated_normal` with its
// default.
std::vector<std::string> PlainNames() {
  std::vector<std::string> names;
  for (const InitializerDescriptor& initializer : Initializers())
    if (initializer.built && !initializer.needs_mapping()) names.push_back(initializer.name);
  return names;
}

const Variant<InitializerSpec>& InitializerVariant() {
  static const Variant<InitializerSpec> variant = [] {
    Variant<InitializerSpec> v{
        "the initializer", "type", &InitializerSpec::type, {}, NamesOf(Initializers(), false), ""};
    for (const InitializerDescriptor& initializer : Initializers()) {
      if (!initializer.built) continue;
      InitializerSpec defaults;
      defaults.type = initializer.name;
      v.cases.push_back({initializer.name,
                         {absl::StrCat("the initializer ", initializer.name), initializer.keys,
                          initializer.keys_not_built},
                         defaults});
    }
    return v;
  }();
  return variant;
}

}  // namespace

bool InitializerDescriptor::needs_mapping() const {
  return std::any_of(keys.begin(), keys.end(),
                     [](const Key<InitializerSpec>& key) { return key.required; });
}

const std::vector<InitializerDescriptor>& Initializers() {
  static const NotBuilt others = {"mean", "stddev", "seed", "scale"};
  static const std::vector<InitializerDescriptor> table = {
      {"zeros", true, {}, others},
      {"ones", true, {}, others},
      {"glorot_uniform", true, {}, others},
      {"he_normal", true, {}, others},
      {"truncated_normal",
       true,
       {RealNumber<InitializerSpec>(
           "stddev", &InitializerSpec::stddev, {0, 1e6, true, false},
           "standard deviation; values beyond two standard deviations are drawn again")},
       {"mean", "seed", "scale"}},
      {"constant",
       true,
       {Required(RealNumber<InitializerSpec>("value", &InitializerSpec::value,
                                             {-3e38, 3e38, false, false}, "value of every element"),
                 "0.5")},
       others},
      {"glorot_normal", false},
      {"he_uniform", false},
      {"lecun_normal", false},
      {"lecun_uniform", false},
      {"random_normal", false},
      {"random_uniform", false},
      {"orthogonal", false},
      {"variance_scaling", false},
      {"identity", false}};
  return table;
}

std::string InitializerType() {
  return absl::StrCat("one of ", absl::StrJoin(PlainNames(), ", "),
                      ", or {type: constant, value: 0.5}");
}

void ReadInitializer(Reader& reader, const Node& node, const std::string& key,
                     InitializerSpec* spec) {
  if (node.kind == Node::Kind::kMap) {
    InitializerVariant().Read(reader, node, spec);
    return;
  }
  const InitializerDescriptor* const found =
      node.kind == Node::Kind::kScalar ? FindBuilt(Initializers(), node.text) : nullptr;
  if (found != nullptr && found->needs_mapping()) {
    const std::string& value = found->keys[0].name;
    reader.Report(node.where(),
                  absl::StrCat("`", key, "`: `", found->name, "` needs its ", value,
                               ": expected {type: ", found->name, ", ", value, ": NUMBER}"));
    return;
  }
  Choice<InitializerSpec>(key, &InitializerSpec::type, PlainNames(), NamesOf(Initializers(), false),
                          "", "")
      .read(reader, node, spec);
}

Node WriteInitializer(const InitializerSpec& spec) {
  const InitializerDescriptor* const found = FindBuilt(Initializers(), spec.type);
  const bool plain =
      !(found != nullptr && found->needs_mapping()) && spec.stddev == InitializerSpec().stddev;
  return plain ? MakeText(spec.type) : InitializerVariant().Write(spec);
}

}  // namespace evergrad::config
