// A file in memory. It has a path, for readers that open a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/fs/descriptor.h"

namespace evergrad::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    EG_CHECK(file_.get() >= 0);
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      EG_CHECK(written > 0);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", file_.get()); }

 private:
  const fs::Descriptor file_;
};

}  // namespace evergrad::fuzz
