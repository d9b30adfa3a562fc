#include "common/data_formats/source_keys.h"

#include "absl/strings/str_replace.h"
#include "common/fs/file.h"
#include "common/fs/object_uri.h"

namespace evergrad::config {
namespace {

void ReadPath(Reader& r, const Node& n, const std::string& name, std::string* to) {
  const auto v = r.Text(n, name);
  if (!v) return;
  if (v->empty())
    return r.Report(n.where(), absl::StrCat("`", name, "`: expected a path, got nothing"));
  if (const absl::Status uri = fs::CheckUri(*v); !uri.ok())
    r.Report(n.where(), absl::StrCat("`", name, "`: ", uri.message()));
  else if (v->find_first_of("*?") != std::string::npos)
    r.Report(n.where(), absl::StrCat("`", name, "`: expected the path of one file, got ",
                                     n.Describe(), ": not built yet: patterns of several files"));
  else
    *to = fs::IsObjectUri(*v) ? *v : *fs::LocalPath(*v);
}

void ReadMissing(Reader& r, const Node& n, SourceSpec* t) {
  std::vector<const Node*> items;
  if (n.kind == Node::Kind::kSequence)
    for (const Node& item : n.items) items.push_back(&item);
  else
    items.push_back(&n);
  if (items.size() > 64)
    return r.Report(n.where(),
                    absl::StrCat("`missing`: too many texts: limit=64 got=", items.size()));
  t->missing.clear();
  for (const Node* item : items)
    if (const auto v = r.Text(*item, "missing")) t->missing.push_back(*v);
}

void ReadSplit(Reader& r, const Node& n, SourceSpec* t) {
  struct Split {
    std::uint64_t modulo = 0, equals = 0;
    std::string take = "eval";
  };
  static const Table<Split> table{
      "`split`",
      {Required(Integer<Split>("modulo", &Split::modulo, 2, 1u << 30, "")),
       Required(Integer<Split>("equals", &Split::equals, 0, 1u << 30, "")),
       Choice<Split>("take", &Split::take, {"eval"}, {"train", "predict"}, "split.", "")},
      {"hash", "fraction", "seed"}};
  Split split;
  const std::size_t before = r.count();
  table.Read(r, n, &split);
  if (r.count() != before) return;
  if (split.equals >= split.modulo)
    return r.Report(n.where(), absl::StrCat("`split`: `equals` must be below `modulo`: modulo=",
                                            split.modulo, " equals=", split.equals));
  t->split = {split.modulo, split.equals, false};
}

std::optional<Node> WriteSplit(const SourceSpec& t) {
  if (t.split.modulo == 0) return std::nullopt;
  Node map;
  Append(&map, "modulo", MakePlain(absl::StrCat(t.split.modulo)));
  Append(&map, "equals", MakePlain(absl::StrCat(t.split.equals)));
  Append(&map, "take", MakeText("eval"));
  return map;
}

}  // namespace

Key<SourceSpec> PathKey(const std::string& name, std::string SourceSpec::*member, std::string type,
                        std::string help, std::string example) {
  Key<SourceSpec> key =
      Required(PlainText<SourceSpec>(name, member, std::move(help)), std::move(example));
  key.type = std::move(type);
  key.read = [=](Reader& r, const Node& n, SourceSpec* t) { ReadPath(r, n, name, &(t->*member)); };
  // A `${` in a path is escaped, so that it is not read again as a variable.
  key.write = [=](const SourceSpec& t) {
    return std::optional<Node>(MakeText(absl::StrReplaceAll(t.*member, {{"${", "$${"}})));
  };
  return key;
}

Key<SourceSpec> MissingKey() {
  return {"missing",
          "text, or list of texts",
          "texts that mark a missing value. The `default` of the field replaces the missing value",
          false,
          &ReadMissing,
          [](const SourceSpec& t) {
            std::vector<Node> items;
            for (const std::string& text : t.missing) items.push_back(MakeText(text));
            return std::optional<Node>(MakeList(std::move(items)));
          }};
}

Key<SourceSpec> SplitKey() {
  Key<SourceSpec> key{
      "split",
      "mapping {modulo, equals, take: eval}",
      "only in data.train: line n of the data (from 0) is used for evaluation if n % modulo == "
      "equals, and otherwise for training. With a split, data.eval must be omitted",
      false,
      &ReadSplit,
      &WriteSplit};
  key.example = "{modulo: 10, equals: 9, take: eval}";
  return key;
}

const NotBuilt& SourceKeysNotBuilt() {
  static const NotBuilt names = {"shard_by", "cache",   "compression",
                                 "encoding", "comment", "skip_lines"};
  return names;
}

}  // namespace evergrad::config
