#include "common/weights/weight_format.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace evergrad::weights {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are written in the byte order of memory");

constexpr std::size_t kNpyAlignment = 64;
constexpr std::size_t kSafetensorsAlignment = 8;

std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class T>
void Number(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// --- zip, PKWARE's APPNOTE 6.3. Entries are stored without compression, and in zip64 if a size or
// an offset needs it.

constexpr std::uint32_t kFull32 = 0xffffffff;
constexpr std::uint16_t kFull16 = 0xffff;
constexpr std::uint16_t kPlainVersion = 20, kZip64Version = 45;
constexpr std::uint16_t kUtf8 = 1 << 11;
// 1980-01-01, the earliest date of the format. With a fixed date, equal weights give equal bytes.
constexpr std::uint16_t kTime = 0, kDate = 0x21;
constexpr std::uint16_t kUnix = 3 << 8;

std::uint32_t Narrow(std::uint64_t value) {
  return value >= kFull32 ? kFull32 : static_cast<std::uint32_t>(value);
}

// Appends the common fields of a local header and of a directory entry, after the signature and the
// versions.
void EntryFields(std::uint32_t crc, std::uint64_t bytes, std::size_t name, std::size_t extra,
                 std::string* out) {
  Number(kUtf8, out);
  Number(std::uint16_t{0}, out);  // compression method: stored
  Number(kTime, out);
  Number(kDate, out);
  Number(crc, out);
  Number(Narrow(bytes), out);
  Number(Narrow(bytes), out);
  Number(static_cast<std::uint16_t>(name), out);
  Number(static_cast<std::uint16_t>(extra), out);
}

}  // namespace

// Returns the header of a .npy file, version 1.0 of
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
std::string NpyHeader(const StreamedTensor& tensor) {
  std::string dims;
  for (const std::uint64_t d : tensor.shape.dims()) absl::StrAppend(&dims, d, ", ");
  if (tensor.shape.rank() > 1) dims.resize(dims.size() - 2);
  if (tensor.shape.rank() == 1) dims.resize(dims.size() - 1);
  std::string dict = absl::StrCat("{'descr': '", tensor.element == Element::kInt64 ? "<i8" : "<f4",
                                  "', 'fortran_order': False, 'shape': (", dims, "), }");
  const std::size_t unpadded = 10 + dict.size() + 1;
  dict.append((kNpyAlignment - unpadded % kNpyAlignment) % kNpyAlignment, ' ');
  dict.push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(dict.size() & 0xff));
  header.push_back(static_cast<char>(dict.size() >> 8));
  return header + dict;
}

std::string LocalHeader(const std::string& name, std::uint32_t crc, std::uint64_t bytes) {
  std::string extra;
  if (bytes >= kFull32) {
    Number(std::uint16_t{1}, &extra);
    Number(std::uint16_t{16}, &extra);
    Number(bytes, &extra);
    Number(bytes, &extra);
  }
  std::string out;
  Number(std::uint32_t{0x04034b50}, &out);
  Number(extra.empty() ? kPlainVersion : kZip64Version, &out);
  EntryFields(crc, bytes, name.size(), extra.size(), &out);
  return out + name + extra;
}

std::string DirectoryEntry(const std::string& name, std::uint32_t crc, std::uint64_t bytes,
                           std::uint64_t offset) {
  std::string wide;
  if (bytes >= kFull32) Number(bytes, &wide), Number(bytes, &wide);
  if (offset >= kFull32) Number(offset, &wide);
  std::string extra;
  if (!wide.empty()) {
    Number(std::uint16_t{1}, &extra);
    Number(static_cast<std::uint16_t>(wide.size()), &extra);
    extra += wide;
  }
  const std::uint16_t version = extra.empty() ? kPlainVersion : kZip64Version;
  std::string out;
  Number(std::uint32_t{0x02014b50}, &out);
  Number(static_cast<std::uint16_t>(kUnix | version), &out);
  Number(version, &out);
  EntryFields(crc, bytes, name.size(), extra.size(), &out);
  Number(std::uint16_t{0}, &out);  // length of the comment
  Number(std::uint16_t{0}, &out);  // number of the disk
  Number(std::uint16_t{0}, &out);  // internal attributes
  Number(std::uint32_t{0100644u << 16}, &out);
  Number(Narrow(offset), &out);
  return out + name + extra;
}

std::string DirectoryEnd(std::uint64_t entries, std::uint64_t offset, std::uint64_t bytes) {
  std::string out;
  if (entries >= kFull16 || offset >= kFull32 || bytes >= kFull32) {
    const std::uint64_t at = offset + bytes;
    Number(std::uint32_t{0x06064b50}, &out);
    Number(std::uint64_t{44}, &out);
    Number(static_cast<std::uint16_t>(kUnix | kZip64Version), &out);
    Number(kZip64Version, &out);
    Number(std::uint32_t{0}, &out);
    Number(std::uint32_t{0}, &out);
    Number(entries, &out);
    Number(entries, &out);
    Number(bytes, &out);
    Number(offset, &out);
    Number(std::uint32_t{0x07064b50}, &out);
    Number(std::uint32_t{0}, &out);
    Number(at, &out);
    Number(std::uint32_t{1}, &out);
  }
  Number(std::uint32_t{0x06054b50}, &out);
  Number(std::uint32_t{0}, &out);  // number of this disk, and of the disk with the directory
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(entries, kFull16));
  Number(count, &out);
  Number(count, &out);
  Number(Narrow(bytes), &out);
  Number(Narrow(offset), &out);
  Number(std::uint16_t{0}, &out);
  return out;
}

std::uint32_t Crc(std::uint32_t crc, const void* bytes, std::size_t count) {
  // If `count` is 0, `bytes` may be null. With a null pointer, zlib would return the initial value
  // and lose `crc`.
  if (count == 0) return crc;
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, static_cast<const unsigned char*>(bytes), count));
}

std::string SafetensorsHead(const std::vector<StreamedTensor>& tensors,
                            std::vector<std::uint64_t>* begins) {
  // No gaps are allowed between tensors. The wider element types come first, which aligns all
  // tensors.
  std::string header = "{\"__metadata__\":{\"format\":\"evergrad\"}";
  begins->assign(tensors.size(), 0);
  std::uint64_t end = 0;
  for (const Element element : {Element::kInt64, Element::kFloat32}) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const StreamedTensor& tensor = tensors[i];
      if (tensor.element != element) continue;
      std::string dims;
      for (const std::uint64_t d : tensor.shape.dims())
        absl::StrAppend(&dims, dims.empty() ? "" : ",", d);
      absl::StrAppend(&header, ",", JsonString(tensor.name), ":{\"dtype\":\"",
                      element == Element::kInt64 ? "I64" : "F32", "\",\"shape\":[", dims,
                      "],\"data_offsets\":[", end, ",", end + tensor.bytes(), "]}");
      (*begins)[i] = end;
      end += tensor.bytes();
    }
  }
  header.push_back('}');
  header.append(
      (kSafetensorsAlignment - header.size() % kSafetensorsAlignment) % kSafetensorsAlignment, ' ');
  std::string head;
  Number(std::uint64_t{header.size()}, &head);
  head += header;
  for (std::uint64_t& begin : *begins) begin += head.size();
  return head;
}

}  // namespace evergrad::weights
