// YAML as a tree with positions, before anything is given a type.
//
// yaml-cpp is used through its event handler, because its document model keeps the first of two
// equal keys, follows aliases, and reads `010` as 8 and `no` as false. Here duplicate keys,
// anchors, aliases, tags, several documents and NUL bytes are mistakes; size, depth and number of
// values are capped. Pure; no I/O.
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
inline constexpr std::size_t kMistakesMax = 100;  // reported of one file; more are counted

struct Entry;

struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::shared_ptr<const std::string> file;  // shared by all nodes of one text
  int line = 0, column = 0;
  bool quoted = false;   // scalar in quotes: never a number, never true or false
  bool refused = false;  // a mistake about it is reported already: readers stay silent
  std::vector<std::string>
      variables;               // kScalar: those of the environment that were put into its text
  std::string text;            // kScalar
  std::vector<Node> items;     // kSequence
  std::vector<Entry> entries;  // kMap, in order of the file, without duplicates

  Location where() const;
  // nullptr when there is none, or when this is not a map.
  const Node* Find(absl::string_view key) const;
  Node* Find(absl::string_view key);
  // "a mapping", "a list", "the number `3`", "the text `x`", "nothing"; for messages.
  std::string Describe() const;
};
struct Entry {
  std::string key;
  int line = 0, column = 0;  // of the key
  std::shared_ptr<const std::string> file;
  Node value;
  bool usual = false;  // written: as by default
  Location where() const;
};

// Where a text begins inside a larger one: `--set a.b=v` has its value behind the `=`.
struct TextOrigin {
  std::string file;
  int first_column = 1;
};

// nullopt when the text cannot be read at all (the mistakes say why). Mistakes that leave a tree
// behind (a duplicate key, an anchor) are added and the tree is returned, so that all are reported
// together. An empty text is a kNull node.
std::optional<Node> ReadYamlTree(absl::string_view text, const TextOrigin& origin,
                                 std::vector<Mistake>* mistakes);

// Puts `value` at `path` ("spec.training.epochs"; a number selects an item of a list, a name the
// item whose `name` it is), making the mappings on the way. False with a mistake at `where` when
// the way is blocked.
bool PutAt(Node* root, absl::string_view path, Node value, const Location& where,
           std::vector<Mistake>* mistakes);

// `first_file` first, the others in order of appearance, each by line and column; equal ones keep
// their order.
void SortMistakes(absl::string_view first_file, std::vector<Mistake>* mistakes);

}  // namespace evergrad::config
