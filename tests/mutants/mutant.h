// The mutants: one error each, against one rule of LEDGER.md. The simulation must catch every one.
//
// At most one mutant is active in a thread: the one of the innermost live Activated, and without
// any the one that the environment variable EVERGRAD_MUTANT names (evergrad-ps-server-faulty). A
// process ends with code 2 if the variable names no mutant.
#pragma once

#include <string>
#include <vector>

namespace evergrad::mutants {

enum class Mutant {
  kNone,
#define EG_MUTANT(id, name, line, error) id,
#include "tests/mutants/mutants.inc"
#undef EG_MUTANT
};

bool IsActive(Mutant mutant);

// Makes `mutant` the active one of this thread, and the former one again when it is destroyed.
class Activated {
 public:
  explicit Activated(Mutant mutant);
  ~Activated();
  Activated(const Activated&) = delete;
  Activated& operator=(const Activated&) = delete;

 private:
  const Mutant former_;
};

struct MutantInfo {
  Mutant mutant = Mutant::kNone;
  const char *name = "", *line = "",
             *error = "";  // "no_todo", "21", "a rollback leaves todo[p] empty"
};
const std::vector<MutantInfo>& AllMutants();            // without kNone
const MutantInfo* FindMutant(const std::string& name);  // nullptr: no such mutant

}  // namespace evergrad::mutants
