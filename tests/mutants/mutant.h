// The mutants. Each mutant breaks one rule of LEDGER.md in one way, and the simulation must catch
// every mutant.
//
// At most one mutant is active in a thread. It is the mutant of the innermost Activated object that
// exists. Without an Activated, it is the mutant that the environment variable EVERGRAD_MUTANT
// names (for evergrad-ps-server-faulty). If the variable has a name that no mutant has, the process
// ends with code 2.
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

// Makes `mutant` the active mutant of this thread. The destructor restores the mutant that was
// active before.
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
  // For example "no_todo", "21" (the line of LEDGER.md), "a rollback leaves todo[p] empty".
  const char *name = "", *line = "", *error = "";
};
const std::vector<MutantInfo>& AllMutants();            // without kNone
const MutantInfo* FindMutant(const std::string& name);  // nullptr if there is no such mutant

}  // namespace evergrad::mutants
