#!/usr/bin/env python3
"""The fault scenarios on real daemons. Each one kills, stops or confuses a process and then demands
exact counts.

  scenarios.py --bin build/release/bin [--seed S] [--chain CHAIN] [--long] [names …]

CHAIN is workers, poison, servers, checkpoints, network, proxy, coordinator, power, limits, tables,
functions, jobs, loops, machines, stores or checker.

The scenarios of a chain run one after another on one cluster of two workers and two servers.
`--long` runs each scenario in four forms: on 1+1 and on 2+2, on a fresh cluster and in the chain,
with the daemons' default times. The seed is printed; with the same seed the choices are repeated.
With `--store s3` or `--store gs` the checkpoints of the jobs are in an object store (tests/stores),
and a share of the requests to it fails (`--store-faults`).
The environment variables SEED and KILLS give the seed and the number of kills of R1, of all its
forms together (`make chaos SEED=7 KILLS=1000`).
"""
import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from clocks import HOUR, WallClocks, clock_library  # noqa: E402
from cluster import Cluster, Failure, metric_samples, power_library, wait_for  # noqa: E402
from machine_cluster import run_inside_if_needed  # noqa: E402
from proxy import Rules, share  # noqa: E402
from random_kills import random_kills, worker_steps  # noqa: E402
from stage import (
    CHAINS,
    METRICS,
    SCENARIOS,
    Skipped,
    back,
    events,
    granted_again,
    names_death,
    only_these_died,
    others_or_restart,
    restart,
    scenario,  # noqa: E402
    until_killed,
)

# ------------------------------------------------------------------ workers


@scenario(
    "workers",
    "W1",
    "kill an idle worker between two jobs' batches of closures, then start it again",
)
def w1(c, r):
    c.submit().finish()
    victim = r.choice(c.workers)
    victim.kill()
    victim.start()
    c.wait_tasks()
    result = c.submit().finish()
    if result["duplicates_refused"] or any(victim.name in str(d) for d in result["deaths"]):
        raise Failure(
            "a death between two jobs shows in the second: %s duplicates, deaths %s"
            % (result["duplicates_refused"], result["deaths"])
        )


@scenario("workers", "W2", "kill a worker in mid-closure, after a random number of its pushes")
def w2(c, r):
    victim = r.choice(c.workers)
    restart(victim, "worker.after_push=%d*kill" % r.randint(2, 20))
    c.wait_usable()
    job = until_killed(c, victim)
    before = c.pids()
    others_or_restart(c, victim)
    result = job.finish()
    granted_again(result, job)
    names_death(result, victim)
    only_these_died(before, c, victim)
    back(victim)
    c.wait_tasks()


@scenario("workers", "W3", "kill a worker whose push reached one server but not the other")
def w3(c, r):
    if len(c.servers) < 2:
        raise Skipped("it needs two servers")
    victim = r.choice(c.workers)
    restart(victim, "worker.between_pushes=%d*kill" % r.randint(1, 15))
    c.wait_usable()
    job = until_killed(c, victim)
    others_or_restart(c, victim)
    result = job.finish()
    if result["duplicates_refused"] < 1:
        raise Failure(
            "the half push was not met again: duplicates_refused is %s"
            % result["duplicates_refused"]
        )
    back(victim)
    c.wait_tasks()


@scenario("workers", "W4", "kill all workers, then start them later")
def w4(c, r):
    def kill(_):
        for w in c.workers:
            w.kill()

    def start():
        for w in c.workers:
            w.start()

    job = c.disturb(r.randint(5, 30), kill, start, examples=1200, step_ms=3)
    wait_for(
        "the job to say that it waits for workers",
        lambda: "worker" in job.show().get("waiting_for", ""),
    )
    start()
    job.finish()


@scenario("workers", "W5", "kill and restart one worker repeatedly")
def w5(c, r):
    job = c.submit(examples=1200, epochs=2, step_ms=3)
    victim = c.workers[0]
    for _ in range(4):
        job.wait_steps(min(job.progress() + r.randint(2, 12), job.steps - 1))
        if victim.alive():
            victim.kill()
        victim.start()
    job.finish()
    c.wait_tasks()


@scenario("workers", "W6", "kill a worker permanently while others are present")
def w6(c, r):
    if len(c.workers) < 2:
        raise Skipped("it needs two workers")
    victim = c.workers[-1]
    before = c.pids()
    job = c.disturb(
        r.randint(5, 30), lambda _: victim.kill(), victim.start, examples=1200, step_ms=3
    )
    done, since = job.progress(), time.monotonic()
    job.wait_steps(min(done + 1, job.steps))
    # The other workers end a step in milliseconds. The bound is much longer, because the machine
    # may also have other work.
    if time.monotonic() - since > c.lease_seconds + 10 + c.pauses.longest:
        raise Failure("the others waited %.1f s for the dead one" % (time.monotonic() - since))
    job.finish()
    only_these_died(before, c, victim)
    victim.start()
    c.wait_tasks()


@scenario("workers", "W7", "kill a worker while it opens its data")
def w7(c, r):
    victim = r.choice(c.workers)
    restart(victim, "worker.open_data=1*kill")
    c.wait_usable()
    job = until_killed(c, victim, step_ms=r.randint(1, 8))
    others_or_restart(c, victim)
    result = job.finish()
    names_death(result, victim)
    # The describe closure also opens the data, so the worker may have died in that closure. If the
    # job was described before the death, the worker died in a training closure, which must then be
    # granted again.
    order = [
        e["text"] for e in job.show()["events"] if e["kind"] == "death" or "described:" in e["text"]
    ]
    if "described:" in order[0]:
        granted_again(result, job)
    back(victim)
    c.wait_tasks()


@scenario("poison", "W9", "a closure that kills each of its workers at one step")
def w9(c, r):
    # Only one worker runs at a time, so that the next process of the worker gets the same closure
    # first. A step is long enough for the worker to report it before the step ends.
    victim, others = c.workers[0], c.workers[1:]
    for w in others:
        w.kill()
    step = r.randint(1, 2)
    restart(victim, "worker.step=%d*kill" % (step + 1))
    c.wait_usable()
    servers = {s.name: s.pid for s in c.servers}
    job = c.submit(examples=200, epochs=1, step_ms=int(300 * c.scale))
    lives = 1
    while job.wait_state("FAILED", "SUCCEEDED", "RUNNING", "STARTING")["state"] in (
        "RUNNING",
        "STARTING",
    ):
        if not victim.alive():
            if lives > 9:
                raise Failure(
                    "%d lives ended at one step and the closure is not called poison" % lives
                )
            victim.start("worker.step=%d*kill" % (step + 1))
            lives += 1
    status = job.wait_state("FAILED", "SUCCEEDED")
    cause = str(status["first_cause"])
    # The worker dies before step `step` begins. The last report before a death names step - 1. It
    # names `step` itself if the report was sent in the milliseconds before the death. A report of
    # `step` restarts the count of three deaths.
    where = ("step=%d " % (step - 1), "step=%d " % step)
    if (
        status["state"] != "FAILED"
        or "poison closure" not in cause
        or "closure=0" not in cause
        or not any(w in cause for w in where)
    ):
        raise Failure(
            "want FAILED by poison closure=0 step=%d, got %s: %s"
            % (step - 1, status["state"], cause)
        )
    if "deaths=3" not in cause or "examples" not in cause:
        raise Failure("the cause does not name the deaths and the range: %s" % cause)
    if {s.name: s.pid for s in c.servers} != servers:
        raise Failure("a server restarted")
    for w in [victim] + others:
        back(w)
    c.wait_tasks()
    c.submit(examples=200).finish()


