#!/usr/bin/env python3
"""./evergrad, called from another folder than its own: what a person names is meant from where they stand.

  front_door_test.py --bin build/release/bin

The checkout is a copy whose binaries are those of --bin; its set-up and its build have nothing to do.
"""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from support import Case, ROOT, job_yaml, main, write  # noqa: E402

PACKAGE = "/usr/share/datasets/fashion-mnist"


class FrontDoor(Case):
    def setUp(self):
        super().setUp()
        self.checkout = self.path("check out")
        self.caller = self.path("some where")
        scripts = os.path.join(self.checkout, "deploy", "scripts")
        for folder in (scripts, self.caller, self.path("tools"), os.path.join(self.checkout, "build", "release")):
            os.makedirs(folder)
        shutil.copy(os.path.join(ROOT, "evergrad"), self.checkout)
        for name in ("data.py", "failed_tests.py"):
            shutil.copy(os.path.join(ROOT, "deploy", "scripts", name), scripts)
        shutil.copytree(os.path.join(ROOT, "configs"), os.path.join(self.checkout, "configs"))
        os.symlink(support.BIN, os.path.join(self.checkout, "build", "release", "bin"))
        write(os.path.join(scripts, "setup.sh"), "echo set-up was begun\n")
        for tool in ("cmake", "ninja"):
            os.chmod(write(self.path("tools", tool), "#!/bin/sh\n"), 0o755)

    def evergrad(self, *arguments, env=None, command=None):
        environment = dict(os.environ, PATH=self.path("tools") + ":" + os.environ["PATH"], **(env or {}))
        return subprocess.run([command or os.path.join(self.checkout, "evergrad"), *arguments], cwd=self.caller, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)

    @unittest.skipUnless(os.path.isdir(PACKAGE), "Debian's package dataset-fashion-mnist is not installed")
    def test_train_takes_job_data_and_runs_from_where_it_is_called(self):
        os.makedirs(os.path.join(self.caller, "my jobs"))
        job = job_yaml("mine", epochs=5).replace("fashion-mnist-12k", "fashion-mnist")
        write(os.path.join(self.caller, "my jobs", "a.yaml"), job)
        # Through a link, as one in ~/bin would be.
        door = self.path("tools", "eg")
        os.symlink(os.path.join(self.checkout, "evergrad"), door)
        r = self.evergrad("train", "my jobs/a.yaml", "--set", "spec.training.epochs=1", "--threads", "1", "--workers", "1", env={"EVERGRAD_DATA": "sets"}, command=door)
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertIn("2 servers, 1 worker\n", r.stdout)
        self.assertIn("== train (my jobs/a.yaml)", r.stdout)
        self.assertTrue(os.path.exists(os.path.join(self.caller, "sets", "fashion-mnist", "train-images-idx3-ubyte.gz")))
        run = self.run_folder(os.path.join(self.caller, "runs"))
        self.assertIn("the run's files: runs/" + os.path.basename(run), r.stdout)
        self.assertTrue(os.path.exists(os.path.join(run, "report.html")))
        self.assertEqual(sorted(os.listdir(self.checkout)), ["build", "configs", "deploy", "evergrad"])

    def test_a_job_file_that_is_not_there_is_named_before_anything_is_set_up(self):
        for name in ("nowhere.yaml", "nowhere", "."):
            r = self.evergrad("train", name)
            self.assertEqual(r.returncode, 2, r.stdout)
            self.assertIn("no such job file: " + os.path.join(self.caller, name), r.stdout)
            self.assertNotIn("set-up", r.stdout)

    def test_what_failed_is_told_again_at_the_end_and_ctests_summary_is_last(self):
        write(os.path.join(self.checkout, "deploy", "scripts", "data.py"), "")  # no data is needed here
        long_name = "a name as long as a sentence, which would fill every other line with dots; with a semicolon"
        tests = {"good": "echo fine", long_name: "seq -f 'line %.0f' 100; echo the reason '<&>'; exit 3", "silent": "exit 1"}
        write(os.path.join(self.checkout, "build", "release", "CTestTestfile.cmake"),
              "".join("add_test([==[%s]==] sh -c [==[%s]==])\n" % t for t in tests.items()) + "set_tests_properties(good PROPERTIES LABELS easy)\n")
        r = self.evergrad("test")
        self.assertEqual(r.returncode, 8, r.stdout)
        self.assertNotIn("....", r.stdout)
        ctest, begin, end = r.stdout.partition("\n== failed: ")
        self.assertRegex(ctest, r"(?m)^1/3 Test #1: good \.\.\. +Passed ")
        self.assertIn("== test", ctest)
        self.assertIn("line 1\n", ctest)
        summary = ctest[ctest.index("33% tests passed, 2 tests failed out of 3"):].strip()
        self.assertTrue(end.endswith(summary + "\n"), "the last lines are not ctest's own:\n" + end)
        told = end[:-len(summary) - 1]
        self.assertTrue(told.startswith(long_name), told)
        self.assertNotIn("line 41\n", told)
        self.assertEqual(told.count("\nline "), 59)
        self.assertIn("line 42\nline 43\n", told)
        self.assertIn("line 100\nthe reason <&>\n", told)
        self.assertRegex(told, r"== failed: silent.*\n   \(it said nothing\)")
        self.assertNotIn("good", told)

        good = self.evergrad("test", "-L", "easy")
        self.assertEqual(good.returncode, 0, good.stdout)
        self.assertNotIn("== failed", good.stdout)
        self.assertEqual(good.stdout.count("tests passed"), 1)
        # What failed an hour ago does not fail now.
        write(os.path.join(self.checkout, "build", "release", "CTestTestfile.cmake"), "no_such_command()\n")
        none = self.evergrad("test")
        self.assertNotEqual(none.returncode, 0, none.stdout)
        self.assertIn("ctest left no list", none.stdout)
        self.assertNotIn("line 100", none.stdout)


if __name__ == "__main__":
    main()
