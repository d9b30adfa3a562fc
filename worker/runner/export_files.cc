#include "worker/runner/export_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zip.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/fs/file.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kNpyAlignment = 64;
constexpr std::size_t kSafetensorsAlignment = 8;

absl::Status SystemError(absl::string_view words, const std::string& path) {
  return absl::InternalError(absl::StrCat(words, ": file=", path, " error=", std::strerror(errno)));
}

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

absl::Status SyncAndRename(const std::string& from, const std::string& to) {
  const int fd = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open what was written", from);
  const bool synced = ::fsync(fd) == 0;
  ::close(fd);
  if (!synced) return SystemError("cannot sync", from);
  if (std::rename(from.c_str(), to.c_str()) != 0) return SystemError("cannot rename", to);
  return absl::OkStatus();
}

absl::Status WriteNpz(const std::string& path, const std::vector<NamedTensor>& tensors) {
  int error = 0;
  zip_t* raw = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  if (raw == nullptr) {
    zip_error_t text;
    zip_error_init_with_code(&text, error);
    const absl::Status status = absl::InternalError(absl::StrCat("cannot create archive: file=", path, " error=", zip_error_strerror(&text)));
    zip_error_fini(&text);
    return status;
  }
  std::unique_ptr<zip_t, decltype(&zip_discard)> archive(raw, &zip_discard);
  const auto failed = [&] { return absl::InternalError(absl::StrCat("cannot write archive: file=", path, " error=", zip_strerror(archive.get()))); };
  std::vector<std::string> entries;  // libzip reads them in zip_close
  entries.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    std::string& entry = entries.emplace_back(NpyHeader(tensor.shape));
    entry.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size_bytes());
    zip_source_t* source = zip_source_buffer(archive.get(), entry.data(), entry.size(), 0);
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

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
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
  if (file == nullptr) return SystemError("cannot create file", path);
  const auto write = [&](const void* data, std::size_t bytes) { return bytes == 0 || std::fwrite(data, 1, bytes, file.get()) == bytes; };
  bool ok = write(length.data(), length.size()) && write(header.data(), header.size());
  for (const NamedTensor& tensor : tensors) ok = ok && write(tensor.values.data(), tensor.values.size_bytes());
  if (!ok || std::fflush(file.get()) != 0) return SystemError("cannot write file", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WriteWeights(const std::string& folder, const std::vector<NamedTensor>& tensors) {
  if (folder.empty()) return absl::InvalidArgumentError("no folder to export to");
  // A folder that this worker may not write is the making of whoever set the cluster up: no other attempt will do better.
  const auto refused = [&](absl::string_view why) {
    return UserError(absl::PermissionDeniedError(absl::StrCat(
        "the runs folder cannot be written by this worker; workers need the coordinator's --runs folder as a shared, writable one: folder=", folder,
        " error=", why)));
  };
  if (const absl::Status made = fs::MakeDirectories(folder); absl::IsPermissionDenied(made)) {
    return refused(made.message());
  } else if (!made.ok()) {
    return made;
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0 && (errno == EACCES || errno == EROFS))
    return refused(std::strerror(errno));
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(folder, error).lexically_normal().string();
  if (error) return absl::InternalError(absl::StrCat("cannot name folder: folder=", folder, " error=", error.message()));
  std::vector<std::string> paths;
  for (const auto& [name, write] : {std::pair{"weights.npz", &WriteNpz}, std::pair{"weights.safetensors", &WriteSafetensors}}) {
    const std::string path = absl::StrCat(absolute, "/", name);
    const std::string beside = absl::StrCat(path, ".", ::getpid(), ".tmp");
    absl::Status status = write(beside, tensors);
    if (status.ok()) status = SyncAndRename(beside, path);
    if (!status.ok()) {
      ::unlink(beside.c_str());
      return status;
    }
    paths.push_back(path);
  }
  return paths;
}

}  // namespace evergrad::worker
