"""Scenarios in which daemons run under the limits of control groups (v1 or v2). If this machine
does not allow control groups, the scenarios are skipped. Their names and their number are then
printed."""
import os
import re
import subprocess
import time

from cluster import Failure, metric_samples, wait_for
from stage import METRICS, Skipped, names_death, only_these_died, restart, scenario

TOP = "/sys/fs/cgroup"


class Group:
    """A control group of `kind` "cpu" or "memory". Raises Skipped if none can be made. Groups that
    exist at the same time need different values of `name`."""

    def __init__(self, kind, name=""):
        self.unified = os.path.exists(os.path.join(TOP, "cgroup.controllers"))
        self.kind, self.top = kind, TOP if self.unified else os.path.join(TOP, kind)
        self.path = os.path.join(self.top, "evergrad-chaos-%d%s" % (os.getpid(), name))
        limit = self._limit_file()
        try:
            if (
                self.unified
                and kind not in open(os.path.join(TOP, "cgroup.subtree_control")).read().split()
            ):
                raise Skipped("no %s controller for groups of ours" % kind)
            os.mkdir(self.path)
        except OSError as why:
            raise Skipped("control groups cannot be made here: %s" % why)
        if not os.access(os.path.join(self.path, limit), os.W_OK):
            os.rmdir(self.path)
            raise Skipped("control groups here have no %s" % limit)

    def _limit_file(self):
        return {
            ("cpu", True): "cpu.max",
            ("cpu", False): "cpu.cfs_quota_us",
            ("memory", True): "memory.max",
            ("memory", False): "memory.limit_in_bytes",
        }[self.kind, self.unified]

    def _write(self, name, text):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(text)

    def limit(self, value):
        """Sets the limit: a share of one core for "cpu", a number of bytes for "memory"."""
        if self.kind == "cpu":
            value = int(value * 100000)
            self._write(self._limit_file(), "%d 100000" % value if self.unified else str(value))
        else:
            self._write(self._limit_file(), str(value))

    def starter(self):
        """Returns a value for Daemon.prefix. The process enters the group before it becomes the
        daemon, so that the daemon finds the group's limit when it looks for one."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.path, "cgroup.procs")]

    def killed(self):
        """Returns how many processes of the group the kernel has killed because of their memory."""
        with open(
            os.path.join(self.path, "memory.events" if self.unified else "memory.oom_control")
        ) as f:
            return int(dict(line.split() for line in f)["oom_kill"])

    def add(self, daemon):
        self._write("cgroup.procs", str(daemon.pid))

    def throttled(self):
        with open(os.path.join(self.path, "cpu.stat")) as f:
            return int(dict(line.split() for line in f)["nr_throttled"])

    def end(self):
        """Moves the processes of the group back to the root group."""

        def members():
            with open(os.path.join(self.path, "cgroup.procs")) as f:
                return f.read().split()

        for pid in members():
            with open(os.path.join(self.top, "cgroup.procs"), "w") as out:
                out.write(pid)
        wait_for("the control group to be empty", lambda: not members())
        os.rmdir(self.path)


@scenario(
    "limits",
    "L1",
    "a worker and a server get 3 % of a core from their control group, and later all of it",
)
def l1(c, r):
    worker, server = r.choice(c.workers), r.choice(c.servers)
    c.wait_usable()
    before = c.pids()
    group = Group("cpu")
    try:

        def narrow(_):
            group.limit(0.03)
            for d in (worker, server):
                group.add(d)

        job = c.disturb(
            r.randint(10, 40), narrow, lambda: group.limit(1.0), examples=1600, step_ms=3
        )
        since = time.monotonic()
        wait_for(
            "the group to be held back for a while",
            lambda: group.throttled() > 3 and time.monotonic() - since > 1.0 * c.scale,
        )
        group.limit(1.0)
        job.finish()
    finally:
        group.end()
    only_these_died(before, c)
    c.wait_usable()


@scenario(
    "limits",
    "L2",
    "a worker exceeds the memory of its control group and is killed by the kernel: after its "
    "restart the job continues",
)
def l2(c, r):
    victim = r.choice(c.workers)
    c.wait_usable()
    before = c.pids()
    # A worker whose pages are all in memory needs no further memory and is not killed. Therefore
    # each new start gets less memory.
    for room in (32 << 10, 8 << 10, 4 << 10):
        group = Group("memory")
        try:
            group.limit(room)
            job = c.disturb(
                r.randint(10, 40),
                lambda _: group.add(victim),
                lambda: restart(victim),
                examples=3000,
                step_ms=3,
            )
            wait_for(
                "the kernel to kill %s, or the job to end" % victim.name,
                lambda: not victim.alive() or job.ended(),
            )
            if not victim.alive():
                break
            job.finish()
        finally:
            group.end()
    else:
        raise Failure("%s did a whole job with 4 KiB more than it had" % victim.name)
    if victim.process.returncode != -9:
        raise Failure(
            "%s ended with %d, not by the kernel" % (victim.name, victim.process.returncode)
        )
    victim.start()
    result = job.finish()
    names_death(result, victim)
    only_these_died(before, c, victim)
    c.wait_tasks()


MIB = 1 << 20


def status_bytes(pid, field):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^%s:\s+(\d+) kB" % field, f.read(), re.M).group(1)) << 10


def gauge(address, name):
    (value,) = metric_samples(address, name)
    return value


@scenario(
    "limits",
    "S5",
    "64 pushers of 16 MiB each at one server, by socket and shared memory: its memory is "
    "bounded and no push is lost",
)
def s5(c, r):
    budget, lanes = 64 * MIB, 32 * MIB
    for s in c.servers:
        restart(s, extra=("--budget-bytes-max", "64MiB", "--lane-bytes-max", "32MiB") + METRICS)
    c.wait_usable()
    before = c.pids()
    # One variable has 16 MiB in one shard. The workers have little to compute, and the job lasts
    # longer than this scenario.
    job = c.submit(
        examples=4 << 20,
        batch=1 << 16,
        epochs=8,
        steps_per_closure=1,
        shards=1,
        step_ms=int(500 * c.scale),
        checkpoint="off",
    )
    job.wait_steps(1)
    metrics = {
        s.identity: next(
            t["metrics_address"]
            for t in c.tasks()
            if t["role"] == "ps_server" and t["pid"] == s.pid
        )
        for s in c.servers
    }
    try:
        for lane in (0, 2 * MIB):
            base = {}
            for s in c.servers:
                base[s] = status_bytes(s.pid, "VmRSS")
                with open("/proc/%d/clear_refs" % s.pid, "w") as f:
                    f.write("5")  # resets the peak of memory that the kernel keeps (VmHWM)
            command = [
                os.path.join(c.bin, "evergrad-fast-pushers"),
                "--coordinator",
                c.coordinator_address(),
                "--job",
                job.name,
                "--lane",
                str(lane),
                "--each",
                "1",
                "--again",
                "8",
            ]
            for s in c.servers:
                command += ["--server", "%s=%s" % (s.identity, s.address)]
            pushers = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                waiting = wait_for(
                    "pushers to wait for their grants, or to end",
                    lambda: pushers.poll() is not None
                    or max(
                        gauge(metrics[s.identity], "evergrad_ps_server_budget_bytes_waiting")
                        for s in c.servers
                    ),
                )
                out, err = pushers.communicate(timeout=240)
            finally:
                pushers.kill()
            if pushers.returncode != 0:
                raise Failure("the pushers ended with %d\n%s%s" % (pushers.returncode, out, err))
            if waiting is True:
                raise Failure("nobody was seen to wait for a grant: %s" % out)
            if (lane > 0) != ("lanes=0" not in out):
                raise Failure("with --lane %d: %s" % (lane, out))
            for s in c.servers:
                peak, bound = status_bytes(s.pid, "VmHWM"), base[s] + 3 * budget + lanes
                if peak > bound and not c.sanitized():
                    raise Failure(
                        "%s grew from %d to %d MiB, want at most %d "
                        "(base, budget, twice the budget for gRPC, lanes)"
                        % (s.name, base[s] // MIB, peak // MIB, bound // MIB)
                    )
            print(
                "    %s; the server grew by at most %d MiB of %d"
                % (
                    out.strip(),
                    max(status_bytes(s.pid, "VmHWM") - base[s] for s in c.servers) // MIB,
                    (3 * budget + lanes) // MIB,
                ),
                flush=True,
            )
            if any(
                gauge(metrics[s.identity], "evergrad_ps_server_refused_total") for s in c.servers
            ):
                raise Failure("a server refused a push for a limit")
    finally:
        c.psctl("job", "cancel", job.name, expect=None)
    job.wait_state("CANCELLED")
    only_these_died(before, c)
    for s in c.servers:
        restart(s)
    c.wait_usable()
