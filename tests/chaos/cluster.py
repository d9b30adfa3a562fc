"""A real cluster of daemons for the fault scenarios, on loopback and never on fixed ports. This
module starts, kills, stops and queries it.

Every wait polls a condition and has a deadline; no wait is a fixed sleep. Only processes that were
started here are ever signalled, by pid.
"""
import ctypes
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
import zipfile

from power import Disk
from proxy import Proxy

MASK = (1 << 64) - 1


class Failure(Exception):
    """A promise did not hold, or the cluster did not reach a state in time."""


def metric_samples(address, name):
    """Returns the values of a metric of a daemon, one for each set of labels."""
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=10) as answer:
        text = answer.read().decode()
    return [float(v) for v in re.findall(r"^%s(?:\{.*\})? (\S+)$" % name, text, re.M)]


def wait_for(what, condition, seconds=60.0):
    """Polls `condition` until it returns a true value, and returns that value. Between two polls it
    waits for an event that is never set.

    The deadline exists only to end a wait that hangs. It is far longer than a slow machine needs,
    and costs no time if the condition becomes true.
    """
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure("waited %.0f s for: %s" % (seconds, what))
        pause.wait(0.01)


def mix(index, bits):
    """The same function as in common/base/mix.h."""
    x = (index * 0x9E3779B97F4A7C15 + bits + 1) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def die_with_parent():
    """Runs in the child process before it becomes the daemon. If the script is ended from outside,
    for example by the timeout of a test, the kernel then kills its daemons, so that none of them
    disturbs the next script. Call Popen with it from the main thread only, because the kernel acts
    when the calling thread ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Daemon:
    def __init__(self, cluster, role, identity, arguments):
        self.cluster, self.role, self.identity, self.arguments = cluster, role, identity, arguments
        self.process = None
        self.starts = 0
        # Words that stand before the command line of the daemon, for example to start it in a
        # control group.
        self.prefix = []
        self.address = ""
        self.session_proxy = self.data_proxy = None

    @property
    def name(self):
        return "%s/%s" % (self.role, self.identity)

    @property
    def log_path(self):
        return os.path.join(self.cluster.folder, "%s-%s.log" % (self.role, self.identity))

    def start(self, failpoints=None, extra=(), mutant=None):
        """Starts the daemon, and returns once it listens, or, for a worker, once it runs. A
        failpoint may end the daemon before that. The daemon then counts as started if its address
        is known from an earlier start. With a `mutant`, the faulty build of the daemon is started,
        which breaks the rule of that name (tests/mutants/mutants.inc)."""
        if self.process is not None and self.process.poll() is None:
            raise Failure("%s runs already" % self.name)
        self.starts += 1
        address_file = os.path.join(
            self.cluster.folder, "%s-%s.%d.address" % (self.role, self.identity, self.starts)
        )
        binary = {
            "coordinator": "evergrad-coordinator",
            "ps_server": "evergrad-ps-server",
            "worker": self.cluster.worker_binary,
        }[self.role]
        environment = self.cluster.environment(self)
        if mutant:
            environment = dict(environment or os.environ, EVERGRAD_MUTANT=mutant)
        command = self.prefix + [
            os.path.join(self.cluster.bin, binary + ("-faulty" if mutant else "")),
            "--address-file",
            address_file,
            "--failpoint-seed",
            str(self.cluster.seed),
        ]
        # `none` arms no failpoint. The flag marks this cluster as one for tests, which accepts
        # counting jobs.
        command += ["--failpoints", failpoints or "none"]
        if self.role != "coordinator":
            command += ["--coordinator", self._coordinator()]
            if self.cluster.proxied and self.role == "ps_server":
                self.data_proxy = self.data_proxy or self.cluster.proxy()
                command += ["--advertise", self.data_proxy.address]
        elif self.address:
            command += ["--listen", self.address]  # the tasks dial again the address that they know
        command += self.cluster.store_flags(self) + list(self.arguments) + list(extra)
        with open(self.log_path, "ab") as log:
            log.write(("---- start %d: %s\n" % (self.starts, " ".join(command[1:]))).encode())
            log.flush()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cluster.folder,
                preexec_fn=die_with_parent,
                env=environment,
            )
        if self.role != "worker":
            self.address = wait_for(
                "%s to listen" % self.name, lambda: self._read_address(address_file, failpoints)
            )
        if self.data_proxy:
            self.data_proxy.to = self.address
        return self

    def _coordinator(self):
        if not self.cluster.proxied:
            return self.cluster.coordinator_address()
        self.session_proxy = self.session_proxy or self.cluster.proxy()
        self.session_proxy.to = self.cluster.coordinator_address()
        return self.session_proxy.address

    def _read_address(self, path, failpoints):
        # Whether the process has ended is read before its output, so that no output is missed that
        # it wrote before its end.
        ended = self.process.poll() is not None
        try:
            with open(path) as f:
                return f.read().strip()
        except FileNotFoundError:
            pass
        if not ended:
            return ""
        if failpoints and self.address and self.process.returncode == -signal.SIGKILL:
            return self.address
        raise Failure(
            "%s ended with %d before it listened:\n%s"
            % (self.name, self.process.returncode, self.tail())
        )

    def tail(self, lines=15):
        with open(self.log_path, errors="replace") as f:
            return "".join(f.readlines()[-lines:])

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.alive():
            os.kill(self.process.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def terminate(self, seconds=20):
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(
                "%s did not end %d s after SIGTERM:\n%s" % (self.name, seconds, self.tail())
            )


def power_library(bin_folder):
    """Returns the path of the library, or None in a sanitizer build. There, the sanitizer's own
    library would have to be preloaded first."""
    path = os.path.join(os.path.abspath(bin_folder), "libevergrad-power.so")
    return path if os.path.exists(path) else None


class Pauses:
    """Measures the longest time for which the machine did not run this process. Bounds on times are
    extended by this pause. Failures report it, because a lease can end in such a pause."""

    def __init__(self):
        self.longest, self.stop = 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        last = time.monotonic()
        while not self.stop.wait(0.02):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last - 0.02), now

    def end(self):
        self.stop.set()
        self.thread.join()


class Cluster:
    """A cluster. With `proxied`, each task reaches the coordinator through its own proxy
    (`session_proxy`), and workers reach each server through the server's proxy (`data_proxy`). The
    proxies pass everything on until a scenario changes that. With `powered`, every disk request of
    a daemon is recorded in `disk`, so that the cluster can lose power."""

    daemon_class = Daemon
    # Words that stand before a command line of psctl, and flags that are added after it.
    psctl_prefix, psctl_flags = [], []
    store = None  # an ObjectStore (stored.py) for the checkpoints of all jobs, or None

    def __init__(
        self,
        bin_folder,
        servers=2,
        workers=2,
        seed=1,
        scale=1.0,
        coordinator_arguments=(),
        worker_arguments=(),
        keep=False,
        proxied=False,
        powered=False,
        worker_binary="evergrad-worker",
    ):
        self.bin, self.seed, self.scale, self.keep = os.path.abspath(bin_folder), seed, scale, keep
        self.worker_binary = worker_binary
        self.folder = tempfile.mkdtemp(prefix="evergrad-chaos-")
        self.runs = os.path.join(self.folder, "runs")
        self.disk = (
            Disk(power_library(self.bin), self.folder, ("state", "runs")) if powered else None
        )
        # A WallClocks or None. If it is set, each process that is started from now on has the wall
        # clock of its own host.
        self.clocks = None
        lease = int(600 * scale)
        self.lease_seconds = lease / 1000.0
        self.coordinator = self.daemon_class(
            self,
            "coordinator",
            "0",
            [
                "--runs",
                self.runs,
                "--lease",
                "%dms" % lease,
                "--window",
                "%dms" % int(200 * scale),
                "--server-lost-after",
                "%dms" % int(1500 * scale),
                "--seal-timeout",
                "%dms" % int(1500 * scale),
                "--state-dir",
                os.path.join(self.folder, "state"),
            ]
            + list(coordinator_arguments),
        )
        self.servers = [
            self.daemon_class(self, "ps_server", str(i), ["--index", str(i)])
            for i in range(servers)
        ]
        self.workers = [
            self.daemon_class(
                self,
                "worker",
                str(i),
                ["--name", str(i), "--threads", "1"] + list(worker_arguments),
            )
            for i in range(workers)
        ]
        self.extras = []
        self.proxied, self.proxies = proxied, []
        self.jobs, self.forms = 0, 1
        self.shape = {}  # settings that are added to every counting job of a scenario
        self.pauses = Pauses()

    def environment(self, daemon):
        """Returns the environment of a process of this daemon, or of a call of psctl if the daemon
        is None."""
        if self.disk:
            return self.disk.environment()
        return self.clocks.environment(daemon.name) if self.clocks else None

    def sanitized(self):
        return power_library(self.bin) is None

    def store_flags(self, daemon=None):
        """Returns the flags with which the daemon, or psctl for None, reaches the object store."""
        return list(self.store.flags) if self.store else []

    def saved_at(self, name):
        """Returns the path or URI for a folder of checkpoints with this name."""
        return "%s/%s" % (self.store.folder_of(self) if self.store else self.folder, name)

    def checkpoint_setting(self, text):
        """Returns the setting `checkpoint` of a job. With an object store, a setting without a
        directory gets one in the store."""
        if not self.store or text == "off" or "directory:" in text:
            return text
        inside = text.strip("{}")
        return '{%sdirectory: "%s"}' % (inside + ", " if inside else "", self.saved_at("saved"))

    def coordinator_address(self):
        return self.coordinator.address

    def proxy(self):
        self.proxies.append(Proxy(seed=self.seed + len(self.proxies)).start())
        return self.proxies[-1]

    def daemons(self):
        return [self.coordinator] + self.servers + self.workers + self.extras

    def up(self):
        self.coordinator.start()
        for d in self.servers + self.workers:
            d.start()
        self.wait_tasks()
        return self

    def add(self, role, identity, arguments=(), failpoints=None):
        d = self.daemon_class(self, role, identity, list(arguments))
        self.extras.append(d)
        return d.start(failpoints)

    def down(self):
        for d in self.daemons():
            if d.alive():
                d.signal(signal.SIGCONT)
                d.signal(signal.SIGKILL)
                d.process.wait()
        for proxy in self.proxies:
            proxy.stop()
        if self.keep:
            print("kept: " + self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.pauses.end()
        if kind is not None:
            print(
                "---- the longest pause of this machine was %.2f s, load %s"
                % (self.pauses.longest, "%.1f %.1f %.1f" % os.getloadavg())
            )
            for d in self.daemons():
                if os.path.exists(d.log_path):
                    print("---- tail of %s's log" % d.name)
                    print(d.tail())
        self.down()

    # ---- psctl

    def psctl(self, *arguments, expect=0, timeout=60):
        command = (
            self.psctl_prefix
            + [os.path.join(self.bin, "psctl")]
            + list(arguments)
            + ["--coordinator", self.coordinator_address()]
            + self.psctl_flags
            + (self.store_flags() if "audit" in arguments else [])  # it reads the checkpoint
        )
        r = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.folder,
        )
        if expect is not None and r.returncode != expect:
            raise Failure(
                "psctl %s: want exit code %s got %d\n%s%s"
                % (" ".join(arguments), expect, r.returncode, r.stdout, r.stderr)
            )
        return r

    def psctl_json(self, *arguments, expect=0):
        text = self.psctl(*arguments, "--output", "json", expect=expect).stdout
        try:
            return json.loads(text)
        except ValueError:
            raise Failure("psctl %s printed no JSON: %r" % (" ".join(arguments), text[:500]))

    def psctl_files(self, *arguments):
        """Runs a psctl command that reads files and does not call the coordinator."""
        r = subprocess.run(
            [os.path.join(self.bin, "psctl")] + list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
        )
        if r.returncode != 0:
            raise Failure(
                "psctl %s: want exit code 0 got %d\n%s%s"
                % (" ".join(arguments), r.returncode, r.stdout, r.stderr)
            )
        return r.stdout

    def tasks(self):
        found = self.psctl_json("task", "list")
        return found["tasks"] if isinstance(found, dict) else found

    def wait_tasks(self):
        """Waits until every running server and worker is registered with its present process. The
        registration of a process that was killed a moment ago does not count."""
        wanted = {(d.name, d.pid) for d in self.servers + self.workers if d.alive()}

        def there():
            return wanted <= {
                ("%s/%s" % (t["role"], t["identity"]), t["pid"])
                for t in self.tasks()
                if t["state"] == "alive"
            }

        wait_for(
            "all tasks to register: %s" % ", ".join("%s (pid %d)" % w for w in sorted(wanted)),
            there,
        )

    def wait_usable(self):
        """Like wait_tasks, but also waits until no task is in a backoff after short lives. Then
        each task can get work."""
        self.wait_tasks()
        wait_for(
            "nobody to back off",
            lambda: not any("backs off" in t.get("activity", "") for t in self.tasks()),
        )

    def pids(self):
        return {d.name: d.pid for d in self.daemons() if d.alive()}

    # ---- the counting job

    def submit_until(self, what, happened, **shape):
        """Submits counting jobs, one after another, until `happened()` is true while one of them
        runs. Returns that job.

        Which task does which part of a job is not fixed. On a busy machine a worker may get too
        little work of one job to reach its failpoint. A job that ends before `happened()` is true
        is checked like every other job.
        """
        for _ in range(6):
            job = self.submit(**shape)
            looked = [0.0]

            def over():
                if happened():
                    return "happened"
                if time.monotonic() - looked[0] > 0.2:
                    looked[0] = time.monotonic()
                    return "ended" if job.ended() else None
                return None

            if wait_for("%s, or %s to end" % (what, job.name), over) == "happened" or happened():
                return job
            job.finish()
        raise Failure("six jobs ended, and not: %s" % what)

    def disturb(self, steps, fault, undo=None, **shape):
        """Calls `fault(job)` in the middle of a job, once `steps` of its steps are done, and
        returns that job. If the job had already ended, so that the fault had no effect, it calls
        `undo()` and tries another job."""
        for _ in range(6):
            job = self.submit(**shape)
            job.wait_steps(steps)
            fault(job)
            if not job.ended():
                return job
            if undo is not None:
                undo()
            job.finish()
        raise Failure(
            "six jobs had ended before the fault came, %d steps after their beginning" % steps
        )

    def submit(
        self,
        examples=600,
        batch=10,
        epochs=2,
        steps_per_closure=4,
        step_ms=2,
        shards=8,
        seed=7,
        name=None,
        checkpoint="",
        resources="",
        **tables
    ):
        self.jobs += 1
        job = CountingJob(
            self,
            name or "count-%d" % self.jobs,
            examples,
            batch,
            epochs,
            steps_per_closure,
            step_ms,
            shards,
            seed,
            self.checkpoint_setting(checkpoint),
            resources,
            **dict(self.shape, **tables)
        )
        path = os.path.join(self.folder, job.name + ".yaml")
        with open(path, "w") as f:
            f.write(job.yaml())
        job.uid = self.psctl_json("job", "submit", path)["job_uid"]
        return job


class CountingJob:
    def __init__(
        self,
        cluster,
        name,
        examples,
        batch,
        epochs,
        steps_per_closure,
        step_ms,
        shards,
        seed,
        checkpoint="",
        resources="",
        tables=0,
        table_ids=200,
        table_slots=16,
        table_bytes_max=0,
        wire_dtype="float32",
        training="",
    ):
        self.cluster, self.name, self.examples, self.batch, self.epochs = (
            cluster,
            name,
            examples,
            batch,
            epochs,
        )
        self.steps_per_closure, self.step_ms, self.shards, self.seed = (
            steps_per_closure,
            step_ms,
            shards,
            seed,
        )
        self.tables, self.table_ids, self.table_slots, self.table_bytes_max = (
            tables,
            table_ids,
            table_slots,
            table_bytes_max,
        )
        self.wire_dtype, self.training = wire_dtype, training
        self.uid = ""
        self.resources = resources  # "{share: 2}"
        self.checkpoint = checkpoint  # "{every: 100ms}"; "": the default
        per_epoch = -(-examples // batch)
        self.steps = per_epoch * epochs
        self.closures = -(-per_epoch // steps_per_closure) * epochs

    def yaml(self):
        return """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  type: counting
  counting: {examples: %d, shards: %d, step_ms: %d%s}
  data: {batch_size: %d, shuffle: {seed: %d}}
  training: {epochs: %d, steps_per_closure: %d, wire_dtype: %s%s}
