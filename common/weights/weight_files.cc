#include "common/weights/weight_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zip.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/fs/file_system.h"

namespace evergrad::weights {
namespace {

constexpr std::size_t kNpyAlignment = 64;
constexpr std::size_t kSafetensorsAlignment = 8;

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.
std::string NpyHeader(const tensor::Shape& shape) {
  std::string dims;
  for (const std::uint64_t d : shape.dims()) absl::StrAppend(&dims, d, ", ");
  if (shape.rank() > 1) dims.resize(dims.size() - 2);
  if (shape.rank() == 1) dims.resize(dims.size() - 1);
  std::string dict = absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", dims, "), }");
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

absl::Status ZipError(zip_error_t* error, const std::string& path) {
  if (zip_error_system_type(error) == ZIP_ET_SYS && zip_error_code_system(error) != 0)
    return fs::FileError(zip_error_code_system(error), "cannot write archive", path);
  return absl::InternalError(absl::StrCat("cannot write archive: path=", path, " error=", zip_error_strerror(error)));
}

absl::Status PutNpz(const std::string& path, const std::vector<NamedTensor>& tensors) {
  int code = 0;
  zip_t* raw = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  if (raw == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const absl::Status status = ZipError(&error, path);
    zip_error_fini(&error);
    return status;
  }
  std::unique_ptr<zip_t, decltype(&zip_discard)> archive(raw, &zip_discard);
  const auto failed = [&] { return ZipError(zip_get_error(archive.get()), path); };
  std::vector<std::string> headers;  // libzip reads them, and the values, in zip_close
  headers.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    std::string& header = headers.emplace_back(NpyHeader(tensor.shape));
    // libzip only reads them, whatever the type says.
    const zip_buffer_fragment_t parts[] = {
        {reinterpret_cast<zip_uint8_t*>(header.data()), header.size()},
        {reinterpret_cast<zip_uint8_t*>(const_cast<float*>(tensor.values.data())), tensor.values.size_bytes()}};
    zip_source_t* source = zip_source_buffer_fragment(archive.get(), parts, tensor.values.empty() ? 1 : 2, 0);
    if (source == nullptr) return failed();
    const zip_int64_t index = zip_file_add(archive.get(), absl::StrCat(tensor.name, ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return failed();
    }
    const auto at = static_cast<zip_uint64_t>(index);
    if (zip_set_file_compression(archive.get(), at, ZIP_CM_STORE, 0) != 0) return failed();
    // 1980-01-01, the earliest that the format knows: the same weights give the same bytes.
    if (zip_file_set_dostime(archive.get(), at, 0, 0x21, 0) != 0) return failed();
  }
  if (zip_close(archive.get()) != 0) return failed();
  (void)archive.release();
  return absl::OkStatus();
}

absl::Status PutSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"evergrad\"}";
  std::uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    std::string dims;
    for (const std::uint64_t d : tensor.shape.dims()) absl::StrAppend(&dims, dims.empty() ? "" : ",", d);
    absl::StrAppend(&header, ",", JsonString(tensor.name), ":{\"dtype\":\"F32\",\"shape\":[", dims, "],\"data_offsets\":[", offset, ",",
                    offset + tensor.values.size_bytes(), "]}");
    offset += tensor.values.size_bytes();
  }
  header.push_back('}');
  header.append((kSafetensorsAlignment - header.size() % kSafetensorsAlignment) % kSafetensorsAlignment, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);

  std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "wbe"), &std::fclose);
  if (file == nullptr) return fs::FileError(errno, "cannot create file", path);
  const auto write = [&](const void* data, std::size_t bytes) { return bytes == 0 || std::fwrite(data, 1, bytes, file.get()) == bytes; };
  bool ok = write(length.data(), length.size()) && write(header.data(), header.size());
  for (const NamedTensor& tensor : tensors) ok = ok && write(tensor.values.data(), tensor.values.size_bytes());
  if (!ok || std::fflush(file.get()) != 0) return fs::FileError(errno, "cannot write file", path);
  return absl::OkStatus();
}

absl::Status Sync(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fs::FileError(errno, "cannot open what was written", path);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return error == 0 ? absl::OkStatus() : fs::FileError(error, "cannot sync", path);
}

// `put` writes the file that it is given.
absl::Status Replace(const std::string& path, const std::vector<NamedTensor>& tensors,
                     absl::Status (*put)(const std::string&, const std::vector<NamedTensor>&)) {
  if (tensors.empty()) return absl::InvalidArgumentError(absl::StrCat("no variables to write: path=", path));
  const std::string beside = absl::StrCat(path, ".", ::getpid(), ".tmp");
  // Opened first by ourselves: the error says why, which libzip's does not.
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return fs::FileError(errno, "cannot create file", path);
  ::close(fd);
  absl::Status status = put(beside, tensors);
  if (status.ok()) status = Sync(beside, 0);
  if (status.ok() && std::rename(beside.c_str(), path.c_str()) != 0) status = fs::FileError(errno, "cannot rename", path);
  if (!status.ok()) {
    ::unlink(beside.c_str());
    return status;
  }
  return Sync(fs::FolderOf(path), O_DIRECTORY);
}

}  // namespace

absl::Status WriteNpz(const std::string& path, const std::vector<NamedTensor>& tensors) { return Replace(path, tensors, &PutNpz); }
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) { return Replace(path, tensors, &PutSafetensors); }

}  // namespace evergrad::weights
