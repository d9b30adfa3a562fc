"""Scenarios of tasks that come and go endlessly: a crash loop, sessions that never send a message,
and two processes with one name. scenarios.py registers them with the others.

Deaths that the job did not cause must not be counted against the job at all. To show this in half a
minute, their coordinator fails a job after 20 deaths (`ARGUMENTS`), and not after 100 as by
default.
"""
import json
import os
import subprocess
import threading
import time

from cluster import Failure, metric_samples, wait_for
from stage import METRICS, events, only_these_died, scenario

ARGUMENTS = ("--deaths-max", "20") + METRICS
LIFE_SECONDS = 0.35 * float(
    os.environ.get("EVERGRAD_TIME_SCALE", "1")
)  # a daemon with a sanitizer needs longer to register
SHORT_SECONDS, LONG_SECONDS, LONG_AGAIN_SECONDS = 30, 600, 60
_long_form_was_run = []


def duration(c):
    """Returns the length of a scenario in seconds. Without --long, every form of the scenario runs,
    each for a short time. With --long it runs once, for ten minutes and with two healthy
    workers."""
    if c.forms == 1:
        return SHORT_SECONDS
    if len(c.workers) < 2 or _long_form_was_run:
        return LONG_AGAIN_SECONDS
    _long_form_was_run.append(True)
    return LONG_SECONDS


def submit_for(c, seconds):
    """Returns a job that all workers together cannot finish within `seconds`: a step waits 40
    ms."""
    steps = int(seconds * len(c.workers) / 0.04)
    return c.submit(examples=10 * steps, epochs=1, step_ms=40, checkpoint="{every: 2s}")


@scenario(
    "loops",
    "W18",
    "a worker that is killed 0.35 s after each start beside healthy ones, for 30 s (long form: "
    "10 minutes)",
)
def w18(c, r):
    seconds = duration(c)
    before = c.pids()
    job = submit_for(c, seconds)
    job.wait_steps(1)
    loop = c.add("worker", "loop", ["--name", "loop", "--threads", "1"])
    pause = threading.Event()  # an event that is never set
    until, lives, shown = time.monotonic() + seconds, 0, []
    while time.monotonic() < until and not job.ended():
        if not loop.alive():
            loop.start()
        pause.wait(LIFE_SECONDS)
        loop.kill()
        lives += 1
        if lives % 10 == 0:
            shown += [b for b in job.show()["backing_off"] if b["task"] == "worker/loop"]
    c.extras.remove(loop)
    registered = next(
        (
            t["registrations"]
            for t in c.tasks()
            if t["role"] == "worker" and t["identity"] == "loop"
        ),
        0,
    )
    deaths = events(job, "death", "worker/loop")
    result = job.finish(seconds=4 * seconds + 120)
    print(
        "       %d lives, %d of them registered; %d deaths were told, backing off seen %d times"
        % (lives, registered, len(deaths), len(shown))
    )
    only_these_died(before, c, loop)
    # The first four deaths during work come without a pause. The next ones come after backoffs of
    # 1, 2, 4 … 60 s.
    if len(deaths) > 4 + 6 + seconds / 60 + 1:
        raise Failure("%d deaths of one worker in a crash loop fill the events" % len(deaths))
    if len(deaths) > 4 and not shown:
        raise Failure("psctl job show never says that worker/loop backs off")
    if any(b["for_ms"] > 60000 or not b["reason"] for b in shown):
        raise Failure("a task that backs off is shown with impossible values: %s" % shown[-1])
    if result["closures"]["failed"]:
        raise Failure("closures failed: %s" % result["closures"])


def metric(c, name):
    address = next(t["metrics_address"] for t in c.tasks() if t["role"] == "coordinator")
    found = metric_samples(address, name)
    if len(found) != 1:
        raise Failure(
            "the coordinator has %d samples of the metric %s, want 1" % (len(found), name)
        )
    return found[0]


@scenario(
    "loops",
    "W19",
    "hundreds of sessions that send only Hello: they get no work, are limited, and do not "
    "affect the job",
)
def w19(c, r):
    before = c.pids()
    job = submit_for(c, 12)
    job.wait_steps(1)
    run = subprocess.run(
        [
            os.path.join(c.bin, "evergrad-silent-sessions"),
            "--coordinator",
            c.coordinator_address(),
            "--sessions",
            "600",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = json.loads(run.stdout)
    print("       %s" % said)
    if said["failed"] or said["registered"] + said["limited"] != 600:
        raise Failure("not every session was answered: %s" % said)
    if said["grants"]:
        raise Failure("a session that has said nothing was given work: %s" % said)
    if said["registered"] < 100 or said["limited"] < 100 or said["told_when"] != said["limited"]:
        raise Failure(
            "sessions that say only Hello are not limited, or not told when to come again: %s"
            % said
        )
    if metric(c, "evergrad_coordinator_registrations_recent_refused_total") < said["limited"]:
        raise Failure("the metric of refused registrations does not count them")
    if "registrations are refused because of their rate" not in c.coordinator.tail(4000):
        raise Failure(
            "the coordinator's log says nothing of refused registrations:\n" + c.coordinator.tail()
        )
    # A process that belongs to the cluster must still be able to register at once.
    victim = c.workers[0]
    since = time.monotonic()
    victim.kill()
    victim.start()
    wait_for(
        "%s to be registered" % victim.name,
        lambda: any(t["pid"] == victim.pid and t["state"] == "alive" for t in c.tasks()),
    )
    if time.monotonic() - since > 5 * c.scale + c.pauses.longest:
        raise Failure(
            "a worker that was started again waited %.1f s beside them" % (time.monotonic() - since)
        )
    job.finish()
    only_these_died(before, c, victim)
    told = [e for e in events(job, "death") + events(job, "requeue") if "worker/f" in e]
    if told:
        raise Failure("the job tells of sessions that it had nothing to do with: %s" % told[:3])
    # The limit of registrations is a token bucket, which is refilled with time.
    wait_for(
        "the limit of registrations to be free again",
        lambda: metric(c, "evergrad_coordinator_registrations_recent_current") < 1000,
    )


@scenario(
    "loops", "W20", "two processes with one name, each restarted whenever the other has replaced it"
)
def w20(c, r):
    job = submit_for(c, 15)
    job.wait_steps(1)
    mine = c.workers[-1]
    other = c.add("worker", mine.identity, ["--name", mine.identity, "--threads", "1"])

    def gone():
        return next((w for w in (mine, other) if not w.alive()), None)

    for _ in range(8):
        replaced = wait_for("one of the two to leave", gone)
        if replaced.process.returncode != 7:
            raise Failure(
                "the older worker: want exit code 7 (replaced) got %s" % replaced.process.returncode
            )
        if job.ended():
            break
        replaced.start()
    wait_for("one of the two to leave", gone)
    told = events(job, "warning", "replace each other")
    if (
        not told
        or "two processes have the name worker/%s" % mine.identity not in told[0]
        or told[0].count(" on host ") != 2
    ):
        raise Failure("nobody is told of two processes with one name: %s" % events(job, "warning"))
    if other.alive():
        other.terminate()
    c.extras.remove(other)
    if not mine.alive():
        mine.start()
    job.finish()
    c.wait_usable()
