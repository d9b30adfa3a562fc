#include "common/weights/weight_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/fs/file_system.h"

namespace evergrad::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::size_t kNpyAlignment = 64;
constexpr std::size_t kSafetensorsAlignment = 8;

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.
std::string NpyHeader(const StreamedTensor& tensor) {
  std::string dims;
  for (const std::uint64_t d : tensor.shape.dims()) absl::StrAppend(&dims, d, ", ");
  if (tensor.shape.rank() > 1) dims.resize(dims.size() - 2);
  if (tensor.shape.rank() == 1) dims.resize(dims.size() - 1);
  std::string dict =
      absl::StrCat("{'descr': '", tensor.element == Element::kInt64 ? "<i8" : "<f4", "', 'fortran_order': False, 'shape': (", dims, "), }");
  const std::size_t unpadded = 10 + dict.size() + 1;
  dict.append((kNpyAlignment - unpadded % kNpyAlignment) % kNpyAlignment, ' ');
  dict.push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(dict.size() & 0xff));
  header.push_back(static_cast<char>(dict.size() >> 8));
  return header + dict;
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

template <class T>
void Number(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// --- zip, PKWARE's APPNOTE 6.3: entries stored, in zip64 where a size or an offset needs it.

constexpr std::uint32_t kFull32 = 0xffffffff;
constexpr std::uint16_t kFull16 = 0xffff;
constexpr std::uint16_t kPlainVersion = 20, kZip64Version = 45;
constexpr std::uint16_t kUtf8 = 1 << 11;
constexpr std::uint16_t kTime = 0, kDate = 0x21;  // 1980-01-01, the earliest that the format knows: the same weights give the same bytes
constexpr std::uint16_t kUnix = 3 << 8;

std::uint32_t Narrow(std::uint64_t value) { return value >= kFull32 ? kFull32 : static_cast<std::uint32_t>(value); }

// What a local header and an entry of the directory have in common, behind the signature and the versions.
void EntryFields(std::uint32_t crc, std::uint64_t bytes, std::size_t name, std::size_t extra, std::string* out) {
  Number(kUtf8, out);
  Number(std::uint16_t{0}, out);  // stored
  Number(kTime, out);
  Number(kDate, out);
  Number(crc, out);
  Number(Narrow(bytes), out);
  Number(Narrow(bytes), out);
  Number(static_cast<std::uint16_t>(name), out);
  Number(static_cast<std::uint16_t>(extra), out);
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

std::string DirectoryEntry(const std::string& name, std::uint32_t crc, std::uint64_t bytes, std::uint64_t offset) {
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
  Number(std::uint16_t{0}, &out);  // comment
  Number(std::uint16_t{0}, &out);  // disk
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
  Number(std::uint32_t{0}, &out);  // disks
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(entries, kFull16));
  Number(count, &out);
  Number(count, &out);
  Number(Narrow(bytes), &out);
  Number(Narrow(offset), &out);
  Number(std::uint16_t{0}, &out);
  return out;
}

std::uint32_t Crc(std::uint32_t crc, const void* bytes, std::size_t count) {
  if (count == 0) return crc;  // without bytes there may be no pointer, which is zlib's word for beginning anew
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const unsigned char*>(bytes), count));
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fs::FileError(errno, "cannot open what was written", path);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return error == 0 ? absl::OkStatus() : fs::FileError(error, "cannot sync", path);
}

}  // namespace

WeightStream::WeightStream(std::string path, Format format, std::vector<StreamedTensor> tensors)
    : path_(std::move(path)),
      beside_(absl::StrCat(path_, ".", ::getpid(), ".tmp")),
      format_(format),
      tensors_(std::move(tensors)),
      places_(tensors_.size()) {}

absl::StatusOr<std::unique_ptr<WeightStream>> WeightStream::Create(const std::string& path, Format format, std::vector<StreamedTensor> tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError(absl::StrCat("no variables to write: path=", path));
  std::set<absl::string_view> names;
  for (const StreamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) return absl::InvalidArgumentError(absl::StrCat("a name twice: path=", path, " name=", tensor.name));
  }
  std::unique_ptr<WeightStream> stream(new WeightStream(path, format, std::move(tensors)));
  EG_RETURN_IF_ERROR(stream->Begin());
  return stream;
}

