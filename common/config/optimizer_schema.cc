#include "common/config/job_schema.h"

#include "absl/strings/str_split.h"

namespace evergrad::config {
namespace {

// OptimizerVariant with `match` in front of each type's keys.
const Variant<OptimizerSpec>& RuleVariant() {
  static const Variant<OptimizerSpec> variant = [] {
    Variant<OptimizerSpec> v = OptimizerVariant();
    v.what = "an entry of `optimizers`";
    Key<OptimizerSpec> match =
        PlainText<OptimizerSpec>("match", &OptimizerSpec::match, "", "\"emb/*\"");
    match.read = [](Reader& r, const Node& n, OptimizerSpec* t) {
      const auto text = r.Text(n, "match");
      if (text && text->empty())
        r.Report(n.where(), "`match`: expected a pattern like `emb/*`, got nothing");
      if (text) t->match = *text;
    };
    for (auto& c : v.cases) {
      c.table.keys.insert(c.table.keys.begin(), match);
      std::erase(c.table.not_built, "match");
    }
    return v;
  }();
  return variant;
}

}  // namespace

Key<JobSpec> OptimizerKey() {
  Key<JobSpec> key{
      "optimizer",
      "mapping",
      "applied on the shards; formulas and defaults of Keras 2.9",
      false,
      [](Reader& r, const Node& n, JobSpec* t) { OptimizerVariant().Read(r, n, &t->optimizer); },
      [](const JobSpec& t) {
        return t.optimizers.empty() ? std::optional<Node>(OptimizerVariant().Write(t.optimizer))
                                    : std::nullopt;
      }};
  key.needed = "required, unless `optimizers` stands in for it";
  key.explain_inner = [](std::string* out, const std::string& indent) {
    for (const auto& c : OptimizerVariant().cases) {
      std::string text;
      absl::StrAppend(&text, indent, "# the formula (one of ",
                      absl::StrJoin(OptimizerVariant().Types(), ", "), "; required)\n", indent,
                      "type: ", c.type, "\n");
      c.table.Explain(c.defaults, indent, &text);
      if (c.type == "adam") {
        *out += text;
        continue;
      }
      absl::StrAppend(out, indent, "# or\n");
      const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
      for (const std::string& line : lines)
        absl::StrAppend(out, indent, "#   ", line.substr(indent.size()), "\n");
    }
  };
  return key;
}

Key<JobSpec> OptimizersKey() {
  return {"optimizers",
          "list of {match, type, ...}",
          "instead of `optimizer`: of each variable (dense1/kernel) and table the first whose "
          "`match` fits its name (`*`: any text, `?`: any "
          "character); an entry "
          "without `match` fits all, and is the last",
          false,
          [](Reader& r, const Node& n, JobSpec* t) {
            if (!r.IsList(n, "optimizers", "optimizers")) return;
            t->optimizers_where = n.where();
            if (n.items.empty())
              r.Report(n.where(), "`optimizers`: expected at least one, got none");
            if (n.items.size() > 256)
              return r.Report(n.where(),
                              absl::StrCat("too many optimizers: limit=256 got=", n.items.size()));
            for (std::size_t i = 0; i < n.items.size(); ++i) {
              OptimizerSpec& optimizer = t->optimizers.emplace_back();
              if (!RuleVariant().Read(r, n.items[i], &optimizer)) continue;
              CheckOptimizer(r, n.items[i], optimizer);
              if (optimizer.match.empty() && i + 1 < n.items.size() &&
                  n.items[i].Find("match") == nullptr)
                r.Report(n.items[i].where(),
                         "an entry without `match` fits everything: those below it are never used");
            }
          },
          [](const JobSpec& t) {
            std::vector<Node> items;
            for (const OptimizerSpec& optimizer : t.optimizers)
              items.push_back(RuleVariant().Write(optimizer));
            return items.empty() ? std::nullopt : std::optional<Node>(MakeList(std::move(items)));
          }};
}

constexpr std::chrono::milliseconds kEveryMin{10}, kEveryMax{24 * 3600 * 1000};

void CheckOptimizer(Reader& reader, const Node& node, const OptimizerSpec& spec) {
  if (const Node* nesterov = node.Find("nesterov");
      nesterov != nullptr && spec.nesterov && spec.momentum == 0)
    reader.Report(nesterov->where(), "`nesterov: true` needs a momentum above 0");
}

const Variant<OptimizerSpec>& OptimizerVariant() {
  static const Variant<OptimizerSpec> variant = [] {
    Variant<OptimizerSpec> v{"the optimizer",
                             "type",
                             &OptimizerSpec::type,
                             {},
                             {"adadelta", "adamax", "nadam", "lamb", "lars", "lion"},
                             ""};
    Key<OptimizerSpec> rate = RealNumber<OptimizerSpec>(
        "learning_rate", &OptimizerSpec::learning_rate, {0, 1e6, true, false}, "size of a step");
    const auto read_number = rate.read;
    rate.read = [read_number](Reader& r, const Node& n, OptimizerSpec* t) {
      if (n.kind == Node::Kind::kMap)
        r.Report(n.where(), "not built yet: learning-rate schedules; expected a number");
      else
        read_number(r, n, t);
    };
    const NotBuilt keys_not_built = {"clipnorm",
                                     "clipvalue",
                                     "global_clipnorm",
                                     "weight_decay",
                                     "decay",
                                     "amsgrad",
                                     "schedule",
                                     "use_ema",
                                     "match",
                                     "centered",
                                     "l2_shrinkage_regularization_strength"};
    OptimizerSpec adam;
    adam.type = "adam";
    adam.learning_rate = 0.001;
    v.cases.push_back(
        {"adam",
         {"the optimizer adam",
          {rate,
           RealNumber<OptimizerSpec>("beta_1", &OptimizerSpec::beta_1, {0, 1, false, true},
                                     "decay of the first moment"),
           RealNumber<OptimizerSpec>("beta_2", &OptimizerSpec::beta_2, {0, 1, false, true},
                                     "decay of the second moment"),
           RealNumber<OptimizerSpec>("epsilon", &OptimizerSpec::epsilon, {0, 1, true, false},
                                     "keeps the divisor from zero")},
          keys_not_built},
         adam});
    OptimizerSpec sgd;
    v.cases.push_back({"sgd",
                       {"the optimizer sgd",
                        {rate,
                         RealNumber<OptimizerSpec>("momentum", &OptimizerSpec::momentum,
                                                   {0, 1, false, false}, "0: none"),
                         Flag<OptimizerSpec>("nesterov", &OptimizerSpec::nesterov,
                                             "Nesterov's momentum; needs a momentum above 0")},
                        keys_not_built},
                       sgd});
    const Key<OptimizerSpec> beta_1 = RealNumber<OptimizerSpec>(
        "beta_1", &OptimizerSpec::beta_1, {0, 1, false, true}, "decay of the first moment");
    const Key<OptimizerSpec> beta_2 = RealNumber<OptimizerSpec>(
        "beta_2", &OptimizerSpec::beta_2, {0, 1, false, true}, "decay of the second moment");
    const Key<OptimizerSpec> epsilon = RealNumber<OptimizerSpec>(
        "epsilon", &OptimizerSpec::epsilon, {0, 1, true, false}, "keeps the divisor from zero");
    const Key<OptimizerSpec> accumulator = RealNumber<OptimizerSpec>(
        "initial_accumulator_value", &OptimizerSpec::initial_accumulator_value,
        {0, 1e6, false, false}, "of the sum of squares");
    OptimizerSpec adamw = adam;
    adamw.type = "adamw";
    NotBuilt adamw_not_built = keys_not_built;
    std::erase(adamw_not_built, "weight_decay");
    v.cases.push_back({"adamw",
                       {"the optimizer adamw",
                        {rate, beta_1, beta_2, epsilon,
                         RealNumber<OptimizerSpec>(
                             "weight_decay", &OptimizerSpec::weight_decay, {0, 1e6, false, false},
                             "times the learning rate, taken off each weight")},
                        adamw_not_built},
                       adamw});
    for (const char* type : {"adagrad", "rowwise_adagrad"}) {
      OptimizerSpec defaults;
      defaults.type = type;
      defaults.learning_rate = 0.001;
      v.cases.push_back(
          {type,
           {absl::StrCat("the optimizer ", type), {rate, accumulator, epsilon}, keys_not_built},
           defaults});
    }
    OptimizerSpec rmsprop;
    rmsprop.type = "rmsprop";
    rmsprop.learning_rate = 0.001;
    v.cases.push_back({"rmsprop",
                       {"the optimizer rmsprop",
                        {rate,
                         RealNumber<OptimizerSpec>("rho", &OptimizerSpec::rho, {0, 1, false, true},
                                                   "decay of the mean square"),
                         RealNumber<OptimizerSpec>("momentum", &OptimizerSpec::momentum,
                                                   {0, 1, false, true}, "0: none"),
                         epsilon},
                        keys_not_built},
                       rmsprop});
    OptimizerSpec ftrl;
    ftrl.type = "ftrl";
    ftrl.learning_rate = 0.001;
    const RealBounds strength{0, 1e6, false, false};
    v.cases.push_back(
        {"ftrl",
         {"the optimizer ftrl",
          {rate,
           RealNumber<OptimizerSpec>("learning_rate_power", &OptimizerSpec::learning_rate_power,
                                     {-10, 0, false, false}, "0: a fixed rate"),
           accumulator,
           RealNumber<OptimizerSpec>("l1_regularization_strength",
                                     &OptimizerSpec::l1_regularization_strength, strength,
                                     "drives weights to zero"),
           RealNumber<OptimizerSpec>("l2_regularization_strength",
                                     &OptimizerSpec::l2_regularization_strength, strength,
                                     "shrinks weights"),
           RealNumber<OptimizerSpec>("beta", &OptimizerSpec::beta, strength,
                                     "added to the root of the accumulator")},
          keys_not_built},
         ftrl});
    return v;
  }();
  return variant;
}

}  // namespace evergrad::config
