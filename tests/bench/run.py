#!/usr/bin/env python3
"""Runs the benchmarks and prints each figure as soon as it is measured. At the end it writes
results.json, a list of {name, value, unit, reference_name, reference_value, ratio, reach}.

  run.py --bin build/release/bin --out build/bench [--quick] [names …]
      names are programs (dense_bench …), gpu, cluster, large and training. Without names all of
      these run. notices and spot (or one part, such as spot:workers-without) run only when they
      are named
  run.py … --serve HOST:PORT [--insecure]
      on each server machine of your own network: serves for the next line, until it is ended
  run.py … --servers HOST:PORT,HOST:PORT
      on another machine: measures dense values and rows over TCP against these servers. The slots
      of tables are spread over all of them

Every figure stands beside its reference. The reference is a rival that was measured in the same
run, or the published figure of another system. For a rival `ratio` is the median of ours / rival's
over interleaved rounds. `reach` is the ratio that we mean to reach; a ratio below it is marked,
never hidden. Programs named *_bench print one such JSON object a line and run first. A part that
needs a GPU is skipped with the reason if there is none. A part that fails does not stop the others;
the exit code is then 1.

Before each part run.py prints about how long the remaining parts will take. The estimate uses the
time that each part took here the last time (OUT/seconds.json), or else its time on two cores,
corrected by the speed of this run so far.
"""
import argparse
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, "..", "chaos"))
from cluster import Cluster, wait_for  # noqa: E402
import notices  # noqa: E402
import spot  # noqa: E402


def entry(name, value, unit, reference_name, reference_value, ratio, reach):
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "reference_name": reference_name,
        "reference_value": reference_value,
        "ratio": ratio,
        "reach": reach,
    }


def train(bin_folder, runs, job, workers, servers, *sets):
    """Runs one job on a local cluster and returns result.json."""
    command = [
        os.path.join(bin_folder, "psctl"),
        "job",
        "run",
        os.path.join(ROOT, job),
        "--local",
        "--workers",
        str(workers),
        "--servers",
        str(servers),
        "--runs",
        runs,
    ]
    for s in sets:
        command += ["--set", s]
    before = set(glob.glob(os.path.join(runs, "*", "result.json")))
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(
            "psctl ended with %d\n%s%s"
            % (ended.returncode, ended.stdout[-2000:], ended.stderr[-2000:])
        )
    new = set(glob.glob(os.path.join(runs, "*", "result.json"))) - before
    with open(new.pop()) as f:
        return json.load(f)


def program(path, arguments=()):
    """Yields the figures of a benchmark, each as soon as the benchmark prints it. If the benchmark
    fails, its stderr is shown."""
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as running:
            for line in running.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        if running.returncode != 0:
            said.seek(0)
            raise RuntimeError(
                "%s ended with %d\n%s"
                % (os.path.basename(path), running.returncode, said.read()[-2000:])
            )


