// Tests that report.html contains its data in escaped form, and refers to nothing outside the file.
#include <catch2/catch.hpp>

#include <cmath>
#include <nlohmann/json.hpp>

#include "coordinator/dashboard/report.h"
#include "coordinator/jobs/training_rate.h"

using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

namespace {

ReportData Example() {
  ReportData data;
  data.name = "fashion <cnn> & \"co\"";
  data.job_uid = "00000000000000ab";
  data.state = "SUCCEEDED";
  data.submitted = "2026-01-01 00:00:00 UTC";
  data.metric_names = {"accuracy"};
  data.metrics = {{"accuracy", 0.8712}, {"loss", 0.4}};
  data.steps = 1234567;
  data.loss_by_step = {{0, 2.5}, {1, std::nan("")}, {2, 1.25}};
  data.rate_by_time = {{0.5, 1000}, {1.0, 2000}};
  data.epochs = {{1, 100, 0.9, 0.8, 3.5, 12000, {{"accuracy", 0.71}}},
                 {2, 100, 0.5, std::nan(""), 3.5, 12000}};
  data.workers = {{"worker/0", 60, 100}, {"worker/<b>", 40, 100}};
  data.shards = {{0, "dense/kernel", "ps_server/1", 392, 401408, 500}};
  data.events = {
      {1.25, "death", "worker/0: its session closed </script><script>alert(1)</script>"}};
  data.yaml = "spec: {x: <y>}";
  return data;
}

nlohmann::json Embedded(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=data>";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

}  // namespace

TEST_CASE("the report contains the curves, the epochs and the events") {
  const std::string page = RenderReport(Example());
  const nlohmann::json data = Embedded(page);
  // The curve leaves out losses that are not numbers.
  CHECK(data["loss_by_step"] == nlohmann::json({{0.0, 2.5}, {2.0, 1.25}}));
  CHECK(data["rate_by_time"].size() == 2);
  CHECK(data["metrics_by_epoch"] ==
        nlohmann::json::parse(R"([{"name": "accuracy", "points": [[1.0, 0.71]]}])"));
  CHECK(data["steps_by_worker"] == nlohmann::json::parse(R"([["worker/0",60],["worker/<b>",40]])"));
  CHECK_THAT(page, Contains("87.12 %"));
  CHECK_THAT(page, Contains("1\u202f234\u202f567"));
  CHECK_THAT(page, Contains("dense/kernel"));
  CHECK_THAT(page, Contains("its session closed"));
}

TEST_CASE("the report loads nothing from other places") {
  const std::string page = RenderReport(Example());
  for (const char* outside : {"http://", "https://", "src=", "@import", "url(", "<link", "fetch("})
    CHECK(page.find(outside) == std::string::npos);
}

TEST_CASE("text of peers cannot become markup") {
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
  CHECK(Embedded(RenderReport(data))["loss_by_step"].empty());
}

TEST_CASE("tiles, curves and epoch columns show the requested metrics in the requested order") {
  ReportData data = Example();
  data.metric_names = {"auc", "binary_accuracy"};
  data.metrics = {{"auc", 0.9123}, {"binary_accuracy", 0.851}, {"loss", 0.33}};
  data.epochs = {{1, 100, 0.9, 0.8, 3.5, 12000, {{"auc", 0.9}, {"binary_accuracy", 0.84}}},
                 {2, 100, 0.5, 0.7, 3.5, 12000, {{"auc", 0.91}, {"binary_accuracy", 0.85}}}};
  const std::string page = RenderReport(data);
  CHECK(
      Embedded(page)["metrics_by_epoch"] ==
      nlohmann::json::parse(
          R"([{"name": "auc", "points": [[1.0, 0.9], [2.0, 0.91]]}, {"name": "binary_accuracy", "points": [[1.0, 0.84], [2.0, 0.85]]}])"));
  CHECK_THAT(page, Contains("<div class=value>0.9123</div><div class=label>test AUC</div>"));
  CHECK_THAT(page,
             Contains("<div class=value>85.10 %</div><div class=label>test binary accuracy</div>"));
  CHECK(page.find("test AUC") < page.find("test binary accuracy"));
  CHECK(page.find("test binary accuracy") < page.find("test loss"));
  CHECK_THAT(page, Contains("<h2>Test AUC per epoch</h2><div id=metric-0>") &&
                       Contains("<h2>Test binary accuracy per epoch</h2><div id=metric-1>"));
  CHECK_THAT(page, Contains("<th class=n>test loss<th class=n>test AUC<th class=n>test binary "
                            "accuracy<th class=n>seconds"));
  CHECK_THAT(page, Contains("<td class=n>0.9000<td class=n>84.00 %<td class=n>3.5"));
  CHECK_THAT(page, !Contains("Test accuracy"));
}

TEST_CASE(
    "a job without metrics shows its test loss, and one without an evaluation has no such curve") {
  ReportData data = Example();
  data.metric_names.clear();
  data.metrics = {{"loss", 0.33}};
  data.epochs = {{1, 100, 0.9, 0.8, 3.5, 12000}};
  CHECK(Embedded(RenderReport(data))["metrics_by_epoch"] ==
        nlohmann::json::parse(R"([{"name": "loss", "points": [[1.0, 0.8]]}])"));
  data.epochs = {{1, 100, 0.9, std::nan(""), 3.5, 12000}};
  CHECK(Embedded(RenderReport(data))["metrics_by_epoch"].empty());
  CHECK_THAT(RenderReport(data), !Contains("per epoch"));
}

TEST_CASE("the speed of an epoch that is too short to time is a dash, and so is the job's speed") {
  ReportData data = Example();
  data.examples_per_second = std::nan("");
  data.epochs = {{1, 100, 0.9, 0.8, 0, std::nan("")}};
  CHECK_THAT(RenderReport(data),
             Contains("<td class=n>0.000<td class=n>–</tr>") &&
                 Contains("<div class=value>–</div><div class=label>examples per second"));
}

TEST_CASE("the name of an event's kind cannot become a class of the page") {
  ReportData data = Example();
  data.events = {{0, "state", "SUCCEEDED"}, {1, "card", "x"}};
  const std::string page = RenderReport(data);
  CHECK_THAT(page, Contains("<td class=\"k event-state\">state") &&
                       Contains("<td class=\"k event-card\">card"));
}

TEST_CASE("a curve respects its limit and its ends stay in order") {
  Curve curve(100);
  for (int i = 0; i < 100000; ++i) curve.Add(i, -i);
  REQUIRE(curve.points().size() <= 100);
  CHECK(curve.points().size() >= 50);
  CHECK(curve.points().front().x == 0);
  CHECK(curve.points().back().x > 95000);
  for (std::size_t i = 1; i < curve.points().size(); ++i)
    CHECK(curve.points()[i].x - curve.points()[i - 1].x == curve.points()[1].x);
}
