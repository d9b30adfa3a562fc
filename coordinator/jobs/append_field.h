// Appends a message to serialized bytes as one element of a repeated field. The bytes are written
// in place, without an intermediate object.
#pragma once

#include <cstdint>
#include <string>

#include <google/protobuf/message_lite.h>

namespace evergrad::coordinator {

// Appends `message` as an element of the field with number `field`, which is 1 to 15.
inline void AppendField(std::uint32_t field, const google::protobuf::MessageLite& message,
                        std::string* bytes) {
  const std::size_t size = message.ByteSizeLong();
  bytes->push_back(static_cast<char>(field << 3 | 2));  // wire type 2: a length, then the bytes
  for (std::size_t rest = size;; rest >>= 7) {
    bytes->push_back(static_cast<char>(rest < 128 ? rest : (rest & 127) | 128));
    if (rest < 128) break;
  }
  const std::size_t at = bytes->size();
  bytes->resize(at + size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(bytes->data() + at));
}

}  // namespace evergrad::coordinator