def no_gpu(bin_folder):
    """Returns why nothing can be measured on a GPU here, or None if there is one."""
    devices = subprocess.run(
        [os.path.join(bin_folder, "evergrad-worker"), "--list-devices"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if devices.returncode == 0 and "gpu:" in devices.stdout:
        return None
    said = (devices.stdout + devices.stderr).strip().splitlines()
    return said[-1] if said else "evergrad-worker --list-devices ended with %d" % devices.returncode


def gpu_figures(bin_folder, quick):
    """Unlike the other benchmarks, gpu_bench has several modes, and its figures have other names.
    `gpu_check.sh --only bench` measures more, and compares with PyTorch."""
    bench, steps = os.path.join(bin_folder, "gpu_bench"), [
        "--steps",
        "5" if quick else "20",
        "--device",
        "gpu",
    ]
    for said in program(
        bench, ["mlp", "--layers", "8", "--width", "4096", "--batch", "8192", *steps]
    ):
        ours, bare = said["on_device"]["step_ms"], said["bare"]["step_ms"]
        yield entry(
            "GPU: step of an MLP, 8 x 4096, batch 8192",
            1000 / ours,
            "steps/s",
            "its products alone, by cuBLASLt",
            1000 / bare,
            said["share_of_bare"],
            None,
        )
    for said in program(
        bench,
        [
            "train",
            "--job",
            os.path.join(ROOT, "configs", "examples", "resnet50.yaml"),
            "--image",
            "224",
            "--batch",
            "64",
            *steps,
        ],
    ):
        ours, over = (
            said["on_device"]["examples_per_second"],
            said["from_host"]["examples_per_second"],
        )
        yield entry(
            "GPU: ResNet-50, batch 64, 224 x 224",
            over,
            "images/s",
            "the same with batch and weights on the device",
            ours,
            over / ours,
            None,
        )


def rows_elsewhere(bin_folder, servers):
    yield from program(os.path.join(bin_folder, "rows_bench"), ["--servers", servers])


def dense_elsewhere(bin_folder, server):
    """The dense figures describe one server, so each server is measured alone."""
    for figure in program(os.path.join(bin_folder, "dense_bench"), ["--servers", server]):
        yield dict(figure, name="%s: %s" % (server, figure["name"]))


def cluster_figures(bin_folder, quick):
    begin = time.monotonic()
    with Cluster(bin_folder, 2, 2, seed=1, coordinator_arguments=[]) as c:
        # The tasks and the job start together, because a user waits for the first closure, and not
        # only for the registration.
        c.coordinator.start()
        for d in c.servers + c.workers:
            d.start()
        job = c.submit(examples=100, batch=10, epochs=1, steps_per_closure=1, step_ms=0)
        wait_for(
            "the first closure",
            lambda: int(job.show().get("closures_succeeded", 0)) > 0
            or job.show()["state"] == "SUCCEEDED",
        )
        yield entry(
            "start of all tasks to the first closure",
            time.monotonic() - begin,
            "s",
            "TensorFlow PSS (published figure)",
            5.3,
            (time.monotonic() - begin) / 5.3,
            None,
        )
        job.wait_state("SUCCEEDED")
        for d in c.daemons():
            with open("/proc/%d/status" % d.pid) as f:
                rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024.0
            if d.role == "coordinator" or d.identity == "0":
                yield entry(
                    "memory of an idle %s" % d.role,
                    rss,
                    "MiB",
                    "TensorFlow task (published figure)",
                    607,
                    rss / 607,
                    None,
                )
        # The closures have one step, which only pushes. The figure therefore shows how many
        # closures per second the sessions can carry.
        rates = []
        for _ in range(1 if quick else 3):
            job = c.submit(
                examples=1000 if quick else 6000,
                batch=1,
                epochs=1,
                steps_per_closure=1,
                step_ms=0,
                shards=2,
            )
            # One psctl process waits for the end: repeated requests would take CPU time from the
            # cluster.
            c.psctl("job", "watch", job.name)
            status = job.show()
            rates.append(
                job.closures / max(1e-9, (status["ended_ms"] - status["started_ms"]) / 1000.0)
            )
        yield entry(
            "closures through real sessions, 2 workers, one counting step each",
            statistics.median(rates),
            "closures/s",
            "TensorFlow PSS, trivial closures (published figure)",
            1500,
            statistics.median(rates) / 1500,
            None,
        )


def training_figures(bin_folder, quick):
    rounds = 1 if quick else 5
    with tempfile.TemporaryDirectory(prefix="evergrad-bench-") as runs:
        one, two = [], []
        for _ in range(rounds):
            one.append(
                train(bin_folder, runs, "configs/quickstart.yaml", 1, 2, "spec.training.epochs=2")[
                    "examples_per_second"
                ]
            )
            two.append(
                train(bin_folder, runs, "configs/quickstart.yaml", 2, 2, "spec.training.epochs=2")[
                    "examples_per_second"
                ]
            )
        yield entry(
            "quickstart, 2 workers + 2 servers",
            statistics.median(two),
            "examples/s",
            "the same with 1 worker, interleaved",
            statistics.median(one),
            statistics.median(b / a for a, b in zip(one, two)),
            0.95,
        )
        # The cluster, and the graph without servers, each use every core. They are therefore
        # measured in turn.
        graph, alone = [], []
        for _ in range(1 if quick else 5):
            step = subprocess.run(
                [os.path.join(bin_folder, "worker_bench"), "--graph", str(os.cpu_count())],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            )
            graph.append(json.loads(step.stdout)["value"])
            alone.append(
                train(
                    bin_folder,
                    runs,
                    "configs/examples/fashion-cnn.yaml",
                    1,
                    1,
                    "spec.training.epochs=1",
                )["examples_per_second"]
            )
        yield entry(
            "CNN conv16-pool-conv32-pool-dense128, batch 128, 1+1",
            statistics.median(alone),
            "examples/s",
            "the same graph without servers, as many threads",
            statistics.median(graph),
            statistics.median(a / b for a, b in zip(alone, graph)),
            0.7,
        )
        cnn = train(bin_folder, runs, "configs/examples/cnn-peer.yaml", 2, 2)["examples_per_second"]
        yield entry(
            "CNN conv32-pool-conv64-pool-dense128, batch 128, 2+2",
            cnn,
            "examples/s",
            "TensorFlow PSS 2+2 on a like machine (published figure)",
            7400,
            cnn / 7400,
            None,
        )
        deepfm = statistics.median(
            train(bin_folder, runs, "configs/examples/deepfm.yaml", 2, 2)["examples_per_second"]
            for _ in range(1 if quick else 3)
        )
        yield entry(
            "DeepFM (26 features x 100 k ids x dim 16, MLP 400-400-400, Adagrad, batch 512), 2+2",
            deepfm,
            "examples/s",
            "TensorFlow PSS 2+2, one fused table, on a like machine (published figure)",
            26000,
            deepfm / 26000,
            30000 / 26000,
        )


# The job has 784 x 630,000 and 630,000 x 10 weights. They are 2.0 GB of float32, eight times the
# default memory budget of a server.
LARGE = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: large}
spec:
  data:
    train: {format: synthetic, examples: 64, seed: 7}
    fields: {x: {type: float, size: 784}, label: {type: label, classes: 10}}
    batch_size: 8
  model:
    inputs: {x: {shape: [784]}}
    layers:
      - {name: wide, type: dense, units: 630000, activation: relu, input: x}
      - {name: logits, type: dense, units: 10}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
  optimizer: {type: sgd, learning_rate: 0.0001}
  training: {epochs: 1, steps_per_closure: 4}
"""
LARGE_BYTES, LARGE_STEPS = 4 * (784 * 630000 + 630000 + 630000 * 10 + 10), 8


def loopback_seconds(size):
    """Measures how long `size` bytes take over one bare TCP connection to another process of this
    host."""
    piece = bytearray(4 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            try:
                with socket.create_connection(listener.getsockname()) as to:
                    left = size
                    while left > 0:
                        left -= to.send(memoryview(piece)[: min(left, len(piece))])
            finally:
                os._exit(0)
        connection, _ = listener.accept()
        begin, left = time.monotonic(), size
        with connection:
            while left > 0:
                got = connection.recv_into(piece, min(left, len(piece)))
                if got == 0:
                    raise RuntimeError("the bare connection ended with %d bytes left" % left)
                left -= got
        seconds = time.monotonic() - begin
        os.waitpid(child, 0)
        return seconds


class Peaks:
    """Records the largest resident memory in GB of each program, among a process and its
    descendants."""

    def __init__(self, root):
        self.root, self.peaks = root, {}

    def look(self):
        family = {self.root}
        parents = {}
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                with open(folder + "/status") as f:
                    status = dict(line.split(":", 1) for line in f if ":" in line)
            except OSError:
                continue  # the process has ended
            parents[int(status["Pid"])] = (
                int(status["PPid"]),
                status["Name"].strip(),
                int(status.get("VmHWM", "0 kB").split()[0]) / 1e6,
            )
        while True:
            more = {pid for pid, (parent, _, _) in parents.items() if parent in family} - family
            if not more:
                break
            family |= more
        for pid in family & set(parents):
            _, name, peak = parents[pid]
            self.peaks[name] = max(self.peaks.get(name, 0), peak)


def train_large(bin_folder, folder):
    """Runs LARGE on one server with the default settings. Returns steps/s and the peaks of
    memory."""
    path = os.path.join(folder, "large.yaml")
    with open(path, "w") as f:
        f.write(LARGE)
    with tempfile.TemporaryDirectory(dir=folder) as runs, tempfile.TemporaryFile("w+") as said:
        running = subprocess.Popen(
            [
                os.path.join(bin_folder, "psctl"),
                "job",
                "run",
                path,
                "--local",
                "--workers",
                "1",
                "--servers",
                "1",
                "--runs",
                runs,
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
        peaks = Peaks(running.pid)
        while running.poll() is None:
            peaks.look()
            try:
                running.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
        said.seek(0)
        if running.returncode != 0:
            raise RuntimeError(
                "psctl ended with %d\n%s" % (running.returncode, said.read()[-2000:])
            )
        with open(glob.glob(os.path.join(runs, "*", "result.json"))[0]) as f:
            result = json.load(f)
    applied = {shard["updates_applied"] for shard in result["shards"]}
    if applied != {LARGE_STEPS}:
        raise RuntimeError(
            "updates applied by the shards: want %d each, got %s" % (LARGE_STEPS, sorted(applied))
        )
    return result["examples_per_second"] / 8, peaks.peaks


def large_figures(bin_folder, quick):
    moved = 2 * LARGE_BYTES  # a step pulls every value and pushes the gradient of every value
    ours, bare, server, worker = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="evergrad-bench-") as folder:
        for _ in range(1 if quick else 3):
            bare.append(moved / loopback_seconds(moved) / 1e9)
            steps, peaks = train_large(bin_folder, folder)
            ours.append(moved * steps / 1e9)
            server.append(peaks["evergrad-ps-ser"])
            worker.append(peaks["evergrad-worker"])
    yield entry(
        "2.0 GB of dense values on one server, defaults: "
        "pulled and pushed, with the step's compute",
        statistics.median(ours),
        "GB/s",
        "as many bytes over a bare TCP connection",
        statistics.median(bare),
        statistics.median(a / b for a, b in zip(ours, bare)),
        None,
    )
    size = LARGE_BYTES / 1e9
    for name, peak in (("server", server), ("worker", worker)):
        yield entry(
            "2.0 GB of dense values on one server, defaults: peak memory of the %s" % name,
            statistics.median(peak),
            "GB",
            "the values",
            size,
            statistics.median(peak) / size,
            None,
        )


# How many seconds each part takes on two cores. The numbers are used in the first run on a machine.
SECONDS = {
    "closures_bench": 20,
    "dense_bench": 120,
    "pushpull_bench": 60,
    "rows_bench": 300,
    "sessions_bench": 90,
    "snapshots_bench": 60,
    "table_bench": 240,
    "transport_bench": 60,
    "worker_bench": 60,
    "gpu": 60,
    "cluster": 60,
    "training": 300,
    "large": 240,
    **{"notices:" + part: 600 for part in notices.PARTS},
    **{"spot:" + part: 900 for part in spot.PARTS},
}
UNKNOWN_SECONDS = 60


class TimeLeft:
    """Estimates how long the remaining parts will take."""

    def __init__(self, path, parts):
        self.path, self.took = path, {}
        try:
            with open(path) as f:
                self.last = {name: float(seconds) for name, seconds in json.load(f).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.last = {}
        self.expected = {
            name: self.last.get(name) or SECONDS.get(name, UNKNOWN_SECONDS) for name in parts
        }

    def done(self, name, seconds):
        self.took[name] = seconds
        with open(self.path, "w") as f:
            json.dump({**self.last, **self.took}, f, indent=1)

    def seconds(self):
        left = sum(seconds for name, seconds in self.expected.items() if name not in self.took)
        pace = (
            sum(self.took.values()) / sum(self.expected[name] for name in self.took)
            if self.took
            else 1
        )
        return left * pace

    def text(self):
        seconds = self.seconds()
        return (
            "about %d min left" % max(1, round(seconds / 60))
            if seconds >= 90
            else "about %d s left" % max(1, round(seconds))
        )


NAME_WIDTH = 78


def row(r):
    below = r["reach"] is not None and r["ratio"] is not None and r["ratio"] < r["reach"]
    return (
        "%-*s  %12.4g %-11s  %8s  %-8s %s %s"
        % (
            NAME_WIDTH,
            r["name"],
            r["value"],
            r["unit"],
            "%.2f x" % r["ratio"] if r["ratio"] is not None else "",
            ">= %g" % r["reach"] if r["reach"] is not None else "",
            "BELOW " if below else "      ",
            "%s: %.4g" % (r["reference_name"], r["reference_value"]) if r["reference_name"] else "",
        )
    ).rstrip()


def plan(bin_folder, names, quick, servers):
    """Returns two dicts. The first has the parts to be measured, as {name: a function that returns
    the figures}. The second has the reasons why other parts were left out."""
    if servers:
        parts = {
            "dense_bench %s" % server: lambda server=server: dense_elsewhere(bin_folder, server)
            for server in servers.split(",")
        }
        parts["rows_bench"] = lambda: rows_elsewhere(bin_folder, servers)
        return parts, []
    found = {
        os.path.basename(path): path
        for path in sorted(glob.glob(os.path.join(bin_folder, "*_bench")))
    }
    on_gpu = found.pop("gpu_bench", None)
    parts = {name: lambda path=path: program(path) for name, path in found.items()}
    skipped = []
    if on_gpu and (not names or "gpu" in names or "gpu_bench" in names):
        why = no_gpu(bin_folder)
        if why:
            skipped.append("gpu: skipped: %s" % why)
        else:
            parts["gpu"] = lambda: gpu_figures(bin_folder, quick)
    parts["cluster"] = lambda: cluster_figures(bin_folder, quick)
    parts["large"] = lambda: large_figures(bin_folder, quick)
    parts["training"] = lambda: training_figures(bin_folder, quick)
    on_request = {}
    for group in (notices, spot):
        whole = group.__name__
        for part in group.PARTS:
            on_request["%s:%s" % (whole, part)] = lambda group=group, part=part: group.figures(
                bin_folder, part, quick, entry
            )
            names = names + ["%s:%s" % (whole, part)] if whole in names else names
        names = [n for n in names if n != whole]
    parts.update({name: part for name, part in on_request.items() if name in names})
    unknown = [name for name in names if name not in parts and name not in ("gpu", "gpu_bench")]
    if unknown:
        raise SystemExit(
            "bench: nothing is called %s; there are: %s"
            % (", ".join(unknown), ", ".join(sorted({*parts, "gpu", *on_request})))
        )
    wanted = set(names) | ({"gpu"} if "gpu_bench" in names else set())
    return {name: part for name, part in parts.items() if not names or name in wanted}, skipped


def measure(parts, out, quick):
    """Runs the parts, and prints each figure and each failure. Returns the figures and the names
    of the parts that failed."""
    results, failed = [], []
    left = TimeLeft(os.path.join(out, "seconds-quick.json" if quick else "seconds.json"), parts)
    for number, (name, part) in enumerate(parts.items(), 1):
        print("== %s (%d of %d), %s" % (name, number, len(parts), left.text()), flush=True)
        begin = time.monotonic()
        try:
            for figure in part():
                results.append(figure)
                with open(os.path.join(out, "results.json"), "w") as f:
                    json.dump(results, f, indent=1)
                print(row(figure), flush=True)
            left.done(name, time.monotonic() - begin)
        except Exception as why:  # a part that fails does not stop the others
            failed.append(name)
            left.expected.pop(name)
            print("%s failed: %s" % (name, why), flush=True)
    return results, failed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer rounds of gpu, cluster, large, training and notices; a shorter spot",
    )
    parser.add_argument("--serve", metavar="HOST:PORT")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="with --serve: off loopback, too, where nobody is asked who they are",
    )
    parser.add_argument("--servers", metavar="HOST:PORT,…")
    parser.add_argument(
        "names",
        nargs="*",
        help="programs (*_bench), gpu, cluster, large, training, notices, spot, spot:PART",
    )
    a = parser.parse_args()
    bin_folder = os.path.abspath(a.bin)
    if (
        (a.serve or a.servers)
        and (a.names or a.quick)
        or a.serve
        and a.servers
        or a.insecure
        and not a.serve
    ):
        parser.error("--serve goes with --insecure alone, --servers with nothing else")
    if a.serve:
        server = os.path.join(bin_folder, "bench_server")
        os.execv(server, [server] + (["--insecure"] if a.insecure else []) + [a.serve])
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
            print("TCP congestion control: " + f.read().strip())
    except OSError:
        pass
    parts, skipped = plan(bin_folder, a.names, a.quick, a.servers)
    for line in skipped:
        print(line)
    os.makedirs(a.out, exist_ok=True)
    results, failed = measure(parts, a.out, a.quick)
    if a.servers and len(failed) > 0:
        print(
            "bench: no figures against --servers %s: "
            "is `bench --serve HOST:PORT` running at each of them?" % a.servers
        )
    print("written: %s" % os.path.join(a.out, "results.json"))
    if failed:
        print("failed: %s" % ", ".join(failed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