@scenario("workers", "W8", "a user's error at the moment of another worker's death")
def w8(c, r):
    bad, victim = c.workers[0], c.workers[-1]
    restart(bad, "worker.step=%d*user_error" % r.randint(2, 10))
    # While the victim is dead, the worker whose data has an error gets all the remaining work.
    for _ in range(3):
        c.wait_usable()
        job = c.submit(examples=1200, step_ms=3)
        if victim is not bad:
            # The user's error may come at any step, even before the first closure has ended.
            wait_for(
                "the job to run",
                lambda: (
                    lambda j: int(j["steps_done"]) > 0 or j["state"] in ("FAILED", "SUCCEEDED")
                )(job.show()),
            )
            victim.kill()
        status = job.wait_state("FAILED", "SUCCEEDED")
        if status["state"] == "FAILED":
            break
        victim.start()
    if status["state"] != "FAILED":
        raise Failure("want FAILED by the user's error, got %s" % status["state"])
    if (
        "failpoint" not in str(status["first_cause"])
        or "transport" in str(status["first_cause"]).lower()
    ):
        raise Failure("the first cause is not the user's error: %s" % status["first_cause"])
    restart(bad)
    if not victim.alive():
        victim.start()
    c.wait_tasks()
    c.submit(examples=200).finish()


@scenario(
    "workers",
    "W10",
    "SIGSTOP a worker past its lease, let another worker finish the closure, then SIGCONT",
)
def w10(c, r):
    if len(c.workers) < 2:
        raise Skipped("it needs two workers")
    # The victim must not be in a backoff after short lives. If it were, it would hold no work that
    # could be granted again.
    c.wait_usable()
    victim = r.choice(c.workers)
    pid = victim.pid
    steps = r.randint(5, 20)
    for _ in range(6):
        job = c.submit(examples=1200, step_ms=3)
        wait_for(
            "%s to work" % victim.name,
            lambda: any(
                w["identity"] == victim.identity and int(w["steps"]) > 0
                for w in job.show()["workers"]
            )
            or job.ended(),
        )
        job.wait_steps(steps)
        victim.stop()
        try:
            # The pause is longer than the worker's lease. A worker that is only suspected keeps its
            # work, and might return before any of its closures is granted again.
            wait_for(
                "the closures of the stopped worker to be granted again",
                lambda: events(job, "requeue", victim.name) or job.ended(),
            )
            moved = events(job, "requeue", victim.name)
            if moved:
                job.wait_steps(min(job.steps, job.progress() + 30))
        finally:
            victim.resume()
        if moved:
            break
        # The victim held no work when it was stopped, because the other worker had all the work.
        job.finish()
        c.wait_usable()
    else:
        raise Failure("six times nothing of %s was granted again" % victim.name)
    job.finish()
    c.wait_tasks()
    if victim.pid != pid or not victim.alive():
        raise Failure("the zombie did not rejoin with its pid")


@scenario("workers", "W11", "start two workers with one identity")
def w11(c, r):
    job = c.submit(examples=1200, step_ms=3)
    job.wait_steps(5)
    older = c.workers[0]
    newer = c.add("worker", older.identity + "", ["--name", older.identity, "--threads", "1"])
    code = wait_for(
        "the older worker to leave",
        lambda: None if older.alive() else older.process.returncode or -1000,
    )
    if code != 7:
        raise Failure("the older worker: want exit code 7 (replaced) got %s" % code)
    if "replaced" not in older.tail(40):
        raise Failure("the older worker does not say that it was replaced:\n" + older.tail())
    job.finish()
    newer.terminate()
    c.extras.remove(newer)
    older.start()
    c.wait_tasks()


def steps_per_second(c, job, steps, wanted):
    """Returns the highest rate over a stretch of `steps` steps, according to the workers' own
    counters. It measures until the rate reaches `wanted` or the job ends."""
    trainers = Trainers(c)
    best = 0.0
    while True:
        since, first = time.monotonic(), trainers.steps()
        wait_for("%d more steps" % steps, lambda: trainers.steps() >= first + steps or job.ended())
        best = max(best, (trainers.steps() - first) / (time.monotonic() - since))
        if best >= wanted or job.progress() + steps > job.steps:
            return best


@scenario(
    "workers",
    "W12",
    "workers join late and leave early at random; a step waits 20 ms (long form: 60 s)",
)
def w12(c, r):
    long = c.scale > 1.5
    # A step waits 20 ms. One worker therefore does 50 steps per second and four workers do 200, on
    # a fast machine and on a slow one. On a busy machine the workers may be slower for a while. In
    # this case the measurement is repeated. If the job has ended by then, it is repeated in another
    # job.
    for _ in range(4):
        for w in c.workers[1:]:
            w.terminate()
        c.wait_usable()
        job = c.submit(examples=90000 if long else 2800, epochs=1, step_ms=20)
        job.wait_steps(1)
        alone = min(steps_per_second(c, job, 25, 0), 50.0)
        late = [
            c.add(
                "worker",
                "late-%d-%d" % (c.jobs, i),
                ["--name", "late-%d-%d" % (c.jobs, i), "--threads", "1"] + list(METRICS),
            )
            for i in range(3)
        ]
        wait_for(
            "the late ones to work",
            lambda: len([w for w in job.show()["workers"] if int(w["steps"]) > 0]) >= 4
            or job.ended(),
        )
        together = steps_per_second(c, job, 30, 1.8 * alone) if not job.ended() else 0.0
        if together >= 1.8 * alone:
            break
        job.finish()
        for d in late:
            d.terminate()
            c.extras.remove(d)
    print("       steps/s: alone %.0f, with three more %.0f" % (alone, together))
    if together < 1.8 * alone:
        raise Failure("four workers do %.0f steps/s, one does %.0f" % (together, alone))
    until = time.monotonic() + (60 if long else 0)
    while True:
        leaver = r.choice(late)
        leaver.kill() if r.random() < 0.5 else leaver.terminate()
        if time.monotonic() > until or job.progress() > job.steps - 100:
            break
        leaver.start()
        job.wait_steps(job.progress() + r.randint(1, 40))
    job.finish()
    for d in late:
        if d.alive():
            d.terminate()
        c.extras.remove(d)
    for w in c.workers[1:]:
        w.start()
    c.wait_tasks()


