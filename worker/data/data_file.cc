#include "worker/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/fs/object_uri.h"
#include "worker/data/file_error.h"
#include "worker/data/fingerprint.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kStoredBytes = 256 * 1024, kPieceMax = 1u << 30;
constexpr unsigned char kGzipMagic[] = {0x1F, 0x8B};

// An unsupported compression, with its first bytes, its name, and the program that decompresses it.
struct Packing {
  absl::string_view magic, name, unpack;
};
constexpr Packing kOtherPackings[] = {{absl::string_view("\xFD"
                                                         "7zXZ\0",
                                                         6),
                                       "xz", "xz -d"},
                                      {"\x28\xB5\x2F\xFD", "zstd", "zstd -d"},
                                      {absl::string_view("PK\x03\x04", 4), "zip", "unzip"},
                                      {"\x37\x7A\xBC\xAF\x27\x1C", "7z", "7z x"},
                                      {"\x04\x22\x4D\x18", "lz4", "lz4 -d"},
                                      {"LZIP\x01", "lzip", "lzip -d"},
                                      {"\x1F\x9D", "compress (.Z)", "uncompress"}};

const Packing* OtherPacking(absl::string_view head) {
  static constexpr Packing kBzip2{"BZh", "bzip2", "bzip2 -d"};
  // A csv file may begin with the text of bzip2's magic number. Therefore the magic number of the
  // first block, or of an empty file, must follow.
  if (head.size() >= 10 && absl::StartsWith(head, "BZh") && head[3] >= '1' && head[3] <= '9' &&
      (head.substr(4, 6) == absl::string_view("\x31\x41\x59\x26\x53\x59", 6) ||
       head.substr(4, 6) == absl::string_view("\x17\x72\x45\x38\x50\x90", 6)))
    return &kBzip2;
  for (const Packing& packing : kOtherPackings)
    if (absl::StartsWith(head, packing.magic)) return &packing;
  return nullptr;
}

// Opens a local file, or the copy of an object.
absl::StatusOr<ObjectCache::Copy> OpenStored(const std::string& path, const DataOptions& options) {
  const fs::Roots& roots = options.roots;
  if (fs::IsObjectUri(path)) {
    if (!roots.Names(path)) return roots.Refusal("the data file", path);
    if (options.cache != nullptr) return options.cache->Open(path);
    return UserError(absl::UnimplementedError(
        absl::StrCat("this program reads local data files only: file=", path)));
  }
  // O_NONBLOCK prevents a named pipe from blocking the thread.
  ObjectCache::Copy copy{roots.Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY), ""};
  if (copy.file.get() >= 0) return copy;
  return errno == EXDEV ? roots.Refusal("the data file", path) : FileError("open", path, errno);
}

}  // namespace

struct DataFile::Stream {
  z_stream z{};
  std::vector<unsigned char> stored = std::vector<unsigned char>(kStoredBytes);
  bool between = false;  // true if one member has ended and the next has not begun
  bool over = false;
  // The stream reads gzip only. The initialization fails only if the process is out of memory.
  Stream() { EG_CHECK(inflateInit2(&z, 16 + MAX_WBITS) == Z_OK); }
  ~Stream() { inflateEnd(&z); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

DataFile::DataFile(std::string path, fs::Descriptor file, std::string version,
                   std::uint64_t stored_bytes)
    : path_(std::move(path)),
      file_(std::move(file)),
      version_(std::move(version)),
      stored_bytes_(stored_bytes) {}
DataFile::~DataFile() = default;

absl::StatusOr<std::unique_ptr<DataFile>> DataFile::Open(const std::string& path,
                                                         const DataOptions& options,
                                                         absl::string_view want) {
  EG_ASSIGN_OR_RETURN(ObjectCache::Copy opened, OpenStored(path, options));
  fs::Descriptor file = std::move(opened.file);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return FileError("open", path, errno);
  const auto refuse = [&](absl::string_view words, absl::string_view values) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(words, ": file=", path, " ", values)));
  };
  if (!S_ISREG(info.st_mode))
    return refuse(
        S_ISDIR(info.st_mode) ? "data file is a folder" : "data file is not a regular file",
        absl::StrCat("want=", want, ", gzip or plain"));
  char head[16];
  const ssize_t got = ::pread(file.get(), head, sizeof(head), 0);
  if (got < 0) return FileError("read", path, errno);
  const absl::string_view begins(head, static_cast<std::size_t>(got));
  if (const Packing* other = OtherPacking(begins))
    return refuse("data file has an unsupported compression",
                  absl::StrCat("want=", want, ", gzip (.gz) or plain got=", other->name, " (`",
                               other->unpack, "` decompresses it; `gzip` compresses it again)"));
  std::unique_ptr<DataFile> data(new DataFile(path, std::move(file), std::move(opened.version),
                                              static_cast<std::uint64_t>(info.st_size)));
  if (begins.size() >= sizeof(kGzipMagic) && std::memcmp(head, kGzipMagic, sizeof(kGzipMagic)) == 0)
    data->stream_ = std::make_unique<Stream>();
  return data;
}

