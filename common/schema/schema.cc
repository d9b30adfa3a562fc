#include "common/schema/schema.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/base/checked_math.h"

namespace evergrad::config {
namespace {

// Returns whether `text` needs no quotes, in block style and in flow style. It needs none if this
// reader and other YAML readers read the same text back without them.
bool PlainIsSafe(absl::string_view text) {
  if (text.empty() || !(absl::ascii_isalpha(static_cast<unsigned char>(text[0])) ||
                        text[0] == '_' || text[0] == '/'))
    return false;
  for (const char c : text)
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '/' && c != '.' &&
        c != '-')
      return false;
  static constexpr std::array<const char*, 13> kWords = {
      "true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan", "inf", "nil", "none"};
  const std::string lower = absl::AsciiStrToLower(text);
  return std::none_of(kWords.begin(), kWords.end(),
                      [&](const char* word) { return lower == word; });
}

std::string Quote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      absl::StrAppend(&out, "\\", std::string(1, c));
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (absl::ascii_iscntrl(static_cast<unsigned char>(c)))
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    else
      out.push_back(c);
  }
  return out + "\"";
}

std::string ScalarText(const Node& node) {
  return node.quoted && !PlainIsSafe(node.text) ? Quote(node.text) : node.text;
}

constexpr std::size_t kFlowWidthMax = 150;

void PrintItem(const Node& item, const std::string& indent, std::string* out);

void PrintBlock(const Node& node, const std::string& indent, std::string* out) {
  for (const YamlEntry& entry : node.entries) {
    const std::string key = PlainIsSafe(entry.key) ? entry.key : Quote(entry.key);
    const std::string flow = PrintFlow(entry.value);
    const bool open = (entry.value.kind == Node::Kind::kMap && !entry.value.entries.empty()) ||
                      (entry.value.kind == Node::Kind::kSequence && !entry.value.items.empty());
    const bool nested =
        std::any_of(entry.value.entries.begin(), entry.value.entries.end(),
                    [](const YamlEntry& e) { return e.value.kind == Node::Kind::kMap; }) ||
        std::any_of(entry.value.items.begin(), entry.value.items.end(), [](const Node& n) {
          return n.kind == Node::Kind::kMap && n.entries.size() > 1;
        });
    if (!open || (!nested && indent.size() + key.size() + flow.size() < kFlowWidthMax)) {
      absl::StrAppend(out, indent, key, ": ", flow, "\n");
      continue;
    }
    absl::StrAppend(out, indent, key, ":\n");
    if (entry.value.kind == Node::Kind::kMap) {
      PrintBlock(entry.value, indent + "  ", out);
      continue;
    }
    for (const Node& item : entry.value.items) PrintItem(item, indent, out);
  }
}

// Prints an item of a list in flow style, or in block style if it is too long for a line.
void PrintItem(const Node& item, const std::string& indent, std::string* out) {
  const std::string flow = PrintFlow(item);
  if (item.kind != Node::Kind::kMap || indent.size() + flow.size() < kFlowWidthMax) {
    absl::StrAppend(out, indent, "  - ", flow, "\n");
    return;
  }
  std::string block;
  PrintBlock(item, indent + "    ", &block);
  // The mark of the item takes the place of the first key's indentation.
  absl::StrAppend(out, indent, "  - ", absl::string_view(block).substr(indent.size() + 4));
}

}  // namespace

Node MakeText(absl::string_view text) {
  Node node;
  node.kind = Node::Kind::kScalar;
  node.text = std::string(text);
  node.quoted = true;
  return node;
}

Node MakeShape(const std::vector<std::uint64_t>& dims) {
  std::vector<Node> items;
  items.reserve(dims.size());
  for (const std::uint64_t d : dims) items.push_back(MakePlain(absl::StrCat(d)));
  return MakeList(std::move(items));
}

Node MakePlain(absl::string_view text) {
  Node node = MakeText(text);
  node.quoted = false;
  return node;
}

Node MakeList(std::vector<Node> items) {
  Node node;
  node.kind = Node::Kind::kSequence;
  node.items = std::move(items);
  return node;
}

void Append(Node* map, absl::string_view key, Node value) {
  map->kind = Node::Kind::kMap;
  YamlEntry entry;
  entry.key = std::string(key);
  entry.value = std::move(value);
  map->entries.push_back(std::move(entry));
}

std::string PrintFlow(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull: return "null";
    case Node::Kind::kScalar: return ScalarText(node);
    case Node::Kind::kSequence:
      return absl::StrCat("[",
                          absl::StrJoin(node.items, ", ",
                                        [](std::string* out, const Node& item) {
                                          absl::StrAppend(out, PrintFlow(item));
                                        }),
                          "]");
    case Node::Kind::kMap:
      return absl::StrCat("{",
                          absl::StrJoin(node.entries, ", ",
                                        [](std::string* out, const YamlEntry& entry) {
                                          absl::StrAppend(
                                              out,
                                              PlainIsSafe(entry.key) ? entry.key : Quote(entry.key),
                                              ": ", PrintFlow(entry.value));
                                        }),
                          "}");
  }
  return "";
}

