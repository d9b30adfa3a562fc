"""The part `notices` of run.py. It measures how long a task needs to leave the cluster after
SIGTERM, which is the notice that its machine will be taken away.

- A worker gets SIGTERM while it trains. This is measured with two jobs: their steps take far less
  than a second, and nearly a second.
  and one near it.
- A server that holds 1 GB of values and optimizer state gets SIGTERM while the workers train. Each
  task has a machine of its own (tests/chaos/machine_cluster.py). Each machine has a link of 2
  Gbit/s, which tc's token bucket filter makes on both ends of its veth pair.
  task has a machine (tests/chaos/machine_cluster.py), and each machine a link of 2 Gbit/s, made by
  tc's token bucket filter on both ends of its veth pair.

Each figure is the 99th percentile of 30 measurements, which is the largest of them. It is printed
with its limit. The ratio of limit and figure is at least 1 if the limit is kept.
"""
import os
import random
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "chaos"))
from cluster import Cluster, Failure, wait_for  # noqa: E402
from machine_cluster import MachineCluster  # noqa: E402
from spot import metric  # noqa: E402
from stage import METRICS, Skipped  # noqa: E402

PARTS = ("workers", "servers")
TIMES, QUICK_TIMES = 30, 3
# The batch of the second job is chosen so that a step takes about this long.
LONG_STEP_SECONDS = 0.7
MLP = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  data:
    train: {format: synthetic, examples: 65536, seed: 7}
    fields: {x: {type: float, size: 64}, label: {type: label, classes: 10}}
    batch_size: %d
    shuffle: {seed: 7}
  model:
    inputs: {x: {shape: [64]}}
    layers:
      - {name: hidden1, type: dense, units: 1024, activation: relu, input: x}
      - {name: hidden2, type: dense, units: 1024, activation: relu}
      - {name: logits, type: dense, units: 10}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
  optimizer: {type: sgd, learning_rate: 0.01}
  training: {epochs: 10000, steps_per_closure: 4}
"""
# A row of 256 float32 values and their optimizer state is 2 KiB. 26 features of 40,000 ids each are
# about a million rows. Two of the servers hold half of them each; the third is spare.
TABLES = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: tables}
spec:
  data:
    train: {format: synthetic, examples: 1000000, seed: 7}
    fields:
      features: {type: ids, size: 26, ids: %d, distribution: uniform}
      click: {type: label}
    batch_size: 256
    shuffle: {seed: 7}
  model:
    inputs: {features: {shape: [26]}}
    tables:
      factors: {dimension: 256, initializer: {type: truncated_normal, stddev: 0.01}}
    layers:
      - {name: vectors, type: embedding, table: factors, input: features}
      - {name: flat, type: flatten, input: vectors}
      - {name: deep, type: dense, units: 64, activation: relu}
      - {name: logit, type: dense, units: 1}
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
  optimizer: {type: adagrad, learning_rate: 0.02}
  training: {epochs: 1000, steps_per_closure: 4}
  checkpoint: off
"""
GIGABYTE = 1e9
RATE = "2gbit"
# The lease is 6 s, so that a task whose machine is busy for a moment is not declared dead.
LEASE_SCALE = 10


def submit(c, name, yaml):
    path = os.path.join(c.folder, name + ".yaml")
    with open(path, "w") as f:
        f.write(yaml)
    c.psctl_json("job", "submit", path)