%s%s%s""" % (
            self.name,
            self.examples,
            self.shards,
            self.step_ms,
            ", tables: %d, table_ids: %d, table_bytes_max: %d"
            % (self.tables, self.table_ids, self.table_bytes_max)
            if self.tables
            else "",
            self.batch,
            self.seed,
            self.epochs,
            self.steps_per_closure,
            self.wire_dtype,
            self.training,
            "  strategy: {table_slots: %d}\n" % self.table_slots if self.tables else "",
            "  checkpoint: %s\n" % self.checkpoint if self.checkpoint else "",
            "  resources: %s\n" % self.resources if self.resources else "",
        )

    def show(self):
        return self.cluster.psctl_json("job", "show", self.name)

    def ended(self):
        """Returns whether the job is known to have ended. While the coordinator is down, returns
        False."""
        r = self.cluster.psctl(
            "job", "show", self.name, "--output", "json", "--timeout", "2s", expect=None
        )
        return r.returncode == 0 and json.loads(r.stdout)["state"] not in (
            "QUEUED",
            "STARTING",
            "RUNNING",
        )

    def wait_steps(self, steps, seconds=60):
        """Waits until at least `steps` steps are known to be done."""
        wait_for(
            "%s to do %d steps" % (self.name, steps), lambda: self.progress() >= steps, seconds
        )

    def progress(self):
        status = self.show()
        if status["state"] in ("FAILED", "CANCELLED"):
            raise Failure("%s is %s: %s" % (self.name, status["state"], status.get("first_cause")))
        return int(status.get("steps_done", 0))

    def wait_state(self, *states, seconds=90):
        return wait_for(
            "%s to be %s" % (self.name, " or ".join(states)),
            lambda: (lambda s: s if s["state"] in states else None)(self.show()),
            seconds,
        )

    def result(self):
        folder = self.show()["runs_folder"]
        with open(os.path.join(folder, "result.json")) as f:
            return json.load(f)

    def wait_miscounted(self, seconds=120):
        """Waits for the end of a job on daemons with a built-in fault. Returns "", or the error
        that the job itself found when it counted its updates."""
        status = self.wait_state("SUCCEEDED", "FAILED", seconds=seconds)
        cause = str(status.get("first_cause"))
        if (
            status["state"] != "SUCCEEDED"
            and "does not hold the updates that the workers reported" not in cause
        ):
            raise Failure("%s is %s: %s" % (self.name, status["state"], cause))
        return "" if status["state"] == "SUCCEEDED" else cause

    def finish(self, seconds=120):
        """Waits for the end of the job, checks that every update was applied exactly once, and
        returns result.json."""
        status = self.wait_state("SUCCEEDED", "FAILED", "CANCELLED", seconds=seconds)
        if status["state"] != "SUCCEEDED":
            raise Failure("%s is %s: %s" % (self.name, status["state"], status.get("first_cause")))
        self.check_exact()
        return self.result()

    def lines(self):
        """Returns the parsed lines of metrics.jsonl."""
        with open(os.path.join(self.show()["runs_folder"], "metrics.jsonl")) as f:
            return [json.loads(line) for line in f]

    def check_lines(self):
        """In metrics.jsonl no step, no epoch and no end of the job may be missing or duplicated,
        and the steps must be in order."""
        lines = self.lines()
        of = {
            kind: [line for line in lines if line["kind"] == kind]
            for kind in ("step", "epoch", "end", "event")
        }
        dropped = sum(line["step_lines_dropped"] for line in of["end"])
        steps = [line["step"] for line in of["step"]]
        if len(of["end"]) != 1 or lines[-1]["kind"] != "end":
            raise Failure("metrics.jsonl: want one end line, the last; got %d" % len(of["end"]))
        if steps != sorted(set(steps)) or len(steps) + dropped != self.steps:
            raise Failure(
                "metrics.jsonl: want each of %d steps once, in order; "
                "got %d lines, %d of them different, %d left out"
                % (self.steps, len(steps), len(set(steps)), dropped)
            )
        if [line["epoch"] for line in of["epoch"]] != list(range(1, self.epochs + 1)):
            raise Failure(
                "metrics.jsonl: want epochs 1 to %d, got %s"
                % (self.epochs, [line["epoch"] for line in of["epoch"]])
            )
        if sum(line["text"] == "submitted" for line in of["event"]) != 1:
            raise Failure("metrics.jsonl: the submission does not stand there once")

    def check_audit(self):
        """The ledgers in the files of the newest checkpoint must show that every example of every
        epoch was applied once (P3)."""
        audit = json.loads(
            self.cluster.psctl(
                "job",
                "audit",
                "--checkpoint",
                self.show()["checkpoint"]["path"],
                "--output",
                "json",
            ).stdout
        )
        if not audit["exact"] or any(e["applied"] != self.examples for e in audit["epochs"]):
            raise Failure("psctl job audit: %s" % audit)

    def check_exact(self):
        """Every sample must have been counted once per epoch, and every update once on every shard:
        in values, optimizer state and ledger counters (P1, P2, P3)."""
        import numpy

        if self.checkpoint != "off":
            self.check_audit()
        folder = self.show()["runs_folder"]
        with zipfile.ZipFile(os.path.join(folder, "weights.npz")) as z:
            arrays = {n[:-4]: numpy.load(io.BytesIO(z.read(n))) for n in z.namelist()}
        samples, updates = arrays["counting/samples"].ravel(), arrays["counting/updates"].ravel()
        if len(samples) != self.examples:
            raise Failure("counting/samples: want %d rows got %d" % (self.examples, len(samples)))
        wrong = numpy.flatnonzero(samples != self.epochs)
        if len(wrong):
            raise Failure(
                "samples not counted exactly %d times: %d of them; "
                "first: sample %d counted %g times"
                % (self.epochs, len(wrong), wrong[0], samples[wrong[0]])
            )
        wrong = numpy.flatnonzero(updates != self.steps)
        if len(wrong):
            raise Failure(
                "updates: shard %d: want %d got %g" % (wrong[0], self.steps, updates[wrong[0]])
            )
        result = self.result()
        closures = result["closures"]
        if (closures["succeeded"], closures["failed"], closures["cancelled"]) != (
            self.closures,
            0,
            0,
        ):
            raise Failure(
                "closures: want %d succeeded, none failed, none cancelled; got %s"
                % (self.closures, closures)
            )
        for shard in result["shards"]:
            if shard["variable"] == "counting/updates" and shard["updates_applied"] != self.steps:
                raise Failure(
                    "shard %s: want %d updates applied got %s"
                    % (shard["shard"], self.steps, shard["updates_applied"])
                )
        listed = self.cluster.psctl_json("variable", "list", "--job", self.name)
        if self.tables:
            self.check_tables(result, listed["variables"])
        for variable in listed["variables"] if isinstance(listed, dict) else listed:
            if variable["name"].startswith("counting/table"):
                continue
            values = {"counting/samples": samples, "counting/updates": updates}[variable["name"]]
            for key, factor in (("digest", 1), ("slot_digest", 2)):
                bits = (values * factor).astype("<f4").view("<u4")
                want = sum(mix(i, int(b)) for i, b in enumerate(bits)) & MASK
                got = variable[key]
                got = int(got, 16) if isinstance(got, str) else int(got)
                if got != want:
                    raise Failure(
                        "%s of %s: want %016x got %016x" % (key, variable["name"], want, got)
                    )

    def steps_of(self, closure):
        per_epoch = -(-self.examples // self.batch)
        first = closure % -(-per_epoch // self.steps_per_closure) * self.steps_per_closure
        return min(self.steps_per_closure, per_epoch - first)

    def check_tables(self, result, listed):
        """The values of each row of each table must be exactly the sum of its pushes, and its
        optimizer state twice that sum. No other row may exist, and every slot (the i-th partitions
        of all tables) must have applied exactly the updates that touch it."""
        from tables import Expected, dimension_of, name_of

        updates = [(c, u) for c in range(self.closures) for u in range(self.steps_of(c))]
        expected = Expected(self, updates)
        found = {v["name"]: v for v in listed}
        for table in range(self.tables):
            row = found[name_of(table)]
            if not row["complete"] or row["shape"] != [
                len(expected.rows[table]),
                dimension_of(table),
            ]:
                raise Failure(
                    "%s: want %d rows counted, got %s"
                    % (name_of(table), len(expected.rows[table]), row["shape"])
                )
            for key, want in zip(("digest", "slot_digest"), expected.digests(table)):
                if int(row[key], 16) != want:
                    raise Failure(
                        "%s of %s: rows not counted exactly: want %016x got %s"
                        % (key, name_of(table), want, row[key])
                    )
        shards = {s["shard"]: s for s in result["shards"]}
        first = len(shards) - self.table_slots
        for slot, want in enumerate(expected.touched):
            got = shards[first + slot]["updates_applied"]
            if got != want:
                raise Failure("slot %d: want %d updates applied got %s" % (slot, want, got))
        # If most steps touched few slots, a lost update would be missing in too few of them to be
        # noticed.
        if sum(expected.touched) >= self.steps * self.table_slots / 2:
            raise Failure(
                "these tables are not sparse: %s of %d steps" % (expected.touched, self.steps)
            )
