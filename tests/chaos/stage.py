"""What the scenarios share: where they are registered, and what many of them do or demand."""
from cluster import Failure

SCENARIOS = {}
CHAINS = {
    "workers": [],
    "poison": [],
    "servers": [],
    "checkpoints": [],
    "drain": [],
    "network": [],
    "proxy": [],
    "coordinator": [],
    "power": [],
    "limits": [],
    "tables": [],
    "functions": [],
    "jobs": [],
    "loops": [],
    "checker": [],
}

METRICS = ("--metrics-listen", "127.0.0.1:0")


class Skipped(Exception):
    """This machine does not have what the scenario needs; the message says what."""


def scenario(chain, name, what):
    def register(function):
        SCENARIOS[name] = (function, what)
        CHAINS[chain].append(name)
        return function

    return register


def restart(daemon, failpoints=None, extra=(), mutant=None):
    """A daemon under other failpoints (or none), without a trace of the former life; its faulty
    build if a mutant is named."""
    if daemon.alive():
        daemon.resume()
        daemon.kill()
    daemon.start(failpoints, extra, mutant)


def only_these_died(before, cluster, *dead):
    """P4: every other process keeps its pid."""
    names = {d.name for d in dead}
    for name, pid in cluster.pids().items():
        if name not in names and before.get(name) != pid:
            raise Failure("%s restarted: pid %s became %s" % (name, before.get(name), pid))


def events(job, kind, words=""):
    """The job's events of one kind, oldest first."""
    return [
        e["text"] for e in job.show().get("events", []) if e["kind"] == kind and words in e["text"]
    ]


def granted_again(result, job):
    if result["closures"]["attempts"] < job.closures + 1:
        raise Failure("the closure was not granted again: %s" % result["closures"])


def names_death(result, victim):
    if not any(victim.name in str(d) for d in result["deaths"]):
        raise Failure("result.json names no death of %s: %s" % (victim.name, result["deaths"]))


def until_killed(cluster, victim, **shape):
    """Jobs, until the failpoint under which `victim` was started has killed it; the job in which it
    did."""
    return cluster.submit_until(
        "the failpoint to kill %s" % victim.name, lambda: not victim.alive(), **shape
    )


def others_or_restart(cluster, victim):
    """With nobody else to do the work, the dead one comes back."""
    if len(cluster.workers) == 1:
        victim.start()


def back(victim):
    """Alive and without failpoints, whatever became of it."""
    restart(victim)
