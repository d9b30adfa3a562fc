// coordinator/closures/close_tracker.cc, compiled with rules that a mutant can break.
#include "tests/mutants/breakable_closure_rules.h"

#define ClosureRules BreakableClosureRules
#include "coordinator/closures/close_tracker.cc"
