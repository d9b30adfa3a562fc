#include "common/preemption/clouds/json_text.h"

#include <nlohmann/json.hpp>

namespace evergrad::preemption {

std::string TextOf(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace evergrad::preemption
