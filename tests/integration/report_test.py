#!/usr/bin/env python3
"""report.html of a real run, opened in headless Chromium: its curves are drawn, it shows what happened, and nothing outside the file is asked for.

  report_test.py --bin build/release/bin

Skipped, with the reason, where no Chromium is installed.
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import Case, data_folder, job_yaml, main, write  # noqa: E402

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if p), None)


class Report(Case):
    def browse(self, page):
        """The page as it is after its script ran."""
        log = self.path("chromium.log")
        with open(log, "wb") as errors:
            # Every name but localhost resolves to nothing: a page that needs the network fails here.
            r = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + self.path("profile"),
                                "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", "file://" + page],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=180)
        self.assertEqual(r.returncode, 0, r.stdout[:500])
        with open(log, errors="replace") as f:
            self.assertEqual([line for line in f if "CONSOLE" in line], [], "the page's script complains")
        return r.stdout

    @unittest.skipUnless(CHROMIUM, "no chromium is installed (apt-get install chromium)")
    def test_the_report_draws_its_curves_in_a_browser_that_has_no_network(self):
        data = data_folder()
        # However short: training of one epoch takes less than the half second between two samples of the rate.
        job = write(self.path("job.yaml"), job_yaml("drawn", epochs=1))
        self.psctl("job", "run", job, "--local", "--workers", 2, "--servers", 2, "--threads", 1, "--runs", "all runs", env={"EVERGRAD_DATA": data})
        page = os.path.join(self.run_folder(self.path("all runs")), "report.html")
        dom = self.browse(page)
        for name in ("loss", "accuracy", "rate", "workers"):
            drawn = re.search(r'<div id="?%s"?[^>]*>(.*?)</section>' % name, dom, re.S)
            self.assertTrue(drawn, "no place for the curve: " + name)
            self.assertIn("<svg", drawn.group(1), "not drawn: " + name)
            self.assertNotIn("nothing was measured", drawn.group(1))
            self.assertRegex(drawn.group(1), r"<path[^>]*d=\"M[\d.]+ [\d.]+" if name != "workers" else r"<rect")
            self.assertNotIn("NaN", drawn.group(1))
        for words in ("What happened", "worker/0", "worker/1", "ps_server/1", "dense1/kernel", "SUCCEEDED"):
            self.assertIn(words, dom)

        # The same page with a loss that diverged: what came before it shows too, and the labels stay in their margin.
        data_block = re.compile(r'("loss_by_step":)\[.*?\]\]')
        with open(page) as f:
            diverged, replaced = data_block.subn(r"\1[[0,2.3],[1,2.0],[2,1.7],[3,40.0],[4,1e12],[5,3e38]]", f.read())
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


if __name__ == "__main__":
    main()
