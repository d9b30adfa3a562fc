#!/usr/bin/env python3
"""Tests workers on GPUs: how a device is chosen, how it is refused with the reason, and a job on
several devices. The devices are emulated (tests/unit/worker/backend/cuda/emulated_library.cc), so
that this test runs everywhere. The daemons and the worker's part of the CUDA backend are the real
ones.

  gpu_test.py --bin DIR [Class[.test]]"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from cluster import Cluster, wait_for  # noqa: E402


class Gpus(unittest.TestCase):
    def setUp(self):
        os.environ["EVERGRAD_DATA"] = support.data_folder()
        self.emulated = os.path.join(os.path.abspath(support.BIN), "libworker_cuda_emulated.so")

    def worker(self, *arguments):
        return subprocess.run(
            [
                os.path.join(support.BIN, "evergrad-worker"),
                "--coordinator",
                "127.0.0.1:1",
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=30,
        )

    def test_gpu_check_reads_numbers_of_json_with_and_without_spaces(self):
        path = os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh")
        with open(path, encoding="utf-8") as f:
            function = next(line for line in f if line.startswith("number() {"))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as printed:
            json.dump({"eager": 3956.5, "compiled": 6393.75}, printed)
            printed.write('\n{"share":0.25}\n')
            printed.flush()
            for name, want in (("eager", "3956.5"), ("compiled", "6393.75"), ("share", "0.25")):
                r = subprocess.run(
                    ["bash", "-c", function + 'number "$1" "$2"', "bash", name, printed.name],
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
                self.assertEqual((r.stdout.strip(), r.stderr), (want, ""))

    def test_an_unavailable_gpu_is_refused_with_the_reason_and_not_listed(self):
        r = self.worker("--device", "gpu", "--cuda-library", "/nowhere.so")
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("device gpu is not usable: /nowhere.so does not exist", r.stderr)
        r = self.worker("--device", "gpu:1", "--cuda-library", self.emulated)
        self.assertIn("device gpu:1 is not usable: this host has 1 GPU", r.stderr)
        r = self.worker("--list-devices", "--cuda-library", "/nowhere.so")
        self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
        self.assertIn("no GPU: /nowhere.so does not exist", r.stderr)
        r = self.worker("--list-devices", "--cuda-library", self.emulated)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertTrue(r.stdout.startswith("gpu:0 emulated"), r.stdout)

    def ends(self, workers, library, name, log, precision="float32", **job):
        with Cluster(
            support.BIN,
            servers=2,
            workers=workers,
            worker_arguments=("--device", "auto", "--cuda-library", library),
        ).up() as c:
            path = support.write(
                os.path.join(c.folder, name + ".yaml"), support.job_yaml(name=name, epochs=2, **job)
            )
            c.psctl("job", "submit", path, "--set", "spec.training.precision=" + precision)
            status = wait_for(
                "%s to end" % name,
                lambda: (
                    lambda s: s if s["state"] not in ("QUEUED", "STARTING", "RUNNING") else None
                )(c.psctl_json("job", "show", name)),
                120,
            )
            self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
            for w in c.workers:
                with open(w.log_path, encoding="utf-8") as f:
                    self.assertIn(log, f.read())
            return status["epoch_rows"]

    def test_a_job_on_two_gpu_workers_succeeds(self):
        self.assertEqual(
            len(self.ends(2, self.emulated, "on-gpus", "computes on gpu:0 emulated")), 2
        )

    def test_a_deterministic_job_learns_equally_on_gpu_and_cpu(self):
        gpu = self.ends(
            1, self.emulated, "on-a-gpu", "computes on gpu:0 emulated", deterministic=True
        )
        cpu = self.ends(
            1,
            "/nowhere.so",
            "on-a-cpu",
            "computes on cpu: /nowhere.so does not exist",
            deterministic=True,
        )
        self.assertEqual((len(gpu), len(cpu)), (2, 2))
        for on_gpu, on_cpu in zip(gpu, cpu):
            for loss in ("train_loss", "eval_loss"):
                self.assertLess(
                    abs(on_gpu[loss] - on_cpu[loss]), 1e-3 * on_cpu[loss], (on_gpu, on_cpu)
                )

    def test_a_job_in_mixed_precision_learns_like_one_in_float32(self):
        cpu = self.ends(1, "/nowhere.so", "wide", "computes on cpu: ", deterministic=True)
        for precision in ("mixed_bfloat16", "mixed_float16"):
            gpu = self.ends(
                1,
                self.emulated,
                precision.replace("_", "-"),
                "computes on gpu:0 emulated",
                precision=precision,
                deterministic=True,
            )
            self.assertEqual((len(gpu), len(cpu)), (2, 2))
            for narrow, wide in zip(gpu, cpu):
                for loss in ("train_loss", "eval_loss"):
                    self.assertLess(
                        abs(narrow[loss] - wide[loss]), 2e-2 * wide[loss], (precision, narrow, wide)
                    )

    def test_a_precision_that_no_worker_supports_fails_the_job_before_any_write(self):
        with Cluster(
            support.BIN, servers=1, workers=1, worker_arguments=("--device", "cpu")
        ).up() as c:
            path = support.write(
                os.path.join(c.folder, "not-here.yaml"), support.job_yaml(name="not-here")
            )
            c.psctl("job", "submit", path, "--set", "spec.training.precision=mixed_float16")
            status = wait_for(
                "the job to end",
                lambda: (
                    lambda s: s if s["state"] not in ("QUEUED", "STARTING", "RUNNING") else None
                )(c.psctl_json("job", "show", "not-here")),
                60,
            )
            self.assertEqual(status["state"], "FAILED", status)
            for words in (
                "training.precision=mixed_float16 device=cpu (oneDNN",
                "no float16 products for CPUs",
            ):
                self.assertIn(words, json.dumps(status["first_cause"]))
            self.assertEqual(status["epoch_rows"], [])
            self.assertFalse(
                os.path.exists(os.path.join(status["runs_folder"], "checkpoints")),
                status["runs_folder"],
            )

    def test_a_precision_that_one_of_two_workers_lacks_is_computed_by_the_other(self):
        with Cluster(
            support.BIN,
            servers=1,
            workers=2,
            worker_arguments=("--device", "auto", "--cuda-library", self.emulated),
        ) as c:
            c.workers[0].arguments = ["cpu" if a == "auto" else a for a in c.workers[0].arguments]
            c.up()
            path = support.write(
                os.path.join(c.folder, "there.yaml"), support.job_yaml(name="there", epochs=2)
            )
            c.psctl("job", "submit", path, "--set", "spec.training.precision=mixed_float16")
            status = wait_for(
                "the job to end",
                lambda: (
                    lambda s: s if s["state"] not in ("QUEUED", "STARTING", "RUNNING") else None
                )(c.psctl_json("job", "show", "there")),
                120,
            )
            self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
            said = [e["text"] for e in status["events"] if "cannot take part" in e["text"]]
            # If that worker got no work, this event does not exist.
            self.assertLessEqual(len(said), 1, said)
            steps = {w["identity"]: int(w["steps"]) for w in status["workers"]}
            self.assertEqual(steps.get("0", 0), 0, status["workers"])
            self.assertGreater(steps["1"], 0, status["workers"])

    def test_a_worker_with_a_failed_device_exits_with_9_and_others_do_its_work_exactly_once(self):
        with Cluster(
            support.BIN,
            servers=2,
            workers=2,
            worker_arguments=("--device", "gpu", "--cuda-library", self.emulated),
        ) as c:
            victim = c.workers[0]
            victim.prefix = ["env", "EVERGRAD_EMULATED_FAIL_AFTER_COPIES=300"]
            c.up()
            for i in range(6):  # How a job is divided among workers is not fixed.
                name = "device-%d" % i
                c.psctl(
                    "job",
                    "submit",
                    support.write(
                        os.path.join(c.folder, name + ".yaml"),
                        support.job_yaml(name=name, epochs=4),
                    ),
                )
                status = wait_for(
                    "%s to end" % name,
                    lambda: (
                        lambda s: s if s["state"] not in ("QUEUED", "STARTING", "RUNNING") else None
                    )(c.psctl_json("job", "show", name)),
                    120,
                )
                self.assertEqual(status["state"], "SUCCEEDED", status.get("first_cause"))
                with open(
                    os.path.join(status["runs_folder"], "result.json"), encoding="utf-8"
                ) as f:
                    self.assertEqual({s["updates_applied"] for s in json.load(f)["shards"]}, {200})
                if any("the device has failed" in e["text"] for e in status["events"]):
                    break
            else:
                self.fail("in six jobs nothing was copied to the device 300 times")
            wait_for("the worker to end", lambda: not victim.alive())
            self.assertEqual(victim.process.returncode, 9, victim.tail())
            self.assertIn(
                "this worker exits to be restarted, because its device has failed: code=9 "
                "cause=backend could not compute: ",
                victim.tail(40),
            )
            victim.prefix = []
            victim.start()
            c.wait_tasks()

    def test_cluster_up_gpus_starts_one_worker_for_each_gpu_or_reports_the_reason(self):
        folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "evergrad-gpus-%d" % os.getpid())
        bin_folder = os.path.join(folder, "bin")
        os.makedirs(bin_folder)
        self.addCleanup(shutil.rmtree, folder)
        for name in ("psctl", "evergrad-coordinator", "evergrad-ps-server", "evergrad-worker"):
            shutil.copy(os.path.join(support.BIN, name), bin_folder)
        psctl = os.path.join(bin_folder, "psctl")
        run = lambda *a: subprocess.run(
            [psctl, *a], cwd=folder, capture_output=True, text=True, timeout=60
        )
        r = run("cluster", "up", "--gpus")
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn(
            "--gpus: no GPU can be used on this host: evergrad-worker: no GPU: "
            "libevergrad_cuda.so does not exist",
            r.stderr,
        )
        r = run("cluster", "up", "--gpus", "--workers", "2")
        self.assertIn("--gpus together with --workers: give one of them", r.stderr)
        # A library in the daemons' folder is found without a flag.
        shutil.copy(self.emulated, os.path.join(bin_folder, "libevergrad_cuda.so"))
        try:
            r = run("cluster", "up", "--gpus", "--servers", "1")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertIn("1 server, 1 worker;", r.stdout)
            with open(os.path.join(folder, ".evergrad", "worker-0.log"), encoding="utf-8") as f:
                self.assertIn("computes on gpu:0 emulated", f.read())
        finally:
            run("cluster", "down")

    def test_two_gpus_have_two_workers_with_one_gpu_each(self):
        folder = self.with_emulated()
        env = {**os.environ, "EVERGRAD_EMULATED_DEVICES": "2"}
        run = lambda *a: subprocess.run(
            [os.path.join(folder, "psctl"), *a],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        try:
            r = run("cluster", "up", "--gpus", "--servers", "1")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertIn("1 server, 2 workers", r.stdout)
            for n in range(2):
                with open(
                    os.path.join(folder, ".evergrad", "worker-%d.log" % n), encoding="utf-8"
                ) as f:
                    self.assertIn("computes on gpu:%d emulated" % n, f.read())
        finally:
            run("cluster", "down")

    def test_a_gpu_that_is_out_of_memory_names_the_bytes_and_a_batch_size_that_may_fit(self):
        folder = self.with_emulated()
        env = {**os.environ, "EVERGRAD_EMULATED_MEMORY_BYTES": str(24 << 20)}
        job = support.write(
            os.path.join(folder, "large.yaml"), support.job_yaml(name="large", epochs=1)
        )
        r = subprocess.run(
            [
                os.path.join(folder, "psctl"),
                "job",
                "run",
                job,
                "--local",
                "--workers",
                "1",
                "--servers",
                "1",
                "--device",
                "gpu",
                "--runs",
                os.path.join(folder, "runs"),
                "--set",
                "spec.data.batch_size=8000",
            ],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertNotEqual(r.returncode, 0, r.stdout)
        self.assertRegex(
            r.stdout + r.stderr,
            r"out of memory for a batch: examples=8000 bytes_per_example=\d+ "
            r"examples_that_may_fit=[1-9]\d* "
            r"cause=out of memory: what=\S+ bytes=\d+ free=\d+",
        )

    def with_emulated(self, *more):
        """Makes a folder with the programs and the library of the emulated device, where a worker
        finds it without a flag."""
        folder = tempfile.mkdtemp(prefix="evergrad-gpus-")
        self.addCleanup(shutil.rmtree, folder)
        for name in (
            "psctl",
            "evergrad-coordinator",
            "evergrad-ps-server",
            "evergrad-worker",
        ) + more:
            shutil.copy(os.path.join(support.BIN, name), folder)
        shutil.copy(self.emulated, os.path.join(folder, "libevergrad_cuda.so"))
        return folder

    def test_job_run_local_gpus_starts_one_worker_for_each_gpu_or_reports_the_reason(self):
        folder = self.with_emulated()
        psctl = os.path.join(folder, "psctl")
        job = support.write(
            os.path.join(folder, "job.yaml"), support.job_yaml(name="gpus", epochs=1)
        )
        run = lambda *a: subprocess.run(
            [psctl, "job", "run", job, *a],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        r = run("--gpus")
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("--gpus needs --local", r.stderr)
        for given in (("--workers", "2"), ("--device", "cpu")):
            r = run("--local", "--gpus", *given)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("--gpus together with %s: give one of them" % given[0], r.stderr)
        r = run("--local", "--gpus", "--servers", "1", "--runs", os.path.join(folder, "runs"))
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertIn("1 server, 1 worker\n", r.stdout)
        logs = subprocess.run(
            ["grep", "-rhoE", "computes on .*", os.path.join(folder, "runs")],
            capture_output=True,
            text=True,
        ).stdout
        self.assertIn("computes on gpu:0 emulated", logs)
        os.remove(os.path.join(folder, "libevergrad_cuda.so"))
        r = run("--local", "--gpus", "--runs", os.path.join(folder, "runs"))
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("--gpus: no GPU can be used on this host", r.stderr)

    def test_job_show_reports_the_activity_of_gpus_only(self):
        for library, device in ((self.emulated, True), ("/nowhere.so", False)):
            with Cluster(
                support.BIN,
                servers=1,
                workers=1,
                worker_arguments=("--device", "auto", "--cuda-library", library),
            ).up() as c:
                path = support.write(
                    os.path.join(c.folder, "shown.yaml"), support.job_yaml(name="shown", epochs=1)
                )
                c.psctl("job", "submit", path)
                status = wait_for(
                    "shown to end",
                    lambda: (lambda s: s if s["state"] == "SUCCEEDED" else None)(
                        c.psctl_json("job", "show", "shown")
                    ),
                    120,
                )
                text = c.psctl("job", "show", "shown").stdout
                self.assertEqual("device" in status["workers"][0], device)
                self.assertEqual("kernels," in text, device, text)
                if device:
                    shown = status["workers"][0]["device"]
                    self.assertIn("emulated", shown["name"])
                    self.assertEqual(shown["utilization_from"], "kernels")
                    self.assertGreater(shown["seconds"]["kernels"], 0)
                    self.assertGreater(shown["steps"]["replayed"], shown["steps"]["eager"])
                    self.assertGreater(shown["memory_bytes"]["peak"], 0)

    def test_the_training_of_gpu_check_succeeds_on_an_emulated_device(self):
        folder = self.with_emulated()
        script = os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh")
        out = os.path.join(folder, "check.json")
        r = subprocess.run(
            [script, "--only", "train", "--tiny", "--bin", folder, "--out", out],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
        )
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        with open(out, encoding="utf-8") as f:
            rows = {row["name"]: row for row in json.load(f)["rows"]}
        self.assertEqual({row["verdict"] for row in rows.values()}, {"ok"}, r.stdout)
        for name in ("mlp", "cnn"):
            self.assertIn("computes on gpu:0 emulated", rows["train: " + name]["detail"])
            for precision, bound in (("float32", 1e-3), ("mixed_bfloat16", 2e-2)):
                differs = re.match(
                    r"relative difference from the CPU's losses over 100 steps: at most ([0-9.]+),",
                    rows["curve: %s, %s" % (name, precision)]["detail"],
                )
                self.assertLessEqual(float(differs.group(1)), bound)
        self.assertRegex(
            rows["faults: workers and servers killed"]["detail"],
            "^4 deaths; exact: in each of epochs 1 to 2 every example was applied exactly once",
        )

    def test_gpu_check_shows_the_error_of_a_device_that_fails_in_training_and_the_logs(self):
        folder = self.with_emulated()
        out = os.path.join(folder, "check.json")
        # The last part of the check is a training in which processes are killed. It would wait for
        # the workers that have ended until the time limit.
        r = subprocess.run(
            [
                os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh"),
                "--only",
                "train",
                "--tiny",
                "--seconds",
                "40",
                "--bin",
                folder,
                "--out",
                out,
            ],
            cwd=folder,
            env={**os.environ, "EVERGRAD_EMULATED_FAIL_AFTER_COPIES": "100"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(r.returncode, 1, r.stdout + r.stderr)
        with open(out, encoding="utf-8") as f:
            rows = {row["name"]: row for row in json.load(f)["rows"]}
        self.assertEqual(rows["train: mlp"]["verdict"], "failed")
        self.assertRegex(
            rows["train: mlp"]["detail"],
            r"^rc=1: backend could not compute: layer=\S* phase=\w+ primitive=\w+ "
            r"cause=the device has failed: made to fail.* \|\| ",
        )
        with open(os.path.join(folder, "check.log"), encoding="utf-8") as f:
            log = f.read()
        self.assertRegex(log, r"(?m)^==== train: mlp: mlp/mlp-made-[0-9a-f]+/logs/worker-0.log$")
        self.assertLess(len(log), 1 << 20)

    def check_with(self, programs, *arguments):
        """Runs gpu_check.sh with these shell scripts as its programs. Returns the process, its
        JSON, the rows of the JSON by name, and the seconds that it took."""
        folder = self.checked_in = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name, script in programs.items():
            support.write(os.path.join(folder, name), "#!/bin/sh\n" + script + "\n")
            os.chmod(os.path.join(folder, name), 0o755)
        script, out = os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh"), os.path.join(
            folder, "check.json"
        )
        begin = time.monotonic()
        r = subprocess.run(
            [script, "--tiny", "--bin", folder, "--out", out, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]},
        )
        with open(out, encoding="utf-8") as f:
            checked = json.load(f)
        return r, checked, {row["name"]: row for row in checked["rows"]}, time.monotonic() - begin

    def test_gpu_check_has_one_time_limit_and_lists_the_parts_that_did_not_run(self):
        for_ever, device = "exec tail -f /dev/null", "echo 'gpu:0 slow'"
        # One part hangs, and no time is left for the following parts. The check must distinguish a
        # part that was stopped from parts that never began.
        r, checked, rows, took = self.check_with(
            {
                "psctl": '[ "$1" = --version ] || ' + for_ever,
                "evergrad-worker": device,
                "worker_backend_gpu_test": for_ever,
                "gpu_bench": for_ever,
                "python3": "exit 3",
                "compute-sanitizer": for_ever,
            },
            "--seconds",
            "2",
        )
        self.assertEqual(r.returncode, 4, r.stdout + r.stderr)
        self.assertLess(took, 2 + 30)
        self.assertRegex(
            rows["parity"]["detail"],
            "^no time: stopped after [12] s, before the part's own limit of 240 s$",
        )
        for name in (
            "train: mlp",
            "train: cnn",
            "train: mlp-on-cpu",
            "train: cnn-on-cpu",
            "faults",
            "bench: ResNet-50",
            "bench: PyTorch",
            "bench: MLP against bare cuBLASLt",
            "bench: memory over 60 steps",
            "bench: transfers hidden",
            "memory checker",
        ):
            self.assertRegex(rows[name]["detail"], "^no time: 0 s of 2 s are left$", name)
        self.assertEqual(
            {row["verdict"] for name, row in rows.items() if name not in ("device", "driver")},
            {"not run"},
            r.stdout,
        )
        self.assertEqual((checked["failed"], checked["not_run"]), (0, 12))
        self.assertIn("0 failed, 0 skipped, 12 not run because of the time limit", r.stdout)
        # A part that failed counts as failed, even if other parts did not run. A cluster that does
        # not start must be ended.
        r, checked, rows, took = self.check_with(
            {
                "psctl": """case "$1 $2" in
  "--version "|"job run") exit 0 ;;
  "cluster down") touch "$5.down" "$4.down"; exit 0 ;;
