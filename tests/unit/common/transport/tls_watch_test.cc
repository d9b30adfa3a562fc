// Tests the watch of TLS files with real files. The test itself makes each check.
#include "common/transport/tls/tls_watch.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/runtime/executor.h"
#include "common/transport/tls/tls_watches.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace evergrad::transport {
namespace {

using namespace evergrad::test;

// The files of worker 0, which a watch has read, and the reports of the watch.
struct Watched {
  TempFolder folder;
  // Like the authorities of `psctl cert init`, both have the same name.
  const Authority old_ca{"evergrad authority"}, new_ca{"evergrad authority"};
  TlsFiles files = FilesOf(folder, "worker-0");
  const TlsPems first = IssuePems("worker-0", old_ca, {&old_ca});
  std::vector<TlsPems> reloaded;
  std::vector<std::string> refused;
  std::shared_ptr<TlsWatch> watch;

  Watched() {
    files.task = "worker";
    ReplaceFiles(files, first);
    auto opened = TlsWatch::Open(files, {[this](const TlsPems& pems) { reloaded.push_back(pems); },
                                         [this](const absl::Status& why) {
                                           refused.push_back(std::string(why.message()));
                                         }});
    REQUIRE(opened.ok());
    watch = *std::move(opened);
  }
  TlsPems Renewed(const Issued& issued = {}) const {
    return IssuePems("worker-0", old_ca, {&old_ca}, issued);
  }
};

TEST_CASE("a watch uses each right set of new files, of the same or of another authority") {
  const struct {
    const char* name;
    std::function<TlsPems(const Watched&)> next;
  } cases[] = {{"a renewed certificate", [](const Watched& w) { return w.Renewed(); }},
               {"a second authority",
                [](const Watched& w) {
                  TlsPems next = w.first;
                  next.ca += PemOf(w.new_ca.certificate.get());
                  return next;
                }},
               {"a certificate of the second authority",
                [](const Watched& w) {
                  return IssuePems("worker-0", w.new_ca, {&w.old_ca, &w.new_ca});
                }},
               {"another authority alone",
                [](const Watched& w) { return IssuePems("worker-0", w.new_ca, {&w.new_ca}); }},
               {"a certificate for any worker",
                [](const Watched& w) { return w.Renewed({.names = "URI:evergrad://worker"}); }},
               {"text around the certificates", [](const Watched& w) {
                  TlsPems next = w.Renewed();
                  next.ca = "# the authority\n" + next.ca + "\n# ---- end ----\n";
                  next.cert += next.ca;
                  return next;
                }}};
  for (const auto& one : cases) {
    CAPTURE(one.name);
    Watched w;
    const TlsPems next = one.next(w);
    ReplaceFiles(w.files, next);
    w.watch->Check();
    CHECK(w.refused.empty());
    REQUIRE(w.reloaded.size() == 1);
    CHECK(w.reloaded[0] == next);
    CHECK(*w.watch->pems() == next);
    CHECK(w.watch->stats().reloads == 1);
    CHECK(w.watch->stats().failures == 0);
  }
}

struct WrongSet {
  const char* name;
  std::function<void(const Watched&)> change;
  const char* reason;
};
const WrongSet kWrongSets[] = {
    {"a certificate whose key is still to come",
     [](const Watched& w) { ReplaceFile(w.files.cert, w.Renewed().cert); },
     "tls key does not belong to the certificate"},
    {"a key whose certificate is still to come",
     [](const Watched& w) { ReplaceFile(w.files.key, w.Renewed().key); },
     "tls key does not belong to the certificate"},
    {"half a key", [](const Watched& w) { ReplaceFile(w.files.key, w.first.key.substr(0, 100)); },
     "tls key is not a PEM private key"},
    {"half a certificate",
     [](const Watched& w) { ReplaceFile(w.files.cert, w.first.cert.substr(0, 200)); },
     "tls cert is not a PEM certificate"},
    {"a file without contents", [](const Watched& w) { ReplaceFile(w.files.cert, ""); },
     "tls cert has an invalid size"},
    {"no file", [](const Watched& w) { std::filesystem::remove(w.files.key); },
     "cannot read tls key"},
    {"half of the second authority",
     [](const Watched& w) {
       ReplaceFile(w.files.ca, w.first.ca + PemOf(w.new_ca.certificate.get()).substr(0, 200));
     },
     "tls ca is incomplete"},
    {"the first line of the second authority",
     [](const Watched& w) { ReplaceFile(w.files.ca, w.first.ca + "-----BEGIN CERTIF"); },
     "tls ca is incomplete"},
    {"half of an intermediate certificate",
     [](const Watched& w) { ReplaceFile(w.files.cert, w.first.cert + w.first.ca.substr(0, 200)); },
     "tls cert is incomplete"},
    {"zeros at the end",
     [](const Watched& w) { ReplaceFile(w.files.ca, w.first.ca + std::string(100, '\0')); },
     "tls ca is incomplete"},
    {"a certificate of another authority",
     [](const Watched& w) { ReplaceFiles(w.files, IssuePems("worker-0", w.new_ca, {&w.old_ca})); },
     "certificate verify failed: unable to get local issuer certificate"},
    {"the new authority before the new certificate",
     [](const Watched& w) { ReplaceFile(w.files.ca, PemOf(w.new_ca.certificate.get())); },
     "certificate verify failed"},
    {"a certificate that has expired",
     [](const Watched& w) {
       ReplaceFiles(w.files, w.Renewed({.begin_seconds = -7200, .end_seconds = -3600}));
     },
     "certificate has expired"},
    {"a certificate of the future",
     [](const Watched& w) {
       ReplaceFiles(w.files, w.Renewed({.begin_seconds = 3600, .end_seconds = 7200}));
     },
     "certificate is not yet valid"},
    {"a certificate of another task",
     [](const Watched& w) {
       ReplaceFiles(w.files, w.Renewed({.names = "URI:evergrad://coordinator"}));
     },
     "certificate is for coordinator, expected worker"},
    {"a certificate without a task",
     [](const Watched& w) { ReplaceFiles(w.files, w.Renewed({.names = "none"})); },
     "certificate names no task"},
    {"a key that OpenSSL considers too short",
     [](const Watched& w) { ReplaceFiles(w.files, w.Renewed({.key = Key(EVP_RSA_gen(1024))})); },
     "OpenSSL refuses the certificate"}};

TEST_CASE("files that are not a right set change nothing, are counted, and are reported once") {
  for (const WrongSet& one : kWrongSets) {
    CAPTURE(one.name);
    Watched w;
    one.change(w);
    w.watch->Check();
    REQUIRE(w.refused.size() == 1);
    CHECK_THAT(w.refused[0], Catch::Contains(one.reason));
    CHECK_THAT(w.refused[0], Catch::Contains(w.folder.path()));
    w.watch->Check();
    CHECK(w.refused.size() == 1);
    CHECK(w.watch->stats().failures == 2);
    CHECK(w.watch->stats().reloads == 0);
    CHECK(w.reloaded.empty());
    CHECK(*w.watch->pems() == w.first);
    // The watch recovers as soon as the files are right.
    const TlsPems next = w.Renewed();
    ReplaceFiles(w.files, next);
    w.watch->Check();
    CHECK(*w.watch->pems() == next);
    CHECK(w.reloaded.size() == 1);
    CHECK(w.refused.size() == 1);
  }
}

TEST_CASE("files that are written again with the same contents are not reloaded") {
  Watched w;
  w.watch->Check();
  ReplaceFiles(w.files, w.first);
  w.watch->Check();
  CHECK(w.reloaded.empty());
  CHECK(w.refused.empty());
  CHECK(w.watch->stats().reloads == 0);
  CHECK(w.watch->stats().failures == 0);
}

TEST_CASE("each reason is reported once, and again after another reason or a success") {
  Watched w;
  const auto half_key = [&] { ReplaceFile(w.files.key, w.first.key.substr(0, 100)); };
  const auto check = [&] {
    w.watch->Check();
    w.watch->Check();
  };
  half_key();
  check();
  std::filesystem::remove(w.files.key);
  check();
  half_key();
  check();
  ReplaceFiles(w.files, w.first);
  check();
  half_key();
  check();
  REQUIRE(w.refused.size() == 4);
  CHECK_THAT(w.refused[0], Catch::Contains("not a PEM private key"));
  CHECK_THAT(w.refused[1], Catch::Contains("cannot read tls key"));
  CHECK(w.refused[2] == w.refused[0]);
  CHECK(w.refused[3] == w.refused[0]);
  CHECK(w.watch->stats().failures == 8);
  CHECK(w.reloaded.empty());
}

TEST_CASE("a reason that lasts is reported each hour") {
  Watched w;
  ReplaceFile(w.files.key, w.first.key.substr(0, 100));
  for (int i = 0; i < 720; ++i) w.watch->Check();
  CHECK(w.refused.size() == 1);
  w.watch->Check();
  CHECK(w.refused.size() == 2);
}

TEST_CASE("a watch follows the symbolic link that Kubernetes replaces, and mixes no generations") {
  TempFolder folder;
  const Authority ca;
  const auto write = [&](const std::string& generation) {
    std::filesystem::create_directory(folder / generation);
    return Issue(folder, generation + "/worker-0", ca, ca, {.names = NamesOf("worker-0")});
  };
  const auto point_to = [&](const std::string& generation) {
    std::filesystem::create_symlink(generation, folder / "..new");
    std::filesystem::rename(folder / "..new", folder / "..data");
  };
  const TlsFiles first = write("..1");
  point_to("..1");
  for (const char* end : {".ca.pem", ".pem", ".key"})
    std::filesystem::create_symlink(std::string("..data/worker-0") + end,
                                    folder / (std::string("worker-0") + end));
  const TlsFiles files = FilesOf(folder, "worker-0");
  std::vector<std::string> refused;
  auto watch = TlsWatch::Open(
      files, {nullptr, [&](const absl::Status& why) { refused.push_back(why.ToString()); }});
  REQUIRE(watch.ok());
  CHECK(*(*watch)->pems() == *ReadTls(first));

  const TlsFiles second = write("..2");
  point_to("..2");
  std::filesystem::remove_all(folder / "..1");
  (*watch)->Check();
  CHECK(*(*watch)->pems() == *ReadTls(second));
  CHECK(refused.empty());

  // The read of the key comes too late, and gives a key of the next generation.
  write("..3");
  std::filesystem::remove(files.key);
  std::filesystem::create_symlink("..3/worker-0.key", files.key);
  (*watch)->Check();
  CHECK(*(*watch)->pems() == *ReadTls(second));
  CHECK(refused.size() == 1);
}

TEST_CASE("the statistics have the expiry of the certificate in use") {
  Watched w;
  const auto expires_in = [&] { return w.watch->stats().expiry_seconds - std::time(nullptr); };
  CHECK(std::abs(expires_in() - 3600) < 60);
  ReplaceFiles(w.files, w.Renewed({.end_seconds = 7200}));
  w.watch->Check();
  CHECK(std::abs(expires_in() - 7200) < 60);
  ReplaceFiles(w.files, w.Renewed({.begin_seconds = -7200, .end_seconds = -3600}));
  w.watch->Check();
  CHECK(std::abs(expires_in() - 7200) < 60);
  CHECK(ExpirySeconds("no certificate") == 0);
}

TEST_CASE("a watch opens with the errors of LoadTls, and not without files") {
  Watched w;
  TlsFiles files = w.files;
  files.task = "coordinator";
  CHECK(TlsWatch::Open(files).status() == LoadTls(files).status());
  CHECK_FALSE(TlsWatch::Open(files).ok());
  files.key = "";
  CHECK(TlsWatch::Open(files).status() == LoadTls(files).status());
  CHECK(TlsWatch::Open({}).status().code() == absl::StatusCode::kInvalidArgument);
  // Text that LoadTls ignores does not prevent the start.
  ReplaceFile(w.files.ca, w.first.ca + "-----BEGIN CERTIF");
  CHECK(TlsWatch::Open(w.files).ok());
}

TEST_CASE("the listeners and channels of one owner share a watch for each set of files") {
  Watched w;
  TlsWatches watches(std::chrono::hours(1));  // The destructor must not wait for the interval.
  const auto one = watches.WatchOf(w.files);
  REQUIRE(one.ok());
  CHECK(*watches.WatchOf(w.files) == *one);
  TlsFiles files = w.files;
  files.task = "worker/0";
  CHECK(*watches.WatchOf(files) != *one);
  files.watch = w.watch;
  CHECK(*watches.WatchOf(files) == w.watch);
  CHECK(*watches.WatchOf({}) == nullptr);
  files.watch = nullptr;
  files.task = "coordinator";
  CHECK(watches.WatchOf(files).status() == LoadTls(files).status());
}

TEST_CASE("the thread of the watches checks the files at each interval") {
  TempFolder folder;
  const Authority ca;
  const TlsFiles files = Issue(folder, "worker-0", ca, ca);
  runtime::WaitableEvent reloaded, refused;
  auto watch = TlsWatch::Open(files, {[&](const TlsPems&) { reloaded.Set(); },
                                      [&](const absl::Status&) { refused.Set(); }});
  REQUIRE(watch.ok());
  TlsWatches watches(std::chrono::milliseconds(1));
  watches.Add(*watch);
  std::filesystem::remove(files.key);
  CHECK(refused.WaitFor(std::chrono::seconds(30)));
  Issue(folder, "worker-0", ca, ca);
  CHECK(reloaded.WaitFor(std::chrono::seconds(30)));
}

}  // namespace
}  // namespace evergrad::transport
