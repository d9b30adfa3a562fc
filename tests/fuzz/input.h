// Divides the bytes of one execution into numbers and pieces (Input), and makes such bytes
// (Output).
//
// Input never fails: after the end of the bytes, numbers are 0 and pieces are empty. Every byte
// string is therefore a valid input. The bytes must outlive the Input and its pieces. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  bool done() const { return left_.empty(); }
  // Reads a little-endian number.
  template <std::unsigned_integral T = std::uint8_t>
  T Number() {
    T value = 0;
    for (std::size_t i = 0; i < std::min(sizeof(T), left_.size()); ++i)
      value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(left_[i])) << (8 * i));
    left_.remove_prefix(std::min(sizeof(T), left_.size()));
    return value;
  }
  // Returns a number from 0 to `below` - 1.
  std::size_t Choice(std::size_t below) { return Number() % below; }
  // Reads a length of two bytes and then that many bytes. If fewer bytes are left, it reads those.
  absl::string_view Piece() {
    const std::size_t bytes = Number<std::uint16_t>();
    const absl::string_view piece = left_.substr(0, bytes);
    left_.remove_prefix(piece.size());
    return piece;
  }
  absl::string_view Rest() {
    const absl::string_view rest = left_;
    left_ = {};
    return rest;
  }

 private:
  absl::string_view left_;
};

// Writes bytes from which Input reads the same numbers and pieces.
class Output {
 public:
  template <std::unsigned_integral T>
  Output& Number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return *this;
  }
  Output& Choice(int value) { return Number(static_cast<std::uint8_t>(value)); }
  Output& Piece(absl::string_view bytes) {
    Number(static_cast<std::uint16_t>(bytes.size()));
    return Rest(bytes);
  }
  Output& Rest(absl::string_view bytes) {
    bytes_.append(bytes.data(), bytes.size());
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

inline std::span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace evergrad::fuzz