esac
"""
                + for_ever,
                "evergrad-worker": device,
                "worker_backend_gpu_test": "exit 1",
                "gpu_bench": "echo broken >&2; exit 7",
                "python3": "exit 3",
                "compute-sanitizer": for_ever,
            },
            "--only",
            "bench",
            "--seconds",
            "3",
        )
        self.assertEqual(r.returncode, 1, r.stdout + r.stderr)
        self.assertLess(took, 3 + 30)
        self.assertEqual(
            (rows["bench: ResNet-50"]["verdict"], rows["bench: ResNet-50"]["detail"]),
            ("failed", "rc=7: broken"),
        )
        self.assertEqual(rows["bench: PyTorch"]["verdict"], "skipped")
        self.assertEqual(rows["bench: transfers hidden"]["verdict"], "not run", r.stdout)
        self.assertRegex(rows["bench: transfers hidden"]["detail"], "^no time: stopped after")
        # If more time is left than the part's own limit, the part's own limit decides.
        r, checked, rows, _ = self.check_with(
            {
                "psctl": "exit 0",
                "evergrad-worker": "exit 1",
                "worker_backend_gpu_test": "echo 'All 3 assertions passed'",
            },
            "--only",
            "parity",
            "--seconds",
            "20",
        )
        self.assertEqual(
            (r.returncode, checked["not_run"], rows["parity"]["verdict"]),
            (0, 0, "ok"),
            r.stdout + r.stderr,
        )

    def test_gpu_check_shows_the_last_loss_of_training_of_a_job_without_evaluation(self):
        psctl = """
