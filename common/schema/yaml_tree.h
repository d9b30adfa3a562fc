// YAML as an untyped tree with positions.
//
// This room uses yaml-cpp's event handler, because yaml-cpp's document model keeps the first of two
// equal keys, follows aliases, and reads `010` as 8 and `no` as false. Here duplicate keys,
// anchors, aliases, tags, several documents and NUL bytes are mistakes; size, depth and number of
// values are limited. Pure; no I/O.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/schema/location.h"

namespace evergrad::config {

inline constexpr std::size_t kYamlBytesMax = 1u << 20;
inline constexpr int kYamlDepthMax = 32;
inline constexpr std::size_t kYamlValuesMax = 65536;
// The largest number of mistakes that are stored for one file. Further mistakes are only counted.
inline constexpr std::size_t kMistakesMax = 100;

struct YamlEntry;

struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::shared_ptr<const std::string> file;  // shared by all nodes of one text
  int line = 0, column = 0;
  bool quoted = false;  // true for a scalar in quotes, which is always a text
  bool refused =
      false;  // a mistake about the node has been reported, so readers report no second mistake
  std::vector<std::string> variables;  // kScalar: the environment variables that its text contains
  std::string text;                    // kScalar
  std::vector<Node> items;             // kSequence
  std::vector<YamlEntry> entries;      // kMap, in order of the file, without duplicates

  Location where() const;
  // Returns nullptr if there is no such key, or if the node is not a map.
  const Node* Find(absl::string_view key) const;
  Node* Find(absl::string_view key);
  // Returns a description for messages: "a mapping", "a list", "`3`", "the text \"x\"", "nothing".
  std::string Describe() const;
};
struct YamlEntry {
  std::string key;
  int line = 0, column = 0;  // position of the key
  std::shared_ptr<const std::string> file;
  Node value;
  bool usual = false;  // for writing: the value equals the default
  Location where() const;
};

// The position of a text inside a larger text. In `--set a.b=v` the value begins after the `=`.
struct TextOrigin {
  std::string file;
  int first_column = 1;
};

// Returns the tree of a text. Returns nullopt if the text cannot be read at all; `mistakes` then
// has the reason. After other mistakes (a duplicate key, an anchor) the tree is returned
// nevertheless, so that all mistakes are reported together. An empty text is a kNull node.
std::optional<Node> ReadYamlTree(absl::string_view text, const TextOrigin& origin,
                                 std::vector<Mistake>* mistakes);

// Puts `value` at `path` and creates missing mappings. In "spec.training.epochs" each part is a
// key. In a list, a number selects an item by position, and a name selects the item of that `name`.
// If the path leads through another kind of value, reports a mistake at `where` and returns false.
bool PutAt(Node* root, absl::string_view path, Node value, const Location& where,
           std::vector<Mistake>* mistakes);

// Sorts by file, then by line and column; equal mistakes keep their order. `first_file` comes
// first, and the other files follow in order of appearance.
void SortMistakes(absl::string_view first_file, std::vector<Mistake>* mistakes);

}  // namespace evergrad::config
