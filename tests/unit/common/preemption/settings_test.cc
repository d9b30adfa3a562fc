// Tests which settings are refused that say how a daemon watches for notices, and which source the
// accepted settings name.
#include "common/preemption/settings.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "common/preemption/metadata_client.h"

namespace evergrad::preemption {
namespace {

Settings Of(const std::string& source) {
  Settings settings;
  settings.source = source;
  settings.source_is_set = true;
  return settings;
}

std::string Refusal(const Settings& settings) {
  const absl::Status status = CheckSettings(settings);
  CHECK((status.ok() || BlameOf(status) == Blame::kUser));
  return std::string(status.message());
}

TEST_CASE("nothing is watched by default, and a notice file alone means the source file") {
  Settings settings;
  CHECK(CheckSettings(settings).ok());
  CHECK(SourceOf(settings) == "none");
  settings.notice_file = "/run/notice";
  CHECK(CheckSettings(settings).ok());
  CHECK(SourceOf(settings) == "file");
  settings.source = "file";
  settings.source_is_set = true;
  CHECK(CheckSettings(settings).ok());
  for (const char* cloud : {"gce", "aws", "azure", "auto"}) {
    CHECK(CheckSettings(Of(cloud)).ok());
    CHECK(SourceOf(Of(cloud)) == cloud);
  }
}

TEST_CASE("the file and its source are refused without each other") {
  CHECK(Refusal(Of("file")) == "--preemption-source file needs --preemption-notice-file FILE");
  for (const char* source : {"none", "gce", "aws", "azure", "auto"}) {
    Settings settings = Of(source);
    settings.notice_file = "/run/notice";
    CHECK(Refusal(settings) ==
          std::string("--preemption-notice-file belongs to --preemption-source file, got "
                      "--preemption-source ") +
              source);
  }
}

TEST_CASE("a metadata address is refused without a cloud, and if it is not numeric HTTP") {
  Settings settings;
  settings.metadata_url = "http://127.0.0.1:8080";
  CHECK(Refusal(settings) ==
        "--preemption-metadata-url needs --preemption-source gce, aws, azure or auto, got none");
  settings.notice_file = "/run/notice";
  CHECK_THAT(Refusal(settings), Catch::EndsWith("got file"));
  for (const char* cloud : {"gce", "aws", "azure", "auto"}) {
    settings = Of(cloud);
    settings.metadata_url = "http://127.0.0.1:8080";
    CHECK(CheckSettings(settings).ok());
    settings.metadata_url = "https://127.0.0.1:8080";
    CHECK_THAT(Refusal(settings), Catch::StartsWith("--preemption-metadata-url: expected http://"));
  }
}

TEST_CASE("a drain on recommendations is refused for a source without recommendations") {
  for (const auto& [source, accepted] : {std::pair<const char*, bool>{"none", false},
                                         {"gce", false},
                                         {"azure", false},
                                         {"aws", true},
                                         {"auto", true}}) {
    INFO(source);
    Settings settings = Of(source);
    CHECK(CheckSettings(settings).ok());
    settings.on_rebalance = "drain";
    CHECK(CheckSettings(settings).ok() == accepted);
    if (!accepted)
      CHECK_THAT(Refusal(settings),
                 Catch::StartsWith("--on-rebalance drain needs --preemption-source aws or auto"));
  }
}

TEST_CASE("the address of a metadata service is numeric, and its port is 80 unless it is given") {
  const auto parsed = ParseMetadataUrl(kMetadataUrl);
  REQUIRE(parsed);
  CHECK(parsed->host == "169.254.169.254");
  CHECK(parsed->port == 80);
  CHECK_FALSE(parsed->v6);
  CHECK(ParseMetadataUrl("http://127.0.0.1:8080/")->port == 8080);
  CHECK(ParseMetadataUrl("http://localhost:1")->host == "127.0.0.1");
  CHECK(ParseMetadataUrl("http://[fd00:ec2::254]")->v6);
  CHECK(ParseMetadataUrl("http://[::1]:81")->port == 81);
  for (const char* url : {"", "http://", "127.0.0.1", "https://127.0.0.1", "ftp://127.0.0.1",
                          "http://127.0.0.1:", "http://127.0.0.1:0", "http://127.0.0.1:70000",
                          "http://metadata.google.internal", "http://127.0.0.1/latest",
                          "http://user@127.0.0.1", "http://127.0.0.1:80:80", "http://[::1",
                          "http://::1", "http://127.0.0.1?x=y", "http:// 127.0.0.1"}) {
    INFO(url);
    CHECK_FALSE(ParseMetadataUrl(url));
  }
}

}  // namespace
}  // namespace evergrad::preemption
