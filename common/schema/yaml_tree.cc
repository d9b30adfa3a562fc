#include "common/schema/yaml_tree.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/schema/scalar.h"

namespace evergrad::config {
namespace {

// The event handler throws this type, and the caller of the parser catches it, because yaml-cpp
// cannot be stopped in another way.
struct TooMuch {
  YAML::Mark mark;
  std::string text;
};

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const TextOrigin& origin, std::vector<Mistake>* mistakes)
      : file_(std::make_shared<const std::string>(origin.file)),
        first_column_(origin.first_column),
        mistakes_(mistakes) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node = Make(mark, Node::Kind::kNull);
    Forbid(mark, "?", anchor, &node);
    Add(std::move(node));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Report(mark, "aliases (`*name`) are refused: write the value out");
    Node node = Make(mark, Node::Kind::kNull);
    node.refused = true;
    Add(std::move(node));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node = Make(mark, Node::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    Forbid(mark, tag, anchor, &node);
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, Node::Kind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, Node::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

  std::optional<Node> TakeRoot() { return std::move(root_); }
  void Report(const YAML::Mark& mark, std::string text) {
    if (mistakes_->size() < kMistakesMax) mistakes_->push_back({Where(mark), std::move(text)});
  }
  Location Where(const YAML::Mark& mark) const {
    const int line = std::max(mark.line, 0) + 1;
    return {*file_, line, std::max(mark.column, 0) + (line == 1 ? first_column_ : 1)};
  }

 private:
  struct Open_ {
    Node node;
    bool has_key = false;
    YamlEntry key;
    std::map<std::string, int> lines;  // key -> line of its first use
  };

  Node Make(const YAML::Mark& mark, Node::Kind kind) {
    if (++values_ > kYamlValuesMax)
      throw TooMuch{mark, absl::StrCat("too many values: limit=", kYamlValuesMax)};
    const Location where = Where(mark);
    Node node;
    node.kind = kind;
    node.file = file_;
    node.line = where.line;
    node.column = where.column;
    return node;
  }
  void Forbid(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Node* node) {
    if (anchor != 0) {
      Report(mark, "anchors (`&name`) are refused: write the value out where it is needed");
      node->refused = true;
    }
    if (tag != "?" && tag != "!" && !tag.empty()) {
      Report(mark, absl::StrCat("tags are refused: got `", Shown(tag), "`"));
      node->refused = true;
    }
  }
  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    if (static_cast<int>(stack_.size()) >= kYamlDepthMax)
      throw TooMuch{mark, absl::StrCat("the nesting is too deep: limit=", kYamlDepthMax)};
    Open_ open;
    open.node = Make(mark, kind);
    Forbid(mark, tag, anchor, &open.node);
    // An anchored mapping is still read, so that the mistakes inside it are reported, too.
    open.node.refused = false;
    stack_.push_back(std::move(open));
  }
  void Close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    Add(std::move(node));
  }
  void Add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open_& top = stack_.back();
    if (top.node.kind == Node::Kind::kSequence) {
      top.node.items.push_back(std::move(node));
      return;
    }
    if (!top.has_key) {
      top.has_key = true;
      top.key = YamlEntry{};
      top.key.line = node.line;
      top.key.column = node.column;
      top.key.file = file_;
      if (node.kind == Node::Kind::kScalar) {
        top.key.key = node.text;
      } else {
        if (!node.refused && mistakes_->size() < kMistakesMax)
          mistakes_->push_back(
              {node.where(), absl::StrCat("a key must be a text, got ", node.Describe())});
        top.key.value.refused = true;
      }
      return;
    }
    top.has_key = false;
    const bool unusable = top.key.value.refused;
    if (unusable) return;
    const auto [first, fresh] = top.lines.emplace(top.key.key, top.key.line);
    if (!fresh) {
      if (mistakes_->size() < kMistakesMax)
        mistakes_->push_back(
            {top.key.where(), absl::StrCat("duplicate key `", Shown(top.key.key),
                                           "`: first given on line ", first->second)});
      return;
    }
    top.key.value = std::move(node);
    // An empty value has no position in the file, so mistakes about the value name the position of
    // its key.
    if (top.key.value.kind == Node::Kind::kNull) {
      top.key.value.line = top.key.line;
      top.key.value.column = top.key.column;
    }
    top.node.entries.push_back(std::move(top.key));
  }

  const std::shared_ptr<const std::string> file_;
  const int first_column_;
  std::vector<Mistake>* const mistakes_;
  std::vector<Open_> stack_;
  std::optional<Node> root_;
  std::size_t values_ = 0;
};

// Returns a hint about a tab before a key, which yaml-cpp reports as a mapping without an end.
std::string TabBefore(absl::string_view text, int line) {
  int number = 0;
  for (const absl::string_view one : absl::StrSplit(text, '\n')) {
    if (++number > line) break;
    const std::size_t indented = std::min(one.find_first_not_of(" \t"), one.size());
    if (one.substr(0, indented).find('\t') != absl::string_view::npos)
      return absl::StrCat("; line ", number, " is indented with a tab: expected spaces");
  }
  return "";
}

}  // namespace

Location Node::where() const { return {file ? *file : "", line, column}; }
Location YamlEntry::where() const { return {file ? *file : "", line, column}; }

