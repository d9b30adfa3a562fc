#include "worker/runner/export_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/fs/raw_file.h"
#include "common/weights/weight_image.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kWriteBytes = 1u << 20;

// Returns the length of the UTF-8 sequence at the beginning of `text`, 0 if there is none.
std::size_t Utf8At(absl::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf && follows(1)) return 2;
  if (first >= 0xe0 && first <= 0xef && follows(1) && follows(2)) {
    if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4 && follows(1) && follows(2) && follows(3)) {
    if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
    return 4;
  }
  return 0;
}

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const std::size_t n = Utf8At(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      absl::StrAppendFormat(out, "\\udc%02x", static_cast<unsigned>(c));
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(text[0]);
    } else if (c < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out->append(text.data(), n);
    }
    text.remove_prefix(std::max<std::size_t>(n, 1));
  }
  out->push_back('"');
}

absl::Status WriteTo(int fd, const std::string& beside, const std::string& path,
                     const ExportFile& file, v1::RunFileInfo* info) {
  snapshot::Sha256 hash;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kWriteBytes, file.bytes)));
  for (std::uint64_t offset = 0; offset < file.bytes;) {
    const auto part = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.bytes - offset)));
    file.read(offset, part);
    hash.Update(part);
    EG_RETURN_IF_ERROR(fs::WriteAll(fd, part, beside));
    offset += part.size();
  }
  info->set_sha256(hash.Bytes());
  if (::fsync(fd) != 0) return fs::FileError(errno, "cannot sync", beside);
  if (std::rename(beside.c_str(), path.c_str()) != 0)
    return fs::FileError(errno, "cannot rename", path);
  return fs::SyncFolder(fs::FolderOf(path));
}

ExportFile Whole(std::string name, std::string contents) {
  ExportFile file;
  file.name = std::move(name);
  file.bytes = contents.size();
  file.read = [text = std::make_shared<const std::string>(std::move(contents))](
                  std::uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), text->data() + offset, to.size());
  };
  return file;
}

}  // namespace

std::string VocabulariesJson(const std::vector<FieldVocabulary>& vocabularies) {
  std::string json = "{";
  for (const FieldVocabulary& vocabulary : vocabularies) {
    if (json.size() > 1) json.push_back(',');
    json.push_back('\n');
    AppendJsonString(vocabulary.field, &json);
    json += ": [";
    for (std::size_t i = 0; i < vocabulary.words.size(); ++i) {
      if (i > 0) json += ", ";
      AppendJsonString(vocabulary.words[i], &json);
    }
    json.push_back(']');
  }
  return json + "\n}\n";
}

absl::StatusOr<std::vector<ExportFile>> MakeExport(
    const std::vector<weights::NamedTensor>& tensors,
    const std::vector<FieldVocabulary>& vocabularies) {
  std::vector<ExportFile> files;
  if (!tensors.empty()) {
    for (const auto& [name, format] :
         {std::pair{"weights.npz", weights::Format::kNpz},
          std::pair{"weights.safetensors", weights::Format::kSafetensors}}) {
      EG_ASSIGN_OR_RETURN(weights::WeightImage made, weights::WeightImage::Make(format, tensors));
      // The image is shared, because std::function copies its captures.
      const auto image = std::make_shared<const weights::WeightImage>(std::move(made));
      files.push_back(
          {name, image->bytes(),
           [image](std::uint64_t offset, std::span<std::byte> to) { image->Read(offset, to); }});
    }
  }
  if (!vocabularies.empty())
    files.push_back(Whole("model/vocabularies.json", VocabulariesJson(vocabularies)));
  return files;
}

bool SeesRunsFolder(const std::string& folder, const v1::ExportOrder& order) {
  if (folder.empty() || order.mark().empty() || order.mark_file().empty() ||
      order.mark_file().find('/') != std::string::npos)
    return false;
  const auto mark =
      fs::ReadFile(absl::StrCat(folder, "/", order.mark_file()), client::kRunMarkBytesMax);
  return mark.ok() && *mark == order.mark() &&
         ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

absl::StatusOr<std::vector<v1::RunFileInfo>> WriteExport(const std::string& folder,
                                                         const std::vector<ExportFile>& files) {
  std::vector<v1::RunFileInfo> written;
  for (const ExportFile& file : files) {
    const std::string path = absl::StrCat(folder, "/", file.name),
                      beside = absl::StrCat(path, ".", ::getpid(), ".tmp");
    EG_RETURN_IF_ERROR(fs::MakeDirectories(fs::FolderOf(path)));
    const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fs::FileError(errno, "cannot create file", path);
    v1::RunFileInfo& info = written.emplace_back();
    info.set_name(file.name);
    info.set_bytes(file.bytes);
    const absl::Status status = WriteTo(fd, beside, path, file, &info);
    ::close(fd);
    if (!status.ok()) {
      ::unlink(beside.c_str());
      return status;
    }
  }
  return written;
}

void ExportReader::Read(const ExportFile& file, std::uint64_t offset, std::size_t bytes, bool last,
                        v1::RunFileChunk* chunk) {
  if (offset == 0) hash_ = std::make_unique<snapshot::Sha256>();
  std::string data(bytes, '\0');
  const std::span<std::byte> part = std::as_writable_bytes(std::span(data));
  file.read(offset, part);
  hash_->Update(part);
  chunk->set_name(file.name);
  chunk->set_offset(offset);
  chunk->set_bytes(file.bytes);
  chunk->set_crc32c(snapshot::Crc32c(part));
  chunk->set_data(std::move(data));
  if (last) chunk->set_sha256(hash_->Bytes());
}

}  // namespace evergrad::worker
