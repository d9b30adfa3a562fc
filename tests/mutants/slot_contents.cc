// ps_server/shard/slot_contents.cc, compiled with rules that a mutant can break.
#include "tests/mutants/breakable_shard_rules.h"

#define SlotRules BreakableSlotRules
#include "ps_server/shard/slot_contents.cc"