WeightStream::~WeightStream() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(beside_.c_str());
}

std::string WeightStream::EntryName(std::size_t i) const { return absl::StrCat(tensors_[i].name, ".npy"); }

absl::Status WeightStream::Begin() {
  fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) return fs::FileError(errno, "cannot create file", path_);
  if (format_ == Format::kNpz) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      Place& place = places_[i];
      place.npy = NpyHeader(tensors_[i]);
      place.crc = Crc(0, place.npy.data(), place.npy.size());
      place.head = end_;
      place.begin = end_ + LocalHeader(EntryName(i), 0, place.npy.size() + tensors_[i].bytes()).size() + place.npy.size();
      end_ = place.begin + tensors_[i].bytes();
    }
    return absl::OkStatus();  // the heads have the checksums: they come last
  }
  // No gaps are allowed between tensors: the wider numbers come first, so that all are aligned.
  std::string header = "{\"__metadata__\":{\"format\":\"evergrad\"}";
  for (const Element element : {Element::kInt64, Element::kFloat32}) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const StreamedTensor& tensor = tensors_[i];
      if (tensor.element != element) continue;
      std::string dims;
      for (const std::uint64_t d : tensor.shape.dims()) absl::StrAppend(&dims, dims.empty() ? "" : ",", d);
      absl::StrAppend(&header, ",", JsonString(tensor.name), ":{\"dtype\":\"", element == Element::kInt64 ? "I64" : "F32", "\",\"shape\":[", dims,
                      "],\"data_offsets\":[", end_, ",", end_ + tensor.bytes(), "]}");
      places_[i].begin = end_;
      end_ += tensor.bytes();
    }
  }
  header.push_back('}');
  header.append((kSafetensorsAlignment - header.size() % kSafetensorsAlignment) % kSafetensorsAlignment, ' ');
  std::string head;
  Number(std::uint64_t{header.size()}, &head);
  head += header;
  for (Place& place : places_) place.begin += head.size();
  end_ += head.size();
  return Put(0, head);
}

absl::Status WeightStream::Put(std::uint64_t at, const std::string& bytes) { return Put(at, std::as_bytes(std::span(bytes))); }

absl::Status WeightStream::Put(std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fs::FileError(n < 0 ? errno : EIO, "cannot write file", path_);
    at += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WeightStream::Append(std::size_t tensor, std::span<const std::byte> bytes) {
  Place& place = places_.at(tensor);
  EG_CHECK(bytes.size() <= tensors_[tensor].bytes() - place.filled);
  if (format_ == Format::kNpz) place.crc = Crc(place.crc, bytes.data(), bytes.size());
  const std::uint64_t at = place.begin + place.filled;
  place.filled += bytes.size();
  return Put(at, bytes);
}

absl::Status WeightStream::FinishNpz() {
  std::string directory;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Place& place = places_[i];
    const std::uint64_t bytes = place.npy.size() + tensors_[i].bytes();
    EG_RETURN_IF_ERROR(Put(place.head, LocalHeader(EntryName(i), place.crc, bytes) + place.npy));
    directory += DirectoryEntry(EntryName(i), place.crc, bytes, place.head);
  }
  return Put(end_, directory + DirectoryEnd(tensors_.size(), end_, directory.size()));
}

absl::Status WeightStream::Finish() {
  EG_CHECK(fd_ >= 0);
  for (std::size_t i = 0; i < tensors_.size(); ++i) EG_CHECK(places_[i].filled == tensors_[i].bytes());
  if (format_ == Format::kNpz) EG_RETURN_IF_ERROR(FinishNpz());
  if (::fsync(fd_) != 0) return fs::FileError(errno, "cannot sync", path_);
  if (std::rename(beside_.c_str(), path_.c_str()) != 0) return fs::FileError(errno, "cannot rename", path_);
  ::close(std::exchange(fd_, -1));
  return SyncFolder(fs::FolderOf(path_));
}

}  // namespace evergrad::weights
