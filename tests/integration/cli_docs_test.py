#!/usr/bin/env python3
"""Tests that docs/cli.md, docs/security.md and configs/daemons are true: their generated parts are
the programs' output, and the examples of docs/cli.md work.

  cli_docs_test.py --bin build/release/bin
"""
import os
import re
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from support import ROOT, Case, main, read  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "cli.md")
SCRIPT = os.path.join(ROOT, "deploy", "scripts", "cli_docs.py")


class Page(Case):
    def test_the_pages_and_the_settings_files_equal_the_output_of_the_programs(self):
        r = subprocess.run(
            [sys.executable, SCRIPT, "--bin", support.BIN, "--check"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
        )
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_every_command_line_that_sets_a_value_is_accepted_and_has_its_documented_effect(self):
        lines = re.findall(r"(?m)^psctl (job validate .*--set.*)$", read(PAGE))
        self.assertGreaterEqual(len(lines), 5)
        for line in lines:
            with self.subTest(line):
                arguments = shlex.split(line)
                self.psctl(*arguments, cwd=ROOT)
                effective = self.psctl(*arguments, "--effective", cwd=ROOT).stdout
                self.assertNotEqual(
                    effective, self.psctl(*arguments[:3], "--effective", cwd=ROOT).stdout
                )
                for path, value in (a.split("=", 1) for a in arguments if "=" in a):
                    if path.endswith(".units"):
                        self.assertRegex(effective, r"name: deep1\b[^}]*?units: %s\b" % value)

    def test_an_absent_entry_of_a_list_is_refused_with_the_existing_names(self):
        r = self.psctl(
            "job",
            "validate",
            "configs/examples/adult.yaml",
            "--set",
            "spec.model.layers.deeep.units=3",
            cwd=ROOT,
            expect=2,
        )
        self.assertIn("deeep", r.stderr + r.stdout)


if __name__ == "__main__":
    main()
