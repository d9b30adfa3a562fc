// Lists of names from a table. An entry of the table has a `name` and a flag `built`.
//
// An entry that is not built has a name known from other frameworks. The reader refuses such a name
// with the words "not built yet". Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad::config {

// Returns the names of the entries that are built, or of the entries that are not built if `built`
// is false, in the table's order.
template <class T>
std::vector<std::string> NamesOf(const std::vector<T>& table, bool built) {
  std::vector<std::string> names;
  for (const T& entry : table)
    if (entry.built == built) names.push_back(entry.name);
  return names;
}

// Returns the entry of this name that is built, or nullptr. The result points into `table`.
template <class T>
const T* FindBuilt(const std::vector<T>& table, absl::string_view name) {
  for (const T& entry : table)
    if (entry.built && entry.name == name) return &entry;
  return nullptr;
}

}  // namespace evergrad::config
