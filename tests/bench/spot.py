"""The part `spot` of run.py. It measures the goodput of a cluster on machines that are taken away.

Six workers and two servers run on eight spot machines; the coordinator is not on a spot machine.
Each worker has a fixed share of the CPU, as if it had a machine of its own, so that the others do
not become faster when one is lost. For ten minutes, one machine is taken away in each minute. The
seed determines the times (the trace). A replacement starts 20 s after a machine is gone.

  notice            workers and servers, each with a notice file; the machine is gone when its
                    process has ended, at the latest 30 s after the notice
  workers-without   workers, by SIGKILL
  servers-without   servers, by SIGKILL
  all-gone          all workers at once, by SIGKILL, for 60 s

Goodput is the number of examples per second of an available worker. An example is counted once,
when its update was applied. A worker is available from the start of its process to the end of its
process, so the seconds include its start-up and the time after its notice. The reference is the
goodput of the undisturbed cluster, measured for two minutes before and two minutes after the trace.
With `--quick` the trace has two minutes of 5 s each.
"""
import http.client
import json
import os
import random
import signal
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "chaos"))
from cluster import Cluster, Failure, metric_samples, wait_for  # noqa: E402
from limits import Group  # noqa: E402
from stage import METRICS, Skipped  # noqa: E402

SERVERS, WORKERS = 2, 6
# The lease is the daemons' default (1.5 s). A server counts as lost after 3.75 s and not after the
# default of 30 s. Its replacement starts only after 20 s, so the other servers should get its
# shards earlier.
SCALE = 2.5
BATCH = 256
JOB = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  data:
    train: {format: synthetic, examples: 16384, seed: 7}
    fields: {x: {type: float, size: 784}, label: {type: label, classes: 10}}
    batch_size: 256
    shuffle: {seed: 7}
  model:
    inputs: {x: {shape: [784]}}
    layers:
      - {name: hidden, type: dense, units: 64, activation: relu, input: x}
      - {name: logits, type: dense, units: 10}
    losses:
      {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: label}
  optimizer: {type: adam, learning_rate: 0.001}
  strategy: {mode: async, partitioner: {type: min_size, min_shard_bytes: 16KiB}}
  training: {epochs: 100000, steps_per_closure: 4}
  checkpoint: {every: %s}
