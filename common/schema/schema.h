// One table per mapping of the job file. A table has each key once, with type, bounds, default and
// a line of explanation. The same table reads, writes and explains the mapping, so that reader,
// writer and reference always agree.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/schema/location.h"
#include "common/schema/scalar.h"
#include "common/schema/yaml_tree.h"

namespace evergrad::config {

// ---- nodes to write

Node MakeText(absl::string_view text);  // quoted if necessary
Node MakeShape(const std::vector<std::uint64_t>& dims);
Node MakePlain(absl::string_view text);  // written as it is: a number, a size, true
Node MakeList(std::vector<Node> items);
void Append(Node* map, absl::string_view key, Node value);
// Prints in block style, with flow style for values that fit in a line.
std::string PrintYaml(const Node& root);
// Prints one value in flow style: `[1, 2]`, `{scale: 2}`.
std::string PrintFlow(const Node& node);

// ---- reading

class Reader {
 public:
  explicit Reader(std::vector<Mistake>* mistakes) : mistakes_(mistakes) {}
  void Report(const Location& where, std::string text) {
    if (mistakes_->size() < kMistakesMax) mistakes_->push_back({where, std::move(text)});
  }
  // These functions report a mistake and return nullopt if the node has another type. The functions
  // report nothing for a node that was already refused.
  std::optional<std::string> Text(const Node& node, absl::string_view key);
  std::optional<std::uint64_t> Unsigned(const Node& node, absl::string_view key, std::uint64_t min,
                                        std::uint64_t max);
  std::optional<double> Real(const Node& node, absl::string_view key);
  std::optional<bool> Bool(const Node& node, absl::string_view key);
  std::optional<std::uint64_t> Bytes(const Node& node, absl::string_view key, std::uint64_t min,
                                     std::uint64_t max);
  bool IsMap(const Node& node, absl::string_view key);
  bool IsList(const Node& node, absl::string_view key, absl::string_view of);
  // Reads a list of up to 7 positive integers with a product of up to 2^28. Leaves `dims` unchanged
  // after a mistake.
  void Shape(const Node& node, std::vector<std::uint64_t>* dims);
  std::size_t count() const { return mistakes_->size(); }

 private:
  bool IsScalar(const Node& node, absl::string_view key, absl::string_view expected);
  std::vector<Mistake>* const mistakes_;
};

// A key as text, for descriptions of a file in other formats.
struct KeyDoc {
  std::string name, type, help;
  bool required = false;
  std::vector<KeyDoc> keys;  // the keys of a section; empty for every other key
};

template <class T>
struct Key {
  std::string name, type, help;
  bool required = false;
  std::function<void(Reader&, const Node&, T*)> read;
  std::function<std::optional<Node>(const T&)> write;  // returns nullopt to omit the key
  std::string example;  // shown in the reference if the key has no default
  // Explains the keys of a section; set only if the key is a section.
  std::function<void(std::string* out, const std::string& indent)> explain_inner;
  std::string default_text;  // shown in the reference if the default depends on another key
  // Writes the default value of a key that `write` omits because of another key.
  std::function<std::optional<Node>(const T&)> write_default;
  // A text for the reference of an optional key that is sometimes required ("required unless …").
  std::string needed;
  // Returns the keys of a section that has one table; not set for every other key.
  std::function<std::vector<KeyDoc>()> document_inner;
};

// Names that users may expect, but that are not implemented. Each is refused with "not built yet".
using NotBuilt = std::vector<std::string>;

template <class T>
struct Table {
  std::string what;  // "a dense layer", for messages
  std::vector<Key<T>> keys;
  NotBuilt not_built;

