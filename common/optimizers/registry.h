// The optimizers that exist, one descriptor each. The tables of the job file, the reference, the
// conversions of the plan, the servers, psctl and the tests read this list, so that an optimizer is
// described in one place. The update rules themselves are in ps_server/optimizer.
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

// The numbers that an update rule can compute with. A server refuses all others.
struct Accepted {
  config::RealBounds bounds;
  const char* want = "";  // the bounds in words, for the refusal
};

// A hyper-parameter that a type reads.
struct Parameter {
  Member member;
  config::RealBounds bounds;  // of a job file; within `accepted`
  Accepted accepted;          // unused for flags
  const char* help = "";      // one line of the reference
};

// Numbers that the server keeps beside the values and changes with every update.
struct Slot {
  // The member that holds the initial value of each number; nullptr: they begin with 0.
  double Settings::*initial = nullptr;
  // The slot exists only where this member is not 0; nullptr: it always exists.
  double Settings::*only_with = nullptr;
  // One number for a row of a table instead of one for each of its values.
  bool one_per_row = false;
};

// A rule between the values of a job file.
struct Rule {
  absl::string_view key;  // the mistake is reported where this key stands
  bool (*broken)(const Settings&) = nullptr;
  const char* text = "";
};

enum class Use { kAnywhere, kTablesOnly, kDenseOnly };

struct Descriptor {
  Settings defaults;                  // the type's name, and the default of each of its parameters
  std::vector<Parameter> parameters;  // in the order of the reference
  std::vector<Slot> slots;
  std::vector<Rule> rules;
  // The update depends on how many gradients were applied before. Each row of a table then has a
  // counter of its own (kCounterBytesPerRow).
  bool counts_gradients = false;
  Use use = Use::kAnywhere;
  // Not a type that `optimizer` or `optimizers` of a job file may name.
  bool internal = false;
  // An update is not a gradient but a value towards which the variable moves (UpdateKind
  // MOVING_AVERAGE).
  bool is_moving_average = false;
};

// Those of the job file first, in the order of the reference.
const std::vector<Descriptor>& All();
// nullptr: no such type.
const Descriptor* Find(absl::string_view type);
bool IsForTablesOnly(absl::string_view type);

// InvalidArgument names an unknown type, or the first number that a server cannot compute with.
absl::Status Check(const Settings& settings);

// The slots that these settings have; none of an unknown type.
std::vector<Slot> SlotsOf(const Settings& settings);
// How many slots have a number for each value.
std::uint32_t SlotsPerValue(const Settings& settings);
// The floats of a table's row: its `dimension` values and behind them the numbers of its slots.
std::uint64_t RowFloats(const Settings& settings, std::uint64_t dimension);
inline constexpr std::uint64_t kCounterBytesPerRow = 4;
// kCounterBytesPerRow for a type that counts gradients, else 0.
std::uint64_t CounterBytesPerRow(absl::string_view type);

// Types, and keys of any type, that users may expect and that are refused as not built yet.
const std::vector<std::string>& TypesNotBuilt();
const std::vector<std::string>& KeysNotBuilt();

}  // namespace evergrad::optimizers
