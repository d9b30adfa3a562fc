#!/usr/bin/env python3
"""Tests run.py with programs that imitate benchmarks: each figure is shown as soon as it is
measured, parts that need a GPU are skipped with the reason, and failures are counted.

  run_test.py
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run  # noqa: E402

NO_GPU = "#!/bin/sh\necho 'evergrad-worker: no GPU: no CUDA driver (cudart 35)' >&2\nexit 2\n"
ONE_GPU = "#!/bin/sh\necho 'gpu:0 a device of 80 GiB'\n"
GPU_BENCH = """#!/bin/sh
case $1 in
  mlp) echo '{"bare": {"step_ms": 8.0}, "on_device": {"step_ms": 10.0}, "share_of_bare": 0.8}' ;;
  train)
    echo '{"on_device": {"examples_per_second": 2000.0},' \\
      '"from_host": {"examples_per_second": 1500.0}}' ;;
  *) echo 'gpu_bench: want a mode: train, mlp or growth' >&2; exit 2 ;;
esac
"""


def line(name, ratio=2.0, reach=None):
    return json.dumps(
        {
            "name": name,
            "value": 1.5,
            "unit": "GB/s",
            "reference_name": "a rival",
            "reference_value": 0.75,
            "ratio": ratio,
            "reach": reach,
        }
    )


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="evergrad bench-")
        self.addCleanup(folder.cleanup)
        self.bin, self.out = os.path.join(folder.name, "bin"), os.path.join(folder.name, "out")
        os.mkdir(self.bin)
        self.program("evergrad-worker", NO_GPU)
        self.program("gpu_bench", GPU_BENCH)

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def start(self, *arguments):
        return subprocess.Popen(
            [
                sys.executable,
                os.path.join(HERE, "run.py"),
                "--bin",
                self.bin,
                "--out",
                self.out,
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self, *arguments):
        with self.start(*arguments) as running:
            said = running.stdout.read()
        return running.returncode, said

    def results(self):
        with open(os.path.join(self.out, "results.json")) as f:
            return json.load(f)

    def test_each_figure_is_shown_and_written_while_the_next_one_is_measured(self):
        gate = os.path.join(self.bin, "gate")
        os.mkfifo(gate)
        self.program(
            "first_bench",
            "#!/bin/sh\necho '%s'\nread go <'%s'\necho '%s'\n"
            % (line("early"), gate, line("late")),
        )
        opened = os.open(gate, os.O_RDWR)  # so that no side waits for the other one to open it
        self.addCleanup(os.close, opened)
        with self.start("first_bench") as running:
            for said in running.stdout:
                if said.startswith("early"):
                    break
            else:
                self.fail("the first figure was not shown")
            # The benchmark waits at the gate, so the second figure cannot have been measured yet.
            measured = [r["name"] for r in self.results()]
            os.write(opened, b"go\n")
            rest = running.stdout.read()
        self.assertEqual(measured, ["early"])
        self.assertEqual(running.returncode, 0, rest)
        self.assertIn("late", rest)
        self.assertEqual([r["name"] for r in self.results()], ["early", "late"])

    def test_without_a_gpu_what_needs_one_is_skipped_and_says_why(self):
        self.program("first_bench", "#!/bin/sh\necho '%s'\n" % line("early"))
        code, said = self.ended("first_bench", "gpu")
        self.assertEqual(code, 0, said)
        self.assertIn("gpu: skipped: evergrad-worker: no GPU: no CUDA driver (cudart 35)\n", said)
        self.assertNotIn("want a mode", said)
        self.assertNotIn("gpu_bench", said)

    def test_with_a_gpu_its_benchmark_is_run_in_each_of_its_modes(self):
        self.program("evergrad-worker", ONE_GPU)
        code, said = self.ended("gpu")
        self.assertEqual(code, 0, said)
        self.assertEqual(
            [(r["name"].split(":")[0], r["value"], r["ratio"]) for r in self.results()],
            [("GPU", 100.0, 0.8), ("GPU", 1500.0, 0.75)],
        )

    def test_a_benchmark_that_fails_stops_no_other_and_makes_the_exit_code_1(self):
        self.program(
            "first_bench",
            "#!/bin/sh\necho '%s'\necho 'no room' >&2\nexit 3\n" % line("before it failed"),
        )
        self.program("second_bench", "#!/bin/sh\necho '%s'\n" % line("short", ratio=0.5, reach=0.9))
        code, said = self.ended("first_bench", "second_bench")
        self.assertEqual(code, 1, said)
        self.assertIn("first_bench failed: first_bench ended with 3\nno room\n", said)
        self.assertRegex(said, r"(?m)^short .*BELOW ")
        self.assertTrue(said.endswith("failed: first_bench\n"), said)
        self.assertEqual([r["name"] for r in self.results()], ["before it failed", "short"])
        code, said = self.ended("frist_bench")
        self.assertEqual(code, 1)
        self.assertIn(
            "nothing is called frist_bench; there are: "
            "cluster, first_bench, gpu, large, notices:servers, notices:workers, second_bench, "
            "spot:all-gone, spot:notice, spot:servers-without, spot:workers-without, training",
            said,
        )

    def test_the_time_left_follows_what_the_parts_took_here(self):
        self.program("first_bench", "#!/bin/sh\necho '%s'\n" % line("early"))
        self.program("second_bench", "#!/bin/sh\necho '%s'\n" % line("late"))
        code, said = self.ended("first_bench", "second_bench")
        self.assertEqual(code, 0, said)
        # The first estimate is made without an earlier duration of either part. The first part then
        # ended quickly, which corrects the second estimate.
        self.assertIn("== first_bench (1 of 2), about 2 min left\n", said)
        self.assertIn("== second_bench (2 of 2), about 1 s left\n", said)
        with open(os.path.join(self.out, "seconds.json"), "w") as f:
            json.dump({"first_bench": 600, "second_bench": 1200}, f)
        self.assertIn(
            "== first_bench (1 of 2), about 30 min left\n",
            self.ended("first_bench", "second_bench")[1],
        )

    def test_time_left_is_corrected_by_the_pace_of_this_run(self):
        os.mkdir(self.out)
        path = os.path.join(self.out, "seconds.json")
        with open(path, "w") as f:
            json.dump({"a": 100, "b": 300, "other": 7}, f)
        left = run.TimeLeft(path, ["a", "b"])
        self.assertEqual(left.text(), "about 7 min left")
        left.done("a", 20)
        self.assertEqual(left.text(), "about 60 s left")
        with open(path) as f:
            self.assertEqual(json.load(f), {"a": 20, "b": 300, "other": 7})
        with open(path, "w") as f:
            f.write("[broken")
        self.assertEqual(
            run.TimeLeft(path, ["worker_bench"]).seconds(), run.SECONDS["worker_bench"]
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