std::string PrintYaml(const Node& root) {
  std::string out;
  PrintBlock(root, "", &out);
  return out;
}

std::string RealBounds::Text() const {
  if (min <= -1e300 && max >= 1e300) return "number";
  if (max >= 1e300)
    return absl::StrCat("number ", open_min ? "above " : "of at least ", FormatReal(min));
  return absl::StrCat("number from ", FormatReal(min), open_min ? " (excluded)" : "", " to ",
                      FormatReal(max), open_max ? " (excluded)" : "");
}

bool Reader::IsScalar(const Node& node, absl::string_view key, absl::string_view expected) {
  if (node.refused) return false;
  if (node.kind == Node::Kind::kScalar) return true;
  Report(node.where(), absl::StrCat("`", key, "`: expected ", expected, ", got ", node.Describe()));
  return false;
}

std::optional<std::string> Reader::Text(const Node& node, absl::string_view key) {
  if (!IsScalar(node, key, "a text")) return std::nullopt;
  return node.text;
}

std::optional<std::uint64_t> Reader::Unsigned(const Node& node, absl::string_view key,
                                              std::uint64_t min, std::uint64_t max) {
  if (!IsScalar(node, key, absl::StrCat("an ", IntegerType(min, max)))) return std::nullopt;
  if (node.quoted) {
    Report(node.where(), absl::StrCat("`", key, "`: expected an ", IntegerType(min, max), ", got ",
                                      node.Describe(), ": write it without quotes"));
    return std::nullopt;
  }
  const auto value = ParseUnsigned(node.text, min, max);
  if (!value.ok()) {
    Report(node.where(), absl::StrCat("`", key, "`: ", value.status().message()));
    return std::nullopt;
  }
  return *value;
}

std::optional<double> Reader::Real(const Node& node, absl::string_view key) {
  if (!IsScalar(node, key, "a number")) return std::nullopt;
  const auto value =
      node.quoted ? absl::InvalidArgumentError(absl::StrCat(
                        "expected a number, got ", node.Describe(), ": write it without quotes"))
                  : ParseReal(node.text);
  if (!value.ok()) {
    Report(node.where(), absl::StrCat("`", key, "`: ", value.status().message()));
    return std::nullopt;
  }
  return *value;
}

std::optional<bool> Reader::Bool(const Node& node, absl::string_view key) {
  if (!IsScalar(node, key, "true or false")) return std::nullopt;
  const auto value =
      node.quoted
          ? absl::InvalidArgumentError(absl::StrCat("expected true or false, got ", node.Describe(),
                                                    ": write it without quotes"))
          : ParseBool(node.text);
  if (!value.ok()) {
    Report(node.where(), absl::StrCat("`", key, "`: ", value.status().message()));
    return std::nullopt;
  }
  return *value;
}

std::optional<std::uint64_t> Reader::Bytes(const Node& node, absl::string_view key,
                                           std::uint64_t min, std::uint64_t max) {
  if (!IsScalar(node, key, "a size like 64KiB")) return std::nullopt;
  const auto value = ParseByteSize(node.text);
  if (!value.ok()) {
    Report(node.where(), absl::StrCat("`", key, "`: ", value.status().message()));
    return std::nullopt;
  }
  if (*value < min || *value > max) {
    Report(node.where(), absl::StrCat("`", key, "`: expected a size from ", FormatByteSize(min),
                                      " to ", FormatByteSize(max), ", got ", node.Describe()));
    return std::nullopt;
  }
  return *value;
}

bool Reader::IsMap(const Node& node, absl::string_view key) {
  if (node.refused) return false;
  if (node.kind == Node::Kind::kMap) return true;
  Report(node.where(), absl::StrCat(key, ": expected a mapping, got ", node.Describe()));
  return false;
}

void Reader::Shape(const Node& node, std::vector<std::uint64_t>* dims) {
  if (!IsList(node, "shape", "integers")) return;
  if (node.items.size() > 7)
    return Report(node.where(),
                  absl::StrCat("`shape`: expected at most 7 integers, got ", node.items.size()));
  std::vector<std::uint64_t> read;
  for (const Node& item : node.items)
    if (const auto v = Unsigned(item, "shape", 1, 1u << 24)) read.push_back(*v);
  const auto elements = CheckedProduct(read);
  if (!elements || *elements > (1ull << 28))
    return Report(node.where(), "`shape`: too many elements: limit=268435456");
  *dims = std::move(read);
}

bool Reader::IsList(const Node& node, absl::string_view key, absl::string_view of) {
  if (node.refused) return false;
  if (node.kind == Node::Kind::kSequence) return true;
  Report(node.where(),
         absl::StrCat("`", key, "`: expected a list of ", of, ", got ", node.Describe()));
  return false;
}

}  // namespace evergrad::config
