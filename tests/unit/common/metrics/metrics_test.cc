#include "common/metrics/metrics.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/runtime/executor.h"

namespace evergrad::metrics {
namespace {

TEST_CASE("the Prometheus text shows every kind of metric") {
  Registry registry;
  registry.GetCounter("evergrad_worker_steps_total", "Steps done.").Add(3);
  registry.GetGauge("evergrad_worker_loss_ratio", "Loss.", {{"job", "a\"b\\c\nd"}}).Set(0.25);
  registry.GetGauge("evergrad_worker_loss_ratio", "Loss.", {{"job", "z"}, {"part", "1"}})
      .Set(INFINITY);
  auto& histogram =
      registry.GetHistogram("evergrad_worker_step_seconds", "Time\nof \\ a step.", {0.1, 1});
  for (double v : {0.05, 0.1, 0.5, 7.0}) histogram.Observe(v);
  double level = 12;
  registry.AddCallbackGauge("evergrad_worker_queue_items", "Queue.", {}, [&] { return level; });
  level = 13.5;
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_worker_loss_ratio Loss.\n"
        "# TYPE evergrad_worker_loss_ratio gauge\n"
        "evergrad_worker_loss_ratio{job=\"a\\\"b\\\\c\\nd\"} 0.25\n"
        "evergrad_worker_loss_ratio{job=\"z\",part=\"1\"} +Inf\n"
        "# HELP evergrad_worker_queue_items Queue.\n"
        "# TYPE evergrad_worker_queue_items gauge\n"
        "evergrad_worker_queue_items 13.5\n"
        "# HELP evergrad_worker_step_seconds Time\\nof \\\\ a step.\n"
        "# TYPE evergrad_worker_step_seconds histogram\n"
        "evergrad_worker_step_seconds_bucket{le=\"0.1\"} 2\n"
        "evergrad_worker_step_seconds_bucket{le=\"1\"} 3\n"
        "evergrad_worker_step_seconds_bucket{le=\"+Inf\"} 4\n"
        "evergrad_worker_step_seconds_sum 7.65\n"
        "evergrad_worker_step_seconds_count 4\n"
        "# HELP evergrad_worker_steps_total Steps done.\n"
        "# TYPE evergrad_worker_steps_total counter\n"
        "evergrad_worker_steps_total 3\n");
}

TEST_CASE("a count that its owner holds is exported as a counter with all digits") {
  Registry registry;
  std::uint64_t count = 0;
  registry.AddCallbackCounter("evergrad_worker_sent_bytes_total", "Bytes.", {},
                              [&] { return count; });
  count = 12'345'678'901'234;
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_worker_sent_bytes_total Bytes.\n"
        "# TYPE evergrad_worker_sent_bytes_total counter\n"
        "evergrad_worker_sent_bytes_total 12345678901234\n");
}

TEST_CASE("a name and its labels identify one metric, however often it is requested") {
  Registry registry;
  Counter& a = registry.GetCounter("evergrad_x_total", "X.", {{"k", "1"}});
  Counter& b = registry.GetCounter("evergrad_x_total", "X.", {{"k", "2"}});
  CHECK(&a != &b);
  CHECK(&a == &registry.GetCounter("evergrad_x_total", "X.", {{"k", "1"}}));
}

TEST_CASE("counts of many threads add up") {
  Registry registry;
  Counter& counter = registry.GetCounter("evergrad_x_total", "X.");
  Gauge& gauge = registry.GetGauge("evergrad_x_items", "X.");
  Histogram& histogram = registry.GetHistogram("evergrad_x_seconds", "X.", {1});
  {
    std::vector<runtime::Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("adder", [&] {
        for (int i = 0; i < 2000; ++i) {
          counter.Add();
          gauge.Add(0.5);
          histogram.Observe(2);
        }
      });
    }
    for (int i = 0; i < 20; ++i) registry.PrometheusText();
  }
  CHECK(counter.value() == 8000);
  CHECK(gauge.value() == 4000);
  CHECK(histogram.Read().cumulative == std::vector<std::uint64_t>{0, 8000});
}