case "$1 $2" in
  "--version ") exit 0 ;;
  "job run") ;;
  *) exit 1 ;;
esac
while [ "$1" != --runs ]; do shift; done
mkdir -p "$2/job"
case $2 in
  */mlp) metrics='"accuracy": 0.5, "loss": 0.25' ;;
  *) metrics= ;;
esac
{
  echo '{"examples_per_second": 1234.5,'
  echo ' "metrics": {'"$metrics"'}}'
} >"$2/job/result.json"
for loss in 1.5 0.75; do
  printf '{"kind":"epoch","eval_loss":null,"train_loss":%s}\n' $loss >>"$2/job/metrics.jsonl"
done
"""
        r, _, rows, _ = self.check_with(
            {"psctl": psctl, "evergrad-worker": "echo 'no GPU'; exit 2"}, "--only", "train"
        )
        for name, loss in (("mlp", "0.25"), ("cnn", "0.75")):
            self.assertEqual(rows["train: " + name]["verdict"], "ok", r.stdout + r.stderr)
            self.assertRegex(
                rows["train: " + name]["detail"],
                "^1234 examples/s, loss %s, [0-9]+ s; computes on an unknown device$" % loss,
            )

    def test_gpu_check_names_each_failed_case_with_its_values_and_the_devices_message(self):
        cases = """
