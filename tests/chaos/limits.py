"""Scenarios under the limits of control groups (v1 or v2), where this machine lets us make some; else they are skipped by name, and counted."""
import os
import time

from cluster import Failure, wait_for
from stage import Skipped, names_death, only_these_died, restart, scenario

TOP = "/sys/fs/cgroup"


class Group:
    """A control group of its own for `kind` ("cpu" or "memory"). Skipped: none can be made."""

    def __init__(self, kind):
        self.unified = os.path.exists(os.path.join(TOP, "cgroup.controllers"))
        self.kind, self.top = kind, TOP if self.unified else os.path.join(TOP, kind)
        self.path = os.path.join(self.top, "evergrad-chaos-%d" % os.getpid())
        limit = self._limit_file()
        try:
            if self.unified and kind not in open(os.path.join(TOP, "cgroup.subtree_control")).read().split():
                raise Skipped("no %s controller for groups of ours" % kind)
            os.mkdir(self.path)
        except OSError as why:
            raise Skipped("control groups cannot be made here: %s" % why)
        if not os.access(os.path.join(self.path, limit), os.W_OK):
            os.rmdir(self.path)
            raise Skipped("control groups here have no %s" % limit)

    def _limit_file(self):
        return {("cpu", True): "cpu.max", ("cpu", False): "cpu.cfs_quota_us", ("memory", True): "memory.max", ("memory", False): "memory.limit_in_bytes"}[self.kind, self.unified]

    def _write(self, name, text):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(text)

    def limit(self, value):
        """cpu: a share of one core; memory: bytes."""
        if self.kind == "cpu":
            value = int(value * 100000)
            self._write(self._limit_file(), "%d 100000" % value if self.unified else str(value))
        else:
            self._write(self._limit_file(), str(value))

    def add(self, daemon):
        self._write("cgroup.procs", str(daemon.pid))

    def throttled(self):
        with open(os.path.join(self.path, "cpu.stat")) as f:
            return int(dict(line.split() for line in f)["nr_throttled"])

    def end(self):
        """Those who are in it go back to the top."""
        with open(os.path.join(self.path, "cgroup.procs")) as f:
            for pid in f.read().split():
                with open(os.path.join(self.top, "cgroup.procs"), "w") as out:
                    out.write(pid)
        wait_for("the control group to be empty", lambda: not open(os.path.join(self.path, "cgroup.procs")).read().split())
        os.rmdir(self.path)


@scenario("limits", "L1", "a worker and a server get 3 % of a core by their control group, and all of it back")
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
        job = c.disturb(r.randint(10, 40), narrow, lambda: group.limit(1.0), examples=1600, step_ms=3)
        since = time.monotonic()
        wait_for("the group to be held back for a while", lambda: group.throttled() > 3 and time.monotonic() - since > 1.0 * c.scale)
        group.limit(1.0)
        job.finish()
    finally:
        group.end()
    only_these_died(before, c)
    c.wait_usable()


@scenario("limits", "L2", "a worker runs out of its control group's memory and is killed by the kernel; started again it goes on")
def l2(c, r):
    victim = r.choice(c.workers)
    c.wait_usable()
    before = c.pids()
    # A worker that has all the pages that it needs never asks for one more: each next time it gets less.
    for room in (32 << 10, 8 << 10, 4 << 10):
        group = Group("memory")
        try:
            group.limit(room)
            job = c.disturb(r.randint(10, 40), lambda _: group.add(victim), lambda: restart(victim), examples=3000, step_ms=3)
            wait_for("the kernel to kill %s, or the job to end" % victim.name, lambda: not victim.alive() or job.ended())
            if not victim.alive():
                break
            job.finish()
        finally:
            group.end()
    else:
        raise Failure("%s did a whole job with 4 KiB more than it had" % victim.name)
    if victim.process.returncode != -9:
        raise Failure("%s ended with %d, not by the kernel" % (victim.name, victim.process.returncode))
    victim.start()
    result = job.finish()
    names_death(result, victim)
    only_these_died(before, c, victim)
    c.wait_tasks()
