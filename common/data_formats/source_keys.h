// Keys that the sources of several formats have. Private to this room.
#pragma once

#include <string>

#include "common/data_formats/data_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

// Returns a key for the path of one file: a local path or a file:// URI, without patterns.
Key<SourceSpec> PathKey(const std::string& name, std::string SourceSpec::*member, std::string type,
                        std::string help, std::string example);
// Returns the key `missing`: the texts that mark a missing value.
Key<SourceSpec> MissingKey();
// Returns the key `split`, with which one file gives both training and evaluation data.
Key<SourceSpec> SplitKey();
// Returns the keys of sources that are refused as not built yet.
const NotBuilt& SourceKeysNotBuilt();

}  // namespace evergrad::config
