// The optimizers, one descriptor each. The tables of the job file, the reference, the conversions
// of the plan, the servers, psctl and the tests read this list, so an optimizer is described in one
// place. The update rules are in ps_server/optimizer.
//
// Everything here is constant and may be read by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/optimizers/settings.h"
#include "common/schema/schema.h"

namespace evergrad::optimizers {

// The numbers with which an update rule can compute. A server refuses all other numbers.
struct Accepted {
  config::RealBounds bounds;
  const char* want = "";  // the bounds in words, for the error message
};

// One hyper-parameter of an optimizer type.
struct Parameter {
  Member member;
  config::RealBounds bounds;  // bounds in a job file; within `accepted`
  Accepted accepted;          // unused for flags
  const char* help = "";      // one line of the reference
};

// Optimizer state that the server keeps in addition to the values and changes with every update.
struct State {
  // The member with the initial value of each number; nullptr for 0.
  double Settings::*initial = nullptr;
  // The state exists only if this member is not 0; with nullptr it always exists.
  double Settings::*only_with = nullptr;
  // Whether a table has one number per row instead of one per value.
  bool one_per_row = false;
};

// A rule between the values of a job file.
struct Rule {
  absl::string_view key;  // the key whose place the error message names
  bool (*broken)(const Settings&) = nullptr;
  const char* text = "";
};

enum class Use { kAnywhere, kTablesOnly, kDenseOnly };

struct Descriptor {
  Settings defaults;                  // the type's name and the default of each of its parameters
  std::vector<Parameter> parameters;  // in the order of the reference
  std::vector<State> states;
  std::vector<Rule> rules;
  // Whether the update depends on the number of gradients applied before. If true, each row of a
  // table has a counter (kCounterBytesPerRow).
  bool counts_gradients = false;
  Use use = Use::kAnywhere;
  // Whether the type is refused in `optimizer` and `optimizers` of a job file.
  bool internal = false;
  // Whether the update is a value towards which the variable moves, not a gradient (UpdateKind
  // MOVING_AVERAGE).
  bool is_moving_average = false;
};

// Returns all types in the order of the reference; the types of the job file come first.
const std::vector<Descriptor>& All();
// Returns nullptr for an unknown type.
const Descriptor* Find(absl::string_view type);
bool IsForTablesOnly(absl::string_view type);

// Returns InvalidArgument if the type is unknown, or if a server cannot compute with a number; the
// error names the first such number.
absl::Status Check(const Settings& settings);

// Returns the optimizer state of these settings, which is empty for an unknown type.
std::vector<State> StatesOf(const Settings& settings);
// Returns the number of states that have one number per value.
std::uint32_t StatesPerValue(const Settings& settings);
// Returns the number of floats in a table's row: its `dimension` values, followed by its optimizer
// state.
std::uint64_t RowFloats(const Settings& settings, std::uint64_t dimension);
// The largest number of floats in a row (16 KiB), and of floats in its gradient.
inline constexpr std::uint64_t kRowFloatsMax = 4096;
inline constexpr std::uint64_t kCounterBytesPerRow = 4;
// Memory per row for its entry in the index. A table's bytes_max counts this memory in addition to
// the row's floats and gradient counter. An id that waits for admission uses only the entry. An
// entry has 16 bytes with a stamp (the time of the last push to the row, for ttl_steps and
// eviction), and 12.8 bytes without. The lowest load of the index is two thirds, so an entry with a
// stamp takes 24 bytes.
inline constexpr std::uint64_t kIndexBytesPerRow = 24;
// Returns kCounterBytesPerRow for a type that counts gradients, and 0 for other types.
std::uint64_t CounterBytesPerRow(absl::string_view type);

// Return the types, and the keys of any type, that are refused as not built yet (NotBuilt in
// common/schema/schema.h).
const std::vector<std::string>& TypesNotBuilt();
const std::vector<std::string>& KeysNotBuilt();

}  // namespace evergrad::optimizers
