#!/usr/bin/env python3
"""Tests spot.py and notices.py: the trace, the arithmetic, and one short run of each on real
daemons. A short run says nothing about goodput, so no figure is compared.

  spot_test.py --bin build/release/bin [unittest arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import spot  # noqa: E402

BIN = ""


class Trace(unittest.TestCase):
    def test_a_seed_gives_one_event_a_minute_and_the_same_ones_again(self):
        times = spot.Times(False)
        for part, roles in (
            ("notice", {"worker", "ps_server"}),
            ("workers-without", {"worker"}),
            ("servers-without", {"ps_server"}),
        ):
            events = spot.trace(part, 1, times)
            self.assertEqual(events, spot.trace(part, 1, times))
            self.assertNotEqual(events, spot.trace(part, 2, times))
            self.assertEqual([int(at // 60) for at, _, _ in events], list(range(10)), part)
            self.assertEqual({role for _, role, _ in events}, roles)
            self.assertTrue(all(0 <= draw < 1 for _, _, draw in events))

    def test_all_workers_go_once_and_are_back_before_the_end(self):
        for seed in range(20):
            times = spot.Times(seed % 2 == 0)
            ((at, role, _),) = spot.trace("all-gone", seed, times)
            self.assertEqual(role, "all")
            self.assertLess(at + times.gone, times.length)


class Arithmetic(unittest.TestCase):
    def test_only_pauses_above_the_limit_are_stalls_and_the_end_of_the_run_ends_the_last(self):
        samples = [(0.0, 5), (0.4, 6), (0.8, 6), (1.2, 7), (3.2, 7), (3.6, 9), (4.0, 9)]
        total, longest = spot.stalls(samples)
        self.assertAlmostEqual(total, 2.4)
        self.assertAlmostEqual(longest, 2.4)
        total, longest = spot.stalls(samples + [(6.0, 9)])
        self.assertAlmostEqual(total, 4.8)

    def test_a_count_that_falls_and_returns_to_its_value_is_no_progress(self):
        total, _ = spot.stalls([(0.0, 9), (1.0, 4), (2.0, 9), (3.0, 10)])
        self.assertAlmostEqual(total, 3.0)

    def test_a_worker_is_available_within_the_window_only(self):
        intervals = [[0.0, 15.0], [12.0, 18.0], [19.0, None], [25.0, None], [1.0, 5.0]]
        self.assertAlmostEqual(spot.seconds_within(intervals, 10.0, 20.0), 5 + 6 + 1)

    def test_goodput_is_weighted_by_the_seconds_of_the_workers(self):
        windows = [
            {"examples": 100.0, "worker_seconds": 10.0},
            {"examples": 10.0, "worker_seconds": 30.0},
        ]
        self.assertAlmostEqual(spot.goodput(windows), 110 / 40)


class ShortRun(unittest.TestCase):
    def run_parts(self, *names):
        with tempfile.TemporaryDirectory(prefix="evergrad bench-") as out:
            ended = subprocess.run(
                [sys.executable, os.path.join(HERE, "run.py"), "--bin", BIN, "--out", out]
                + ["--quick", *names],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=dict(os.environ, SEED="1"),  # with this seed a server and a worker get a notice
            )
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            with open(os.path.join(out, "results.json")) as f:
                return {r["name"]: r for r in json.load(f)}, ended.stdout

    def test_spot_machines_with_notice_are_replaced_and_the_goodput_is_shown(self):
        found, said = self.run_parts("spot:notice")
        name = "spot: workers and servers with notice: "
        self.assertEqual(
            list(found),
            [name + n for n in ("goodput", "steps done again", "seconds in pauses above 1 s")],
        )
        self.assertGreater(found[name + "goodput"]["ratio"], 0)
        self.assertEqual(found[name + "goodput"]["reach"], 0.95)
        for task in ("ps_server/", "worker/"):
            self.assertRegex(said, task + r"\d+ has a notice")

    def test_tasks_leave_after_a_notice_and_their_times_are_shown(self):
        found, said = self.run_parts("notices")
        workers = [r for name, r in found.items() if name.startswith("SIGTERM of a worker")]
        self.assertEqual(len(workers), 2, said)
        if "skipped: namespaces" not in said:
            self.assertTrue([n for n in found if n.startswith("SIGTERM of a server")], said)
        for r in workers:
            self.assertAlmostEqual(r["ratio"], r["reference_value"] / r["value"])


if __name__ == "__main__":
    at = sys.argv.index("--bin")
    BIN = os.path.abspath(sys.argv[at + 1])
    unittest.main(argv=sys.argv[:at] + sys.argv[at + 2 :], verbosity=2)
