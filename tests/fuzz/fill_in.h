// Replaces a placeholder in a message by a value that is random in each execution, so that an input
// cannot contain it.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <vector>

namespace evergrad::fuzz {

// Sets each field `job_uid` that has the value `from` to `to`, at any depth of the message.
inline void ReplaceJobUid(google::protobuf::Message& message, std::uint64_t from,
                          std::uint64_t to) {
  using google::protobuf::FieldDescriptor;
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        ReplaceJobUid(*reflection.MutableMessage(&message, field), from, to);
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        ReplaceJobUid(*reflection.MutableRepeatedMessage(&message, field, i), from, to);
    } else if (field->name() == "job_uid" && !field->is_repeated() &&
               field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 &&
               reflection.GetUInt64(message, field) == from) {
      reflection.SetUInt64(&message, field, to);
    }
  }
}

}  // namespace evergrad::fuzz
