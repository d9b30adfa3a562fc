"""Scenarios of preemption notices. A server or a worker must leave, and processes die in the middle
of a move of shards. scenarios.py registers them with the others."""
import os
import signal
import time

from cluster import Failure, wait_for
from stage import events, only_these_died, restart, scenario

NOTHING = {"shards_rolled_back": 0, "closures_rerun": 0, "updates_redone": 0}


def ends(c, victim, since, code=0, within=10.0):
    """The victim's process must end by itself, in time."""
    wait_for("%s to end" % victim.name, lambda: not victim.alive(), 30)
    took = time.monotonic() - since
    if victim.process.returncode != code:
        raise Failure(
            "%s: want exit code %d after its notice, got %s:\n%s"
            % (victim.name, code, victim.process.returncode, victim.tail())
        )
    if took > within + c.pauses.longest:
        raise Failure("%s took %.1f s to leave:\n%s" % (victim.name, took, victim.tail()))
    return took


def leaves(c, job, victim, notice, undo):
    """Gives notice in the middle of a job, waits for the end of the process, and returns how long
    that took."""
    took = [0.0]

    def leave(_):
        since = time.monotonic()
        notice()
        took[0] = ends(c, victim, since)

    return c.disturb(job.pop("steps"), leave, undo, **job), took[0]


def handed_over(c, job, result, victim, pids):
    """The shards of the victim must have been moved: nothing may be rolled back or run again, and
    no death may be counted."""
    only_these_died(pids, c, victim)
    if result["repair"] != NOTHING or events(job, "rollback"):
        raise Failure(
            "a notice cost something: %s %s" % (result["repair"], events(job, "rollback"))
        )
    if result["deaths"]:
        raise Failure("a notice was taken for a death: %s" % result["deaths"])
    if not events(job, "drain", "%s has handed over" % victim.name):
        raise Failure(
            "the job does not say that %s has handed over: %s\n%s"
            % (victim.name, events(job, "drain"), victim.tail(40))
        )


def could_not(job, victim):
    if not events(job, "warning", "%s is leaving, but its shards cannot be moved" % victim.name):
        raise Failure(
            "the job does not say that nobody could take what %s holds: %s"
            % (victim.name, events(job, "warning"))
        )


def server_leaves(c, r, victim, notice, before=lambda: None, **shape):
    """Runs one whole scenario of a server that leaves in good order. If no other server exists, it
    must report that it cannot hand over its shards."""

    def undo():
        before()
        victim.start()
        c.wait_tasks()

    pids = c.pids()
    shape = dict(dict(steps=r.randint(10, 60), examples=1600, step_ms=3), **shape)
    job, took = leaves(c, shape, victim, notice, undo)
    if len(c.servers) == 1:
        undo()
        job.finish()
        only_these_died(pids, c, victim)
        could_not(job, victim)
        return
    result = job.finish()
    handed_over(c, job, result, victim, pids)
    print(
        "       %s left %.2f s after its notice: %s"
        % (victim.name, took, "; ".join(events(job, "drain", "handed over")))
    )
    undo()


@scenario(
    "drain",
    "D1",
    "SIGTERM to a server in mid-job: its shards move to another server, and no closure runs "
    "again",
)
def d1(c, r):
    victim = r.choice(c.servers)
    server_leaves(
        c,
        r,
        victim,
        lambda: victim.signal(signal.SIGTERM),
        checkpoint=r.choice(("", "{every: 50ms, keep: 3}", "off")),
    )


@scenario(
    "drain", "D2", "a server's preemption notice by file, and psctl task drain with the same effect"
)
def d2(c, r):
    victim = r.choice(c.servers)
    path = os.path.join(c.folder, "notice-server")
    restart(victim, extra=("--preemption-notice-file", path))
    c.wait_tasks()

    def write():
        with open(path, "w"):
            pass  # The file stays empty. Its existence is the notice.

    def forget():
        if os.path.exists(path):
            os.unlink(path)

    server_leaves(c, r, victim, write, forget)
    if not any("preemption notice" in line for line in victim.tail(400).splitlines()):
        raise Failure("%s does not say why it left:\n%s" % (victim.name, victim.tail(40)))
    forget()
    server_leaves(c, r, victim, lambda: c.psctl("task", "drain", victim.name))


