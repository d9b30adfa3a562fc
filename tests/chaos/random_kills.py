"""SIGKILLs of tasks of all roles at random moments of counting jobs: the scenarios R1 and
ten-machines."""
import time

from cluster import Failure, wait_for

ENDED = 10**9  # more steps than any job has


def worker_steps(job):
    """Returns the number of steps that the workers of a job have computed, or ENDED."""
    status = job.show()
    if status["state"] in ("FAILED", "CANCELLED"):
        raise Failure("%s is %s: %s" % (job.name, status["state"], status.get("first_cause")))
    return (
        ENDED
        if status["state"] == "SUCCEEDED"
        else sum(int(w["steps"]) for w in status.get("workers", []))
    )


def random_kills(c, r, kills, seconds=0, first=(), **shape):
    """Kills and starts random tasks in the middle of jobs, at least `kills` times and for at least
    `seconds`. The first tasks to be killed are `first`. Each job must be exact, and no other task
    may restart."""
    begin, done = time.monotonic(), 0
    killed = {"worker": 0, "ps_server": 0, "coordinator": 0}
    recovery = {"worker": [], "ps_server": [], "coordinator": []}

    def left():
        return kills - done if done < kills else 6 if time.monotonic() - begin < seconds else 0

    while left():
        job = c.submit(
            **dict(
                dict(
                    examples=1500,
                    epochs=2,
                    step_ms=int(6 * c.scale),
                    checkpoint="{every: %dms}" % r.choice((100, 300, 1000)),
                ),
                **shape
            )
        )
        job.wait_steps(1)
        before = c.pids()
        for _ in range(min(6, left())):
            victim = r.choice(c.workers + c.servers + [c.coordinator])
            if done < len(first):
                victim = first[done]
            # Reads the state of the job a random number of times before the kill. The kills
            # therefore come at any moment of the job, but not after its end.
            for _ in range(r.randint(0, 12)):
                job.progress()
            status = job.show()
            if status["state"] != "RUNNING":
                break
            victim.kill()
            since = time.monotonic()
            victim.start()
            before.pop(victim.name, None)
            killed[victim.role] += 1
            done += 1
            if done % 3 == 0:
                # Measures the time from the kill to the next step of any worker. Two of three kills
                # do not wait for that step.
                steps = worker_steps(job)
                if steps == ENDED:  # the job had already ended when the task was killed
                    break
                wait_for(
                    "a step to end after %s was killed" % victim.name,
                    lambda: worker_steps(job) > steps,
                    60,
                )
                recovery[victim.role].append(time.monotonic() - since)
        for name, pid in c.pids().items():
            if before.get(name, pid) != pid:
                raise Failure("%s restarted by itself" % name)
        result = job.finish()
        print(
            "       %d kills so far, job %s: %s, %d deaths, %s duplicates refused"
            % (
                done,
                job.name,
                result["closures"],
                len(result["deaths"]),
                result["duplicates_refused"],
            ),
            flush=True,
        )
    print(
        "       killed: %s" % ", ".join("%d times a %s" % (n, role) for role, n in killed.items())
    )
    for role, times in recovery.items():
        if times:
            times.sort()
            print(
                "       recovery after a %s: n=%d median %.2f s, 90 %% %.2f s, max %.2f s"
                % (role, len(times), times[len(times) // 2], times[len(times) * 9 // 10], times[-1])
            )
