// Tests the flags of object stores, the endpoints that result from them, and the choice of a file
// system by the scheme of a URI.
#include "common/object_store/file_systems.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "common/base/status.h"
#include "common/fault/failpoints.h"
#include "common/fs/roots.h"
#include "common/object_store/endpoint_settings.h"
#include "tests/support/manual_executor.h"
#include "tests/support/temp_folder.h"

namespace evergrad::object_store {
namespace {

using Environment = std::map<std::string, std::string>;

Variables VariablesOf(Environment environment) {
  return [environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
}

TEST_CASE("an endpoint is https, or http on a loopback address, and has only a host and a port") {
  const struct {
    std::string url, normal;  // "" if the URL is refused
  } cases[] = {
      {"https://s3.example.org", "https://s3.example.org"},
      {"https://s3.example.org/", "https://s3.example.org"},
      {"https://s3.example.org:9000", "https://s3.example.org:9000"},
      {"https://10.0.0.1:9000", "https://10.0.0.1:9000"},
      {"https://[2001:db8::1]:9000", "https://[2001:db8::1]:9000"},
      {"https://[2001:db8::1]", "https://[2001:db8::1]"},
      {"http://127.0.0.1:9000", "http://127.0.0.1:9000"},
      {"http://127.255.0.9", "http://127.255.0.9"},
      {"http://[::1]:9000/", "http://[::1]:9000"},
      {"http://localhost:9000", "http://localhost:9000"},
      {"http://s3.example.org", ""},
      {"http://128.0.0.1", ""},
      {"http://127.1", ""},
      {"http://127.0.0.1.example.org", ""},
      {"http://localhost.example.org", ""},
      {"http://0.0.0.0:9000", ""},
      {"http://[::2]", ""},
      {"http://[::ffff:127.0.0.1]", ""},
      {"http://2130706433", ""},
      {"http://0177.0.0.1", ""},
      {"HTTPS://s3.example.org", ""},
      {"s3.example.org", ""},
      {"ftp://s3.example.org", ""},
      {"https://", ""},
      {"https://:9000", ""},
      {"https:///bucket", ""},
      {"https://s3.example.org//", ""},
      {"https://s3.example.org/path", ""},
      {"https://s3.example.org?x=1", ""},
      {"https://s3.example.org#x", ""},
      {"https://user@s3.example.org", ""},
      {"https://user:password@s3.example.org", ""},
      {"http://127.0.0.1@s3.example.org", ""},
      {"http://127.0.0.1\\@s3.example.org", ""},
      {"https://s3.example.org:", ""},
      {"https://s3.example.org:0", ""},
      {"https://s3.example.org:65536", ""},
      {"https://s3.example.org:+80", ""},
      {"https://s3.example.org:80:80", ""},
      {"https://s3 example.org", ""},
      {"https://s3.example.org\r\nx: y", ""},
      {"https://[::1", ""},
      {"https://[s3.example.org]", ""},
      {"https://-s3.example.org", ""},
      {"https://" + std::string(254, 'a'), ""},
  };
  for (const auto& c : cases) {
    INFO(c.url);
    const auto url = CheckEndpoint("--s3-endpoint", c.url);
    StoreOptions options;
    options.s3_endpoint = c.url;
    CHECK(CheckStoreOptions(options).ok() == !c.normal.empty());
    options = {};
    options.gcs_endpoint = c.url;
    CHECK(CheckStoreOptions(options).ok() == !c.normal.empty());
    if (!c.normal.empty()) {
      REQUIRE(url.ok());
      CHECK(*url == c.normal);
      continue;
    }
    CHECK(absl::IsInvalidArgument(url.status()));
    CHECK(BlameOf(url.status()) == Blame::kUser);
    CHECK_THAT(std::string(url.status().message()), Catch::StartsWith("--s3-endpoint: ") &&
                                                        !Catch::Contains("password") &&
                                                        !Catch::Contains("\n"));
  }
}

// Returns "URL REGION path" or "URL REGION virtual".
std::string EndpointText(fs::StoreKind kind, const std::string& bucket, const StoreOptions& options,
                         const Environment& environment) {
  const auto endpoint = EndpointOf(kind, bucket, options, VariablesOf(environment));
  if (!endpoint.ok()) return endpoint.status().ToString();
  return endpoint->url + " " + endpoint->region + (endpoint->bucket_in_path ? " path" : " virtual");
}

TEST_CASE("flags take precedence over variables, and variables over the addresses of AWS") {
  const std::string a = "https://a.example.org", b = "https://b.example.org";
  const struct {
    StoreOptions options;
    Environment environment;
    std::string bucket, endpoint;
  } cases[] = {
      {{}, {}, "bucket", "https://s3.us-east-1.amazonaws.com us-east-1 virtual"},
      {{}, {}, "my.bucket", "https://s3.us-east-1.amazonaws.com us-east-1 path"},
      {{},
       {{"AWS_REGION", "eu-west-1"}, {"AWS_DEFAULT_REGION", "x"}},
       "bucket",
       "https://s3.eu-west-1.amazonaws.com eu-west-1 virtual"},
      {{},
       {{"AWS_REGION", ""}, {"AWS_DEFAULT_REGION", "eu-west-2"}},
       "bucket",
       "https://s3.eu-west-2.amazonaws.com eu-west-2 virtual"},
      {{.s3_region = "cn-north-1"},
       {{"AWS_REGION", "eu-west-1"}},
       "bucket",
       "https://s3.cn-north-1.amazonaws.com.cn cn-north-1 virtual"},
      {{}, {{"AWS_ENDPOINT_URL", a + "/"}}, "bucket", a + " us-east-1 path"},
      {{}, {{"AWS_ENDPOINT_URL", a}, {"AWS_ENDPOINT_URL_S3", b}}, "bucket", b + " us-east-1 path"},
      {{.s3_endpoint = "http://127.0.0.1:9000", .s3_region = "r"},
       {{"AWS_ENDPOINT_URL_S3", "not a URL"}, {"AWS_REGION", "not a region"}},
       "bucket",
       "http://127.0.0.1:9000 r path"},
      {{.s3_endpoint = a, .s3_addressing = "virtual"}, {}, "my.bucket", a + " us-east-1 virtual"},
      {{.s3_addressing = "path"},
       {},
       "bucket",
       "https://s3.us-east-1.amazonaws.com us-east-1 path"},
  };
  for (const auto& c : cases)
    CHECK(EndpointText(fs::StoreKind::kS3, c.bucket, c.options, c.environment) == c.endpoint);
  CHECK(EndpointOf(fs::StoreKind::kS3, "bucket", {}, nullptr)->region == "us-east-1");
}

TEST_CASE("the endpoint of Google depends on its own flag only") {
  const StoreOptions s3{.s3_endpoint = "https://a.example.org", .s3_region = "r"};
  CHECK(EndpointText(fs::StoreKind::kGcs, "bucket", s3,
                     {{"AWS_ENDPOINT_URL", "https://b.example.org"}, {"AWS_REGION", "r"}}) ==
        "https://storage.googleapis.com auto path");
  CHECK(EndpointText(fs::StoreKind::kGcs, "bucket", {.gcs_endpoint = "http://localhost:4443/"},
                     {}) == "http://localhost:4443 auto path");
}

TEST_CASE("a wrong variable is named when a bucket is used") {
  const struct {
    Environment environment;
    std::string message;
  } cases[] = {
      {{{"AWS_ENDPOINT_URL_S3", "http://s3.example.org"}},
       "AWS_ENDPOINT_URL_S3: http:// is allowed for 127.0.0.1, [::1] and localhost only; expected "
       "https://: got=`http://s3.example.org`"},
      {{{"AWS_REGION", "eu/../west"}},
       "AWS_REGION: a region has at most 63 characters a-z A-Z 0-9 - _: got=`eu/../west`"},
      {{{"AWS_DEFAULT_REGION", std::string(64, 'r')}},
       "AWS_DEFAULT_REGION: a region has at most 63 characters a-z A-Z 0-9 - _: got=`" +
           std::string(64, 'r') + "`"},
  };
  for (const auto& c : cases) {
    ManualClock clock;
    const auto files = MakeFileSystem({.variables = VariablesOf(c.environment), .clock = &clock});
    const absl::Status status = files->Exists("s3://bucket/x").status();
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK(status.message() == c.message);
    // Other files do not need the variable.
    CHECK_FALSE(*files->Exists("/absent"));
  }
}

TEST_CASE("wrong options are refused with the name of their flag") {
  test::TempFolder folder;
  std::ofstream(folder / "ca.pem") << "certificate";
  CHECK(CheckStoreOptions({}).ok());
  CHECK(CheckStoreOptions({.s3_addressing = "virtual", .ca_file = folder / "ca.pem"}).ok());
  const struct {
    StoreOptions options;
    std::string message;
  } cases[] = {
      {{.s3_region = "a b"}, "--s3-region: "},
      {{.s3_addressing = "dns"}, "--s3-addressing: expected auto, path or virtual: got=`dns`"},
      {{.ca_file = folder / "absent.pem"}, "--store-ca: cannot open file: path="},
      {{.ca_file = folder.path()}, "--store-ca: the path is a folder"},
  };
  for (const auto& c : cases) {
    const absl::Status status = CheckStoreOptions(c.options);
    INFO(status.ToString());
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK_THAT(std::string(status.message()), Catch::StartsWith(c.message));
  }
}

TEST_CASE("the flags set the options, and their help names the variables") {
  daemon::OptionTable table("evergrad-test", "shows options");
  StoreOptions options;
  AddStoreOptions(&table, &options);
  const std::vector<const char*> arguments = {"evergrad-test",
                                              "--s3-endpoint=https://a.example.org",
                                              "--s3-region=r",
                                              "--s3-addressing=path",
                                              "--gcs-endpoint=https://b.example.org",
                                              "--store-ca=/ca.pem",
                                              "--store-metadata-credentials"};
  REQUIRE(table.Parse(static_cast<int>(arguments.size()), arguments.data()).ok());
  CHECK(options.s3_endpoint == "https://a.example.org");
  CHECK(options.s3_region == "r");
  CHECK(options.s3_addressing == "path");
  CHECK(options.gcs_endpoint == "https://b.example.org");
  CHECK(options.ca_file == "/ca.pem");
  CHECK(options.from_metadata);
  const char* wrong[] = {"evergrad-test", "--s3-addressing=dns"};
  CHECK_FALSE(table.Parse(2, wrong).ok());
  std::string help = table.Help();
  // The help breaks its lines.
  for (const char* name :
       {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"})
    CHECK_THAT(help, Catch::Contains(name));
}

TEST_CASE("local files need no store, and other schemes are refused by name") {
  test::TempFolder folder;
  fault::Failpoints failpoints;
  const fs::Roots roots = fs::Roots::Only({folder.path()}, "give --checkpoint-root");
  ManualClock clock;
  const auto files =
      MakeFileSystem({.local = {.failpoints = &failpoints, .roots = &roots},
                      .variables = [](const std::string& name) -> std::optional<std::string> {
                        FAIL("a variable was read: " << name);
                        return std::nullopt;
                      },
                      .clock = &clock});
  for (const std::string& root : {folder.path(), "file://" + folder.path()}) {
    REQUIRE(files->MakeFolders(root + "/a").ok());
    REQUIRE(fs::WriteWhole(*files, root + "/a/b", "bytes").ok());
    CHECK(*fs::ReadWhole(*files, root + "/a/b", 9) == "bytes");
    CHECK(*files->Exists(root + "/a/b"));
    CHECK(files->List(root + "/a")->size() == 1);
    CHECK(files->Remove(root + "/a/b").ok());
  }
  REQUIRE(failpoints.Arm("fs.remove=1*error", 1).ok());
  CHECK(absl::IsInternal(files->Remove(folder / "a")));
  // The roots apply to every scheme, and a refused object needs no store.
  CHECK(absl::IsPermissionDenied(files->Open("/etc/passwd").status()));
  CHECK(absl::IsPermissionDenied(files->Open("s3://bucket/x").status()));
  CHECK(absl::IsPermissionDenied(files->MakeFolders("gs://bucket/x")));
  const absl::Status hdfs[] = {
      files->Create("hdfs://h/x").status(), files->Open("hdfs://h/x").status(),
      files->List("hdfs://h/x").status(),   files->Remove("hdfs://h/x"),
      files->Exists("hdfs://h/x").status(), files->MakeFolders("hdfs://h/x")};
  for (const absl::Status& status : hdfs) {
    CHECK(absl::IsUnimplemented(status));
    CHECK(status.message() ==
          "unsupported URI scheme: scheme=hdfs uri=hdfs://h/x supported=file,s3,gs");
  }
  CHECK(absl::IsInvalidArgument(files->Open("s3://Bucket/x").status()));
  CHECK(absl::IsInvalidArgument(files->Open("file://host/x").status()));
}

TEST_CASE("an interruption ends calls before they send anything, and stays its owner's") {
  ManualClock clock;
  http::Interruption interruption;
  FileSystemParts parts;
  parts.variables = VariablesOf({{"AWS_ACCESS_KEY_ID", "AKIDTEST"},
                                 {"AWS_SECRET_ACCESS_KEY", "the-secret-key"},
                                 {"AWS_ENDPOINT_URL", "https://store.invalid"}});
  parts.clock = &clock;
  parts.interruption = &interruption;
  MakeFileSystem(parts).reset();
  CHECK_FALSE(interruption.interrupted());
  const auto files = MakeFileSystem(parts);
  interruption.Interrupt();
  const absl::Status status = files->Exists("s3://bucket/x").status();
  CHECK(absl::IsCancelled(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("path=s3://bucket/x") && !Catch::Contains("the-secret-key"));
}

TEST_CASE("a CA file that is no certificate is an error at the first use of a bucket") {
  test::TempFolder folder;
  ManualClock clock;
  const auto files = MakeFileSystem(
      {.store = {.ca_file = folder / "absent.pem"}, .variables = VariablesOf({}), .clock = &clock});
  CHECK(absl::IsInvalidArgument(files->Exists("s3://bucket/x").status()));
}

}  // namespace
}  // namespace evergrad::object_store