"""
PARTS = {
    # name: (what is lost, the target `reach` of the figure)
    "notice": ("workers and servers with notice", 0.95),
    "workers-without": ("workers without notice", 0.90),
    "servers-without": ("servers without notice", None),
    "all-gone": ("all workers gone for a minute", None),
}


class Times:
    """The times of a run, in seconds. In a quick run a minute is shorter."""

    def __init__(self, quick):
        self.minute = 5.0 if quick else 60.0
        self.minutes = 2 if quick else 10
        self.undisturbed = (0.8 if quick else 2) * self.minute
        self.replaced_after = self.minute / 3
        self.notice = self.minute / 2
        self.gone = self.minute
        self.checkpoint_every = "1s" if quick else "10s"

    @property
    def length(self):
        return self.minute * self.minutes


def trace(part, seed, times):
    """Returns one event a minute, as a list of (second, role, draw). `draw` determines the victim:
    it is at this fraction of the length of the list of the role's available tasks. The role "all"
    stands for all workers at once. In the part with notices, the role of each victim is drawn in
    proportion to the number of its machines."""
    r = random.Random("spot/%s/%d" % (part, seed))
    if part == "all-gone":
        return [(times.length * r.uniform(0.2, 0.4), "all", 0.0)]
    roles = {
        "notice": ["worker"] * WORKERS + ["ps_server"] * SERVERS,
        "workers-without": ["worker"],
        "servers-without": ["ps_server"],
    }[part]
    return [
        (minute * times.minute + r.uniform(0, times.minute), r.choice(roles), r.random())
        for minute in range(times.minutes)
    ]


def stalls(samples, limit=1.0):
    """`samples` is a list of (second, value). A pause is a time in which the value did not rise.
    Returns how many seconds lie in pauses longer than `limit`, and the length of the longest
    pause."""
    total = longest = 0.0
    since, last = samples[0]
    for at, value in samples[1:]:
        if value > last or (at, value) == samples[-1]:
            longest = max(longest, at - since)
            total += at - since if at - since > limit else 0
            since = at
        last = max(last, value)
    return total, longest


def seconds_within(intervals, begin, end):
    """Returns the total length of the intervals (start, end) within a window. An interval whose end
    is None lasts to the end of the window."""
    return sum(max(0.0, min(end, end if e is None else e) - max(begin, s)) for s, e in intervals)


def metric(address, name):
    """Returns the sum of a metric over all sets of labels."""
    return sum(metric_samples(address, name))


class DutyCycle:
    """Limits a process to a share of a core, on machines without control groups. A thread of this
    script stops the process (SIGSTOP) in each tenth of a second when its share of that time is
    used, until the process ends."""

    PERIOD = 0.1

    def __init__(self, daemon, share):
        self.daemon, self.share, self.stop = daemon, share, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while self.daemon.alive() and not self.stop.wait(self.PERIOD * self.share):
            self.daemon.signal(signal.SIGSTOP)
            self.stop.wait(self.PERIOD * (1 - self.share))
            self.daemon.signal(signal.SIGCONT)

    def end(self):
        self.stop.set()
        self.thread.join()


def share_of_worker():
    """Returns the share of a core for each worker. All workers together get half of the cores. The
    rest is for the servers, the coordinator and this script."""
    return min(0.5, 0.5 * os.cpu_count() / WORKERS)


def groups_work():
    try:
        Group("cpu", "-probe").end()
        return True
    except Skipped:
        return False


class SpotCluster:
    """A cluster whose workers and servers come and go. It records when workers were available."""

    def __init__(self, bin_folder, seed, times):
        self.times, self.share = times, share_of_worker()
        self.grouped = groups_work()
        self.cluster = Cluster(bin_folder, SERVERS, 0, seed, SCALE, coordinator_arguments=METRICS)
        self.workers = {}  # Daemon: [start, end]
        self.ended = []  # [start, end] of workers that are gone
        self.holds = {}  # Daemon: Group or DutyCycle
        self.notices = {}  # Daemon: its notice file
        self.number = 0
        self.computed = {}  # name of a worker: steps that it has computed
        self.addresses = {}  # pid of a worker: the address of its metrics
        self.coordinator_metrics = ""

    def __enter__(self):
        self.cluster.__enter__()
        try:
            c = self.cluster
            c.coordinator.start()
            for s in c.servers:
                self.start_server(s)
            for _ in range(WORKERS):
                self.start_worker()
            wait_for("all tasks to register", lambda: self._alive_count() == SERVERS + WORKERS)
            self.coordinator_metrics = next(
                t["metrics_address"] for t in c.tasks() if t["role"] == "coordinator"
            )
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *why):
        self.cluster.__exit__(*why)
        for hold in self.holds.values():
            hold.end()

    def _alive_count(self):
        return sum(
            t["state"] == "alive" and t["role"] != "coordinator" for t in self.cluster.tasks()
        )

    def _notice_file(self, daemon):
        self.notices[daemon] = os.path.join(
            self.cluster.folder, "notice-%s-%d" % (daemon.name.replace("/", "-"), self.number)
        )
        return ["--preemption-notice-file", self.notices[daemon]]

    def start_server(self, server):
        self.number += 1
        server.start(extra=self._notice_file(server))

    def start_worker(self):
        self.number += 1
        name = str(self.number)
        c = self.cluster
        d = c.daemon_class(c, "worker", name, ["--name", name, "--threads", "1", *METRICS])
        c.extras.append(d)
        if self.grouped:
            self.holds[d] = Group("cpu", "-spot-%d" % self.number)
            self.holds[d].limit(self.share)
            d.prefix = self.holds[d].starter()
        begin = time.monotonic()
        d.start(extra=self._notice_file(d))
        if not self.grouped:
            self.holds[d] = DutyCycle(d, self.share)
        self.workers[d] = [begin, None]

    def collect(self, now):
        """Returns the list of daemons that have ended since the last call."""
        gone = [d for d in self.workers if not d.alive()]
        for d in gone:
            interval = self.workers.pop(d)
            self.ended.append([interval[0], now])
            self.holds.pop(d).end()
            self.cluster.extras.remove(d)
        return gone

    def available(self, begin, end):
        return seconds_within(list(self.workers.values()) + self.ended, begin, end)

    def throttled(self):
        """Returns whether the kernel throttled every worker. Without control groups this is
        unknown, and the result is True."""
        return not self.grouped or all(h.throttled() > 0 for h in self.holds.values())

    def steps_done(self):
        """Returns the number of steps of the running job whose closures have succeeded, each
        counted once."""
        return metric(self.coordinator_metrics, "evergrad_coordinator_job_steps_done")

    def count_computed(self, daemons):
        """Reads from each of these workers how many steps it has computed. For a worker that has
        ended, the number from the last successful read remains."""
        workers = [d for d in daemons if d.role == "worker" and d.alive()]
        if any(d.pid not in self.addresses for d in workers):
            self.addresses.update(
                (t["pid"], t["metrics_address"])
                for t in self.cluster.tasks()
                if t["role"] == "worker" and t["metrics_address"]
            )
        for d in workers:
            if d.pid in self.addresses:
                try:
                    read = metric(self.addresses[d.pid], "evergrad_worker_steps_total")
                except (OSError, http.client.HTTPException):
                    continue
                self.computed[d.name] = read


class Window:
    """One measured job. It lasts for a fixed time, in which the events of a trace happen."""

    def __init__(self, spot, name, length, events, with_notice, say):
        self.spot, self.name, self.length, self.say = spot, name, length, say
        self.with_notice = with_notice
        # [(second, function)], sorted by time
        self.agenda = [(at, lambda e=(role, draw): self.preempt(*e)) for at, role, draw in events]
        self.leaving = {}  # Daemon: the second at which its machine is taken away
        self.lost = {"worker": 0, "ps_server": 0}
        self.samples = []

    def at(self, second, function):
        self.agenda.append((second, function))
        self.agenda.sort(key=lambda entry: entry[0])

    def now(self):
        return time.monotonic() - self.begin

    def preempt(self, role, draw):
        spot = self.spot
        workers = [d for d in spot.workers if d not in self.leaving]
        servers = [d for d in spot.cluster.servers if d.alive() and d not in self.leaving]
        if role == "all":
            spot.count_computed(workers)
            for d in workers:
                self.kill(d, spot.times.gone)
            return
        tasks = workers if role == "worker" else servers
        if not tasks:  # tries again until there is a replacement
            return self.at(self.now() + 1, lambda: self.preempt(role, draw))
        d = tasks[int(draw * len(tasks))]
        spot.count_computed([d])
        if not self.with_notice:
            return self.kill(d, spot.times.replaced_after)
        with open(spot.notices[d], "w"):
            pass
        self.leaving[d] = self.now() + spot.times.notice
        self.lost[d.role] += 1
        self.say("%s has a notice" % d.name)

    def kill(self, d, replaced_after):
        d.resume()  # a duty cycle may have stopped it
        d.kill()
        self.lost[d.role] += 1
        self.say("%s is killed" % d.name)
        self.gone(d, replaced_after)

    def gone(self, d, replaced_after):
        replace = self.spot.start_worker if d.role == "worker" else None
        replace = replace or (lambda: self.spot.start_server(d))
        self.at(self.now() + replaced_after, replace)

    def step(self):
        """Performs the events that are due, and takes one sample of the progress."""
        spot = self.spot
        while self.agenda and self.agenda[0][0] <= self.now():
            self.agenda.pop(0)[1]()
        if any(d.role == "worker" for d in self.leaving):
            spot.count_computed(self.leaving)
        for d, until in list(self.leaving.items()):
            if d.alive() and self.now() > until:
                self.say("%s did not leave within its notice" % d.name)
                d.kill()
            if not d.alive():
                del self.leaving[d]
                self.gone(d, spot.times.replaced_after)
        for d in spot.collect(time.monotonic()):
            if d.process.returncode not in (0, -signal.SIGKILL):
                raise Failure("%s ended with %d:\n%s" % (d.name, d.process.returncode, d.tail()))
        self.samples.append((self.now(), spot.steps_done()))

    def run(self):
        c = self.spot.cluster
        path = os.path.join(c.folder, self.name + ".yaml")
        with open(path, "w") as f:
            f.write(JOB % (self.name, self.spot.times.checkpoint_every))
        c.psctl_json("job", "submit", path)
        names = {d.identity for d in self.spot.workers}

        def all_work():
            rows = c.psctl_json("job", "show", self.name)["workers"]
            return names <= {w["identity"] for w in rows if int(w["steps"]) > 0}

        wait_for("every worker to train", all_work, 120)
        self.begin, pause, told = time.monotonic(), threading.Event(), 0
        self.spot.count_computed(self.spot.workers)
        first, computed = self.spot.steps_done(), sum(self.spot.computed.values())
        while self.now() < self.length:
            self.step()
            if self.now() > (told + 1) * 60:
                told += 1
                self.say("%d min, %d steps" % (told, self.samples[-1][1] - first))
            pause.wait(0.2)
        end = time.monotonic()
        steps = self.spot.steps_done() - first
        result = {
            "steps": steps,
            "examples": steps * BATCH,
            "worker_seconds": self.spot.available(self.begin, end),
            "lost": self.lost,
        }
        self.spot.count_computed(self.spot.workers)
        # Closures that are running at the beginning or at the end of the window change this number
        # by a few steps.
        result["again"] = max(0, sum(self.spot.computed.values()) - computed - steps)
        result["stalled"], result["longest_stall"] = stalls(self.samples)
        self.finish(result)
        return result

    def finish(self, result):
        """Waits until the replacements have started, ends the job, and reads its counts."""
        c = self.spot.cluster
        while self.agenda or self.leaving:
            self.step()
            threading.Event().wait(0.05)
        wait_for("the replacements", lambda: self.spot._alive_count() == SERVERS + WORKERS, 120)
        c.psctl("job", "cancel", self.name)
        wait_for(
            "the job to end",
            lambda: c.psctl_json("job", "show", self.name)["state"] == "CANCELLED",
            120,
        )
        shown = c.psctl_json("job", "show", self.name)
        with open(os.path.join(shown["runs_folder"], "result.json")) as f:
            ended = json.load(f)
        result["repair"], result["deaths"] = ended["repair"], len(ended["deaths"])


def goodput(windows):
    return sum(w["examples"] for w in windows) / sum(w["worker_seconds"] for w in windows)


def figures(bin_folder, part, quick, entry, seed=None):
    """Runs one part, with an undisturbed cluster before and after it, and yields its figures."""
    what, reach = PARTS[part]
    times = Times(quick)
    seed = seed or int(os.environ.get("SEED", "1"))
    begin = time.monotonic()

    def say(text):
        print("   %-16s %4.0f s  %s" % (part, time.monotonic() - begin, text), flush=True)

    with SpotCluster(bin_folder, seed, times) as spot:
        say(
            "seed=%d, %d workers at %.2f of a core each (%s), %d servers"
            % (
                seed,
                WORKERS,
                spot.share,
                "control groups" if spot.grouped else "stopped for the rest of each 100 ms",
                SERVERS,
            )
        )

        def window(name, length, events):
            w = Window(spot, name, length, events, part == "notice", say).run()
            say(
                "%s: %.1f examples/s per worker, %s"
                % (name, w["examples"] / w["worker_seconds"], json.dumps(w))
            )
            return w

        before = window("before", times.undisturbed, [])
        if not spot.throttled():
            raise Failure("a worker was never held at its share, so a lost one is not missed")
        disturbed = window(part, times.length, trace(part, seed, times))
        after = window("after", times.undisturbed, [])
    alone = goodput([before, after])
    if not sum(disturbed["lost"].values()):
        raise Failure("the trace took nothing away")
    name = "spot: %s: " % what
    ours = goodput([disturbed])
    yield entry(
        name + "goodput",
        ours,
        "examples/s per available worker",
        "undisturbed, before %.4g and after %.4g" % (goodput([before]), goodput([after])),
        alone,
        ours / alone,
        reach,
    )
    yield entry(
        name + "steps done again",
        disturbed["again"],
        "steps",
        "steps that count",
        disturbed["steps"],
        None,
        None,
    )
    yield entry(
        name + "seconds in pauses above 1 s",
        disturbed["stalled"],
        "s",
        "the longest pause",
        disturbed["longest_stall"],
        None,
        None,
    )
