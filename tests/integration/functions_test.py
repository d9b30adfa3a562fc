#!/usr/bin/env python3
"""Runs examples/functions as its README describes, on real daemons, and checks the client's
output, the job's end, and the numbers in its files.

  functions_test.py --bin build/release/bin [unittest arguments]
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from documents import block, blocks  # noqa: E402
from support import ROOT, Case, binary, main, processes_naming, wait_for  # noqa: E402
from cluster import Cluster  # noqa: E402


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Documented(Case):
    def test_the_readmes_block_runs_if_it_is_pasted_whole(self):
        """Runs all lines of examples/functions/README.md at once. The shell does not wait for the
        coordinator between the lines."""
        lines = block("examples/functions/README.md", "sh", "evergrad-example-client")
        self.assertIn("127.0.0.1:7000", lines)
        # The port in the lines is replaced by a free one, and the checkout by a folder with the
        # binaries of this build.
        lines = lines.replace(":7000", ":%d" % free_port())
        checkout = self.path("check out")
        os.makedirs(os.path.join(checkout, "build", "release"))
        os.symlink(
            os.path.dirname(binary("psctl")), os.path.join(checkout, "build", "release", "bin")
        )
        os.symlink(os.path.join(ROOT, "configs"), os.path.join(checkout, "configs"))
        with open(self.path("said"), "w") as said:
            # The shell has its own process group. If a block of lines fails, the processes that it
            # leaves running can then be ended.
            shell = subprocess.Popen(
                ["bash"],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=checkout,
                start_new_session=True,
            )
        try:
            shell.communicate(lines + "wait\n", timeout=120)
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            shell.wait()
        with open(self.path("said")) as f:
            said = f.read()
        documented = blocks("examples/functions/README.md", "text")[0].splitlines()
        for line in documented:
            self.assertIn(re.split(r"[0-9]+\.[0-9]", line)[0], said)
        fitted = [
            float(n)
            for n in re.search(r"slope, height and steps applied: (.*?)   ", said).group(1).split()
        ]
        numpy.testing.assert_allclose(fitted, [3, -2, 0.5, 400], atol=0.1)
        runs = os.listdir(os.path.join(checkout, "runs"))
        self.assertEqual(len([r for r in runs if r.startswith("plane-")]), 1, runs)
        self.assertEqual(processes_naming(checkout), {})


class Example(Case):
    def test_closures_of_a_client_fit_a_plane(self):
        """With two workers and two servers, the error of the fitted plane falls, each step is
        applied once, a user's mistake is reported once, and the job succeeds."""
        with Cluster(binary(""), 2, 2, worker_binary="evergrad-example-worker").up() as c:
            c.psctl("job", "submit", os.path.join(ROOT, "configs", "examples", "functions.yaml"))
            wait_for(
                "the job to wait for closures",
                lambda: c.psctl_json("job", "show", "plane")["waiting_for"]
                == "closures to be scheduled",
            )
            client = subprocess.run(
                [binary("evergrad-example-client"), c.coordinator_address(), "plane"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(client.returncode, 0, client.stdout + client.stderr)
            lines = client.stdout.splitlines()
            self.assertEqual(len(lines), 4, client.stdout)
            first, last = (
                float(re.search(r"last batch ([0-9.]+)$", line).group(1)) for line in lines[:2]
            )
            self.assertLess(last, 0.05)
            self.assertLess(last, first)
            slope0, slope1, height, steps = (
                float(w) for w in lines[2].split(": ")[1].split("   ")[0].split()
            )
            self.assertEqual(steps, 400)
            numpy.testing.assert_allclose([slope0, slope1, height], [3, -2, 0.5], atol=0.1)
            self.assertIn("a closure failed: closure=41 function=fit", lines[3])
            self.assertIn("want=BATCHES POINTS got=many points", lines[3])

            status = c.psctl_json("job", "show", "plane")
            self.assertEqual(status["state"], "SUCCEEDED")
            with open(os.path.join(status["runs_folder"], "result.json")) as f:
                result = json.load(f)
            self.assertEqual(result["closures"]["succeeded"], 41)
            self.assertEqual(result["closures"]["failed"], 1)
            self.assertEqual(
                [s["updates_applied"] for s in result["shards"]], [400] * len(result["shards"])
            )
            weights = numpy.load(os.path.join(status["runs_folder"], "weights.npz"))
            self.assertEqual(weights["steps"][0], 400)
            # A second client is told that the job has ended.
            again = subprocess.run(
                [binary("evergrad-example-client"), c.coordinator_address(), "plane"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(again.returncode, 1)
            self.assertIn("the job has ended", again.stderr)

    def test_a_worker_without_the_function_gets_no_work_and_the_job_reports_its_wait(self):
        with Cluster(binary(""), 1, 1).up() as c:
            c.psctl("job", "submit", os.path.join(ROOT, "configs", "examples", "functions.yaml"))
            client = subprocess.Popen(
                [binary("evergrad-example-client"), c.coordinator_address(), "plane", "2", "2"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                wait_for(
                    "the job to name the function",
                    lambda: "no connected worker has function `fit`"
                    in c.psctl_json("job", "show", "plane").get("waiting_for", ""),
                )
                c.worker_binary = "evergrad-example-worker"
                c.add("worker", "late", ["--name", "late", "--threads", "1"])
                out, err = client.communicate(timeout=60)
                self.assertEqual(client.returncode, 0, out + err)
                self.assertIn("4 steps scheduled", out)
            finally:
                if client.poll() is None:
                    client.kill()
                    client.communicate()


if __name__ == "__main__":
    main()