const Node* Node::Find(absl::string_view key) const {
  for (const YamlEntry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}
Node* Node::Find(absl::string_view key) {
  return const_cast<Node*>(std::as_const(*this).Find(key));
}

std::string Node::Describe() const {
  switch (kind) {
    case Kind::kNull: return "nothing";
    case Kind::kSequence: return "a list";
    case Kind::kMap: return "a mapping";
    case Kind::kScalar: break;
  }
  return quoted ? absl::StrCat("the text \"", Shown(text), "\"")
                : absl::StrCat("`", Shown(text), "`");
}

std::optional<Node> ReadYamlTree(absl::string_view text, const TextOrigin& origin,
                                 std::vector<Mistake>* mistakes) {
  auto refuse = [&](std::string why) {
    mistakes->push_back({{origin.file, 1, origin.first_column}, std::move(why)});
    return std::nullopt;
  };
  if (text.size() > kYamlBytesMax)
    return refuse(
        absl::StrCat("the file is too large: bytes=", text.size(), " limit=", kYamlBytesMax));
  if (text.find('\0') != absl::string_view::npos)
    return refuse("the file holds a NUL byte: expected YAML text in UTF-8");
  // For each flow bracket, yaml-cpp recurses and reports an event. TreeBuilder stops the parser at
  // an event that is nested deeper than kYamlDepthMax, which bounds the recursion.
  TreeBuilder builder(origin, mistakes);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      Node nothing;
      nothing.file = std::make_shared<const std::string>(origin.file);
      nothing.line = 1;
      nothing.column = origin.first_column;
      return nothing;
    }
    std::optional<Node> root = builder.TakeRoot();
    std::vector<Mistake> ignored;
    TreeBuilder second({origin.file, 1}, &ignored);
    bool more = false;
    try {
      more = parser.HandleNextDocument(second);
    } catch (const TooMuch&) {
      more = true;
    }
    if (more) {
      mistakes->push_back(
          {{origin.file, 1, origin.first_column},
           "several documents in one file: expected one (a line `---` starts a new document)"});
    }
    return root;
  } catch (const TooMuch& too_much) {
    builder.Report(too_much.mark, too_much.text);
  } catch (const YAML::Exception& error) {
    builder.Report(error.mark, absl::StrCat("not readable as YAML: ", error.msg,
                                            TabBefore(text, error.mark.line + 1)));
  } catch (const std::exception& error) {
    return refuse(absl::StrCat("not readable as YAML: ", error.what()));
  }
  return std::nullopt;
}

bool PutAt(Node* root, absl::string_view path, Node value, const Location& where,
           std::vector<Mistake>* mistakes) {
  const auto file = std::make_shared<const std::string>(where.file);
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  Node* node = root;
  int column = where.column;
  std::string walked;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    const Location here{where.file, where.line, column};
    if (part.empty() || static_cast<int>(parts.size()) > kYamlDepthMax) {
      mistakes->push_back({here, absl::StrCat("expected a path like spec.training.epochs, got `",
                                              Shown(path), "`")});
      return false;
    }
    if (node->kind == Node::Kind::kNull) node->kind = Node::Kind::kMap;
    Node* next = nullptr;
    if (node->kind == Node::Kind::kSequence) {
      std::uint64_t index = 0;
      if (absl::SimpleAtoi(part, &index)) {
        if (index < node->items.size()) next = &node->items[index];
      } else {
        for (Node& item : node->items) {
          const Node* name = item.Find("name");
          if (name != nullptr && name->kind == Node::Kind::kScalar && name->text == part)
            next = &item;
        }
      }
      if (next == nullptr) {
        mistakes->push_back({here, absl::StrCat("no item `", Shown(part), "` in the list `", walked,
                                                "`: items=", node->items.size())});
        return false;
      }
    } else if (node->kind == Node::Kind::kMap) {
      next = node->Find(part);
      if (next == nullptr) {
        YamlEntry entry;
        entry.key = part;
        entry.file = file;
        entry.line = where.line;
        entry.column = column;
        entry.value.file = file;
        entry.value.line = where.line;
        entry.value.column = column;
        node->entries.push_back(std::move(entry));
        next = &node->entries.back().value;
      }
    } else {
      mistakes->push_back({here, absl::StrCat("`", walked, "` is ", node->Describe(),
                                              ", so it has no `", Shown(part), "`")});
      return false;
    }
    node = next;
    column += static_cast<int>(part.size()) + 1;
    walked = walked.empty() ? part : absl::StrCat(walked, ".", part);
  }
  *node = std::move(value);
  return true;
}

void SortMistakes(absl::string_view first_file, std::vector<Mistake>* mistakes) {
  std::map<std::string, std::size_t> order{{std::string(first_file), 0}};
  for (const Mistake& mistake : *mistakes) order.emplace(mistake.where.file, order.size());
  std::stable_sort(mistakes->begin(), mistakes->end(), [&](const Mistake& a, const Mistake& b) {
    const auto key = [&](const Mistake& m) {
      return std::make_tuple(order[m.where.file], m.where.line, m.where.column);
    };
    return key(a) < key(b);
  });
}

}  // namespace evergrad::config
