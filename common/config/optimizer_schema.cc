// The keys `optimizer` and `optimizers`, made from the descriptors of common/optimizers.
#include <type_traits>

#include "common/config/job_schema.h"
#include "common/optimizers/registry.h"

namespace evergrad::config {
namespace {

// Returns the key of a numeric parameter. A schedule in place of a learning rate is refused with a
// separate message.
template <class T>
Key<T> NumberKey(const optimizers::Parameter& parameter) {
  const std::string name(parameter.member.name);
  Key<T> key = RealNumber<T>(name, parameter.member.number, parameter.bounds, parameter.help);
  if (name == "learning_rate") {
    key.read = [read_number = key.read](Reader& r, const Node& n, T* t) {
      if (n.kind == Node::Kind::kMap)
        r.Report(n.where(), "not built yet: learning-rate schedules; expected a number");
      else
        read_number(r, n, t);
    };
  }
  return key;
}

// Makes the table of the keys of an optimizer. T is optimizers::Settings, or OptimizerRule, whose
// first key is `match`.
template <class T>
Variant<T> VariantOf(std::string what) {
  Variant<T> variant{std::move(what), "type", &T::type, {}, optimizers::TypesNotBuilt(), ""};
  for (const optimizers::Descriptor& descriptor : optimizers::All()) {
    if (descriptor.internal) continue;
    const std::string& type = descriptor.defaults.type;
    Table<T> table{absl::StrCat("the optimizer ", type), {}, optimizers::KeysNotBuilt()};
    if constexpr (std::is_same_v<T, OptimizerRule>)
      table.keys.push_back(MatchKey<OptimizerRule>());
    else
      table.not_built.push_back("match");
    for (const optimizers::Parameter& parameter : descriptor.parameters)
      table.keys.push_back(
          parameter.member.flag != nullptr
              ? Flag<T>(std::string(parameter.member.name), parameter.member.flag, parameter.help)
              : NumberKey<T>(parameter));
    T defaults;
    static_cast<optimizers::Settings&>(defaults) = descriptor.defaults;
    variant.cases.push_back({type, std::move(table), std::move(defaults)});
  }
  return variant;
}

const Variant<OptimizerRule>& RuleVariant() {
  static const Variant<OptimizerRule> variant =
      VariantOf<OptimizerRule>("an entry of `optimizers`");
  return variant;
}

}  // namespace

const Variant<optimizers::Settings>& OptimizerVariant() {
  static const Variant<optimizers::Settings> variant =
      VariantOf<optimizers::Settings>("the optimizer");
  return variant;
}

void CheckOptimizer(Reader& reader, const Node& node, const optimizers::Settings& settings) {
  for (const optimizers::Descriptor& descriptor : optimizers::All()) {
    // If the type of a mapping is unknown, the rules of all types check it.
    if (!settings.type.empty() && descriptor.defaults.type != settings.type) continue;
    for (const optimizers::Rule& rule : descriptor.rules) {
      const Node* const key = node.Find(rule.key);
      if (key != nullptr && rule.broken(settings)) reader.Report(key->where(), rule.text);
    }
  }
}

Key<JobSpec> OptimizerKey() {
  Key<JobSpec> key{
      "optimizer",
      "mapping",
      "optimizer of the variables, which runs on the servers, with the formulas and defaults of "
      "Keras 2.9",
      false,
      [](Reader& r, const Node& n, JobSpec* t) { OptimizerVariant().Read(r, n, &t->optimizer); },
      [](const JobSpec& t) {
        return t.optimizers.empty() ? std::optional<Node>(OptimizerVariant().Write(t.optimizer))
                                    : std::nullopt;
      }};
  key.needed = "required, unless `optimizers` is given";
  key.explain_inner = [](std::string* out, const std::string& indent) {
    ExplainAlternatives(OptimizerVariant(), "the formula", "adam", indent, out);
  };
  return key;
}

Key<JobSpec> OptimizersKey() {
  return {"optimizers",
          "list of {match, type, ...}",
          "replaces `optimizer`. Each variable (dense1/kernel) and table uses the first entry "
          "whose `match` fits its name (`*` matches any text, `?` any character). An entry "
          "without `match` fits all names, and must be the last",
          false,
          [](Reader& r, const Node& n, JobSpec* t) {
            if (!r.IsList(n, "optimizers", "optimizers")) return;
            t->optimizers_where = n.where();
            if (n.items.empty())
              r.Report(n.where(), "`optimizers`: expected at least one entry, got none");
            if (n.items.size() > 256)
              return r.Report(
                  n.where(),
                  absl::StrCat("too many entries of `optimizers`: limit=256 got=", n.items.size()));
            for (std::size_t i = 0; i < n.items.size(); ++i) {
              OptimizerRule& optimizer = t->optimizers.emplace_back();
              if (!RuleVariant().Read(r, n.items[i], &optimizer)) continue;
              CheckOptimizer(r, n.items[i], optimizer);
              if (optimizer.match.empty() && i + 1 < n.items.size() &&
                  n.items[i].Find("match") == nullptr)
                r.Report(n.items[i].where(),
                         "an entry without `match` fits all names, so the entries below it are "
                         "never used");
            }
          },
          [](const JobSpec& t) {
            std::vector<Node> items;
            for (const OptimizerRule& rule : t.optimizers)
              items.push_back(RuleVariant().Write(rule));
            return items.empty() ? std::nullopt : std::optional<Node>(MakeList(std::move(items)));
          }};
}

}  // namespace evergrad::config
