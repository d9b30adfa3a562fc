#!/usr/bin/env python3
"""Opens report.html of a real run in headless Chromium. The curves must be drawn, the events must
be shown, and the page must not request anything outside the file.

  report_test.py --bin build/release/bin

Without Chromium the test is skipped with the reason.
"""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import Case, data_folder, job_yaml, main, write  # noqa: E402

CHROMIUM = next(
    (
        p
        for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))
        if p
    ),
    None,
)


class Report(Case):
    def browse(self, page):
        """Returns the page in its state after its script has run."""
        log = self.path("chromium.log")
        with open(log, "wb") as errors:
            # No name except localhost can be resolved, so a page that needs the network fails here.
            r = subprocess.run(
                [
                    CHROMIUM,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                    "--user-data-dir=" + self.path("profile"),
                    "--host-resolver-rules=MAP * ~NOTFOUND",
                    "--enable-logging=stderr",
                    "--virtual-time-budget=2000",
                    "--dump-dom",
                    "file://" + page,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=180,
            )
        self.assertEqual(r.returncode, 0, r.stdout[:500])
        with open(log, errors="replace") as f:
            self.assertEqual(
                [line for line in f if "CONSOLE" in line], [], "the page's script complains"
            )
        return r.stdout

    @unittest.skipUnless(CHROMIUM, "no chromium is installed (apt-get install chromium)")
    def test_the_report_draws_its_curves_in_a_browser_that_has_no_network(self):
        data = data_folder()
        # The report of a short run must work, too. In this run an epoch takes less than the half
        # second between two samples of the rate.
        job = write(self.path("job.yaml"), job_yaml("drawn", epochs=1))
        self.psctl(
            "job",
            "run",
            job,
            "--local",
            "--workers",
            2,
            "--servers",
            2,
            "--threads",
            1,
            "--runs",
            "all runs",
            env={"EVERGRAD_DATA": data},
        )
        page = os.path.join(self.run_folder(self.path("all runs")), "report.html")
        dom = self.browse(page)
        for name in ("loss", "metric-0", "rate", "workers"):
            drawn = re.search(r'<div id="?%s"?[^>]*>(.*?)</section>' % name, dom, re.S)
            self.assertTrue(drawn, "no place for the curve: " + name)
            self.assertIn("<svg", drawn.group(1), "not drawn: " + name)
            self.assertNotIn("no measurements", drawn.group(1))
            self.assertRegex(
                drawn.group(1), r"<path[^>]*d=\"M[\d.]+ [\d.]+" if name != "workers" else r"<rect"
            )
            self.assertNotIn("NaN", drawn.group(1))
        for words in (
            "Events",
            "worker/0",
            "worker/1",
            "ps_server/1",
            "dense1/kernel",
            "SUCCEEDED",
        ):
            self.assertIn(words, dom)

        # If the loss diverged, the page must still show the earlier losses, and the labels must
        # stay in their margin.
        data_block = re.compile(r'("loss_by_step":)\[.*?\]\]')
        with open(page) as f:
            diverged, replaced = data_block.subn(
                r"\1[[0,2.3],[1,2.0],[2,1.7],[3,40.0],[4,1e12],[5,3e38]]", f.read()
            )
        self.assertEqual(replaced, 1)
        dom = self.browse(write(self.path("diverged.html"), diverged))
        loss = re.search(r'<div id="?loss"?[^>]*>(.*?)</section>', dom, re.S).group(1)
        [path] = re.findall(r'<path class="curve "[^>]*d="([^"]*)"', loss)
        heights = [float(p.split()[1]) for p in re.split("[ML]", path)[1:]]
        self.assertEqual(len(heights), 6)
        self.assertGreater(heights[2], heights[0], "the loss before it diverged is flat")
        self.assertGreater(heights[3] - heights[4], 30)
        labels = re.findall(r'class="ytick"[^>]*>([^<]*)<', loss)
        self.assertGreaterEqual(len(labels), 3)
        self.assertLessEqual(max(map(len, labels)), 7, labels)

    @unittest.skipUnless(CHROMIUM, "no chromium is installed (apt-get install chromium)")
    def test_events_requested_metrics_and_short_epochs_are_shown_correctly_in_a_browser(
        self,
    ):
        # The run has two hundred epochs of forty examples each, so an epoch takes less time than
        # the clock can measure.
        write(
            self.path("rows.csv"),
            "x,y,rich\n" + "".join("%d,%d,%d\n" % (i % 7, i % 5, i % 2) for i in range(40)),
        )
        job = write(
            self.path("job.yaml"),
            """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: quick}
spec:
  data:
    train: {format: csv, path: rows.csv, header: true}
    eval: {format: csv, path: rows.csv, header: true}
    fields:
      numbers: {column: [x, y], type: float}
      rich: {column: rich, type: float}
    batch_size: 20
  model:
    inputs: {numbers: {shape: [2]}}
    layers: [{name: logit, type: dense, units: 1, input: numbers}]
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: rich}
    metrics: [auc, binary_accuracy]
  optimizer: {type: sgd, learning_rate: 0.1}
  training: {epochs: 200, steps_per_closure: 1, evaluate_every: 200 epochs}
""",
        )
        shown = self.psctl(
            "job",
            "run",
            job,
            "--local",
            "--workers",
            1,
            "--servers",
            1,
            "--threads",
            1,
            "--runs",
            "all runs",
        ).stdout
        page = os.path.join(self.run_folder(self.path("all runs")), "report.html")
        # A script of this test, placed after the page's own script, reads the styles that the
        # browser has computed.
        with open(page) as f:
            text = f.read()
        probe = """<script>
const cells = [...document.querySelectorAll("td.event-state")];
const style = (name, cell) => getComputedStyle(cell)[name];
const styles = name => cells.map(cell => style(name, cell));
document.title = JSON.stringify({
  cells: cells.length, text: cells.map(c => c.textContent), display: styles("display"),
  background: styles("backgroundColor"), color: styles("color"),
  radius: styles("borderTopLeftRadius"), soft: style("color", document.querySelector(".sub"))});
</script></body>"""
        dom = self.browse(write(self.path("probed.html"), text.replace("</body>", probe)))
        seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom, re.S).group(1)))
        self.assertGreater(seen["cells"], 2)
        self.assertEqual(set(seen["text"]), {"state"})
        self.assertEqual(
            set(seen["display"]),
            {"table-cell"},
            "a kind of event looks like the badge of the header",
        )
        self.assertEqual(set(seen["background"]), {"rgba(0, 0, 0, 0)"})
        self.assertEqual(set(seen["radius"]), {"0px"})
        self.assertEqual(set(seen["color"]), {seen["soft"]}, "the text of the kind cannot be read")

        with self.subTest("the metrics that the job asked for, the first one first"):
            labels = re.findall(r'class="label">([^<]*)<', dom)
            self.assertEqual(labels[:3], ["test AUC", "test binary accuracy", "test loss"])
            self.assertEqual(
                re.findall(r"<h2>(Test [^<]*)</h2>", dom),
                ["Test AUC per epoch", "Test binary accuracy per epoch"],
            )
            for name in ("metric-0", "metric-1"):
                self.assertIn(
                    "<svg", re.search(r'<div id="%s">(.*?)</section>' % name, dom, re.S).group(1)
                )
            self.assertRegex(
                shown,
                r"(?m)^auc 0\.\d{4}, binary_accuracy \d+\.\d\d %, 1 worker, 1 server, 400 steps",
            )

        with self.subTest("epochs too short to time"):
            with open(os.path.join(os.path.dirname(page), "metrics.jsonl")) as f:
                rows = [row for row in map(json.loads, f) if row["kind"] == "epoch"]
            self.assertEqual(len(rows), 200)
            untimed = [row for row in rows if row["examples_per_second"] is None]
            self.assertTrue(untimed, "every one of 200 epochs of two steps took more than 10 ms")
            self.assertLess(max(row["examples_per_second"] or 0 for row in rows), 40 / 0.009)
            epochs = re.search(r"<h2>Epochs</h2>(.*?)</section>", dom, re.S).group(1)
            cells = re.findall(r"<tr><td>\d+</td>.*?<td class=\"n\">([^<]*)</td></tr>", epochs)
            self.assertEqual(len(cells), 200)
            self.assertEqual(cells.count("–"), len(untimed))
            self.assertNotRegex(dom, r"\de\+\d\d")


if __name__ == "__main__":
    main()