@scenario("drain", "D3", "a worker's preemption notice, by file (W13)")
def d3(c, r):
    victim = r.choice(c.workers)
    path = os.path.join(c.folder, "notice-worker")
    with open(path, "w") as f:
        f.write("of a former life\n")
    restart(victim, extra=("--preemption-notice-file", path))
    c.wait_usable()
    # A file that exists when the watch begins is not a notice. From here on, a newly written file
    # is a notice, even if the daemon has not noticed that the old file was removed.
    wait_for(
        "the watch to begin",
        lambda: "the preemption notice file exists already and is ignored until it is written again"
        in victim.tail(),
    )
    os.unlink(path)

    def write():
        with open(path, "w") as f:
            f.write("%d\n" % r.randint(0, 1000))

    def undo():
        if os.path.exists(path):
            os.unlink(path)
        victim.start(extra=("--preemption-notice-file", path))
        c.wait_usable()

    shape = dict(steps=r.randint(8, 30), examples=1200, epochs=1, steps_per_closure=8, step_ms=10)
    job, _ = leaves(c, shape, victim, write, undo)
    if len(c.workers) == 1:
        undo()
    result = job.finish()
    if not events(job, "drain", "%s leaves: preemption notice" % victim.name):
        raise Failure(
            "the job does not say why %s leaves: %s" % (victim.name, events(job, "drain"))
        )
    if any(victim.name in str(d) for d in result["deaths"]) or events(job, "requeue", victim.name):
        raise Failure(
            "a notice was taken for a death: deaths %s, requeued %s"
            % (result["deaths"], events(job, "requeue"))
        )
    restart(victim)
    c.wait_tasks()


@scenario(
    "drain", "D4", "SIGKILL of the leaving server, or of the receiver of its shards, during a move"
)
def d4(c, r):
    if len(c.servers) == 1:
        return server_leaves(
            c, r, c.servers[0], lambda: c.servers[0].signal(signal.SIGTERM)
        )  # There is no server to which its shards could be moved.
    leaver = r.choice(c.servers)
    target = r.choice([s for s in c.servers if s is not leaver])
    victim, point = r.choice(
        ((leaver, "move.stopped"), (leaver, "move.read"), (target, "move.received"))
    )
    restart(victim, "%s=%d*kill" % (point, r.randint(1, 3)))
    c.wait_tasks()
    pids = c.pids()

    def leave(_):
        since = time.monotonic()
        leaver.signal(signal.SIGTERM)
        wait_for(
            "the failpoint %s to kill %s" % (point, victim.name),
            lambda: not victim.alive() or not leaver.alive(),
            20,
        )
        if victim.alive():
            return  # The job ended before the failpoint was reached.
        victim.start()
        if victim is not leaver:
            ends(c, leaver, since)
            leaver.start()

    def undo():
        for s in c.servers:
            if not s.alive():
                s.start()
        restart(victim, "%s=%d*kill" % (point, r.randint(1, 3)))
        c.wait_tasks()

    job = c.disturb(
        r.randint(10, 50),
        leave,
        undo,
        examples=1600,
        step_ms=3,
        checkpoint="{every: 50ms, keep: 20}",
    )
    job.finish()
    only_these_died(pids, c, leaver, target)
    for s in c.servers:
        if not s.alive():
            s.start()
    restart(victim)
    c.wait_tasks()


@scenario(
    "drain", "D5", "SIGKILL of the coordinator during a move: after its restart the move continues"
)
def d5(c, r):
    victim = r.choice(c.servers)
    point = r.choice(("move.before_commit", "move.after_commit"))
    pids = c.pids()
    armed = "%s=%d*kill" % (point, r.randint(1, 3))
    restart(c.coordinator, armed)
    c.wait_tasks()

    def leave(job):
        since = time.monotonic()
        victim.signal(signal.SIGTERM)
        wait_for(
            "the failpoint to kill the coordinator, or %s to end" % victim.name,
            lambda: not c.coordinator.alive() or not victim.alive(),
            20,
        )
        if not c.coordinator.alive():
            c.coordinator.start()
        ends(c, victim, since)

    def undo():
        if not victim.alive():
            victim.start()
        restart(c.coordinator, armed)
        c.wait_tasks()

    job = c.disturb(
        r.randint(10, 50),
        leave,
        undo,
        examples=1600,
        step_ms=3,
        checkpoint="{every: 50ms, keep: 20}",
    )
    if len(c.servers) == 1:
        victim.start()
    job.finish()
    job.check_lines()
    only_these_died(pids, c, victim, c.coordinator)
    restart(victim)
    restart(c.coordinator)
    c.wait_tasks()
