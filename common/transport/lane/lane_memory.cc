#include "common/transport/lane/lane_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::transport {
namespace {

// The seals prevent the peer from shrinking the memory, which would kill this process at its next
// access, and from removing the seals.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kMagicAt = 0, kRingBytesAt = 8;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

std::string Error(absl::string_view what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

// Maps the memory and populates every page at once, so that no page fault happens later.
std::shared_ptr<std::byte> Map(int fd, std::uint64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (mapped == MAP_FAILED) return nullptr;
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped),
                                    [bytes](std::byte* memory) { munmap(memory, bytes); });
}

// Returns the boot id, or all zeros if the system does not report it.
std::array<std::byte, 16> BootId() {
  std::array<std::byte, 16> id{};
  const File file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[37] = {};
  if (file.fd() < 0 || read(file.fd(), text, 36) != 36) return id;
  std::size_t digits = 0;
  for (const char c : absl::string_view(text, 36)) {
    const bool number = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if ((!number && !letter) || digits == 32) continue;
    id[digits / 2] = id[digits / 2] << 4 | std::byte(number ? c - '0' : c - 'a' + 10);
    ++digits;
  }
  return id;
}

std::uint64_t PidNamespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

absl::StatusOr<OfferedLane> OfferLane(std::uint64_t ring_bytes) {
  const std::uint64_t bytes = LaneMemoryBytes(ring_bytes);
  const auto file =
      std::make_shared<File>(memfd_create("evergrad-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file->fd() < 0) return absl::UnavailableError(Error("memfd_create"));
  // The memory is allocated at once, so that a lack of memory is an error here and not a signal at
  // the first access.
  if (const int error = posix_fallocate(file->fd(), 0, static_cast<off_t>(bytes)); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot allocate the lane: ", std::strerror(error), ": bytes=", bytes));
  }
  if (fcntl(file->fd(), F_ADD_SEALS, kSeals) != 0)
    return absl::UnavailableError(Error("F_ADD_SEALS"));
  auto memory = Map(file->fd(), bytes);
  if (memory == nullptr) return absl::UnavailableError(Error("mmap"));

  OfferedLane offered;
  offered.offer.boot_id = BootId();
  offered.offer.pid_namespace = PidNamespace();
  offered.offer.pid = static_cast<std::uint64_t>(getpid());
  offered.offer.fd = static_cast<std::uint64_t>(file->fd());
  offered.offer.ring_bytes = ring_bytes;
  if (getrandom(offered.offer.nonce.data(), offered.offer.nonce.size(), 0) !=
      static_cast<ssize_t>(offered.offer.nonce.size())) {
    return absl::UnavailableError(Error("getrandom"));
  }
  std::memcpy(memory.get() + kMagicAt, &wire::kLaneMagic, sizeof wire::kLaneMagic);
  std::memcpy(memory.get() + kRingBytesAt, &ring_bytes, sizeof ring_bytes);
  std::copy(offered.offer.nonce.begin(), offered.offer.nonce.end(),
            memory.get() + wire::kLaneNonceAt);
  offered.lane = std::make_unique<Lane>(std::move(memory), ring_bytes, Lane::Side::kClient);
  offered.open = file;
  return offered;
}

absl::StatusOr<std::unique_ptr<Lane>> TakeLane(const wire::LaneOffer& offer,
                                               std::uint64_t ring_bytes_max,
                                               std::function<void()> on_gone) {
  const auto refused = [](auto&&... why) {
    return absl::FailedPreconditionError(absl::StrCat(why...));
  };
  if (offer.ring_bytes == 0 || offer.ring_bytes % kLaneRingUnit != 0 ||
      offer.ring_bytes > std::min(ring_bytes_max, kLaneRingBytesMax)) {
    return refused("ring size is not supported: ring_bytes=", offer.ring_bytes,
                   " max=", ring_bytes_max);
  }
  const auto boot_id = BootId();
  if (boot_id == std::array<std::byte, 16>{} || offer.boot_id != boot_id)
    return refused("the client is on another host");
  const std::uint64_t pid_namespace = PidNamespace();
  if (pid_namespace == 0 || offer.pid_namespace != pid_namespace)
    return refused("the client is in another pid namespace");
  if (offer.pid > 0x7fffffff || offer.fd > 0x7fffffff)
    return refused("invalid process or descriptor: pid=", offer.pid, " fd=", offer.fd);

  // The path is checked before it is opened, because opening a device or a pipe of the peer's
  // choice could have side effects.
  const File path(
      open(absl::StrCat("/proc/", offer.pid, "/fd/", offer.fd).c_str(), O_PATH | O_CLOEXEC));
  if (path.fd() < 0)
    return refused(Error("cannot find the memory"), ": pid=", offer.pid, " fd=", offer.fd);
  struct stat info {};
  if (fstat(path.fd(), &info) != 0 || !S_ISREG(info.st_mode))
    return refused("the descriptor is not shared memory: pid=", offer.pid, " fd=", offer.fd);
  if (info.st_uid != geteuid())
    return refused("the memory belongs to another user: uid=", info.st_uid);
  const std::uint64_t bytes = LaneMemoryBytes(offer.ring_bytes);
  if (static_cast<std::uint64_t>(info.st_size) != bytes)
    return refused("the memory has another size: bytes=", info.st_size, " want=", bytes);
  const File file(open(absl::StrCat("/proc/self/fd/", path.fd()).c_str(),
                       O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd() < 0) return refused(Error("cannot open the memory"));
  const int seals = fcntl(file.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return refused("the memory is not sealed: seals=", seals);
  // The memory is sealed now, so its size cannot change any more.
  if (fstat(file.fd(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != bytes)
    return refused("the memory changed its size");
  auto memory = Map(file.fd(), bytes);
  if (memory == nullptr) return refused(Error("mmap"));
  if (std::memcmp(memory.get() + kMagicAt, &wire::kLaneMagic, sizeof wire::kLaneMagic) != 0 ||
      std::memcmp(memory.get() + kRingBytesAt, &offer.ring_bytes, sizeof offer.ring_bytes) != 0 ||
      std::memcmp(memory.get() + wire::kLaneNonceAt, offer.nonce.data(), offer.nonce.size()) != 0) {
    return refused("the memory is not the offered memory: pid=", offer.pid, " fd=", offer.fd);
  }
  if (on_gone) {
    std::byte* const at = memory.get();
    memory =
        std::shared_ptr<std::byte>(at, [memory, on_gone = std::move(on_gone)](std::byte*) mutable {
          memory.reset();
          on_gone();
        });
  }
  return std::make_unique<Lane>(std::move(memory), offer.ring_bytes, Lane::Side::kServer);
}

}  // namespace evergrad::transport
