#include "common/client/describe.h"

namespace evergrad::client {

void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in,
                     std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to) {
  to->set_type(from.type);
  to->set_value(from.value);
  to->set_stddev(from.stddev);
  to->set_fan_in(fan_in);
  to->set_fan_out(fan_out);
  to->set_seed(seed);
}

}  // namespace evergrad::client
