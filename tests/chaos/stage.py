"""The shared parts of the scenarios: their registration, and common actions and checks."""
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
    "machines": [],
    "stores": [],
    "checker": [],
}

METRICS = ("--metrics-listen", "127.0.0.1:0")


class Skipped(Exception):
    """This machine lacks something that the scenario needs. The message says what it lacks."""


def scenario(chain, name, what):
    def register(function):
        SCENARIOS[name] = (function, what)
        CHAINS[chain].append(name)
        return function

    return register


def restart(daemon, failpoints=None, extra=(), mutant=None):
    """Ends the daemon if it runs, and starts it with these failpoints or none. With `mutant`, the
    faulty build of the daemon is started."""
    if daemon.alive():
        daemon.resume()
        daemon.kill()
    daemon.start(failpoints, extra, mutant)


def only_these_died(before, cluster, *dead):
    """Checks P4: every process except those of `dead` has the pid that it had `before`."""
    names = {d.name for d in dead}
    for name, pid in cluster.pids().items():
        if name not in names and before.get(name) != pid:
            raise Failure("%s restarted: pid %s became %s" % (name, before.get(name), pid))


def events(job, kind, words=""):
    """Returns the job's events of one kind whose text contains `words`, oldest first."""
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
    """Submits jobs until the failpoint of `victim` has killed it. Returns the job that was running
    when it died."""
    return cluster.submit_until(
        "the failpoint to kill %s" % victim.name, lambda: not victim.alive(), **shape
    )


def others_or_restart(cluster, victim):
    """If the victim is the only worker, starts it again, because otherwise no worker could do the
    work."""
    if len(cluster.workers) == 1:
        victim.start()


def back(victim):
    """Restarts the victim without failpoints, whether it is alive or not."""
    restart(victim)