def show(c, name):
    shown = c.psctl_json("job", "show", name)
    if shown["state"] not in ("QUEUED", "STARTING", "RUNNING"):
        raise Failure("%s is %s: %s" % (name, shown["state"], shown.get("first_cause")))
    return shown


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def summary(values):
    v = sorted(values)
    return "median %.2f s, 90 %% %.2f s, largest %.2f s" % (
        v[len(v) // 2],
        v[min(len(v) - 1, int(len(v) * 0.9))],
        v[-1],
    )


def against(entry, name, values, limit):
    """Returns the figure for measured times that have a limit."""
    return entry(
        "%s, 99th percentile of %d (%s)" % (name, len(values), summary(values)),
        p99(values),
        "s",
        "the limit",
        limit,
        limit / p99(values),
        1,
    )


# ------------------------------------------------------------------ workers


def step_seconds(c, worker):
    """Returns (mean seconds, number) of the steps that a worker has computed."""
    address = next(t["metrics_address"] for t in c.tasks() if t["pid"] == worker.pid)
    count = metric(address, "evergrad_worker_step_seconds_count")
    return (metric(address, "evergrad_worker_step_seconds_sum") / count if count else 0.0), count


def leave_at_work(c, r, number):
    """Ends a worker by SIGTERM at a random moment of a step. Returns how long the worker took to
    end, and the mean length of its steps before."""
    victim = r.choice(c.workers)
    for w in c.workers:
        wait_for("%s to train" % w.name, rarely(lambda w=w: step_seconds(c, w)[1] >= 3), 120)
    step, _ = step_seconds(c, victim)
    threading.Event().wait(r.uniform(0, step))
    begin = time.monotonic()
    code = victim.terminate(60)
    seconds = time.monotonic() - begin
    if code != 0:
        raise Failure("%s: want exit code 0 got %s:\n%s" % (victim.name, code, victim.tail()))
    name = "w%d" % number
    c.workers.remove(victim)
    c.workers.append(c.add("worker", name, ["--name", name, "--threads", "1", *METRICS]))
    c.extras.pop()
    c.wait_tasks()
    return seconds, step


def worker_figures(bin_folder, times, entry, seed):
    r = random.Random("workers/%d" % seed)
    with Cluster(bin_folder, 2, 2, seed, 2.5, worker_arguments=METRICS) as c:
        c.up()
        batch = 256
        for _ in range(2):
            name = "batch-%d" % batch
            submit(c, name, MLP % (name, batch))
            seconds, steps = [], []
            for i in range(times):
                took, step = leave_at_work(c, r, 1000 * batch + i)
                seconds.append(took)
                steps.append(step)
                print("   %s: %.2f s, steps of %.2f s" % (name, took, step), flush=True)
            deaths = [e["text"] for e in show(c, name)["events"] if e["kind"] == "death"]
            if deaths:
                raise Failure("a notice was taken for a death: %s" % deaths)
            c.psctl("job", "cancel", name)
            wait_for(
                "the job to end",
                lambda: c.psctl_json("job", "show", name)["state"] == "CANCELLED",
                120,
            )
            step = sorted(steps)[len(steps) // 2]
            yield against(
                entry, "SIGTERM of a worker to its end, steps of %.2f s" % step, seconds, 2.0
            )
            batch = max(1, min(32768, int(batch * LONG_STEP_SECONDS / step)))


# ------------------------------------------------------------------ servers


class LinkedMachines(MachineCluster):
    """Machines whose links have a limited rate."""

    def boot(self, daemon):
        host = super().boot(daemon)
        rate = ["root", "tbf", "rate", RATE, "burst", "1mb", "latency", "50ms"]
        for prefix, device in (
            (daemon.machine.prefix, "wire"),
            (self.office.prefix, daemon.port_name),
        ):
            subprocess.run(prefix + ["tc", "qdisc", "add", "dev", device] + rate, check=True)
        return host

    @staticmethod
    def bytes_from(daemon):
        """Returns the number of bytes that have left the machine of a daemon. Starts no process, so
        that the cluster keeps its CPU time."""
        with open("/proc/%d/net/dev" % daemon.machine.holder.pid) as f:
            counts = next(line for line in f if line.strip().startswith("wire:"))
        return int(counts.split(":")[1].split()[8])


def held(c, name):
    """Returns {identity: bytes of values and optimizer state} of all servers."""
    return {s["identity"]: int(s["bytes"]) for s in show(c, name)["servers"]}


def rarely(condition):
    """Returns a condition that waits half a second before it evaluates the given one, because each
    call of psctl takes CPU time from the cluster."""

    def evaluated():
        threading.Event().wait(0.5)
        return condition()

    return evaluated


def examples_done(c, name):
    return sum(int(w["examples"]) for w in show(c, name)["workers"])


def drain_one(c, r, name, least):
    """Ends one server that holds shards by SIGTERM, and starts it again without shards. Returns
    (seconds, bytes that it held, bytes that left its machine, examples/s of the workers)."""
    bytes_held = held(c, name)
    victim = r.choice([s for s in c.servers if bytes_held.get(s.identity, 0) > least / 2])
    sent, examples, begin = c.bytes_from(victim), examples_done(c, name), time.monotonic()
    victim.signal(15)
    left = sent
    while victim.alive():
        left = c.bytes_from(victim)
        threading.Event().wait(0.02)
    seconds = time.monotonic() - begin
    if victim.process.returncode != 0:
        raise Failure(
            "%s: want exit code 0 got %s:\n%s"
            % (victim.name, victim.process.returncode, victim.tail())
        )
    trained = (examples_done(c, name) - examples) / (time.monotonic() - begin)
    c.remove(victim)
    victim.start()
    c.wait_tasks()
    return seconds, bytes_held[victim.identity], left - sent, trained


def server_figures(bin_folder, times, entry, seed, ids, least):
    r = random.Random("servers/%d" % seed)
    with LinkedMachines(bin_folder, 3, 2, seed, LEASE_SCALE) as c:
        for s in c.servers:
            s.arguments += ["--drain-max", "120s"]
        spare = c.servers.pop()  # the spare server joins when the others hold all shards
        c.up()
        submit(c, "tables", TABLES % ids)
        wait_for(
            "each server to hold %.1f GB" % (least / 1e9),
            rarely(lambda: sum(size >= least for size in held(c, "tables").values()) == 2),
            900,
        )
        c.servers.append(spare)
        spare.start()
        c.wait_tasks()
        begin, before = time.monotonic(), examples_done(c, "tables")
        wait_for("some steps", rarely(lambda: examples_done(c, "tables") > before + 20 * 256))
        alone = (examples_done(c, "tables") - before) / (time.monotonic() - begin)
        seconds, sizes, rates = [], [], []
        for _ in range(times):
            took, size, sent, trained = drain_one(c, r, "tables", least)
            seconds.append(took)
            sizes.append(size)
            rates.append(trained)
            print(
                "   server left after %.2f s: it held %.2f GB, %.2f GB left its machine, "
                "workers %.0f examples/s" % (took, size / 1e9, sent / 1e9, trained),
                flush=True,
            )
            if sent < size / 2:
                raise Failure("the shards did not take the limited link")
        shown = show(c, "tables")
        if [e for e in shown["events"] if e["kind"] == "rollback"]:
            raise Failure("a notice cost something: %s" % shown["events"])
        c.psctl("job", "cancel", "tables")
        yield against(
            entry,
            "SIGTERM of a server with %.2f GB of tables to its end, links of 2 Gbit/s, TLS, "
            "2 workers train" % (sum(sizes) / len(sizes) / 1e9),
            seconds,
            10.0,
        )
        yield entry(
            "training meanwhile, links of 2 Gbit/s",
            sorted(rates)[len(rates) // 2],
            "examples/s",
            "the same without a server that leaves",
            alone,
            sorted(rates)[len(rates) // 2] / alone,
            None,
        )


def figures(bin_folder, part, quick, entry, seed=None):
    seed = seed or int(os.environ.get("SEED", "1"))
    times = QUICK_TIMES if quick else TIMES
    print("   seed=%d" % seed)
    if part == "workers":
        yield from worker_figures(bin_folder, times, entry, seed)
        return
    try:
        yield from server_figures(
            bin_folder, times, entry, seed, *((4000, 0.06e9) if quick else (40000, GIGABYTE))
        )
    except Skipped as why:
        print("   skipped: %s" % why)
