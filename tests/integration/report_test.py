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
    @unittest.skipUnless(CHROMIUM, "no chromium is installed (apt-get install chromium)")
    def test_the_report_draws_its_curves_in_a_browser_that_has_no_network(self):
        data = data_folder()
        # However short: training of one epoch takes less than the half second between two samples of the rate.
        job = write(self.path("job.yaml"), job_yaml("drawn", epochs=1))
        self.psctl("job", "run", job, "--local", "--workers", 2, "--servers", 2, "--threads", 1, "--runs", "all runs", env={"EVERGRAD_DATA": data})
        page = os.path.join(self.run_folder(self.path("all runs")), "report.html")
        log = self.path("chromium.log")
        with open(log, "wb") as errors:
            # The page as it is after its script ran. Every name but localhost resolves to nothing: a page that needs the network fails here.
            r = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + self.path("profile"),
                                "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", "file://" + page],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=60)
        dom = r.stdout
        self.assertEqual(r.returncode, 0, dom[:500])
        with open(log, errors="replace") as f:
            console = [line for line in f if "CONSOLE" in line]
        self.assertEqual(console, [], "the page's script complains")
        for name in ("loss", "accuracy", "rate", "workers"):
            drawn = re.search(r'<div id="?%s"?[^>]*>(.*?)</section>' % name, dom, re.S)
            self.assertTrue(drawn, "no place for the curve: " + name)
            self.assertIn("<svg", drawn.group(1), "not drawn: " + name)
            self.assertNotIn("nothing was measured", drawn.group(1))
            self.assertRegex(drawn.group(1), r"<path[^>]*d=\"M[\d.]+ [\d.]+" if name != "workers" else r"<rect")
            self.assertNotIn("NaN", drawn.group(1))
        for words in ("What happened", "worker/0", "worker/1", "ps_server/1", "dense1/kernel", "SUCCEEDED"):
            self.assertIn(words, dom)


if __name__ == "__main__":
    main()
