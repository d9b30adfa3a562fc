// Tests which tasks a certificate can name, and how two tasks are compared.
#include "common/transport/certificate_task.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

using namespace evergrad::transport;

TEST_CASE("each role can stand alone, and each except the coordinator can have an identity") {
  CHECK(std::size(kCertificateRoles) == 7);
  for (const absl::string_view role : kCertificateRoles) {
    CAPTURE(role);
    const std::string alone(role), named = absl::StrCat(role, "/a-B.3_x");
    CHECK(CheckTaskName(alone).ok());
    CHECK(CheckTaskName(named).ok() == (role != "coordinator"));
    CHECK_FALSE(CheckTaskName(absl::StrCat(role, "/")).ok());
    CHECK_FALSE(CheckTaskName(absl::StrCat(role, "s/0")).ok());
    CHECK_FALSE(CheckTaskName(absl::StrCat(role, "/a/b")).ok());
    CHECK_FALSE(CheckTaskName(absl::StrCat(role, "/", std::string(65, 'x'))).ok());
    CHECK(RoleOfTask(alone) == role);
    CHECK(RoleOfTask(named) == role);
    CHECK(*TaskOfUris({"https://example.org", absl::StrCat("evergrad://", role)}) == role);
  }
  for (const char* other : {"", "/", "scheduler/0", "Admin", "user /a", "user/a b", "user/a\n"})
    CHECK_FALSE(CheckTaskName(other).ok());
}

TEST_CASE("no role stands for another role") {
  for (const absl::string_view have : kCertificateRoles) {
    for (const absl::string_view want : kCertificateRoles) {
      CAPTURE(have, want);
      CHECK(CheckTask(have, want).ok() == (have == want));
      CHECK(CheckTask(absl::StrCat(have, "/0"), want).ok() == (have == want));
      CHECK(CheckTask(absl::StrCat(have, "/0"), absl::StrCat(want, "/0")).ok() == (have == want));
      CHECK_FALSE(CheckTask(absl::StrCat(have, "/0"), absl::StrCat(want, "/1")).ok());
    }
  }
}
