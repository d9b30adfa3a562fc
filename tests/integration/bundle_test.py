#!/usr/bin/env python3
"""Tests the bundle: it can be made, it is small, and it can check a host and train in a chroot that
has only a C library and a shell. The weights of this training must equal those of an ordinary run.

  bundle_test.py --bin DIR [Class[.test]]"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from quickstart import LOCAL, QUICKSTART, Trains, digest, quickstart_data  # noqa: E402

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLS = (
    "bash sh env cat ls head tail grep sed sort awk cut dirname readlink mktemp rm mkdir nproc "
    "date find uname tr install sleep timeout"
).split()


def run(*command, **more):
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **more
    )


def bare(folder):
    """Makes a root folder with the C library, a shell, and the tools that the scripts call. It has
    no C++ library."""
    for name in ("proc", "dev", "tmp", "etc", "bin", "usr/bin", "opt"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    needed = set()
    for tool in TOOLS:
        path = os.path.realpath(shutil.which(tool))
        shutil.copy(path, os.path.join(folder, "bin", tool))
        needed.update(re.findall(r"(/\S+\.so\S*)", run("ldd", path).stdout))
    for library in (
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libresolv.so.2",
        "libnss_files.so.2",
    ):
        needed.add(os.path.join("/lib/x86_64-linux-gnu", library))
    for path in needed:
        if os.path.exists(path) and "stdc++" not in path:
            os.makedirs(folder + os.path.dirname(path), exist_ok=True)
            shutil.copy(os.path.realpath(path), folder + path)
    with open(os.path.join(folder, "etc", "hosts"), "w") as f:
        f.write("127.0.0.1 localhost\n")


class Bundle(Trains):
    @classmethod
    def setUpClass(cls):
        cls.made_in = tempfile.mkdtemp(prefix="evergrad-bundle-")
        cls.addClassCleanup(shutil.rmtree, cls.made_in)
        cls.made = run(
            os.path.join(ROOT, "deploy", "scripts", "bundle.sh"),
            "--bin",
            support.BIN,
            "--out",
            os.path.join(cls.made_in, "out"),
        )
        if cls.made.returncode == 0:
            cls.root = os.path.join(cls.made_in, "root")
            bare(cls.root)
            packed = os.path.join(cls.made_in, "out", "evergrad-linux-x86_64.tar.gz")
            subprocess.run(["tar", "-C", os.path.join(cls.root, "opt"), "-xf", packed], check=True)

    def setUp(self):
        super().setUp()
        self.assertEqual(self.made.returncode, 0, self.made.stdout + self.made.stderr)

    def inside(self, *command, env=()):
        """Runs a command in the chroot. /proc and /dev are mounted in a separate namespace, which
        ends with the command. `env` is a list of words NAME=VALUE."""
        if os.geteuid() != 0:
            self.skipTest("a chroot needs root")
        apart, mount = (
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
        ), 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"'
        tried = run(*apart, mount, self.root)
        if tried.returncode != 0:
            self.skipTest("no mounts of our own here: " + tried.stderr.strip())
        script = mount + ' && exec chroot "$0" /bin/env -i PATH=/bin HOME=/tmp "$@"'
        return run(*apart, script, self.root, *env, *command)

    def check(self, *arguments):
        ended = self.inside("/opt/evergrad/gpu_check.sh", "--out", "/tmp/check.json", *arguments)
        said = ended.stdout + ended.stderr
        path = os.path.join(self.root, "tmp", "check.json")
        self.assertTrue(os.path.exists(path), said)
        with open(path) as f:
            return ended, said, json.load(f)

    def test_the_bundle_lists_its_contents(self):
        self.assertRegex(self.made.stdout, r"evergrad-linux-x86_64\.tar\.gz: \d+ MB packed")
        for program in os.listdir(os.path.join(self.root, "opt", "evergrad", "bin")):
            path = os.path.join(self.root, "opt", "evergrad", "bin", program)
            self.assertIn("$ORIGIN/../lib", run("patchelf", "--print-rpath", path).stdout, program)

    def test_the_check_trains_in_a_bare_chroot_and_reports_why_it_uses_no_gpu(self):
        ended, said, checked = self.check("--only", "train")
        self.assertEqual(ended.returncode, 0, said)
        rows = {row["name"]: row for row in checked["rows"]}
        self.assertEqual(
            (rows["train: mlp"]["verdict"], rows["train: cnn"]["verdict"]), ("ok", "ok"), said
        )
        self.assertRegex(
            rows["faults: workers and servers killed"]["detail"],
            "^4 deaths; exact: in each of epochs 1 to 20 every example was applied exactly once",
            said,
        )
        if rows["device"]["verdict"] == "skipped":
            self.assertRegex(
                rows["device"]["detail"], r"libevergrad_cuda\.so|no CUDA driver|no device"
            )
            self.assertRegex(
                rows["train: mlp"]["detail"], r"^\d+ examples/s, loss 0\.\d+.*computes on cpu: "
            )
            self.assertEqual((checked["gpu"], checked["skipped"]), ("", 4))

    def test_the_bundle_trains_the_quickstart_to_the_weights_of_an_ordinary_run(self):
        opt = os.path.join(self.root, "opt")
        data = quickstart_data(os.path.join(opt, "data"))
        shutil.copy(QUICKSTART, opt)
        command = ["/opt/evergrad/run", "psctl", "job", "run", "/opt/quickstart.yaml", *LOCAL]
        ended = self.inside(*command, "--runs", "/opt/runs", env=["EVERGRAD_DATA=/opt/data"])
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(digest(os.path.join(opt, "runs")), self.ordinary(data))

    def test_a_bundle_without_the_cuda_library_reports_its_absence(self):
        library = os.path.join(self.root, "opt", "evergrad", "bin", "libevergrad_cuda.so")
        kept = library + ".kept"
        had = os.path.exists(library)
        if had:
            os.rename(library, kept)
        try:
            ended = self.inside("/opt/evergrad/run", "evergrad-worker", "--list-devices")
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("libevergrad_cuda.so does not exist", ended.stdout + ended.stderr)
            refused = self.inside(
                "/opt/evergrad/run",
                "psctl",
                "job",
                "run",
                "/opt/evergrad/jobs/mlp.yaml",
                "--local",
                "--device",
                "gpu",
                "--runs",
                "/tmp/runs",
            )
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("libevergrad_cuda.so does not exist", refused.stdout + refused.stderr)
        finally:
            if had:
                os.rename(kept, library)

    def test_parity_without_a_gpu_is_counted_and_named(self):
        ended, said, checked = self.check("--only", "parity")
        self.assertEqual(ended.returncode, 0, said)
        parity = next(row for row in checked["rows"] if row["name"] == "parity")
        if checked["gpu"] == "":
            self.assertEqual(parity["verdict"], "skipped", said)
            self.assertRegex(
                parity["detail"],
                r"^[1-9]\d* cases: no GPU: .*(libevergrad_cuda\.so|cudart|no device)",
            )
        else:
            self.assertRegex(parity["detail"], "assertions")

    def test_invalid_flags_are_refused(self):
        script = os.path.join(ROOT, "deploy", "scripts", "gpu_check.sh")
        for arguments, words in (
            (("--only", "all"), "want parity, train or bench"),
            (("--device", "tpu"), "want auto, cpu, gpu or gpu:N"),
            (("--loud",), "unknown option --loud"),
            (("--seconds", "5m"), "--seconds 5m: want a whole number above 0"),
        ):
            ended = run(script, *arguments)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(words, ended.stderr)
        ended = run(
            os.path.join(ROOT, "deploy", "scripts", "bundle.sh"),
            "--bin",
            self.folder,
            "--out",
            os.path.join(self.folder, "other"),
        )
        self.assertEqual(ended.returncode, 1)
        self.assertIn("no evergrad-coordinator in", ended.stderr)


if __name__ == "__main__":
    support.main()
