#include "worker/sdk/sdk.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"

namespace evergrad::sdk {

float ClosureContext::Uniform(std::uint64_t index) const { return random::Uniform(key_, index); }
float ClosureContext::Normal(std::uint64_t index) const { return random::Normal(key_, index); }
std::uint64_t ClosureContext::Bits(std::uint64_t index) const {
  return random::Bits64(key_, index);
}
bool ClosureContext::cancelled() const {
  return static_cast<const std::atomic<bool>*>(cancelled_.get())->load(std::memory_order_relaxed);
}

void Registry::Register(const std::string& name, Step step) {
  Function function;
  function.step = [step = std::move(step)](StepContext& context, const std::any&) {
    return step(context);
  };
  Add(name, std::move(function));
}

void Registry::Add(const std::string& name, Function function) {
  const bool good =
      !name.empty() && name.size() <= client::kFunctionNameBytesMax &&
      std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!status_.ok()) return;
  if (!good) {
    status_ = UserError(absl::InvalidArgumentError(
        absl::StrCat("invalid function name: want=1 to ", client::kFunctionNameBytesMax,
                     " visible characters got=", client::CleanText(name, 200))));
  } else if (functions_.size() >= client::kFunctionsMax) {
    status_ = UserError(absl::InvalidArgumentError(
        absl::StrCat("too many functions in one worker: max=", client::kFunctionsMax)));
  } else if (!functions_.emplace(name, std::move(function)).second) {
    status_ =
        UserError(absl::InvalidArgumentError(absl::StrCat("duplicate function: name=", name)));
  }
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, function] : functions_) names.push_back(name);
  return names;
}

}  // namespace evergrad::sdk
