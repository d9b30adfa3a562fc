"""Scenarios of functions jobs. A client schedules closures with the functions of
examples/functions, on real daemons.

Each step of `fit` pushes -1 to the variable `steps`. Plain SGD with rate 1 then adds 1 to it. The
variable's value, its digest, and every shard's counter of applied updates therefore show exactly
how often each step was applied.
"""
import json
import os
import selectors
import subprocess
import time

from cluster import MASK, Failure, die_with_parent, mix, wait_for
from stage import back, events, others_or_restart, restart, scenario

YAML = """apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: %s}
spec:
  type: functions
  functions:
    variables:
      - {name: slope, shape: [2]}
      - {name: height, shape: [1]}
      - {name: steps, shape: [1], optimizer: {type: sgd, learning_rate: 1}}
    queue_limit: %d
  optimizer: {type: sgd, learning_rate: 0.01}
  strategy: {partitioner: {type: fixed_shards, num_shards: 2}}
  checkpoint: %s
"""


class FunctionsJob:
    """A functions job and the process of its client, which reads commands line by line."""

    def __init__(self, cluster, queue_limit=64, checkpoint="{every: 100ms}"):
        cluster.jobs += 1
        self.cluster, self.name = cluster, "functions-%d" % cluster.jobs
        path = os.path.join(cluster.folder, self.name + ".yaml")
        with open(path, "w") as f:
            f.write(YAML % (self.name, queue_limit, checkpoint))
        cluster.psctl_json("job", "submit", path)
        self.client = subprocess.Popen(
            [
                os.path.join(cluster.bin, "evergrad-functions-client"),
                cluster.coordinator_address(),
                self.name,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
            cwd=cluster.folder,
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.client.stdout, selectors.EVENT_READ)
        self.fits = 0  # number of steps of `fit` that were scheduled
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.client.poll() is None:
            self.client.kill()
        self.client.wait()
        for pipe in (self.client.stdin, self.client.stdout):
            pipe.close()
        if self.show()["state"] in ("QUEUED", "STARTING", "RUNNING"):
            self.cluster.psctl("job", "cancel", self.name, expect=None)

    def say(self, command):
        self.client.stdin.write((command + "\n").encode())
        self.client.stdin.flush()

    def hear(self, seconds=60):
        """Returns the next answer: (True, text), or (False, "CODE message")."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            if not self.selector.select(max(0, end - time.monotonic())):
                raise Failure(
                    "%s: no answer within %d s; it waits for: %s"
                    % (self.name, seconds, self.show().get("waiting_for"))
                )
            got = os.read(self.client.stdout.fileno(), 65536)
            if not got:
                raise Failure("%s: its client has ended" % self.name)
            self.buffer += got
        line, self.buffer = self.buffer.split(b"\n", 1)
        kind, _, text = line.decode().partition(" ")
        return kind == "ok", text.strip()

    def ask(self, command):
        self.say(command)
        fine, text = self.hear()
        if not fine:
            raise Failure("%s: `%s` is answered with an error: %s" % (self.name, command, text))
        return text

    def fit(self, closures, steps, wait=True):
        self.fits += closures * steps
        self.say("schedule fit %d %d 4" % (closures, steps))
        if wait:
            self.heard_ok()

    def heard_ok(self):
        fine, text = self.hear()
        if not fine:
            raise Failure("%s: an error: %s" % (self.name, text))
        return text

    def show(self):
        return self.cluster.psctl_json("job", "show", self.name)

    def steps_done(self):
        return int(self.show()["steps_done"])

    def wait_steps(self, steps):
        wait_for("%s to do %d steps" % (self.name, steps), lambda: self.steps_done() >= steps)

    def check_exact(self):
        """Checks that every step of every closure was applied once on every shard, and ends the
        job."""
        self.ask("join")
        handle = self.ask("schedule read 1").split()[0]
        steps = int(self.ask("fetch " + handle).split()[-1])
        if steps != self.fits:
            raise Failure("%s: %d steps scheduled, %d applied" % (self.name, self.fits, steps))
        self.ask("finish")
        status = self.show()
        if status["state"] != "SUCCEEDED" or int(status["closures_succeeded"]) != int(
            status["closures_total"]
        ):
            raise Failure(
                "%s is %s: %s of %s closures"
                % (
                    self.name,
                    status["state"],
                    status["closures_succeeded"],
                    status["closures_total"],
                )
            )
        with open(os.path.join(status["runs_folder"], "result.json")) as f:
            result = json.load(f)
        for shard in result["shards"]:
            if shard["updates_applied"] != self.fits:
                raise Failure(
                    "shard %s of %s: want %d updates applied got %s"
                    % (shard["shard"], shard["variable"], self.fits, shard["updates_applied"])
                )
        listed = self.cluster.psctl_json("variable", "list", "--job", self.name)
        import numpy

        for variable in listed["variables"] if isinstance(listed, dict) else listed:
            if variable["name"] != "steps":
                continue
            want = mix(0, int(numpy.array([self.fits], "<f4").view("<u4")[0])) & MASK
            got = variable["digest"]
            if (int(got, 16) if isinstance(got, str) else int(got)) != want:
                raise Failure("the digest of steps is not that of %d" % self.fits)
        audit = self.cluster.psctl_json("job", "audit", "--job", self.name)
        if (
            not audit["exact"]
            or audit["closures_done"] != int(status["closures_succeeded"])
            or audit["closures_open"]
        ):
            raise Failure("psctl job audit: %s" % audit)
        if result["functions"]["updates_lost_of"]:
            raise Failure(
                "updates were lost of closures %s" % result["functions"]["updates_lost_of"]
            )
        return result


@scenario("functions", "W14", "fetch a closure's result, kill its worker, fetch again")
def w14(c, r):
    with FunctionsJob(c) as job:
        job.fit(1, 5)
        first = job.ask("fetch 0")
        if float(first) <= 0:
            raise Failure("no error of a fit: %r" % first)
        for w in c.workers:
            w.kill()
        if job.ask("fetch 0") != first:
            raise Failure("another value once its worker was dead")
        c.coordinator.kill()
        c.coordinator.start()
        if job.ask("fetch 0") != first:
            raise Failure("another value after a restart of the coordinator")
        for w in c.workers:
            w.start()
        c.wait_usable()
        job.check_exact()


@scenario("functions", "U1", "kill a worker repeatedly during the steps of a function")
def u1(c, r):
    victim = c.workers[0]
    restart(victim, "worker.after_push=%d*kill" % r.randint(3, 25))
    c.wait_usable()
    with FunctionsJob(c) as job:
        # Which worker runs which closure is not fixed, so several attempts may be needed.
        for _ in range(6):
            job.fit(60, 8, wait=False)
            wait_for(
                "the failpoint to kill it, or all steps to be done",
                lambda: not victim.alive() or job.steps_done() >= job.fits,
            )
            if not victim.alive():
                break
            job.heard_ok()
        else:
            raise Failure("six times the others did nearly all: %s was not killed" % victim.name)
        others_or_restart(c, victim)
        if len(c.workers) > 1:
            restart(victim, "worker.between_pushes=%d*kill" % r.randint(3, 25))
        job.heard_ok()
        job.check_exact()
    back(victim)
    c.wait_usable()


@scenario(
    "functions",
    "U2",
    "kill a server while closures run: it returns, and lost closures run again from kept "
    "arguments",
)
def u2(c, r):
    victim = r.choice(c.servers)
    with FunctionsJob(c) as job:
        job.fit(150, 6, wait=False)
        job.wait_steps(r.randint(100, 250))
        victim.kill()
        victim.start()
        job.heard_ok()
        job.check_exact()
    if not events(job, "rollback"):
        raise Failure("no shard was rolled back")


@scenario(
    "functions",
    "U3",
    "kill the coordinator while a client schedules: no closure is lost or doubled, and the "
    "client continues",
)
def u3(c, r):
    with FunctionsJob(c) as job:
        job.fit(150, 4, wait=False)
        for _ in range(2):
            # On a slow machine all closures may have ended before the second kill.
            job.wait_steps(min(job.steps_done() + r.randint(20, 60), 150 * 4))
            c.coordinator.kill()
            c.coordinator.start()
            c.wait_tasks()
        job.heard_ok()
        result = job.check_exact()
        if result["closures"]["succeeded"] != 151:
            raise Failure("want 151 closures got %s" % result["closures"])


@scenario(
    "functions",
    "U4",
    "a user's error while a worker is killed: it is reported once, and then all work continues",
)
def u4(c, r):
    with FunctionsJob(c) as job:
        job.fit(4, 2)
        job.ask("join")
        job.say("schedule fit 30 40 4")
        job.say("schedule fit 1 not a number")
        job.say("schedule fit 30 40 4")
        victim = c.workers[-1]
        if len(c.workers) > 1:
            victim.kill()
        job.say("join")
        answers = [job.hear() for _ in range(4)]
        told = [text for fine, text in answers if not fine]
        if (
            len(told) != 1
            or "want=BATCHES POINTS got=not a number" not in told[0]
            or "INVALID_ARGUMENT" not in told[0]
        ):
            raise Failure("want the user's error, once; got %s" % answers)
        job.ask("join")
        # Each update of the cancelled closures was applied at most once, and none of them is
        # applied from now on.
        handle = job.ask("schedule read 1").split()[0]
        applied = int(job.ask("fetch " + handle).split()[-1])
        if applied > 8 + 60 * 40:
            raise Failure("%d steps applied, more than were scheduled" % applied)
        job.fits = applied
        if not victim.alive():
            victim.start()
        job.fit(10, 3)
        job.ask("join")
        handle = job.ask("schedule read 1").split()[0]
        if int(job.ask("fetch " + handle).split()[-1]) != job.fits:
            raise Failure("after the error: want %d steps" % job.fits)
        job.ask("finish")
        status = job.show()
        if int(status["closures_failed"]) != 1:
            raise Failure("want one failed closure, got %s" % status["closures_failed"])
    c.wait_usable()


@scenario(
    "functions",
    "U5",
    "a queue of two and many closures (long form: a thousand): no deadlock, flat memory",
)
def u5(c, r):
    many = 800 if c.forms > 1 else 250

    def resident():
        with open("/proc/%d/statm" % c.coordinator.pid) as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with FunctionsJob(c, queue_limit=2, checkpoint="{every: 500ms}") as job:
        for _ in range(2):
            job.fit(100, 1)
        before = resident()
        job.fit(many, 1)
        job.check_exact()
        grown = (resident() - before) / 2**20
        # Under a sanitizer this limit does not hold, because a sanitizer keeps freed memory for a
        # while.
        if grown > 16 and not c.sanitized():
            raise Failure("the coordinator grew by %.1f MiB over %d closures" % (grown, many))
        print("       the coordinator grew by %.1f MiB over %d closures" % (grown, many))


@scenario("functions", "U6", "join(durable), then all servers die at once: no closure runs again")
def u6(c, r):
    with FunctionsJob(c, checkpoint="{every: 1h}") as job:
        job.fit(20, 3)
        job.ask("join durable")
        for s in c.servers:
            s.kill()
        for s in c.servers:
            s.start()
        c.wait_tasks()
        result = job.check_exact()
        if result["repair"]["closures_rerun"] or not result["repair"]["shards_rolled_back"]:
            raise Failure(
                "want shards rolled back and nothing run again, got %s" % result["repair"]
            )


@scenario("functions", "U-off", "with the ledger switched off the check of functions must fail")
def u_off(c, r):
    for s in c.servers:
        restart(s, "push.duplicate=30%on", mutant="ledger_off")
    c.wait_tasks()
    with FunctionsJob(c) as job:
        job.fit(60, 4)
        try:
            job.check_exact()
        except Failure as why:
            if "applied" not in str(why):
                raise Failure("the check failed for another reason: %s" % why)
        else:
            raise Failure("the ledger was off, pushes were duplicated, and the check saw nothing")
    for s in c.servers:
        restart(s)
    c.wait_tasks()