case "$*" in
  --list-test-names-only)
    printf '%s\\n' 'one, that passes' 'two [fails]' 'three hangs' 'four crashes'
    exit 4 ;;
  *'one\\, that passes') exit 0 ;;
  *'two \\[fails]')
    printf '%s\\n' 'a_test.cc:7: FAILED:' '  CHECK( worst <= tolerance )'
    printf '%s\\n' 'with expansion:' '  nan <= 0.0001' 'with messages:'
    printf '  left: INTERNAL: backend could not compute: layer=c phase=forward '
    printf 'primitive=conv2d forward cause="cudnn" 3000\\n'
    exit 1 ;;
  *'three hangs') exec tail -f /dev/null ;;
  *'four crashes')
    printf '%s\\n' 'due to a fatal error condition:' '  SIGSEGV - Segmentation violation signal'
    kill -SEGV $$ ;;
  *)
    printf '%s\\n' ------- 'two [fails]' -------
    printf '%s\\n' 'a_test.cc:7:' 'a_test.cc:7: FAILED:' '  CHECK( worst <= tolerance )'
    printf '%s\\n' ------- 'four crashes' ------- 'a_test.cc:9: FAILED:' =======
    printf '%s\\n' 'test cases: 4 | 1 passed | 3 failed' 'assertions: 9 | 6 passed | 3 failed'
    exit 3 ;;
