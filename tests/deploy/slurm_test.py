#!/usr/bin/env python3
"""Tests deploy/slurm/evergrad.sbatch with programs that imitate Slurm's commands and start the real
daemons on loopback.

  slurm_test.py --bin build/release/bin
"""
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
import support  # noqa: E402
from support import (  # noqa: E402
    COUNTING,
    ROOT,
    Case,
    Process,
    data_folder,
    job_yaml,
    main,
    processes_naming,
    read,
    wait_for,
    write,
)

SCRIPT = os.path.join(ROOT, "deploy", "slurm", "evergrad.sbatch")
# The imitated srun starts the tasks of a step on this machine, passes SIGTERM on to them, and ends
# when all of them have ended.
STUBS = {
    "srun": r"""#!/bin/bash
tasks=1
while [[ $1 == --* ]]; do
  case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --nodes=* | --ntasks-per-node=1 | --overlap | --kill-on-bad-exit=0 | --wait=0) ;;
    *) echo "srun: unknown option $1" >&2; exit 64 ;;
  esac
  shift
done
pids=()
for (( i = 0; i < tasks; ++i )); do SLURM_PROCID=$i "$@" & pids+=($!); done
trap 'kill -TERM "${pids[@]}" 2> /dev/null' TERM
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2> /dev/null; do wait "$pid"; done
done
""",
    "scontrol": '#!/bin/bash\n[[ "$*" == "show hostnames node[1-3]" ]] || exit 64\n'
    "printf '%s\\n' localhost node2 node3\n",
    "hostname": '#!/bin/bash\n[[ "$*" == -I ]] || exit 64\necho 127.0.0.1 10.9.9.9\n',
}


class Slurm(Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        for name, text in STUBS.items():
            os.chmod(write(self.path("bin", name), text), 0o755)

    def environment(self, **more):
        return dict(
            os.environ,
            PATH="%s:%s:%s" % (self.path("bin"), support.BIN, os.environ["PATH"]),
            SLURM_JOB_ID="17",
            SLURM_JOB_NUM_NODES="3",
            SLURM_JOB_NODELIST="node[1-3]",
            SLURM_SUBMIT_DIR=self.folder,
            TMPDIR=self.folder,
            **more
        )

    def submit(self, *arguments, **more):
        return Process(
            self,
            "batch",
            ["bash", SCRIPT] + list(arguments),
            self.folder,
            env=self.environment(**more),
        )

    def assert_nothing_is_left(self):
        wait_for("all daemons to end", lambda: not processes_naming(self.folder))
        self.assertFalse(os.path.exists(self.path("runs", ".slurm-17", "tls")), "keys are left")
        self.assertFalse([n for n in os.listdir(self.folder) if n.startswith("evergrad-17-")])

    def logs(self):
        folder = self.path("runs", ".slurm-17")
        names = ("coordinator.log", "servers.log", "workers.log")
        return "".join(read(os.path.join(folder, name)) for name in names)

    def test_a_job_is_trained_over_tls_on_two_servers_and_three_workers(self):
        job = write(self.path("job.yaml"), job_yaml())
        batch = self.submit(job, "--set", "spec.training.epochs=2", EVERGRAD_DATA=data_folder())
        self.assertEqual(batch.process.wait(200), 0, batch.log() + self.logs())
        said = self.logs()
        for task in ("ps_server/0", "ps_server/1", "worker/0", "worker/1", "worker/2"):
            self.assertIn("registered: task=%s " % task, said)
        (run,) = [n for n in os.listdir(self.path("runs")) if not n.startswith(".")]
        self.assertTrue(os.path.exists(self.path("runs", run, "weights.npz")))
        self.psctl("checkpoint", "verify", self.path("runs", run))
        self.assert_nothing_is_left()

    def test_a_killed_daemon_is_started_again_and_the_time_limit_ends_everything(self):
        job = write(self.path("job.yaml"), job_yaml(epochs=100000))
        batch = self.submit(job, EVERGRAD_DATA=data_folder())

        def workers():
            return [
                pid
                for pid, line in processes_naming(self.folder).items()
                if line.split()[0] == "evergrad-worker"
            ]

        wait_for("three workers", lambda: len(workers()) == 3 and "RUNNING" in self.logs())
        before = set(workers())
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        wait_for("a new worker", lambda: len(workers()) == 3 and victim not in workers())
        batch.process.send_signal(signal.SIGTERM)
        self.assertEqual(batch.process.wait(100), 143, batch.log())
        self.assertIn("the time limit is near", batch.log())
        self.assert_nothing_is_left()

    def test_the_exit_code_is_that_of_psctl(self):
        job = write(self.path("job.yaml"), COUNTING % ("wrong", 100, 0, 1) + "  wrong: 1\n")
        batch = self.submit(job)
        self.assertEqual(batch.process.wait(100), 2, batch.log())
        self.assert_nothing_is_left()

    def test_wrong_calls_are_refused_before_anything_starts(self):
        job = write(self.path("job.yaml"), COUNTING % ("small", 100, 0, 1))
        for arguments, more, words in (
            ([], {}, "usage"),
            ([self.path("absent.yaml")], {}, "no such job file"),
            ([job], {"EVERGRAD_SERVERS": "4"}, "EVERGRAD_SERVERS"),
        ):
            with self.subTest(words):
                r = subprocess.run(
                    ["bash", SCRIPT] + arguments,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    env=self.environment(**more),
                )
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertIn(words, r.stderr)
        self.assertFalse(os.path.exists(self.path("runs")))


if __name__ == "__main__":
    main()