@scenario("workers", "W13", "SIGTERM with 10 s of grace")
def w13(c, r):
    victim = r.choice(c.workers)
    c.wait_usable()

    def leave(_):
        since = time.monotonic()
        code = victim.terminate(10)
        gone = time.monotonic() - since
        if code != 0:
            raise Failure(
                "%s: want exit code 0 after SIGTERM, got %s:\n%s"
                % (victim.name, code, victim.tail())
            )
        if gone > 5 * c.scale + c.pauses.longest:
            raise Failure("a step takes 10 ms, and %s took %.1f s to leave" % (victim.name, gone))

    def return_():
        victim.start()
        c.wait_usable()

    job = c.disturb(
        r.randint(8, 30), leave, return_, examples=1200, epochs=1, steps_per_closure=8, step_ms=10
    )
    others_or_restart(c, victim)
    result = job.finish()
    # If the victim is the only worker, it is restarted at once and is never declared gone.
    if len(c.workers) > 1 and not events(job, "state", "%s left" % victim.name):
        raise Failure("the job does not say that %s left" % victim.name)
    # The worker itself has handed back its work. Therefore no lease may have ended, and no death
    # may be counted.
    if any(victim.name in str(d) for d in result["deaths"]) or events(job, "requeue", victim.name):
        raise Failure(
            "a notice was taken for a death: deaths %s, requeued %s"
            % (result["deaths"], events(job, "requeue"))
        )
    back(victim)
    c.wait_tasks()


@scenario(
    "workers", "W15", "SIGSTOP a worker in mid-push past its lease and ten Closes, then SIGCONT"
)
def w15(c, r):
    if len(c.workers) < 2:
        raise Skipped("it needs two workers")
    victim = c.workers[0]
    restart(victim, "worker.before_push=%d*stop" % r.randint(3, 15))
    c.wait_usable()

    def stopped():
        with open("/proc/%d/stat" % victim.pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"

    job = c.submit_until(
        "the failpoint to stop %s" % victim.name, stopped, examples=1200, step_ms=3
    )
    since = time.monotonic()
    wait_for("a lease and ten Closes", lambda: time.monotonic() - since > c.lease_seconds + 1.1)
    victim.resume()
    job.finish()
    restart(victim)
    c.wait_tasks()


@scenario(
    "workers",
    "W16",
    "kill a worker at the start of the job, and another between the last closure and the final "
    "result",
)
def w16(c, r):
    first, last = c.workers[0], c.workers[-1]
    # The worker that evaluates after the last closure, before the final result, must be killed.
    # Which worker that is is not fixed, so several attempts may be needed.
    for _ in range(6):
        restart(first, "worker.open_data=1*kill")
        if last is not first:
            restart(last, "worker.evaluate=1*kill")
        c.wait_usable()
        job = c.submit(examples=1200, epochs=1)
        wait_for("the first worker to die at the start", lambda: not first.alive() or job.ended())
        if not first.alive():
            first.start("worker.evaluate=1*kill" if last is first else None)
            wait_for(
                "the last worker to die after the last closure",
                lambda: not last.alive() or job.ended(),
            )
            if not last.alive():
                break
        job.finish()
    else:
        raise Failure(
            "in six jobs %s did not open the data, or %s did not evaluate" % (first.name, last.name)
        )
    if job.progress() < job.steps:
        raise Failure("%s died at step %d of %d" % (last.name, job.progress(), job.steps))
    if last is first:
        last.start()
    result = job.finish()
    if result["state"] != "SUCCEEDED":
        raise Failure("want one final result, SUCCEEDED; got %s" % result["state"])
    names_death(result, first)
    names_death(result, last)
    same = [j for j in c.psctl_json("job", "list")["jobs"] if j["name"] == job.name]
    if len(same) != 1:
        raise Failure("want one job %s, got %d" % (job.name, len(same)))
    back(last)
    c.wait_tasks()


@scenario("workers", "W17", "kill a worker during the evaluation of the counting job")
def w17(c, r):
    quiet = c.submit().finish()
    victim = r.choice(c.workers)
    restart(victim, "worker.evaluate=1*kill")
    c.wait_usable()
    job = until_killed(c, victim)
    victim.start()
    disturbed = job.finish()
    if (
        disturbed["metrics"]["count"] != quiet["metrics"]["count"]
        or disturbed["metrics"]["count"] != job.examples * job.epochs
    ):
        raise Failure(
            "the metric differs: undisturbed %s, disturbed %s, exact %d"
            % (quiet["metrics"], disturbed["metrics"], job.examples * job.epochs)
        )
    restart(victim)
    c.wait_tasks()


# ------------------------------------------------------------------ work that stands still


@scenario(
    "workers",
    "X1",
    "a live worker that makes no progress loses its work, is set aside, and returns",
)
def x1(c, r):
    victim = c.workers[0]
    restart(c.coordinator, extra=("--step-timeout", "%dms" % int(500 * c.scale)))
    opening = r.random() < 0.5
    try:
        for _ in range(4):
            if opening:  # opening the data takes longer than the step timeout
                restart(victim, "worker.open_data=1*delay(%d)" % int(1500 * c.scale))
            else:
                restart(victim, "worker.step=%d*delay(600000)" % r.randint(2, 15))
            c.wait_usable()
            pids = c.pids()
            job = c.submit(examples=1500, step_ms=int(8 * c.scale))
            wait_for(
                "the closure without progress to be granted elsewhere",
                lambda: events(job, "stall", victim.name) or job.ended(),
            )
            stalls = events(job, "stall", victim.name)
            since = victim_steps(job, victim)
            wait_for(
                "it to come back to work", lambda: victim_steps(job, victim) > since or job.ended()
            )
            returned = victim_steps(job, victim) > since
            result = job.finish()
            if stalls and returned:
                break
            # The victim got no work, because the other workers had taken all of it.
        else:
            raise Failure(
                "four times %s did not stand still, or did not come back: %s"
                % (victim.name, events(job, "stall"))
            )
        only_these_died(pids, c)
        if (
            not any("revoked" in e for e in stalls)
            or opening
            and not any("may be given work again" in e for e in events(job, "stall", victim.name))
        ):
            raise Failure(
                "the job does not say which work was revoked, or that it came back: %s"
                % events(job, "stall")
            )
        if any(victim.name in str(d) for d in result["deaths"]):
            raise Failure("standing still was taken for a death: %s" % result["deaths"])
        if not opening:
            granted_again(result, job)
    finally:
        restart(c.coordinator)
    restart(victim)
    c.wait_tasks()


def victim_steps(job, victim):
    return sum(int(w["steps"]) for w in job.show()["workers"] if w["identity"] == victim.identity)


@scenario(
    "servers",
    "S6",
    "malformed bytes to a server: a typed refusal, unchanged state, and the server continues",
)
def s6(c, r):
    server = r.choice(c.servers)
    pid = server.pid
    for step_ms in (5, 20, 80):  # After a job that ended too early, a longer one follows.
        job = c.submit(examples=2400, step_ms=int(step_ms * c.scale))
        job.wait_steps(5)
        sent = send_wrong_bytes(c, r, job, server)
        job.finish()
        if sent:
            break
    else:
        raise Failure("three jobs ended before everything was sent")
    if not server.alive() or server.pid != pid:
        raise Failure("the server did not live through garbage")


def send_wrong_bytes(c, r, job, server):
    """Returns False if the job ended before everything was sent."""
    host, port = server.address.rsplit(":", 1)
    # The payloads are bytes that are not HTTP/2, an incomplete HTTP/2 preface, and random bytes
    # after a good preface.
    for payload in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"PRI * HTT",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(r.randrange(256) for _ in range(4096)),
        b"\0" * 65536,
    ):
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as s:
            try:
                s.sendall(payload)
                s.shutdown(socket.SHUT_WR)
                s.settimeout(5)
                while s.recv(65536):
                    pass
            except OSError:  # The server may close the connection first.
                pass
    # Sends well-formed but wrong messages over a real stream, first while the workers push, and
    # then while the workers are stopped. In the second case every bit of the shards must be the
    # same afterwards.
    if not wrong_pushes(c, r, job):
        return False
    for w in c.workers:
        w.stop()
    try:
        return wrong_pushes(c, r, job, "--quiet")
    finally:
        for w in c.workers:
            w.resume()