esac"""
        r, checked, rows, _ = self.check_with(
            {
                "psctl": "exit 0",
                "evergrad-worker": "echo 'gpu:0 broken'",
                "worker_backend_gpu_test": cases,
            },
            "--only",
            "parity",
            "--seconds",
            "60",
        )
        self.assertEqual(
            (r.returncode, checked["complete"], checked["failed"]),
            (1, True, 4),
            r.stdout + r.stderr,
        )
        self.assertEqual(
            rows["parity"]["detail"],
            "in one process: rc=3: assertions: 9 | 6 passed | 3 failed; "
            "1 of 4 cases pass, each in a separate process; first failure: "
            'in "two [fails]": a_test.cc:7: FAILED: | CHECK( worst <= tolerance )',
        )
        cause = (
            "INTERNAL: backend could not compute: layer=c phase=forward "
            'primitive=conv2d forward cause="cudnn" 3000'
        )
        self.assertEqual(
            rows["parity: two [fails]"]["detail"],
            "rc=1: " + cause + " || a_test.cc:7: FAILED: | CHECK( worst <= tolerance ) | "
            "with expansion: | nan <= 0.0001 | with messages: | left: " + cause,
        )
        self.assertEqual(rows["parity: three hangs"]["detail"], "not finished within 3 s: ")
        self.assertTrue(
            rows["parity: four crashes"]["detail"].startswith(
                "killed by signal 11: due to a fatal error condition: | SIGSEGV"
            ),
            rows,
        )
        with open(os.path.join(self.checked_in, checked["log"]), encoding="utf-8") as f:
            log = f.read()
        for words in (
            "==== host",
            "==== evergrad-worker --list-devices",
            "gpu:0 broken",
            "==== parity: all cases in one process",
            "==== parity: two [fails] (rc=1)",
            "==== parity: four crashes (killed by signal 11)",
        ):
            self.assertIn(words, log)

    def test_gpu_check_measures_the_models_that_it_has_trained_in_the_same_run(self):
        # The training of a model makes a folder with the model's name. The output of its benchmark
        # once had the same name.
        r, checked, rows, _ = self.check_with(
            {
                "psctl": """case "$1 $2" in
  "job run") while [ "$1" != --runs ]; do shift; done; exec mkdir "$2" ;;
  "job submit") exit 1 ;;
