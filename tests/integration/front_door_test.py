#!/usr/bin/env python3
"""Calls ./evergrad from another folder than its own. File names in its arguments are relative to
the folder of the caller.

  front_door_test.py --bin build/release/bin

The checkout is a copy that has the binaries of --bin, so that its set-up and its build have nothing
to do.
"""
import lzma
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from documents import block  # noqa: E402
from support import Case, ROOT, job_yaml, main, write  # noqa: E402

PACKAGE = "/usr/share/datasets/fashion-mnist"


class FrontDoor(Case):
    def setUp(self):
        super().setUp()
        self.checkout = self.path("check out")
        self.caller = self.path("some where")
        scripts = os.path.join(self.checkout, "deploy", "scripts")
        for folder in (
            scripts,
            self.caller,
            self.path("tools"),
            os.path.join(self.checkout, "build", "release"),
        ):
            os.makedirs(folder)
        shutil.copy(os.path.join(ROOT, "evergrad"), self.checkout)
        for name in ("data.py", "ratings.py", "failed_tests.py", "fresh.sh"):
            shutil.copy(os.path.join(ROOT, "deploy", "scripts", name), scripts)
        for name in ("configs", os.path.join("examples", "data")):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(self.checkout, name))
        os.symlink(support.BIN, os.path.join(self.checkout, "build", "release", "bin"))
        write(os.path.join(scripts, "setup.sh"), "echo set-up was begun\n")
        for tool in ("cmake", "ninja"):
            os.chmod(write(self.path("tools", tool), "#!/bin/sh\n"), 0o755)

    def evergrad(self, *arguments, env=None, command=None):
        environment = dict(
            os.environ, PATH=self.path("tools") + ":" + os.environ["PATH"], **(env or {})
        )
        return subprocess.run(
            [command or os.path.join(self.checkout, "evergrad"), *arguments],
            cwd=self.caller,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )

    @unittest.skipUnless(
        os.path.isdir(PACKAGE), "Debian's package dataset-fashion-mnist is not installed"
    )
    def test_train_finds_job_data_and_runs_relative_to_the_current_folder(self):
        os.makedirs(os.path.join(self.caller, "my jobs"))
        job = job_yaml("mine", epochs=5).replace("fashion-mnist-12k", "fashion-mnist")
        write(os.path.join(self.caller, "my jobs", "a.yaml"), job)
        # The program is called through a symbolic link, as a user may have one in ~/bin.
        door = self.path("tools", "eg")
        os.symlink(os.path.join(self.checkout, "evergrad"), door)
        r = self.evergrad(
            "train",
            "my jobs/a.yaml",
            "--set",
            "spec.training.epochs=1",
            "--threads",
            "1",
            "--workers",
            "1",
            env={"EVERGRAD_DATA": "sets"},
            command=door,
        )
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertIn("2 servers, 1 worker\n", r.stdout)
        self.assertIn("== train (my jobs/a.yaml)", r.stdout)
        self.assertTrue(
            os.path.exists(
                os.path.join(self.caller, "sets", "fashion-mnist", "train-images-idx3-ubyte.gz")
            )
        )
        run = self.run_folder(os.path.join(self.caller, "runs"))
        self.assertIn("the run's files: runs/" + os.path.basename(run), r.stdout)
        self.assertTrue(os.path.exists(os.path.join(run, "report.html")))
        self.assertEqual(
            sorted(os.listdir(self.checkout)),
            ["build", "configs", "deploy", "evergrad", "examples"],
        )

    @unittest.skipUnless(
        os.path.isdir(PACKAGE), "Debian's package dataset-fashion-mnist is not installed"
    )
    def test_the_readmes_job_trains_wherever_it_is_saved(self):
        job = write(os.path.join(self.caller, "my.yaml"), block("README.md", "yaml", "my-mlp"))
        r = self.evergrad(
            "train",
            "my.yaml",
            "--set",
            "spec.training.epochs=1",
            "--threads",
            "1",
            env={"EVERGRAD_DATA": ""},
        )
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertRegex(
            r.stdout, r"(?m)^.*2 workers, 2 servers, 469 steps, each applied exactly once$"
        )
        self.assertEqual(os.listdir(os.path.join(self.checkout, "data")), ["fashion-mnist"])
        self.assertEqual(sorted(os.listdir(self.caller)), [os.path.basename(job), "runs"])

    def test_train_provides_the_data_sets_of_a_job(self):
        examples = os.path.join(self.checkout, "configs", "examples")
        for example, needs, says in (
            ("adult", "adult", "auc 0."),
            ("matrix_factorization", "ratings", "root_mean_squared_error 0."),
        ):
            r = self.evergrad(
                "train",
                os.path.join(examples, example + ".yaml"),
                "--set",
                "spec.training.epochs=1",
                "--threads",
                "1",
                env={"EVERGRAD_DATA": "sets"},
            )
            self.assertEqual(r.returncode, 0, r.stdout)
            self.assertIn(says, r.stdout)
            self.assertIn(needs, os.listdir(os.path.join(self.caller, "sets")))
        self.assertEqual(
            sorted(os.listdir(os.path.join(self.caller, "sets"))), ["adult", "ratings"]
        )
        # Some data may not be redistributed. For such data the program prints where to get them,
        # and starts nothing.
        r = self.evergrad(
            "train",
            os.path.join(examples, "matrix_factorization.yaml"),
            "--set",
            "spec.data.train.path=${EVERGRAD_DATA}/ml-latest-small/ratings.csv",
            env={"EVERGRAD_DATA": "sets"},
        )
        self.assertEqual(r.returncode, 2, r.stdout)
        self.assertIn(
            "Get ml-latest-small.zip from https://grouplens.org/datasets/movielens/ "
            "and unpack it in %s" % os.path.join(self.caller, "sets"),
            r.stdout,
        )
        self.assertIn("SHA-256 of ratings.csv: aa289ca8", r.stdout)
        self.assertNotIn("local cluster", r.stdout)

    @unittest.skipUnless(
        os.path.isdir(PACKAGE), "Debian's package dataset-fashion-mnist is not installed"
    )
    def test_data_provides_every_file_that_an_example_names(self):
        configs = os.path.join(self.checkout, "configs")
        jobs = [
            os.path.join(configs, name) for name in ("quickstart.yaml", "reference.yaml")
        ] + sorted(
            os.path.join(configs, "examples", name)
            for name in os.listdir(os.path.join(configs, "examples"))
        )
        self.assertGreater(len(jobs), 10)
        r = self.evergrad("data", env={"EVERGRAD_DATA": "sets"})
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertNotIn("not available", r.stdout)
        for job in jobs:
            with open(job) as f:
                text = f.read()
            # Only quoted paths are checked. A comment may name a file that the user must download.
            named = re.findall(r'"\$\{EVERGRAD_DATA[^}]*\}/([^"]+)"', text)
            self.assertEqual(len(named), text.count('"${EVERGRAD_DATA'), job)
            for path in named:
                self.assertTrue(
                    os.path.exists(os.path.join(self.caller, "sets", path)),
                    "%s names %s, which ./evergrad data does not make" % (job, path),
                )
            # No path of an example may lie outside the data folder.
            self.assertEqual(
                re.findall(
                    r'\b(?:images|labels|path): *"?(?!\$\{EVERGRAD_DATA)[^\s,}"]*/[^\s,}]*', text
                ),
                [],
                job,
            )

    def test_data_is_checked_and_existing_files_are_not_changed(self):
        packed = os.path.join(self.checkout, "examples", "data", "adult", "adult.data.xz")
        with lzma.open(packed, "wb") as f:
            f.write(b"not the census\n")
        r = self.evergrad("data", "adult", env={"EVERGRAD_DATA": "sets"})
        self.assertEqual(r.returncode, 2, r.stdout)
        self.assertIn("adult.data: SHA-256 want df25a4e3", r.stdout)
        self.assertFalse(os.path.exists(os.path.join(self.caller, "sets", "adult")))
        os.makedirs(os.path.join(self.caller, "sets", "ratings"))
        mine = write(os.path.join(self.caller, "sets", "ratings", "ratings.csv"), "mine\n")
        self.assertEqual(
            self.evergrad("data", "ratings", env={"EVERGRAD_DATA": "sets"}).returncode, 0
        )
        with open(mine) as f:
            self.assertEqual(f.read(), "mine\n")
        r = self.evergrad("data", "rating")
        self.assertEqual(r.returncode, 2, r.stdout)
        self.assertIn("unknown set rating; want: fashion-mnist", r.stdout)

    @unittest.skipUnless(os.geteuid() == 0, "a chroot needs root")
    def test_fresh_makes_the_given_folder_and_removes_only_its_own_files(self):
        subprocess.run(["git", "init", "-q", self.checkout], check=True)
        os.chmod(
            write(
                self.path("tools", "debootstrap"),
                '#!/bin/sh\nmkdir -p "$4"\necho "asked for $4"\nexit 1\n',
            ),
            0o755,
        )
        for folder in ("not yet/there", "there"):
            if folder == "there":
                os.makedirs(os.path.join(self.caller, folder))
                write(os.path.join(self.caller, folder, "mine"), "")
            r = self.evergrad("fresh", "--dir", folder)
            self.assertEqual(r.returncode, 1, r.stdout)
            self.assertIn("asked for " + os.path.join(self.caller, folder, "root"), r.stdout)
        self.assertFalse(os.path.exists(os.path.join(self.caller, "not yet", "there")))
        self.assertEqual(os.listdir(os.path.join(self.caller, "there")), ["mine"])
        r = self.evergrad("fresh", "--only", "everything")
        self.assertEqual(r.returncode, 2, r.stdout)
        self.assertIn("want train or test", r.stdout)

    def test_a_missing_job_file_is_named_before_any_set_up(self):
        for name in ("nowhere.yaml", "nowhere", "."):
            r = self.evergrad("train", name)
            self.assertEqual(r.returncode, 2, r.stdout)
            self.assertIn("no such job file: " + os.path.join(self.caller, name), r.stdout)
            self.assertNotIn("set-up", r.stdout)

    def test_failures_are_repeated_at_the_end_and_ctests_summary_is_last(self):
        write(
            os.path.join(self.checkout, "deploy", "scripts", "data.py"), ""
        )  # an empty script, so that no data is needed
        long_name = (
            "a name as long as a sentence, which would fill every other line with dots; "
            "with a semicolon"
        )
        tests = {
            "good": "echo fine",
            long_name: "seq -f 'line %.0f' 100; echo the reason '<&>'; exit 3",
            "silent": "exit 1",
        }
        write(
            os.path.join(self.checkout, "build", "release", "CTestTestfile.cmake"),
            "".join("add_test([==[%s]==] sh -c [==[%s]==])\n" % t for t in tests.items())
            + "set_tests_properties(good PROPERTIES LABELS easy)\n",
        )
        r = self.evergrad("test")
        self.assertEqual(r.returncode, 8, r.stdout)
        self.assertNotIn("....", r.stdout)
        ctest, begin, end = r.stdout.partition("\n== failed: ")
        self.assertRegex(ctest, r"(?m)^1/3 Test #1: good \.\.\. +Passed ")
        self.assertIn("== test", ctest)
        self.assertIn("line 1\n", ctest)
        summary = ctest[ctest.index("33% tests passed, 2 tests failed out of 3") :].strip()
        self.assertTrue(end.endswith(summary + "\n"), "the last lines are not ctest's own:\n" + end)
        told = end[: -len(summary) - 1]
        self.assertTrue(told.startswith(long_name), told)
        self.assertNotIn("line 41\n", told)
        self.assertEqual(told.count("\nline "), 59)
        self.assertIn("line 42\nline 43\n", told)
        self.assertIn("line 100\nthe reason <&>\n", told)
        self.assertRegex(told, r"== failed: silent.*\n   \(it printed nothing\)")
        self.assertNotIn("good", told)

        good = self.evergrad("test", "-L", "easy")
        self.assertEqual(good.returncode, 0, good.stdout)
        self.assertNotIn("== failed", good.stdout)
        self.assertEqual(good.stdout.count("tests passed"), 1)
        # A failure of an earlier call must not be reported in this call.
        write(
            os.path.join(self.checkout, "build", "release", "CTestTestfile.cmake"),
            "no_such_command()\n",
        )
        none = self.evergrad("test")
        self.assertNotEqual(none.returncode, 0, none.stdout)
        self.assertIn("ctest wrote no list", none.stdout)
        self.assertNotIn("line 100", none.stdout)


if __name__ == "__main__":
    main()
