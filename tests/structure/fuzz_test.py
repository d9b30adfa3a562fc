#!/usr/bin/env python3
"""Tests deploy/scripts/fuzz.py with scripts that imitate fuzz targets. The subjects are the figures
of a run, a finding, and arguments that name no target.

  fuzz_test.py
"""
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "deploy", "scripts"))
import fuzz  # noqa: E402

# The script records its arguments, prints the lines that libFuzzer prints, and fails as $FAIL says.
TARGET = """#!/bin/bash
printf '%s\\n' "$@" >"$SAID"
echo '#2 INITED cov: 5 ft: 6 corp: 1/1b'
echo '#90 NEW    cov: 12 ft: 34 corp: 3/9b'
for argument in "$@"; do
  if [[ -n $FAIL && $argument == -artifact_prefix=* ]]; then
    echo x >"${argument#*=}crash-1"
    echo 'common/x.cc:3: invariant broken: a == b'
    echo 'stat::number_of_executed_units: 101'
    exit 77
  fi
done
echo 'stat::number_of_executed_units: 100'
"""


class Fuzz(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "bin"))
        program = os.path.join(self.folder, "bin", "fuzz_a")
        with open(program, "w") as f:
            f.write(TARGET)
        os.chmod(program, 0o755)
        with open(os.path.join(self.folder, "fuzz_targets.txt"), "w") as f:
            f.write("a\t/seeds/a\t/configs\nb\t/seeds/b\n")
        self.said = os.path.join(self.folder, "said")
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(SAID=self.said, FAIL="")
        self.lines = []

    def run_target(self):
        return fuzz.run(self.folder, "a", ["/seeds/a", "/configs"], 7, self.lines.append)

    def test_a_run_shows_its_figures_and_has_limits(self):
        self.assertTrue(self.run_target())
        self.assertEqual(self.lines, ["%-16s executions 100  edges 12  features 34" % "a"])
        with open(self.said) as f:
            arguments = f.read().splitlines()
        for wanted in ("-max_total_time=7", "-rss_limit_mb=2048", "-timeout=10"):
            self.assertIn(wanted, arguments)
        self.assertEqual(
            arguments[-3:], [os.path.join(self.folder, "corpus", "a"), "/seeds/a", "/configs"]
        )

    def test_a_finding_is_named_with_its_cause(self):
        os.environ["FAIL"] = "1"
        self.assertFalse(self.run_target())
        said = "\n".join(self.lines)
        self.assertIn("executions 101  edges 12  features 34  FAILED", said)
        self.assertIn("findings/a/crash-1", said)
        self.assertIn("common/x.cc:3: invariant broken: a == b", said)

    def test_targets_are_those_that_the_build_lists(self):
        known = fuzz.targets_of(self.folder)
        self.assertEqual(known, {"a": ["/seeds/a", "/configs"], "b": ["/seeds/b"]})
        self.assertEqual(fuzz.targets_of("/none"), {})
        self.assertEqual(fuzz.chosen_of([], known), (["a", "b"], 60))
        self.assertEqual(fuzz.chosen_of(["9"], known), (["a", "b"], 9))
        self.assertEqual(fuzz.chosen_of(["b", "9"], known), (["b"], 9))
        for wrong in (["c"], ["a", "b"], ["a", "0"], ["a", "b", "9"]):
            self.assertIsNone(fuzz.chosen_of(wrong, known), wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
