#include "common/config/job_schema.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace evergrad::config {
namespace {

Key<TrainingSpec> EvaluateKey() {
  return {
      "evaluate_every",
      "N epochs, or end",
      "when the model is evaluated on data.eval: after every N-th epoch and at the end, or at "
      "the end only",
      false,
      [](Reader& r, const Node& n, TrainingSpec* t) {
        const auto v = r.Text(n, "evaluate_every");
        if (!v) return;
        if (*v == "end") {
          t->evaluate_every_epochs = 0;
          return;
        }
        const std::vector<std::string> parts = absl::StrSplit(*v, ' ', absl::SkipEmpty());
        const auto number =
            parts.empty() ? absl::InvalidArgumentError("") : ParseUnsigned(parts[0], 1, 1000000);
        if (parts.size() == 2 && (parts[1] == "step" || parts[1] == "steps" ||
                                  parts[1] == "closures" || parts[1] == "minutes")) {
          r.Report(n.where(), absl::StrCat("not built yet: evaluate_every in ", parts[1]));
        } else if (parts.size() != 2 || !number.ok() ||
                   (parts[1] != "epoch" && parts[1] != "epochs")) {
          r.Report(n.where(),
                   absl::StrCat("`evaluate_every`: expected `1 epoch`, `3 epochs` or `end`, got ",
                                n.Describe()));
        } else {
          t->evaluate_every_epochs = static_cast<std::uint32_t>(*number);
        }
      },
      [](const TrainingSpec& t) {
        if (t.evaluate_every_epochs == 0) return std::optional<Node>(MakeText("end"));
        return std::optional<Node>(MakePlain(absl::StrCat(
            t.evaluate_every_epochs, t.evaluate_every_epochs == 1 ? " epoch" : " epochs")));
      }};
}

const std::vector<std::string> kWireTypes = {"float32", "bf16", "fp16"};

void ReadWireType(Reader& r, const Node& n, absl::string_view key, std::string* type) {
  const auto v = r.Text(n, key);
  if (!v) return;
  if (std::find(kWireTypes.begin(), kWireTypes.end(), *v) != kWireTypes.end()) {
    *type = *v;
    return;
  }
  const std::string meant = *v == "bfloat16"                  ? "bf16"
                            : *v == "float16" || *v == "half" ? "fp16"
                            : *v == "fp32"                    ? "float32"
                                                              : "";
  r.Report(n.where(), absl::StrCat("`", key, "`: expected one of ", absl::StrJoin(kWireTypes, ", "),
                                   ", got ", n.Describe(),
                                   meant.empty() ? Suggestion(*v, kWireTypes)
                                                 : absl::StrCat("; did you mean `", meant, "`?")));
}

const Table<WireRule>& WireRuleTable() {
  static const Table<WireRule> table = [] {
    Key<WireRule> dtype{
        "dtype",
        absl::StrCat("one of ", absl::StrJoin(kWireTypes, ", ")),
        "",
        true,
        [](Reader& r, const Node& n, WireRule* t) { ReadWireType(r, n, "dtype", &t->dtype); },
        [](const WireRule& t) { return std::optional<Node>(MakePlain(t.dtype)); }};
    return Table<WireRule>{"an entry of `wire_dtype`", {MatchKey<WireRule>(), dtype}, {}};
  }();
  return table;
}

}  // namespace

Key<TrainingSpec> WireTypeKey() {
  return {"wire_dtype",
          absl::StrCat("one of ", absl::StrJoin(kWireTypes, ", "), ", or list of {match, dtype}"),
          "type of gradients and values between workers and servers; servers keep and compute "
          "float32. In a list, each variable (dense1/kernel) and table uses the first entry "
          "whose `match` fits its name (`*` matches any text, `?` any character), or float32 if "
          "no entry fits",
          false,
          [](Reader& r, const Node& n, TrainingSpec* t) {
            if (n.kind != Node::Kind::kSequence) {
              std::string type = "float32";
              ReadWireType(r, n, "wire_dtype", &type);
              if (type != "float32") t->wire.push_back({"", type});
              return;
            }
            if (n.items.empty())
              r.Report(n.where(), "`wire_dtype`: expected at least one entry, got none");
            if (n.items.size() > 256)
              return r.Report(
                  n.where(),
                  absl::StrCat("too many entries of `wire_dtype`: limit=256 got=", n.items.size()));
            for (std::size_t i = 0; i < n.items.size(); ++i) {
              WireRuleTable().Read(r, n.items[i], &t->wire.emplace_back());
              if (t->wire.back().match.empty() && i + 1 < n.items.size() &&
                  n.items[i].Find("match") == nullptr)
                r.Report(n.items[i].where(),
                         "an entry without `match` fits all names, so the entries below it are "
                         "never used");
            }
            if (t->wire.size() == 1 && t->wire[0] == WireRule{"", "float32"}) t->wire.clear();
          },
          [](const TrainingSpec& t) {
            if (t.wire.empty()) return std::optional<Node>(MakePlain("float32"));
            if (t.wire.size() == 1 && t.wire[0].match.empty())
              return std::optional<Node>(MakePlain(t.wire[0].dtype));
            std::vector<Node> items;
            for (const WireRule& rule : t.wire) WireRuleTable().Write(rule, &items.emplace_back());
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

const Table<TrainingSpec>& TrainingTable() {
  static const Table<TrainingSpec> table{
      "spec.training",
      {Integer<TrainingSpec>("epochs", &TrainingSpec::epochs, 1, 1000000,
                             "number of passes over the data"),
       Integer<TrainingSpec>("steps_per_closure", &TrainingSpec::steps_per_closure, 1, 4096,
                             "number of steps in a closure, which is the unit that is granted, "
                             "retried and reported"),
       EvaluateKey(),
       Integer<TrainingSpec>("seed", &TrainingSpec::seed, 0, kAny,
                             "seed of the initializers and of dropout"),
       Choice<TrainingSpec>(
           "on_lost_updates", &TrainingSpec::on_lost_updates, {"fail", "report"}, {}, "",
           "reaction if a closure must run again after the loss of a server, but cannot because "
           "its data was changed or removed. fail ends the job. report continues without the "
           "closure's updates on the lost shards, and counts these updates as lost"),
       Choice<TrainingSpec>(
           "on_over_budget", &TrainingSpec::on_over_budget, {"fail", "pause"}, {}, "",
           "reaction if a server is out of memory for a push (a table is at its bytes_max, or "
           "the server's tables are at --memory-bytes-max, and no row can be evicted). fail "
           "ends the job. pause lets the workers wait and retry until memory is free"),
       Choice<TrainingSpec>(
           "precision", &TrainingSpec::precision,
           {"float32", "tf32", "mixed_bfloat16", "mixed_float16"}, {}, "",
           "type in which steps are computed; servers keep and apply float32. With "
           "mixed_bfloat16 and mixed_float16, activations, their gradients and the weights in "
           "matrix products and convolutions have 16 bits, as in the Keras policies of the same "
           "names. mixed_float16 scales the loss automatically. With tf32, GPUs may round the "
           "operands of float32 "
           "products to 10 bits. A worker whose device lacks the precision gets no work of the "
           "job. The job fails if no device has the precision"),
       WireTypeKey()},
      {"max_steps", "early_stopping", "max_seconds", "nan_policy", "on_nan", "steps", "callbacks",
       "validation_split"}};
  return table;
}

}  // namespace evergrad::config
