// Reads texts from the JSON of a metadata service. The JSON may have any content. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace evergrad::preemption {

// Returns the text of a key, or "" if `object` is no JSON object with a text of this key.
std::string TextOf(const nlohmann::json& object, const char* key);

}  // namespace evergrad::preemption
