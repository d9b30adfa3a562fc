// ps_server/shard/shard.cc, compiled with rules that a mutant can break.
#include "tests/mutants/breakable_shard_rules.h"

#define ShardRules BreakableShardRules
#include "ps_server/shard/shard.cc"