def wrong_pushes(c, r, job, *flags):
    """Returns False if the job ended before everything was sent."""
    command = [
        os.path.join(c.bin, "evergrad-wrong-pushes"),
        "--coordinator",
        c.coordinator_address(),
        "--job",
        job.name,
        "--seed",
        str(r.randint(0, 999)),
    ]
    for s in c.servers:
        command += ["--server", "%s=%s" % (s.identity, s.address)]
    done = subprocess.run(
        command + list(flags), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    if job.show()["state"] != "RUNNING":
        return False  # The servers had dropped the ended job's shards.
    if done.returncode != 0:
        raise Failure(
            "wrong pushes: exit code %d\n%s%s" % (done.returncode, done.stdout, done.stderr)
        )
    return True


@scenario("servers", "S12", "start a second server of a living identity")
def s12(c, r):
    job = c.submit(examples=1600, step_ms=3)
    job.wait_steps(5)
    first = c.servers[0]
    second = c.add("ps_server", first.identity + "-second", ["--index", first.identity])
    wait_for(
        "the second to say for whom it waits",
        lambda: "identity" in second.tail(40) and first.identity in second.tail(40),
    )
    result = job.finish()
    if [d for d in result["deaths"] if first.name in str(d)]:
        raise Failure("the first server lost its place: %s" % result["deaths"])
    if not first.alive():
        raise Failure("the first server ended")
    second.terminate()
    c.extras.remove(second)


@scenario(
    "servers",
    "S13",
    "a worker falsely reports work as done: the job fails and names the missing updates, and "
    "the next job is unaffected",
)
def s13(c, r):
    job = c.submit(examples=1600, step_ms=int(3 * c.scale))
    job.wait_steps(5)
    lies = r.randint(1, 4)
    done = subprocess.run(
        [
            os.path.join(c.bin, "evergrad-lying-worker"),
            "--coordinator",
            c.coordinator_address(),
            "--lies",
            str(lies),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise Failure(
            "the lying worker ended with %d\n%s%s" % (done.returncode, done.stdout, done.stderr)
        )
    found = job.wait_miscounted()
    if "expected=%d" % job.steps not in found or "found=" not in found:
        raise Failure(
            "%d closures were reported and not worked at, and the job says: %s"
            % (lies, found or "SUCCEEDED")
        )
    c.wait_tasks()
    c.submit(examples=300).finish()


import canaries  # noqa: E402,F401  (these register their scenarios)
import checkpoints  # noqa: E402,F401
import drain  # noqa: E402,F401
import functions  # noqa: E402,F401
import jobs  # noqa: E402
import limits  # noqa: E402,F401
import loops  # noqa: E402
import store_scenarios  # noqa: E402
import stored  # noqa: E402
import ten_machines  # noqa: E402


# ------------------------------------------------------------------ network


@scenario("network", "N3", "disconnect a worker from the coordinator but not from the server")
def n3(c, r):
    # The worker is disconnected in the middle of a closure, and once more at each of its following
    # Hellos, until its lease has ended. During this time it continues with the work that it holds.
    # The failpoint counts messages from the start of the worker, so it may act before the job has
    # begun, or between two closures.
    victim = c.workers[0]
    for _ in range(6):
        first = r.randint(6, 16)
        restart(
            victim,
            "session.cut="
            + ",".join("%d*error" % n for n in range(first, first + (7 if c.scale > 1.5 else 5))),
        )
        c.wait_usable()
        pid = victim.pid
        job = c.submit(examples=1200, steps_per_closure=8, step_ms=int(10 * c.scale))
        result = job.finish()
        moved = events(job, "requeue", victim.name)
        # If the victim is the only worker, no other worker gets its closures. It returns and
        # continues its own attempts, so no push is made twice.
        if moved and (len(c.workers) == 1 or result["duplicates_refused"]):
            break
    else:
        raise Failure(
            "six times no closure of the cut worker moved, "
            "or no push of the two attempts met the other: %s" % result
        )
    if len(c.workers) > 1:
        granted_again(result, job)
    if victim.pid != pid or not victim.alive():
        raise Failure("the cut worker did not keep its pid")
    c.wait_tasks()
    restart(victim)
    c.wait_tasks()


@scenario("network", "N4", "duplicate and reorder requests at the RPC layer")
def n4(c, r):
    for s in c.servers:
        restart(s, "push.duplicate=30%on;push.reorder=20%on")
    c.wait_tasks()
    result = c.submit(examples=600, step_ms=1).finish()
    if result["duplicates_refused"] < 1:
        raise Failure("nothing was duplicated: %s" % result["duplicates_refused"])
    for s in c.servers:
        restart(s)
    c.wait_tasks()


@contextlib.contextmanager
def bad_network(r, proxies, rules=None):
    """While the context is open, these proxies follow `rules`, with a seed that the scenario draws.
    Afterwards they pass on everything unchanged."""
    for proxy in proxies:
        proxy.seed, proxy.rules = r.randrange(10**6), rules or Rules()
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.rules = Rules()
            proxy.heal()


def settled(c):
    """Waits until the effects of the last reset are over on both sides, that is, until no task is
    disconnected during one whole job."""
    for _ in range(6):
        c.wait_tasks()
        job = c.submit(examples=50)
        if not job.finish()["deaths"] and not events(job, "away") and not events(job, "rollback"):
            return
    raise Failure("the network is good again, and in each of six jobs a task was disconnected")


def total(proxies, what):
    return sum(proxy.counts[what] for proxy in proxies)


def all_lived(c, pids, result):
    """A bad network must cause no death, and must not make the coordinator declare a server
    lost."""
    only_these_died(pids, c)
    if any("ps_server/" in str(d) for d in result["deaths"]):
        raise Failure("a server was taken for dead: %s" % result["deaths"])


@scenario(
    "proxy", "N1", "disconnect the workers from a server in both directions, then reconnect them"
)
def n1(c, r):
    # In the long form the network is down until the tasks close their connections. In the short
    # form it is down for longer than the deadline of a call, so that the worker must send all
    # sections of the call again.
    cut_for = 6.0 if c.scale > 1.5 else 1.3
    c.wait_usable()
    pids = c.pids()
    with bad_network(r, [r.choice(c.servers).data_proxy]) as (proxy,):
        job = c.disturb(
            r.randint(10, 60), lambda _: proxy.cut(), proxy.heal, examples=1600, step_ms=3
        )
        since = time.monotonic()
        wait_for("the calls to run out of time", lambda: time.monotonic() - since > cut_for)
        steps = worker_steps(job)
        healed = time.monotonic()
        proxy.heal()
        wait_for("a step to end after the network was healed", lambda: worker_steps(job) > steps)
        took = time.monotonic() - healed
        result = job.finish()
    all_lived(c, pids, result)
    if events(job, "rollback"):
        raise Failure(
            "a server that was cut from workers only was rolled back: %s" % events(job, "rollback")
        )
    if steps >= job.steps:
        raise Failure("the job continued without one of its servers")
    print(
        "       from healing to the next step %.2f s, %d duplicates refused"
        % (took, result["duplicates_refused"])
    )
    if took > 2 + c.pauses.longest:
        raise Failure("progress came %.1f s after healing" % took)


@scenario("proxy", "N2", "one direction between workers and servers becomes silent for ever")
def n2(c, r):
    direction = r.choice(("up", "down"))
    c.wait_usable()
    pids = c.pids()
    with bad_network(r, [s.data_proxy for s in c.servers]) as proxies, Trainers(c) as trainers:
        begun = [0]

        def silence(_):
            begun[0] = total(proxies, "connections")
            if not all([proxy.silence(direction) for proxy in proxies]):
                raise Failure("no worker had a connection to some server")

        job = c.disturb(r.randint(10, 60), silence, examples=1000, step_ms=3)
        since = time.monotonic()
        result = job.finish()
        pause = trainers.longest_pause(since, time.monotonic())
    all_lived(c, pids, result)
    if total(proxies, "connections") <= begun[0]:
        raise Failure("nobody dialled anew, and the job ended: the silence met nothing")
    print(
        "       %s: longest pause of training %.2f s, %d duplicates refused"
        % (direction, pause, result["duplicates_refused"])
    )
    # A keepalive ping is sent every 1 s. If its answer takes more than 1.5 s, a new connection is
    # made.
    if pause > 6 + c.pauses.longest:
        raise Failure("the silence was noticed after %.1f s" % pause)


@scenario(
    "proxy",
    "X3",
    "resets, torn writes and delays on every connection: tasks to coordinator, workers to servers",
)
def x3(c, r):
    for _ in range(5):
        c.wait_usable()
        pids = c.pids()
        # A task whose session is reset dials again, and a call whose data stream is reset fails.
        # Both happen often here, and the job must still end.
        sessions, data = Rules(delay=(0.0, 0.004), split=(1, 500), reset=0.012), Rules(
            delay=(0.0, 0.002), split=(1, 3000), reset=0.006
        )
        with bad_network(
            r, [d.session_proxy for d in c.servers + c.workers], sessions
        ) as near, bad_network(r, [s.data_proxy for s in c.servers], data) as far:
            before = total(near, "reset"), total(far, "reset")
            job = c.submit(examples=2500 if c.scale > 1.5 else 400, step_ms=3)
            result = job.finish()
            resets = total(near, "reset") - before[0], total(far, "reset") - before[1]
        settled(c)
        only_these_died(pids, c)
        job.check_lines()
        print(
            "       %d sessions and %d connections to servers were reset, "
            "%d attempts for %d closures, %d duplicates refused"
            % (*resets, result["closures"]["attempts"], job.closures, result["duplicates_refused"])
        )
        if all(resets):
            return
    raise Failure("in five jobs no session, or no connection to a server, was reset")


@scenario("proxy", "X4", "a slow link to one server")
def x4(c, r):
    c.wait_usable()
    pids = c.pids()
    with bad_network(
        r, [r.choice(c.servers).data_proxy], Rules(delay=(0.002, 0.01), rate=96 << 10)
    ) as (proxy,):
        before = proxy.counts["pieces"]
        job = c.submit(examples=2000 if c.scale > 1.5 else 300, step_ms=1)
        result = job.finish()
        passed = proxy.counts["pieces"] - before
    all_lived(c, pids, result)
    if not passed or events(job, "rollback"):
        raise Failure(
            "pieces over the slow link: %d, rolled back: %s" % (passed, events(job, "rollback"))
        )


@scenario(
    "proxy",
    "X5",
    "disconnect a worker from the coordinator by the network past its lease, then reconnect it",
)
def x5(c, r):
    victim = c.workers[0]
    c.wait_usable()
    pids = c.pids()
    directions = r.choice((("up",), ("down",), ("up", "down")))
    with bad_network(r, [victim.session_proxy]) as (proxy,):
        for _ in range(6):
            job = c.disturb(
                r.randint(5, 30),
                lambda _: proxy.cut(*directions),
                proxy.heal,
                examples=1200,
                step_ms=3,
            )
            # When the lease ends, the worker's closures are granted to other workers. Meanwhile the
            # worker continues with the work that it holds, which may be all the work that is left.
            wait_for(
                "the cut worker to be gone",
                lambda: any(t["pid"] == victim.pid and t["state"] == "gone" for t in c.tasks())
                or job.ended(),
            )
            moved = events(job, "requeue", victim.name)
            proxy.heal()
            job.finish()
            c.wait_tasks()
            if moved:
                break
        else:
            raise Failure("six times nothing of %s was granted again" % victim.name)
    only_these_died(pids, c)


def nothing_left(c):
    """Checks that nothing is left of a cluster whose daemons have all ended."""
    for d in [c.coordinator] + c.servers:
        host, port = d.address.rsplit(":", 1)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2) as s:
                if (
                    s.getsockname() == s.getpeername()
                ):  # This socket has connected to itself, so no process listens.
                    continue
        except OSError:
            continue
        raise Failure("somebody listens at %s's address after its end: %s" % (d.name, d.address))
    left = [
        os.path.join(f, n)
        for f, _, names in os.walk(c.folder)
        for n in names
        if n.endswith((".sock", ".lock", ".pid", ".partial", ".tmp", "-wal", "-shm"))
    ]
    if left:
        raise Failure("left behind: %s" % left)


@scenario("network", "C6", "stop all processes: no process, socket or lock file is left")
def c6(c, r):
    for d in [c.coordinator] + c.servers + c.workers:
        code = d.terminate()
        if code != 0:
            raise Failure(
                "%s: want exit code 0 after SIGTERM, got %s:\n%s" % (d.name, code, d.tail())
            )
    nothing_left(c)
    c.up()


@scenario(
    "network",
    "X2",
    "SIGTERM to all processes at once in mid-job: after the restart the job continues",
)
def x2(c, r):
    everybody = [c.coordinator] + c.servers + c.workers

    def end(_):
        since = time.monotonic()
        for d in r.sample(everybody, len(everybody)):
            d.signal(signal.SIGTERM)
        for d in everybody:
            code = d.terminate()
            if code != 0:
                raise Failure(
                    "%s: want exit code 0 after SIGTERM, got %s:\n%s" % (d.name, code, d.tail())
                )
        took = time.monotonic() - since
        if took > 10 * c.scale + c.pauses.longest:
            raise Failure("from SIGTERM to the end of the last one: %.1f s" % took)
        nothing_left(c)
        c.up()

    job = c.disturb(r.randint(5, 60), end, examples=1600, step_ms=3)
    job.finish()
    job.check_lines()


@scenario("network", "R1", "random SIGKILLs of all roles at any time (KILLS=…)")
def r1(c, r):
    random_kills(c, r, -(-int(os.environ.get("KILLS", "6" if c.forms == 1 else "40")) // c.forms))


# ------------------------------------------------------------------ coordinator


class Trainers:
    """Samples the workers' own counters of steps. These counters rise even without a
    coordinator."""

    def __init__(self, cluster):
        living = {d.pid for d in cluster.daemons() if d.role == "worker" and d.alive()}
        self.addresses = [
            t["metrics_address"]
            for t in cluster.tasks()
            if t["role"] == "worker" and t["pid"] in living and t["metrics_address"]
        ]
        if len(self.addresses) != len(living):
            raise Failure("not every worker shows metrics: %s" % self.addresses)
        self.samples = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def steps(self):
        return sum(
            sum(metric_samples(address, "evergrad_worker_steps_total"))
            for address in self.addresses
        )

    def _watch(self):
        while not self.stop.wait(0.03):
            try:
                self.samples.append((time.monotonic(), self.steps()))
            except OSError:
                pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def longest_pause(self, begin, end):
        """Returns the longest time without a step between the moments `begin` and `end`, in
        seconds, according to the samples."""
        longest, since, last = 0.0, begin, None
        for at, steps in self.samples:
            if at < begin or at > end:
                continue
            if last is not None and steps > last:
                since = at
            last = steps
            longest = max(longest, at - since)
        return longest


@scenario("coordinator", "C1", "kill the coordinator under load, then start it again")
def c1(c, r):
    before = c.pids()
    for _ in range(5):
        job = c.submit(examples=6000, batch=10, epochs=1, step_ms=4)
        with Trainers(c) as trainers:
            job.wait_steps(r.randint(60, 150))
            before.pop(c.coordinator.name)
            attempts = int(job.show()["attempts"])
            killed = time.monotonic()
            c.coordinator.kill()
            begun = time.monotonic()
            c.coordinator.start()
            before[c.coordinator.name] = c.coordinator.pid
            wait_for(
                "the next dispatch", lambda: int(job.show()["attempts"]) > attempts or job.ended()
            )
            dispatched = time.monotonic()
            left = not job.ended()
            result = job.finish()
            ended = time.monotonic()
        only_these_died(before, c)
        job.check_lines()
        if result["deaths"]:
            raise Failure("somebody died: %s" % result["deaths"])
        if left:
            break
        # All closures had been granted before the kill, so the new process had none to dispatch.
    else:
        raise Failure("five jobs had nothing left to dispatch when the coordinator died")
    # If the machine itself paused this process, the bound is extended by that pause.
    if dispatched - begun >= 3 * c.scale + c.pauses.longest:
        raise Failure(
            "from start to dispatch: want < %.1f s got %.2f" % (3 * c.scale, dispatched - begun)
        )
    # Only the time up to the dispatch counts. After the dispatch the job may be near its end, when
    # few steps are left.
    pause = trainers.longest_pause(killed, min(dispatched + 0.2, ended))
    if pause >= 1 + c.pauses.longest and "EVERGRAD_TIME_SCALE" not in os.environ:
        raise Failure("training stood still for %.2f s while the coordinator was down" % pause)
    print(
        "       start to dispatch %.2f s, longest pause of training %.2f s, "
        "%d attempts for %d closures, %d duplicates refused"
        % (
            dispatched - begun,
            pause,
            result["closures"]["attempts"],
            job.closures,
            result["duplicates_refused"],
        )
    )


@scenario("coordinator", "C2", "kill the coordinator between every two steps of its journal")
def c2(c, r):
    job = c.submit(examples=2400, epochs=1, step_ms=3)
    before = c.pids()
    for name, hits in (
        ("journal.before_commit", r.randint(1, 12)),
        ("journal.after_commit", r.randint(1, 12)),
        ("journal.checkpoint", 1),
        ("journal.term", 1),
        ("coordinator.before_done_answer", r.randint(1, 6)),
        ("coordinator.before_grant", r.randint(1, 6)),
    ):
        restart(c.coordinator, "%s=%d*kill" % (name, hits))
        wait_for("%s to end it" % name, lambda: not c.coordinator.alive() or job.ended())
    restart(c.coordinator)
    job.finish()
    only_these_died(before, c, c.coordinator)
    job.check_lines()


def written_bytes(wal):
    """Returns the length of the valid part of SQLite's write-ahead log. Behind the last valid frame
    there may be frames that are older than the last restart of the log. Their salts differ from
    those in the header."""
    with open(wal, "rb") as f:
        salts, frames = f.read(32)[16:24], 0
        while True:
            frame = f.read(24 + 4096)
            if len(frame) < 24 + 4096 or frame[8:16] != salts:
                return 32 + frames * (24 + 4096)
            frames += 1


@scenario("coordinator", "C3", "remove the last bytes of the coordinator's journal")
def c3(c, r):
    before = c.pids()
    # The job is long, so that it does not end before the kill. (If a coordinator dies after the end
    # of a job and before it has logged the end, only a query by psctl shows that the job has
    # ended.)
    job = c.submit(examples=2400, epochs=1, step_ms=3)
    job.wait_steps(r.randint(20, 80))
    c.coordinator.kill()
    wal = os.path.join(c.folder, "state", "journal.sqlite-wal")
    size = written_bytes(wal)
    cut = r.randint(1, min(40000, size // 2))
    os.truncate(wal, size - cut)
    c.coordinator.start()
    torn = (size - cut - 32) % 4120
    if torn and "tail was torn" not in c.coordinator.tail(400):
        raise Failure("a torn tail of %d bytes is not named:\n%s" % (torn, c.coordinator.tail(40)))
    job.finish()
    only_these_died(before, c, c.coordinator)
    job.check_lines()


@scenario("coordinator", "C4", "a full disk under the journal")
def c4(c, r):
    before = c.pids()
    # A disk that is really full is imitated with a small separate file system. This needs rights
    # that not every machine gives. Without these rights a failpoint makes the journal fail as if
    # the disk were full.
    state = os.path.join(c.folder, "state")
    address = c.coordinator.address
    job = c.submit(examples=5000, epochs=1, step_ms=3)
    job.wait_steps(20)
    c.coordinator.terminate()
    kept = os.path.join(c.folder, "kept")
    shutil.move(state, kept)
    os.mkdir(state)
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", state], capture_output=True
        ).returncode
        == 0
    )
    try:
        for name in os.listdir(kept):
            shutil.copy(os.path.join(kept, name), state)
        full = os.path.join(state, "something else")
        if mounted:
            c.coordinator.start()
            with open(full, "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(b"0" * 4096)
                except OSError:
                    pass
        else:
            c.coordinator.start("journal.full=20+error")
        wait_for(
            "the coordinator to say so",
            lambda: "out of space for the coordinator's journal" in c.coordinator.tail(400),
        )
        refused = c.psctl(
            "job",
            "submit",
            os.path.join(c.folder, job.name + ".yaml"),
            "--set",
            "metadata.name=another",
            expect=None,
        )
        if (
            refused.returncode == 0
            or "out of space for the coordinator's journal" not in refused.stderr
        ):
            raise Failure(
                "a job was accepted without space for it: %d %s"
                % (refused.returncode, refused.stderr)
            )
        shown = job.show()
        if "out of space" not in shown["waiting_for"]:
            raise Failure(
                "the job does not say what it waits for: %s %s"
                % (shown["state"], shown["waiting_for"])
            )
        pid = c.coordinator.pid
        if mounted:
            os.unlink(full)
        else:
            restart(c.coordinator)
        job.finish()
        job.check_lines()
        if mounted and c.coordinator.pid != pid:
            raise Failure("the coordinator restarted")
        only_these_died(before, c, c.coordinator)
    finally:
        c.coordinator.terminate()
        if mounted:
            after = os.path.join(c.folder, "after")
            shutil.copytree(state, after)
            subprocess.run(["umount", state], check=True)
            os.rmdir(state)
            shutil.move(after, state)
        c.coordinator.address = address
        c.coordinator.start()
        c.wait_tasks()


@scenario("coordinator", "C5", "two coordinators on one state folder")
def c5(c, r):
    job = c.submit(examples=800, step_ms=2)
    second = subprocess.run(
        [
            os.path.join(c.bin, "evergrad-coordinator"),
            "--runs",
            c.runs,
            "--state-dir",
            os.path.join(c.folder, "state"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = second.stdout + second.stderr
    if (
        second.returncode != 2
        or "another coordinator holds this state folder: holder=pid %d on host" % c.coordinator.pid
        not in said
    ):
        raise Failure(
            "the second coordinator: want exit code 2 and the holder's name, got %d:\n%s"
            % (second.returncode, said)
        )
    job.finish()


@scenario("coordinator", "C7", "SIGSTOP the coordinator past every lease, then SIGCONT")
def c7(c, r):
    job = c.submit(examples=3000, epochs=1, step_ms=4)
    job.wait_steps(20)
    before = c.pids()
    c.coordinator.stop()
    since = time.monotonic()
    wait_for("three leases", lambda: time.monotonic() - since > 3 * c.lease_seconds)
    c.coordinator.resume()
    result = job.finish()
    only_these_died(before, c)
    # At the end of the plan, an idle worker may get closures that another worker holds but has not
    # begun. There are then more attempts than closures, but no push is applied twice.
    moved = events(job, "requeue") + events(job, "rollback")
    if result["deaths"] or result["duplicates_refused"] or moved:
        raise Failure(
            "something was requeued or rolled back: %s %s %s %d"
            % (result["deaths"], moved, result["closures"], result["duplicates_refused"])
        )


@scenario(
    "coordinator", "C8", "wall clocks jump one hour either way, of one host and of all: no effect"
)
def c8(c, r):
    library = clock_library(c.bin)
    if library is None:
        raise Skipped(
            "this build has no libevergrad-wallclock.so (a sanitizer wants to be preloaded itself)"
        )
    everybody = [c.coordinator] + c.servers + c.workers
    c.clocks = WallClocks(library, c.folder)
    for d in everybody:
        restart(d)
    c.wait_usable()
    try:
        before = c.pids()
        registered = {(t["role"], t["identity"]): t["registrations"] for t in c.tasks()}
        hosts = [[r.choice(everybody)], everybody, [c.coordinator]]
        r.shuffle(hosts)
        hosts = hosts if c.forms > 1 else hosts[:2]
        first = r.choice((HOUR, -HOUR))
        shape = dict(
            examples=3000 * len(hosts) * len(c.workers) // 2,
            epochs=1,
            step_ms=4,
            checkpoint="{every: 50ms, keep: 3}",
        )
        for _ in range(4):
            job = c.submit(**shape)
            job.wait_steps(10)
            jumps = 0
            # The clock jumps away from the true time in one direction, and then back to it. The
            # second jump is therefore a jump in the other direction.
            for jumping, way in zip(hosts, (first, -first, first)):
                for seconds in (way, 0):
                    manifests, steps = job.show()["checkpoint"]["manifests"], job.progress()
                    for d in jumping:
                        c.clocks.set(d.name, seconds)
                    wait_for(
                        "steps and a checkpoint after a jump of %s"
                        % ", ".join(d.name for d in jumping),
                        lambda: (
                            job.progress() >= steps + 10
                            and job.show()["checkpoint"]["manifests"] > manifests
                        )
                        or job.ended(),
                        30,
                    )
                    jumps += not job.ended()
            result = job.finish()
            if jumps == 2 * len(hosts):
                break
            shape["examples"] *= 2
        else:
            raise Failure(
                "four jobs had ended before the clocks had jumped %d times" % (2 * len(hosts))
            )
        only_these_died(before, c)
        now = {(t["role"], t["identity"]): t["registrations"] for t in c.tasks()}
        if now != registered:
            raise Failure("somebody registered anew: %s, then %s" % (registered, now))
        odd = sum(
            (
                events(job, kind)
                for kind in ("requeue", "rollback", "away", "death", "warning", "drain")
            ),
            [],
        )
        if result["deaths"] or result["duplicates_refused"] or odd:
            raise Failure(
                "something happened: deaths %s, duplicates %s, %s"
                % (result["deaths"], result["duplicates_refused"], odd)
            )
        job.check_lines()
        # The entries of the journal carry the times of several clocks. A new coordinator process
        # must continue from them.
        job = c.disturb(
            20,
            lambda _: c.coordinator.kill(),
            c.coordinator.start,
            examples=600,
            epochs=1,
            step_ms=4,
        )
        c.clocks.set(c.coordinator.name, r.choice((HOUR, -HOUR)))
        c.coordinator.start()
        if job.finish()["deaths"]:
            raise Failure("a coordinator in another hour takes the living for dead")
        job.check_lines()
        for d in everybody:
            c.clocks.set(d.name, 0)
    finally:
        c.clocks = None  # processes that start from now on have the machine's clock


@scenario("coordinator", "C9", "end a server's session around its Assigns, and the coordinator too")
def c9(c, r):
    server = r.choice(c.servers)
    restart(server, "session.cut=%d*error" % r.randint(1, 6))
    job = c.submit(examples=800, step_ms=2)
    if r.random() < 0.5:
        c.coordinator.kill()
        c.coordinator.start()
    job.finish()
    restart(server)
    c.wait_tasks()


@scenario(
    "coordinator",
    "C10",
    "cancel a job while a server is disconnected, and kill the coordinator meanwhile",
)
def c10(c, r):
    server = r.choice(c.servers)
    job = c.disturb(20, lambda _: server.stop(), server.resume, examples=6000, epochs=1, step_ms=3)
    try:
        c.psctl("job", "cancel", job.name)
        c.coordinator.kill()
        c.coordinator.start()
        job.wait_state("CANCELLED")
        closures = job.result()["closures"]
    finally:
        server.resume()
    c.wait_tasks()

    def shards():
        return {t["identity"]: t["shards"] for t in c.tasks() if t["role"] == "ps_server"}

    wait_for(
        "the reconnected server to drop its shards: %s" % shards(),
        lambda: not any(shards().values()),
    )
    after = job.show()
    if after["state"] != "CANCELLED" or int(after["closures_succeeded"]) != closures["succeeded"]:
        raise Failure("a cancelled job continued: %s" % after)
    c.submit(examples=300).finish()


# ------------------------------------------------------------------ the checker itself


@scenario("checker", "checker", "with the ledger switched off the check must fail")
def checker(c, r):
    for s in c.servers:
        restart(s, "push.duplicate=30%on", mutant="ledger_off")
    c.wait_tasks()
    job = c.submit(examples=600, step_ms=1)
    try:
        job.finish()
    except Failure as why:
        if "counted" not in str(why) and "updates" not in str(why):
            raise Failure("the check failed for another reason: %s" % why)
        for s in c.servers:
            restart(s)
        c.wait_tasks()
        c.submit(examples=300).finish()
        return
    raise Failure("the ledger was off, pushes were duplicated, and the check saw nothing")


import tabled  # noqa: E402,F401  (last, because it repeats scenarios of the other files)


# ------------------------------------------------------------------ running


def run_one(name, cluster, seed):
    function, what = SCENARIOS[name]
    begin = time.monotonic()
    try:
        cluster.pauses.longest = 0.0
        function(cluster, random.Random("%s/%d" % (name, seed)))
    except Skipped as why:
        print("skipped %-6s %s" % (name, why))
        return False
    except Exception:
        print("FAILED %-8s seed=%d  %s" % (name, seed, what))
        raise
    print("ok     %-8s seed=%d  %5.1f s  %s" % (name, seed, time.monotonic() - begin, what))
    sys.stdout.flush()
    return True


@contextlib.contextmanager
def open_store(a):
    """Starts the object store of `--store`, and gives its credentials to all daemons."""
    with tempfile.TemporaryDirectory(prefix="evergrad-store-") as folder:
        with stored.ObjectStore(a.store, folder, a.seed, a.store_faults) as store:
            store.enter_environment()
            yield store


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True)
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(3), "big"),
    )
    parser.add_argument("--chain", choices=sorted(CHAINS))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("--store", choices=stored.KINDS, help="keep the checkpoints in a store")
    parser.add_argument(
        "--store-faults",
        type=share,
        default=0.02,
        metavar="SHARE",
        help="of the requests to the store: they fail (default 2%%)",
    )
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    unknown = [n for n in a.names if n not in SCENARIOS]
    if unknown:
        parser.error(
            "unknown scenario %s; there are: %s" % (", ".join(unknown), ", ".join(SCENARIOS))
        )
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("skipped: numpy is not installed (deploy/scripts/setup.sh test)")
        return 77
    names = a.names or (CHAINS[a.chain] if a.chain else list(SCENARIOS))
    local = [n for n in names if n in CHAINS["machines"] + CHAINS["power"] + CHAINS["stores"]]
    if a.store and local:
        parser.error("--store does not fit these scenarios: %s" % ", ".join(local))
    if a.store and stored.without_moto(a.store):
        print("skipped: %s" % stored.without_moto(a.store))
        return 77
    if all(n in CHAINS["machines"] + CHAINS["stores"] for n in names):
        run_inside_if_needed()
    print("seed=%d" % a.seed)
    scale = 2.5 if a.long else float(os.environ.get("EVERGRAD_TIME_SCALE", "1"))
    closing = contextlib.ExitStack()
    try:
        # Scenarios that need proxies, a disk that can lose power, workers with functions, or
        # several jobs at once run on separate clusters.
        on_machines = [n for n in names if n in CHAINS["machines"]]
        with_stores = [n for n in names if n in CHAINS["stores"]]
        names_here = [n for n in names if n not in on_machines + with_stores]
        apart = ("proxy", "power", "functions", "jobs", "loops")
        groups = [[n for n in names_here if n in CHAINS[chain]] for chain in apart]
        groups = [
            g
            for g in [[n for n in names_here if not any(n in CHAINS[chain] for chain in apart)]]
            + groups
            if g
        ]
        left_out = []  # (scenario, form) that could not run here
        if power_library(a.bin) is None and any(n in CHAINS["power"] for n in names):
            unpowered = [n for n in names if n in CHAINS["power"]]
            print(
                "skipped: %s: this build has no libevergrad-power.so"
                " (a sanitizer wants to be preloaded itself)" % ", ".join(unpowered)
            )
            groups = [g for g in groups if g[0] not in unpowered]
            left_out = [(n, "any form") for n in unpowered]

        store = closing.enter_context(open_store(a)) if a.store else None

        def cluster(servers, workers, group):
            proxied = group[0] in CHAINS["proxy"]
            more = ("--call-deadline", "%dms" % int(1000 * scale)) if proxied else ()
            c = Cluster(
                a.bin,
                servers,
                workers,
                a.seed,
                scale,
                worker_arguments=METRICS + more,
                keep=a.keep,
                proxied=proxied,
                coordinator_arguments=jobs.ARGUMENTS
                if group[0] in CHAINS["jobs"] + CHAINS["functions"]
                else loops.ARGUMENTS
                if group[0] in CHAINS["loops"]
                else (),
                powered=group[0] in CHAINS["power"],
                worker_binary="evergrad-example-worker"
                if group[0] in CHAINS["functions"]
                else "evergrad-worker",
            )
            c.store = store
            c.up()
            # Each scenario runs in `forms` forms. KILLS is the number of kills in all of them
            # together.
            c.forms = 4 if a.long else 1
            return c

        passed = set()

        def run(name, c, form):
            if run_one(name, c, a.seed):
                passed.add(name)
            elif (name, form) not in left_out:
                left_out.append((name, form))

        for servers, workers in ((1, 1), (2, 2)) if a.long else ((2, 2),):
            form = "%d+%d" % (servers, workers)
            for group in groups:
                for n in group if a.long else ():
                    with cluster(servers, workers, [n]) as c:
                        run(n, c, form)
                with cluster(servers, workers, group) as c:
                    for n in group:
                        run(n, c, form)
        # These scenarios have only one form, because their number of machines is fixed.
        for n in on_machines:
            try:
                with ten_machines.cluster(a.bin, a.seed, scale, a.long, a.keep) as c:
                    run(n, c.up(), "ten machines")
            except Skipped as why:
                print("skipped %-6s %s" % (n, why))
                left_out.append((n, "ten machines"))
        for n in with_stores:
            try:
                with store_scenarios.cluster(n, a.bin, a.seed, scale, a.long, a.keep) as c:
                    run(n, c.up(), "its own store")
            except Skipped as why:
                print("skipped %-6s %s" % (n, why))
                left_out.append((n, "its own store"))
        if store:
            print("the store: %d of %d recent requests failed" % store.faults())
    except Failure as why:
        print("FAILED: %s" % why)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        closing.close()
    for n, form in left_out:
        if n in passed:
            print("not run: %s in the form %s" % (n, form))
    skipped = sorted(set(names) - passed)
    print(
        "%d scenarios passed, 0 failed%s"
        % (
            len(passed),
            ", %d skipped: %s" % (len(skipped), ", ".join(skipped)) if skipped else "",
        )
    )
    return 77 if skipped and not passed else 0


if __name__ == "__main__":
    sys.exit(main())