TEST_CASE("a limit exports its level, its bound and its refusals") {
  Registry registry;
  Limit limit(registry, "evergrad_ps_server_budget_bytes", "Granted payload.", 1024);
  limit.current.Set(512);
  limit.refused.Add(2);
  const std::string text = registry.PrometheusText();
  CHECK_THAT(text, Catch::Contains("\nevergrad_ps_server_budget_bytes_current 512\n"));
  CHECK_THAT(text, Catch::Contains("\nevergrad_ps_server_budget_bytes_limit 1024\n"));
  CHECK_THAT(text, Catch::Contains("\nevergrad_ps_server_budget_bytes_refused_total 2\n"));
}

}  // namespace

TEST_CASE("samples of transient objects are taken at the scrape") {
  Registry registry;
  Registry::Samples now;
  registry.AddCallbackGauges("evergrad_test_job_bytes", "by job", [&now] { return now; });
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_test_job_bytes by job\n# TYPE evergrad_test_job_bytes gauge\n");
  now = {{{{"job", "a\"b"}}, 3}, {{{"job", "c"}}, 4.5}};
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_test_job_bytes by job\n# TYPE evergrad_test_job_bytes "
        "gauge\nevergrad_test_job_bytes{job=\"a\\\"b\"} "
        "3\nevergrad_test_job_bytes{job=\"c\"} 4.5\n");
}

TEST_CASE("histograms of transient objects are those that their owners observe") {
  Registry registry;
  Registry::Histograms now;
  registry.AddCallbackHistograms("evergrad_test_wait_seconds", "by job", [&now] { return now; });
  const std::string head =
      "# HELP evergrad_test_wait_seconds by job\n# TYPE evergrad_test_wait_seconds histogram\n";
  CHECK(registry.PrometheusText() == head);
  const Histogram wait({1});
  now = {{{{"job", "a"}}, wait}};
  wait.Observe(0.5);
  wait.Observe(2);
  CHECK(registry.PrometheusText() ==
        head +
            "evergrad_test_wait_seconds_bucket{job=\"a\",le=\"1\"} 1\n"
            "evergrad_test_wait_seconds_bucket{job=\"a\",le=\"+Inf\"} 2\n"
            "evergrad_test_wait_seconds_sum{job=\"a\"} 2.5\n"
            "evergrad_test_wait_seconds_count{job=\"a\"} 2\n");
  now.clear();  // the job has ended
  CHECK(registry.PrometheusText() == head);
}

TEST_CASE("a total that is not a whole number is a counter") {
  Registry registry;
  registry.AddCallbackTotal("evergrad_test_busy_seconds_total", "Busy.", {}, [] { return 1.25; });
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_test_busy_seconds_total Busy.\n"
        "# TYPE evergrad_test_busy_seconds_total counter\n"
        "evergrad_test_busy_seconds_total 1.25\n");
}

TEST_CASE("several gauges with one source query it once for each scrape") {
  Registry registry;
  int asked = 0;
  registry.AddCallbackGauges(
      {{"evergrad_test_b", "second"}, {"evergrad_test_a", "first"}, {"evergrad_test_c", "none"}},
      [&asked] {
        ++asked;
        return std::vector<Registry::Samples>{
            {{{}, 2}}, {{{{"kind", "x"}}, 1}, {{{"kind", "y"}}, asked + 0.5}}};
      });
  registry.GetGauge("evergrad_test_aa", "between");
  CHECK(registry.PrometheusText() ==
        "# HELP evergrad_test_a first\n# TYPE evergrad_test_a gauge\nevergrad_test_a{kind=\"x\"} "
        "1\nevergrad_test_a{kind=\"y\"} 1.5\n"
        "# HELP evergrad_test_aa between\n# TYPE evergrad_test_aa gauge\nevergrad_test_aa 0\n"
        "# HELP evergrad_test_b second\n# TYPE evergrad_test_b gauge\nevergrad_test_b 2\n"
        "# HELP evergrad_test_c none\n# TYPE evergrad_test_c gauge\n");
  CHECK(asked == 1);
  CHECK_THAT(registry.PrometheusText(), Catch::Contains("evergrad_test_a{kind=\"y\"} 2.5\n"));
  CHECK(asked == 2);
}

}  // namespace evergrad::metrics