esac""",
                "evergrad-worker": "echo 'gpu:0 made'",
                "worker_backend_gpu_test": "exit 0",
                "gpu_bench": """echo '{"share_of_bare":0.5}'""",
                "python3": "exit 3",
            }
        )
        self.assertEqual(rows["bench: MLP against bare cuBLASLt"]["verdict"], "ok", r.stdout)
        self.assertEqual(checked["bench"]["mlp"], {"share_of_bare": 0.5})

    def test_gpu_check_shows_that_a_worker_was_out_of_memory_for_a_batch(self):
        said = "out of memory for a batch: examples=8 bytes_per_example=4"
        _, _, rows, _ = self.check_with(
            {
                "psctl": """[ "$1 $2" = "job run" ] || exit 0
while [ "$1" != --runs ]; do shift; done
mkdir "$2"
echo 'worker %s' >"$2/worker-0.log"
exit 1"""
                % said,
                "evergrad-worker": "exit 1",
            },
            "--only",
            "train",
            "--seconds",
            "2",
        )
        self.assertEqual(rows["train: mlp"]["detail"], "rc=1: %s || " % said)

    def test_a_part_of_gpu_check_that_fails_in_any_way_stops_no_other_part(self):
        # The job reports no numbers, two benchmarks print no result, and one benchmark crashes.
        r, checked, rows, _ = self.check_with(
            {
                "psctl": """case "$1 $2" in "job show") echo '{"state":"SUCCEEDED"}' ;; esac""",
                "evergrad-worker": "echo 'gpu:0 odd'",
                "worker_backend_gpu_test": "exit 1",
                "gpu_bench": """case "$1" in
  mlp) kill -SEGV $$ ;;
  growth) echo "no JSON" ;;
  *) echo "{}" ;;
