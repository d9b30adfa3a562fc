// report.html: it holds what it was given, escaped, and refers to nothing outside itself.
#include <catch2/catch.hpp>

#include <cmath>
#include <nlohmann/json.hpp>

#include "coordinator/dashboard/report.h"
#include "coordinator/jobs/curve.h"

using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

namespace {

ReportData Example() {
  ReportData data;
  data.name = "fashion <cnn> & \"co\"";
  data.job_uid = "00000000000000ab";
  data.state = "SUCCEEDED";
  data.submitted = "2026-01-01 00:00:00 UTC";
  data.accuracy = 0.8712;
  data.loss = 0.4;
  data.steps = 1234567;
  data.loss_by_step = {{0, 2.5}, {1, std::nan("")}, {2, 1.25}};
  data.rate_by_time = {{0.5, 1000}, {1.0, 2000}};
  data.epochs = {{1, 100, 0.9, 0.8, 0.71, 3.5, 12000}, {2, 100, 0.5, std::nan(""), std::nan(""), 3.5, 12000}};
  data.workers = {{"worker/0", 60, 100}, {"worker/<b>", 40, 100}};
  data.shards = {{0, "dense/kernel", "ps_server/1", 392, 401408, 500}};
  data.events = {{1.25, "death", "worker/0: its session closed </script><script>alert(1)</script>"}};
  data.yaml = "spec: {x: <y>}";
  return data;
}

nlohmann::json Embedded(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=data>";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

}  // namespace

TEST_CASE("the report holds the curves, the epochs and what happened") {
  const std::string page = RenderReport(Example());
  const nlohmann::json data = Embedded(page);
  CHECK(data["loss_by_step"] == nlohmann::json({{0.0, 2.5}, {2.0, 1.25}}));  // what is not a number is left out
  CHECK(data["rate_by_time"].size() == 2);
  CHECK(data["accuracy_by_epoch"] == nlohmann::json::parse("[[1,0.71]]"));
  CHECK(data["steps_by_worker"] == nlohmann::json::parse(R"([["worker/0",60],["worker/<b>",40]])"));
  CHECK_THAT(page, Contains("87.12 %"));
  CHECK_THAT(page, Contains("1\u202f234\u202f567"));
  CHECK_THAT(page, Contains("dense/kernel"));
  CHECK_THAT(page, Contains("its session closed"));
}

TEST_CASE("nothing in the report is fetched from anywhere") {
  const std::string page = RenderReport(Example());
  for (const char* outside : {"http://", "https://", "src=", "@import", "url(", "<link", "fetch("}) CHECK(page.find(outside) == std::string::npos);
}

TEST_CASE("text from outside cannot become markup") {
  ReportData data = Example();
  data.first_cause = "<img onerror=x>";
  const std::string page = RenderReport(data);
  CHECK(page.find("<img") == std::string::npos);
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK(page.find("<cnn>") == std::string::npos);
  CHECK_THAT(page, Contains("fashion &lt;cnn&gt; &amp; &quot;co&quot;"));
}

TEST_CASE("an empty job has a report too") {
  ReportData data;
  data.name = "nothing";
  data.state = "CANCELLED";
  data.accuracy = data.loss = std::nan("");
  CHECK(Embedded(RenderReport(data))["loss_by_step"].empty());
}

TEST_CASE("a curve keeps its bound and its ends stay in order") {
  Curve curve(100);
  for (int i = 0; i < 100000; ++i) curve.Add(i, -i);
  REQUIRE(curve.points().size() <= 100);
  CHECK(curve.points().size() >= 50);
  CHECK(curve.points().front().x == 0);
  CHECK(curve.points().back().x > 95000);
  for (std::size_t i = 1; i < curve.points().size(); ++i) CHECK(curve.points()[i].x - curve.points()[i - 1].x == curve.points()[1].x);
}