  std::vector<std::string> Names(const std::vector<std::string>& also = {}) const {
    std::vector<std::string> names = also;
    for (const auto& key : keys) names.push_back(key.name);
    return names;
  }
  // Reads every known key, and reports unknown and missing keys. `also` lists keys that other code
  // reads.
  void Read(Reader& reader, const Node& map, T* target,
            const std::vector<std::string>& also = {}) const {
    if (!reader.IsMap(map, what)) return;
    for (const YamlEntry& entry : map.entries) {
      const Key<T>* found = nullptr;
      for (const auto& key : keys)
        if (key.name == entry.key) found = &key;
      if (found != nullptr) {
        if (!entry.value.refused) found->read(reader, entry.value, target);
        continue;
      }
      if (std::find(also.begin(), also.end(), entry.key) != also.end()) continue;
      if (std::find(not_built.begin(), not_built.end(), entry.key) != not_built.end()) {
        reader.Report(entry.where(),
                      absl::StrCat("not built yet: key `", entry.key, "` in ", what));
        continue;
      }
      reader.Report(entry.where(), absl::StrCat("unknown key `", entry.key.substr(0, 60), "` in ",
                                                what, Suggestion(entry.key, Names(also))));
    }
    for (const auto& key : keys)
      if (key.required && map.Find(key.name) == nullptr)
        reader.Report(map.where(), absl::StrCat("missing key `", key.name, "` in ", what,
                                                ": expected ", key.type));
  }
  // Writes the values. A value that equals that of `defaults` is marked as `usual`.
  void Write(const T& source, Node* map, const T& defaults = T{}) const {
    map->kind = Node::Kind::kMap;
    for (const auto& key : keys) {
      auto node = key.write(source);
      if (!node) continue;
      const auto usual = (key.write_default ? key.write_default : key.write)(defaults);
      const bool same = usual && PrintFlow(*usual) == PrintFlow(*node);
      Append(map, key.name, *std::move(node));
      map->entries.back().usual = same;
    }
  }
  std::vector<KeyDoc> Document() const {
    std::vector<KeyDoc> docs;
    for (const auto& key : keys)
      docs.push_back({key.name, key.type, key.help, key.required,
                      key.document_inner ? key.document_inner() : std::vector<KeyDoc>()});
    return docs;
  }
  // Writes "key: value  # help" lines for the reference. `defaults` supplies the values of optional
  // keys.
  void Explain(const T& defaults, const std::string& indent, std::string* out) const {
    for (const auto& key : keys) {
      std::string value = key.example;
      std::string note = key.type;
      if (key.required) note += "; required";
      if (value.empty()) {
        const auto node = key.write(defaults);
        if (node) value = PrintFlow(*node);
        if (!key.needed.empty())
          note += absl::StrCat("; ", key.needed);
        else if (key.explain_inner && !key.required)
          note += "; optional";
        else if (!key.required)
          note += !key.default_text.empty() ? absl::StrCat("; default ", key.default_text)
                  : node                    ? absl::StrCat("; default ", value)
                                            : "; optional";
      } else if (!key.required && !key.explain_inner) {
        const auto node = key.write(defaults);
        note += !key.default_text.empty() ? absl::StrCat("; default ", key.default_text)
                : node                    ? absl::StrCat("; default ", PrintFlow(*node))
                                          : "; optional";
      }
      absl::StrAppend(out, indent, "# ", key.help, " (", note, ")\n");
      if (key.explain_inner) {
        absl::StrAppend(out, indent, key.name, ":\n");
        key.explain_inner(out, indent + "  ");
      } else if (value.empty()) {
        absl::StrAppend(out, indent, "# ", key.name, ": …\n");
      } else {
        absl::StrAppend(out, indent, key.name, ": ", value, "\n");
      }
    }
  }
};

// Reads a mapping that may follow any of `tables`. Keys that some tables have are read into
// `target`. A mistake in a key is reported if every table with the key reports one. Unknown
// and missing keys are not reported, because the mapping may belong to a type that is not
// built.
template <class T>
void Judge(Reader& reader, const Node& map, const std::vector<const Table<T>*>& tables, T* target) {
  for (const YamlEntry& entry : map.entries) {
    if (entry.value.refused) continue;
    bool good = false;
    std::vector<Mistake> found;
    for (const Table<T>* table : tables) {
      for (const Key<T>& key : table->keys) {
        if (key.name != entry.key || good) continue;
        std::vector<Mistake> mistakes;
        Reader quiet(&mistakes);
        T read = *target;
        key.read(quiet, entry.value, &read);
        good = mistakes.empty();
        if (good) *target = std::move(read);
        if (found.empty()) found = std::move(mistakes);
      }
    }
    if (good) continue;
    for (Mistake& mistake : found) reader.Report(mistake.where, std::move(mistake.text));
  }
}

// A mapping whose `type` (or `format`) selects its keys.
template <class T>
struct Variant {
  struct Case {
    std::string type;
    Table<T> table;
    T defaults;
  };
  std::string what;           // "a layer"
  std::string discriminator;  // the key that selects the case: "type"
  std::string T::*member;     // the member that stores the type
  std::vector<Case> cases;
  NotBuilt not_built;
  std::string default_type;  // "" if the type is required

