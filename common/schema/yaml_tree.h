// YAML as an untyped tree with positions.
//
// yaml-cpp's event handler is used, because its document model keeps the first of two equal keys,
// follows aliases, and reads `010` as 8 and `no` as false. Here duplicate keys, anchors, aliases,
// tags, several documents and NUL bytes are mistakes; size, depth and number of values are limited.
// Pure; no I/O.
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
inline constexpr std::size_t kMistakesMax = 100;  // reported for one file; more are only counted

struct YamlEntry;

struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::shared_ptr<const std::string> file;  // shared by all nodes of one text
  int line = 0, column = 0;
  bool quoted = false;   // scalar in quotes: never a number, never true or false
  bool refused = false;  // a mistake about it has been reported, so readers report no other
  std::vector<std::string> variables;  // kScalar: the environment variables that its text contains
  std::string text;                    // kScalar
  std::vector<Node> items;             // kSequence
  std::vector<YamlEntry> entries;      // kMap, in order of the file, without duplicates

  Location where() const;
  // Returns nullptr if there is no such key, or if this is not a map.
  const Node* Find(absl::string_view key) const;
  Node* Find(absl::string_view key);
  // A description for messages: "a mapping", "a list", "the number `3`", "the text `x`", "nothing".
  std::string Describe() const;
};
struct YamlEntry {
  std::string key;
  int line = 0, column = 0;  // of the key
  std::shared_ptr<const std::string> file;
  Node value;
  bool usual = false;  // for writing: equals the default
  Location where() const;
};

// The position of a text inside a larger one: in `--set a.b=v` the value begins behind the `=`.
struct TextOrigin {
  std::string file;
  int first_column = 1;
};

// Returns nullopt if the text cannot be read at all; the mistakes tell why. After other mistakes (a
// duplicate key, an anchor) the tree is returned as well, so that all mistakes are reported
// together. An empty text is a kNull node.
std::optional<Node> ReadYamlTree(absl::string_view text, const TextOrigin& origin,
                                 std::vector<Mistake>* mistakes);

// Puts `value` at `path` ("spec.training.epochs"; a number selects an item of a list, a name the
// item with that `name`) and creates missing mappings. If the path leads through another kind of
// value, reports a mistake at `where` and returns false.
bool PutAt(Node* root, absl::string_view path, Node value, const Location& where,
           std::vector<Mistake>* mistakes);

// Sorts by file, `first_file` first and the others in order of appearance, then by line and column;
// equal mistakes keep their order.
void SortMistakes(absl::string_view first_file, std::vector<Mistake>* mistakes);

}  // namespace evergrad::config
