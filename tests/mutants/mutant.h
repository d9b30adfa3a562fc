// The mutants. Each is one error against one rule of LEDGER.md. The simulation must catch every
// mutant.
//
// At most one mutant is active in a thread: the one of the innermost living Activated. Without one,
// it is the mutant that the environment variable EVERGRAD_MUTANT names (evergrad-ps-server-faulty).
// A process ends with code 2 if the variable names no mutant.
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

// Makes `mutant` the active one of this thread. The destructor restores the former one.
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
  // "no_todo", "21", "a rollback leaves todo[p] empty".
  const char *name = "", *line = "", *error = "";
};
const std::vector<MutantInfo>& AllMutants();            // without kNone
const MutantInfo* FindMutant(const std::string& name);  // nullptr if there is no such mutant

}  // namespace evergrad::mutants
