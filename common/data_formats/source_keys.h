// Keys that the sources of several formats have. Private to this room.
#pragma once

#include <string>

#include "common/data_formats/data_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

// A key whose value is the path of one file: a local path or a file:// URI, without patterns.
Key<SourceSpec> PathKey(const std::string& name, std::string SourceSpec::*member, std::string type,
                        std::string help, std::string example);
// The key `missing`: the texts that mark a missing value.
Key<SourceSpec> MissingKey();
// The key `split`: training and evaluation data both come from one file.
Key<SourceSpec> SplitKey();
// Keys that no source has yet.
const NotBuilt& SourceKeysNotBuilt();

}  // namespace evergrad::config
