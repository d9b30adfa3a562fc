#include "common/client/describe.h"

#include <google/protobuf/message.h>

#include "common/base/check.h"

namespace evergrad::client {
namespace {

const google::protobuf::FieldDescriptor* FieldOf(const optimizers::Member& member) {
  const google::protobuf::FieldDescriptor* const field =
      v1::Optimizer::descriptor()->FindFieldByName(std::string(member.name));
  EG_CHECK_MSG(field != nullptr, "v1::Optimizer has no field for a member of the settings");
  return field;
}

}  // namespace

void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in,
                     std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to) {
  to->set_type(from.type);
  to->set_value(from.value);
  to->set_stddev(from.stddev);
  to->set_fan_in(fan_in);
  to->set_fan_out(fan_out);
  to->set_seed(seed);
}

void FillOptimizer(const optimizers::Settings& from, v1::Optimizer* to) {
  to->set_type(from.type);
  const google::protobuf::Reflection& fields = *to->GetReflection();
  for (const optimizers::Member& member : optimizers::Members()) {
    if (member.flag != nullptr)
      fields.SetBool(to, FieldOf(member), from.*member.flag);
    else
      fields.SetDouble(to, FieldOf(member), from.*member.number);
  }
}

optimizers::Settings OptimizerOf(const v1::Optimizer& from) {
  optimizers::Settings to;
  to.type = from.type();
  const google::protobuf::Reflection& fields = *from.GetReflection();
  for (const optimizers::Member& member : optimizers::Members()) {
    if (member.flag != nullptr)
      to.*member.flag = fields.GetBool(from, FieldOf(member));
    else
      to.*member.number = fields.GetDouble(from, FieldOf(member));
  }
  return to;
}

}  // namespace evergrad::client
