"""The shared parts of the integration tests: processes that end with the test, a job on real data,
and the skipping of tests that cannot run on this machine.

No test sleeps for a fixed time, and no port is fixed: a listener takes port 0 and reports which
port it got (--address-file). Only processes that were started here are ever signalled, by pid.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "chaos"))
from cluster import Failure, wait_for  # noqa: E402,F401

BIN = os.path.abspath(
    os.environ.get("EVERGRAD_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))
)
COORDINATOR, PS_SERVER, WORKER, PSCTL = (
    "evergrad-coordinator",
    "evergrad-ps-server",
    "evergrad-worker",
    "psctl",
)
SKIPPED = 77


def binary(name):
    return os.path.join(BIN, name)


def data_folder():
    """Returns the folder of the data sets. If fashion-mnist-12k is missing there, skips the calling
    test."""
    folder = os.path.abspath(os.environ.get("EVERGRAD_DATA") or os.path.join(ROOT, "data"))
    if not os.path.exists(os.path.join(folder, "fashion-mnist-12k", "train-images-idx3-ubyte.gz")):
        raise unittest.SkipTest("no fashion-mnist-12k in %s (./evergrad data makes it)" % folder)
    return folder


def job_yaml(
    name="small",
    epochs=1,
    batch=200,
    partitioner="{type: min_size, min_shard_bytes: 16KiB}",
    units=32,
    learning_rate="0.001",
    deterministic=False,
    extra="",
):
    """Returns a job that trains 25,450 parameters on 10,000 real images. An epoch has 50 steps,
    which take less than a second together."""
    image = "${EVERGRAD_DATA:-data}/fashion-mnist-12k/%s-images-idx3-ubyte.gz"
    label = "${EVERGRAD_DATA:-data}/fashion-mnist-12k/%s-labels-idx1-ubyte.gz"
    return """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  data:
    train: {format: idx, images: "%s", labels: "%s"}
    eval: {format: idx, images: "%s", labels: "%s"}
    fields:
      image: {transforms: [{scale: 0.00392156862}]}
    batch_size: %d
    shuffle: {seed: 7}
  model:
    inputs: {image: {shape: [28, 28, 1]}}
    layers:
      - {name: flat, type: flatten, input: image}
      - {name: dense1, type: dense, units: %d, activation: relu}
      - {name: logits, type: dense, units: 10}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
    metrics: [accuracy]
  optimizer: {type: adam, learning_rate: %s}
  strategy: {mode: async, pipeline: 0, deterministic: %s, partitioner: %s}
  training: {epochs: %d, steps_per_closure: 8, evaluate_every: 1 epoch}
%s""" % (
        name,
        image % "train",
        label % "train",
        image % "t10k",
        label % "t10k",
        batch,
        units,
        learning_rate,
        "true" if deterministic else "false",
        partitioner,
        epochs,
        extra,
    )


COUNTING = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  type: counting
  counting: {examples: %d, shards: 4, step_ms: %d}
  data: {batch_size: 10, shuffle: {seed: 7}}
  training: {epochs: %d, steps_per_closure: 4}
"""


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return path


def has_ended(status):
    """Returns whether a job with this status, as in `psctl job show --output json`, has ended."""
    return status["state"] not in ("QUEUED", "STARTING", "RUNNING")


def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def read_json_lines(path):
    import json

    with open(path) as f:
        return [json.loads(line) for line in f]


def alive(pid):
    """Returns whether the process runs. A zombie does not count as running: it has ended, but its
    parent has not waited for it."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_naming(folder):
    """Returns the pids of all other processes that have `folder` on their command lines. A test may
    have left such processes running."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                line = f.read().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if folder in line and alive(int(entry)):
            found[int(entry)] = line
    return found