absl::Status DataFile::Damaged(absl::string_view why) const {
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("damaged data file: file=", path_, " offset=", offset_,
                   " want=readable gzip or plain data error=", why)));
}

absl::StatusOr<std::size_t> DataFile::ReadStored(char* to, std::size_t bytes) {
  for (;;) {
    const ssize_t got = ::read(file_.get(), to, bytes);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) return FileError("read", path_, errno);
  }
}

absl::StatusOr<bool> DataFile::Refill(std::size_t used, std::string* buffer) {
  constexpr std::size_t kReadBytes = 256 * 1024;
  buffer->erase(0, used);
  const std::size_t held = buffer->size();
  buffer->resize(held + kReadBytes);
  EG_ASSIGN_OR_RETURN(const std::size_t got, Read(buffer->data() + held, kReadBytes));
  buffer->resize(held + got);
  return got < kReadBytes;
}

absl::StatusOr<std::size_t> DataFile::Read(void* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    char* const at = static_cast<char*>(to) + done;
    const std::size_t piece = std::min(bytes - done, kPieceMax);
    EG_ASSIGN_OR_RETURN(const std::size_t got,
                        stream_ == nullptr ? ReadStored(at, piece) : Unpack(at, piece));
    if (got == 0) break;
    done += got;
    if (stream_ == nullptr) offset_ += got;
  }
  return done;
}

absl::StatusOr<bool> DataFile::NextMember() {
  z_stream& z = stream_->z;
  if (*z.next_in == kGzipMagic[0]) {
    stream_->between = false;
    if (inflateReset(&z) != Z_OK) return Damaged("zlib cannot be reset");
    return true;
  }
  while (z.avail_in > 0 && *z.next_in == 0) ++z.next_in, --z.avail_in;
  if (z.avail_in > 0) return Damaged("there are bytes after the end of the gzip data");
  return false;
}

absl::StatusOr<std::size_t> DataFile::Unpack(char* to, std::size_t bytes) {
  z_stream& z = stream_->z;
  const std::uint64_t begin = offset_;
  z.next_out = reinterpret_cast<unsigned char*>(to);
  z.avail_out = static_cast<unsigned>(bytes);
  while (z.avail_out > 0 && !stream_->over) {
    if (z.avail_in == 0) {
      EG_ASSIGN_OR_RETURN(
          const std::size_t got,
          ReadStored(reinterpret_cast<char*>(stream_->stored.data()), stream_->stored.size()));
      if (got == 0 && !stream_->between) return Damaged("the gzip data is truncated");
      stream_->over = got == 0;
      z.next_in = stream_->stored.data();
      z.avail_in = static_cast<unsigned>(got);
      continue;
    }
    if (stream_->between) {
      EG_ASSIGN_OR_RETURN(const bool another, NextMember());
      if (!another) continue;
    }
    const int result = inflate(&z, Z_NO_FLUSH);
    offset_ = begin + (bytes - z.avail_out);  // Damaged names this offset
    if (result == Z_STREAM_END)
      stream_->between = true;
    else if (result != Z_OK && result != Z_BUF_ERROR)
      return Damaged(z.msg == nullptr ? zError(result) : z.msg);
  }
  return bytes - z.avail_out;
}

absl::StatusOr<std::string> DataFile::Fingerprint() const {
  return FileFingerprint(file_.get(), path_, version_);
}

}  // namespace evergrad::worker