  std::vector<std::string> Types() const {
    std::vector<std::string> types;
    for (const Case& c : cases) types.push_back(c.type);
    return types;
  }
  const Case* Find(absl::string_view type) const {
    for (const Case& c : cases)
      if (c.type == type) return &c;
    return nullptr;
  }
  // Returns false if the case is unknown. For an unknown case, only the keys on which all cases
  // agree have been read. A misspelt type is refused, and the other keys are read as for the
  // nearest type.
  bool Read(Reader& reader, const Node& map, T* target) const {
    if (!reader.IsMap(map, what)) return false;
    const Node* node = map.Find(discriminator);
    std::string type = default_type;
    if (node != nullptr) {
      if (node->refused) return false;
      const auto text = reader.Text(*node, discriminator);
      if (!text) return JudgeAll(reader, map, target);
      type = *text;
    } else if (default_type.empty()) {
      reader.Report(map.where(), absl::StrCat("missing key `", discriminator, "` in ", what,
                                              ": expected one of ", absl::StrJoin(Types(), ", ")));
      return JudgeAll(reader, map, target);
    }
    const Case* found = Find(type);
    if (found == nullptr) {
      const bool planned = std::find(not_built.begin(), not_built.end(), type) != not_built.end();
      if (planned) {
        reader.Report(node->where(), absl::StrCat("not built yet: ", what, " of ", discriminator,
                                                  " `", type, "`"));
      } else {
        reader.Report(node->where(),
                      absl::StrCat("`", discriminator, "` of ", what, ": expected one of ",
                                   absl::StrJoin(Types(), ", "), ", got ", node->Describe(),
                                   Suggestion(type, Types())));
      }
      if (!planned) found = Find(NearestName(type, Types()));
      if (found == nullptr) return JudgeAll(reader, map, target);
    }
    *target = found->defaults;
    target->*member = found->type;
    found->table.Read(reader, map, target, {discriminator});
    return true;
  }
  bool JudgeAll(Reader& reader, const Node& map, T* target) const {
    std::vector<const Table<T>*> tables;
    for (const Case& c : cases) tables.push_back(&c.table);
    Judge(reader, map, tables, target);
    (target->*member).clear();
    return false;
  }
  Node Write(const T& source) const {
    Node map;
    map.kind = Node::Kind::kMap;
    Append(&map, discriminator, MakeText(source.*member));
    if (const Case* found = Find(source.*member)) {
      Node rest;
      found->table.Write(source, &rest, found->defaults);
      for (YamlEntry& entry : rest.entries) map.entries.push_back(std::move(entry));
    }
    return map;
  }
};

// ---- kinds of key

inline constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

inline std::string IntegerType(std::uint64_t min, std::uint64_t max) {
  if (max == kAny) return min == 0 ? "integer" : absl::StrCat("integer of at least ", min);
  return absl::StrCat("integer from ", min, " to ", max);
}

template <class T, class M>
Key<T> Integer(std::string name, M T::*member, std::uint64_t min, std::uint64_t max,
               std::string help) {
  return {name,
          IntegerType(min, max),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            if (const auto v = r.Unsigned(n, name, min, max)) t->*member = static_cast<M>(*v);
          },
          [=](const T& t) { return std::optional<Node>(MakePlain(absl::StrCat(t.*member))); }};
}
template <class T>
Key<T> OptionalInteger(std::string name, std::optional<std::uint64_t> T::*member, std::uint64_t min,
                       std::uint64_t max, std::string help) {
  return {name,
          IntegerType(min, max),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            if (const auto v = r.Unsigned(n, name, min, max)) t->*member = *v;
          },
          [=](const T& t) {
            return (t.*member).has_value()
                       ? std::optional<Node>(MakePlain(absl::StrCat(*(t.*member))))
                       : std::nullopt;
          }};
}
template <class T>
Key<T> ByteSize(std::string name, std::uint64_t T::*member, std::uint64_t min, std::uint64_t max,
                std::string help) {
  return {name,
          absl::StrCat("size from ", FormatByteSize(min), " to ", FormatByteSize(max)),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            if (const auto v = r.Bytes(n, name, min, max)) t->*member = *v;
          },
          [=](const T& t) { return std::optional<Node>(MakePlain(FormatByteSize(t.*member))); }};
}
// `open_min` and `open_max` exclude the bound itself.
struct RealBounds {
  double min = -1e300, max = 1e300;
  bool open_min = false, open_max = false;
  std::string Text() const;
  bool Holds(double v) const {
    return (open_min ? v > min : v >= min) && (open_max ? v < max : v <= max);
  }
};
template <class T>
Key<T> RealNumber(std::string name, double T::*member, RealBounds bounds, std::string help) {
  return {name,
          bounds.Text(),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            const auto v = r.Real(n, name);
            if (!v) return;
            if (!bounds.Holds(*v))
              r.Report(n.where(), absl::StrCat("`", name, "`: expected a ", bounds.Text(), ", got ",
                                               n.Describe()));
            else
              t->*member = *v;
          },
          [=](const T& t) { return std::optional<Node>(MakePlain(FormatReal(t.*member))); }};
}
template <class T>
Key<T> Flag(std::string name, bool T::*member, std::string help) {
  return {name,
          "true or false",
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            if (const auto v = r.Bool(n, name)) t->*member = *v;
          },
          [=](const T& t) { return std::optional<Node>(MakePlain(t.*member ? "true" : "false")); }};
}
template <class T>
Key<T> PlainText(std::string name, std::string T::*member, std::string help,
                 std::string example = "") {
  return {name,
          "text",
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            if (const auto v = r.Text(n, name)) t->*member = *v;
          },
          [=](const T& t) {
            return (t.*member).empty() ? std::nullopt : std::optional<Node>(MakeText(t.*member));
          },
          example};
}
template <class T>
Key<T> Choice(std::string name, std::string T::*member, std::vector<std::string> choices,
              NotBuilt not_built, std::string prefix, std::string help) {
  return {name,
          absl::StrCat("one of ", absl::StrJoin(choices, ", ")),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            const auto v = r.Text(n, name);
            if (!v) return;
            if (std::find(choices.begin(), choices.end(), *v) != choices.end())
              t->*member = *v;
            else if (std::find(not_built.begin(), not_built.end(), *v) != not_built.end())
              r.Report(n.where(), absl::StrCat("not built yet: ", prefix, name, " `", *v, "`"));
            else
              r.Report(n.where(),
                       absl::StrCat("`", name, "`: expected one of ", absl::StrJoin(choices, ", "),
                                    ", got ", n.Describe(), Suggestion(*v, choices)));
          },
          [=](const T& t) { return std::optional<Node>(MakeText(t.*member)); }};
}
template <class T, class M>
Key<T> Section(std::string name, M T::*member, const Table<M>* table, std::string help) {
  Key<T> key{name,
             "mapping",
             std::move(help),
             false,
             [=](Reader& r, const Node& n, T* t) { table->Read(r, n, &(t->*member)); },
             [=](const T& t) {
               Node map;
               table->Write(t.*member, &map, T{}.*member);
               return map.entries.empty() ? std::nullopt : std::optional<Node>(std::move(map));
             }};
  key.explain_inner = [=](std::string* out, const std::string& indent) {
    table->Explain(T{}.*member, indent, out);
  };
  key.document_inner = [table] { return table->Document(); };
  return key;
}
template <class T>
Key<T> Required(Key<T> key, std::string example = "") {
  key.required = true;
  if (!example.empty()) key.example = std::move(example);
  return key;
}

}  // namespace evergrad::config
