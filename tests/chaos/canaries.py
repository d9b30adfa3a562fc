"""Scenarios in which all hosts lose power, and the canaries. A canary is a scenario with a fault
that is built in on purpose and that the checks must find.

A canary passes only if a check fails because of the built-in fault. The same scenario without the
fault must pass that check.
"""
import os
import time

from cluster import Failure, wait_for
from saved import check_agrees, check_restored, folder_left, manifests, verified, wait_saved
from stage import events, restart, scenario

OFTEN = "{every: 50ms, keep: 20}"


def everybody(c):
    return [c.coordinator] + c.servers + c.workers


def lose_power(c, r=None):
    """All hosts lose power at one moment."""
    at = time.monotonic_ns()
    for d in everybody(c):
        d.signal(9)
    for d in everybody(c):
        d.process.wait()
    return c.disk.lose_power(at, r)


def start_all(c):
    for d in everybody(c):
        if not d.alive():
            d.start()


def demand_kept(c, job, told):
    """Everything that psctl reported before the loss of power must still be true. The coordinator
    is asked while no other task runs, so that no task can have reported that state to it again."""
    newest = manifests(folder_left(c, job))[-1:]
    if told["checkpoint"]["manifests"] > 0 and not newest:
        raise Failure(
            "lost with the power: every checkpoint, of %d that were told"
            % told["checkpoint"]["manifests"]
        )
    for path in newest:
        check_agrees(job, verified(c, path))
    c.coordinator.start()
    r = c.psctl("job", "show", job.name, "--output", "json", expect=None)
    if r.returncode != 0:
        raise Failure(
            "lost with the power: the job, of which %s closures had succeeded: %s"
            % (told["closures_succeeded"], r.stderr.strip())
        )
    after = job.show()
    for key in ("closures_succeeded", "steps_done"):
        if int(after[key]) < int(told[key]):
            raise Failure(
                "lost with the power: %s was %s, and is %s" % (key, told[key], after[key])
            )
    if told["state"] == "SUCCEEDED" and after["state"] != told["state"]:
        raise Failure("lost with the power: the job had SUCCEEDED, and is %s" % after["state"])


def lines(told):
    with open(os.path.join(told["runs_folder"], "metrics.jsonl"), "rb") as f:
        return f.read()


def through_a_loss_of_power(c, r, survives):
    """Power is lost in the middle of a job, and again after the end of the job was reported."""
    shape = dict(examples=1200, step_ms=3, checkpoint=OFTEN)
    for _ in range(6):
        c.wait_usable()
        job = c.submit(**shape)
        job.wait_steps(r.randint(20, 60))
        wait_saved(job)
        told = job.show()
        # `job show` does not wait for the disk, but a submission does. Once it is answered,
        # everything that was shown before is durable.
        after = c.submit(examples=50)
        lost = lose_power(c, survives)
        if told["state"] == "RUNNING":
            break
        start_all(c)
        job.finish()
        after.finish()
        shape["examples"] *= 2
    else:
        raise Failure("six jobs had ended before they were saved and the power went")
    demand_kept(c, job, told)
    start_all(c)
    result = job.finish()
    check_restored(job, result)
    told = job.show()
    written = lines(told)
    after.finish()
    again = lose_power(c, survives)
    demand_kept(c, job, told)
    job.check_exact()
    if lines(told) != written:
        raise Failure(
            "lost with the power: lines of metrics.jsonl, of a job whose result.json had been told"
        )
    start_all(c)
    c.wait_tasks()
    return lost, again


@scenario(
    "power",
    "P1",
    "all hosts lose power during a job and after its end: synced data survives, and other data "
    "is lost or arbitrary",
)
def p1(c, r):
    survives = None if r.random() < 0.5 else r
    lost, again = through_a_loss_of_power(c, r, survives)
    print(
        "       %s that was not synced was kept: %d bytes and %d names in the middle, "
        "%d and %d at the end" % ("nothing" if survives is None else "some", *lost, *again)
    )
    # The result counts only if the records of disk requests are complete. Therefore every daemon is
    # ended in good order, and the records must then agree with the disk.
    for d in everybody(c):
        d.terminate()
    c.disk.check()
    start_all(c)
    c.wait_tasks()


def say_caught(why):
    print("       caught: %s" % " ".join(str(why).split())[:160])


def caught(c, r, words):
    try:
        through_a_loss_of_power(c, r, None)
    except Failure as why:
        if not any(w in str(why) for w in words):
            raise Failure("the check failed for another reason: %s" % why)
        say_caught(why)
        return
    raise Failure("a sync was left out, the power went, and the check saw nothing")


def restart_without_syncs(c, daemons, root):
    """Restarts these daemons in such a way that the disk ignores every sync of a file below the
    folder `root`. This lasts until the daemons are started again."""
    c.disk.unsynced = root
    for d in daemons:
        restart(d)
    c.disk.unsynced = None


@scenario("power", "P1-journal", "P1 without the journal's sync: the check must fail")
def p1_journal(c, r):
    restart_without_syncs(c, [c.coordinator], "state")
    caught(c, r, ("lost with the power: the job",))
    for d in everybody(c):
        restart(d)
    c.wait_tasks()
    c.submit(examples=200).finish()


@scenario("power", "P1-shards", "P1 without the sync of shard files: the check must fail")
def p1_shards(c, r):
    restart_without_syncs(c, c.servers, "runs")
    caught(c, r, ("is not whole",))
    for d in everybody(c):
        restart(d)
    c.wait_tasks()
    c.submit(examples=200).finish()


@scenario(
    "checker",
    "V0-off",
    "without the comparison of V0, an attempt that a rollback overtakes must be found inexact, "
    "and with it exact",
)
def v0_off(c, r):
    others = c.workers[1:]
    for w in others:
        w.kill()
    # The scenario has one closure, one worker, and a server that dies after a given number of the
    # closure's pushes. The only attempt begins before the shards of that server are rolled back,
    # and ends afterwards.
    victim, hit = r.choice(c.servers), r.randint(20, 150)
    for mutant in ("done_ignores_V0", None):
        restart(c.coordinator, mutant=mutant)
        restart(victim, "server.after_apply=%d*kill" % hit)
        c.wait_usable()
        job = c.submit(examples=400, batch=10, epochs=1, steps_per_closure=40, step_ms=2)
        wait_for("the failpoint to kill %s" % victim.name, lambda: not victim.alive())
        if job.progress() != 0:
            raise Failure("the only closure had ended before the server was killed")
        victim.start()
        found = job.wait_miscounted()
        if found and mutant is None:
            raise Failure("an honest job does not end: %s" % found)
        if not events(job, "rollback", victim.name):
            raise Failure("the job does not say that %s was rolled back" % victim.name)
        try:
            job.check_exact()
        except Failure as why:
            if mutant is None:
                raise
            if "counted" not in str(why) and "updates" not in str(why):
                raise Failure("the check failed for another reason: %s" % why)
            say_caught(why)
        else:
            if mutant is not None:
                raise Failure("V0 was not compared, and the check saw nothing")
    for w in others:
        w.start()
    c.wait_tasks()