class Process:
    """A daemon (or psctl) with a log file."""

    def __init__(self, test, name, command, folder, prefix=(), env=None):
        self.name = name
        self.log_path = os.path.join(folder, name + ".log")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                list(prefix) + command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=env,
            )
        test.addCleanup(self.end)
        test.processes.append(self)

    def log(self):
        return read(self.log_path)

    def wait_log(self, text):
        """Waits until the log contains `text`, even if the process has already ended."""

        def there():
            ended = self.process.poll() is not None
            if text.lower() in self.log().lower():
                return True
            if ended:
                raise Failure(
                    "%s ended with %d and never said `%s`:\n%s"
                    % (self.name, self.process.returncode, text, self.log())
                )
            return False

        try:
            wait_for("%s to say `%s`" % (self.name, text), there)
        except Failure as why:
            raise Failure("%s; it says:\n%s" % (why, self.log()))

    def wait_address(self, path):
        def there():
            text = read(path).strip()
            if not text and self.process.poll() is not None:
                raise Failure(
                    "%s ended with %d before it listened:\n%s"
                    % (self.name, self.process.returncode, self.log())
                )
            return text

        return wait_for("%s to listen" % self.name, there)

    def end(self):
        """Ends the process with SIGTERM, as a cluster manager does, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise Failure(
                    "%s did not end within 30 s of SIGTERM:\n%s" % (self.name, self.log())
                )
        return self.process.returncode


class Case(unittest.TestCase):
    """A test with a new folder, whose name has a space. The folder is removed afterwards."""

    def setUp(self):
        # Cleanups run in reverse order, so the folder is removed after the processes that use it
        # have ended.
        self.folder = tempfile.mkdtemp(prefix="evergrad it-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes = []

    def tearDown(self):
        # If the test or one of its subtests has failed, the output of the processes is printed.
        if any(error for _, error in getattr(self._outcome, "errors", [])) or any(
            t.id() == self.id()
            for t, _ in self._outcome.result.failures + self._outcome.result.errors
        ):
            for process in self.processes:
                print(
                    "---- tail of %s: %s"
                    % (process.name, "".join(process.log().splitlines(True)[-12:]))
                )

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def start(self, binary_name, name, *arguments, prefix=(), env=None):
        return Process(
            self,
            name,
            [binary(binary_name)] + [str(a) for a in arguments],
            self.folder,
            prefix,
            env,
        )

    def start_listening(self, binary_name, name, *arguments, prefix=(), address_file=None):
        """Starts a daemon that listens. Returns (process, advertised address)."""
        file = address_file or self.path(name + ".address")
        process = self.start(binary_name, name, "--address-file", file, *arguments, prefix=prefix)
        return process, process.wait_address(file)

    def psctl(self, *arguments, expect=0, prefix=(), env=None, timeout=120, cwd=None):
        environment = dict(os.environ, **(env or {}))
        r = subprocess.run(
            list(prefix) + [binary(PSCTL)] + [str(a) for a in arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd or self.folder,
            env=environment,
        )
        if expect is not None:
            self.assertEqual(
                r.returncode,
                expect,
                "psctl %s\n%s%s" % (" ".join(str(a) for a in arguments), r.stdout, r.stderr),
            )
        return r

    def psctl_json(self, *arguments, **kw):
        import json

        text = self.psctl(*arguments, "--output", "json", **kw).stdout
        try:
            return json.loads(text)
        except ValueError:
            self.fail(
                "psctl %s printed no JSON: %r" % (" ".join(str(a) for a in arguments), text[:500])
            )

    def run_folder(self, runs):
        """Returns the only job folder in `runs`."""
        found = [d for d in sorted(os.listdir(runs)) if not d.startswith(".")]
        self.assertEqual(len(found), 1, "want one run in %s got %s" % (runs, found))
        return os.path.join(runs, found[0])


def main():
    """Runs unittest.main with the option --bin. The exit code is 77 if nothing failed and every
    test was skipped. The reasons of skipped tests are printed."""
    global BIN
    arguments = sys.argv[1:]
    if "--bin" in arguments:
        at = arguments.index("--bin")
        BIN = os.path.abspath(arguments[at + 1])
        del arguments[at : at + 2]
    program = unittest.main(
        module="__main__", argv=[sys.argv[0]] + arguments, exit=False, verbosity=2
    )
    result = program.result
    for test, reason in result.skipped:
        print("skipped: %s: %s" % (test, reason))
    sys.stdout.flush()
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) >= result.testsRun else 0)