esac""",
                "python3": "exit 3",
                "compute-sanitizer": "echo '========= ERROR SUMMARY: 0 errors'",
            }
        )
        self.assertEqual((r.returncode, checked["complete"]), (1, True), r.stdout + r.stderr)
        self.assertEqual(
            rows["parity"]["detail"],
            "in one process: rc=1: no summary line; "
            "0 of 0 cases pass, each in a separate process; first failure: ",
        )
        self.assertEqual(
            rows["bench: MLP against bare cuBLASLt"]["detail"], "killed by signal 11: "
        )
        self.assertEqual(rows["growth"]["detail"], "the benchmark's last line is not JSON: no JSON")
        self.assertRegex(
            rows["bench: transfers hidden"]["detail"],
            r"^gpu_check\.sh failed in this part, with \d+ at line \d+: kernels=",
        )
        for name in (
            "train: mlp",
            "train: cnn",
        ):  # A GPU was found, but no output says that it was used.
            self.assertEqual(rows[name]["verdict"], "failed", rows[name])
        self.assertEqual(rows["memory checker"]["verdict"], "ok", r.stdout)

    def test_a_killed_gpu_check_leaves_its_results_and_the_name_of_the_running_part(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name, script in (
            ("psctl", "exit 0"),
            ("evergrad-worker", "echo 'gpu:0 slow'"),
            ("worker_backend_gpu_test", "exec tail -f /dev/null"),
        ):
            support.write(os.path.join(folder, name), "#!/bin/sh\n" + script + "\n")
            os.chmod(os.path.join(folder, name), 0o755)
        out = os.path.join(folder, "check.json")

        def found():
            try:
                with open(out, encoding="utf-8") as f:
                    checked = json.load(f)
                return checked if checked["running"] == "parity" else None
            except (OSError, ValueError):
                return None

        check = subprocess.Popen(
            [
                os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh"),
                "--bin",
                folder,
                "--out",
                out,
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            checked = wait_for("parity to run", found)
        finally:
            for pid in subprocess.run(
                ["ps", "-o", "pid=", "-s", str(check.pid)], capture_output=True, text=True
            ).stdout.split():  # Programs under `timeout` have a process group of their own.
                os.kill(int(pid), signal.SIGKILL)
            check.wait()
        self.assertFalse(checked["complete"])
        self.assertEqual([row["name"] for row in checked["rows"]][:1], ["device"])
        self.assertEqual(found(), checked)

    def test_the_bench_of_gpu_check_succeeds_on_an_emulated_device(self):
        folder = self.with_emulated("gpu_bench")
        script = os.path.join(support.ROOT, "deploy", "scripts", "gpu_check.sh")
        out = os.path.join(folder, "check.json")
        r = subprocess.run(
            [script, "--only", "bench", "--tiny", "--bin", folder, "--out", out],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
        )
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        with open(out, encoding="utf-8") as f:
            checked = json.load(f)
        rows = {row["name"]: row for row in checked["rows"]}
        for name in (
            "ResNet-50, batch 2, mixed_bfloat16",
            "time outside kernels",
            "MLP against bare cuBLASLt",
            "memory over 60 steps",
            "transfers hidden",
        ):
            self.assertEqual(rows["bench: " + name]["verdict"], "ok", r.stdout)
        torch = next(row for name, row in rows.items() if name.startswith("bench: PyTorch"))
        self.assertTrue(
            torch["verdict"] == "ok" or torch["detail"].startswith("not available: "), torch
        )
        self.assertEqual(checked["bench"]["growth"]["grown_bytes"], 0)
        self.assertGreater(checked["bench"]["resnet50"]["on_device"]["examples_per_second"], 0)
        self.assertGreater(checked["bench"]["mlp"]["share_of_bare"], 0)
        self.assertRegex(rows["bench: transfers hidden"]["detail"], r"^-?\d+\.\d\d: a step with")
        refused = subprocess.run(
            [os.path.join(folder, "gpu_bench"), "train", "--precision", "bf61"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn(
            "--precision: one of float32, tf32, mixed_bfloat16, mixed_float16: got=bf61",
            refused.stderr,
        )


if __name__ == "__main__":
    support.main()
