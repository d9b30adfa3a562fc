#!/usr/bin/env python3
"""Runs the benchmarks and prints one table; writes results.json: a list of {name, value, unit, reference_name, reference_value, ratio, reach}.

  run.py --bin build/release/bin --out build/bench [--quick] [names …]
  run.py … --serve HOST:PORT [--insecure]     on each machine of a network of one's own: only what the next line measures against, until it is ended
  run.py … --servers HOST:PORT,HOST:PORT      on another: dense values and rows over TCP against these, slots of tables spread over all of them

Every figure stands beside its reference: a rival measured in the same run (then `ratio` is ours / rival's, interleaved, medians), or a peer's published figure. `reach` is
the ratio that we mean to reach; a ratio below it is marked, never hidden. Programs named *_bench print one such JSON object a line and are run first.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, "..", "chaos"))
from cluster import Cluster, wait_for  # noqa: E402


def entry(name, value, unit, reference_name, reference_value, ratio, reach):
    return {"name": name, "value": value, "unit": unit, "reference_name": reference_name, "reference_value": reference_value, "ratio": ratio, "reach": reach}


def train(bin_folder, runs, job, workers, servers, *sets):
    """One local run; result.json."""
    command = [os.path.join(bin_folder, "psctl"), "job", "run", os.path.join(ROOT, job), "--local", "--workers", str(workers), "--servers", str(servers), "--runs", runs]
    for s in sets:
        command += ["--set", s]
    before = set(glob.glob(os.path.join(runs, "*", "result.json")))
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError("psctl ended with %d\n%s%s" % (ended.returncode, ended.stdout[-2000:], ended.stderr[-2000:]))
    new = set(glob.glob(os.path.join(runs, "*", "result.json"))) - before
    with open(new.pop()) as f:
        return json.load(f)


def programs(bin_folder, names, arguments=()):
    found = []
    for program in sorted(glob.glob(os.path.join(bin_folder, "*_bench"))):
        if names and os.path.basename(program) not in names:
            continue
        ended = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ended.returncode != 0:
            print("%s ended with %d\n%s" % (program, ended.returncode, ended.stderr[-2000:]))
            continue
        for line in ended.stdout.splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
    return found


def elsewhere(bin_folder, servers):
    """Figures against bench_servers: the dense ones are of one server, so each is measured by itself."""
    found = []
    for server in servers.split(","):
        for figure in programs(bin_folder, ["dense_bench"], ["--servers", server]):
            found.append(dict(figure, name="%s: %s" % (server, figure["name"])))
    rows = programs(bin_folder, ["rows_bench"], ["--servers", servers])
    if not found or not rows:
        raise SystemExit("bench: no figures against --servers %s: is `bench --serve HOST:PORT` running at each of them?" % servers)
    return found + rows


def cluster_figures(bin_folder, quick):
    found = []
    begin = time.monotonic()
    with Cluster(bin_folder, 2, 2, seed=1, coordinator_arguments=[]) as c:
        # Tasks and job at once: what a user waits for is the first closure, not the registration.
        c.coordinator.start()
        for d in c.servers + c.workers:
            d.start()
        job = c.submit(examples=100, batch=10, epochs=1, steps_per_closure=1, step_ms=0)
        wait_for("the first closure", lambda: int(job.show().get("closures_succeeded", 0)) > 0 or job.show()["state"] == "SUCCEEDED")
        found.append(entry("start of all tasks to the first closure", time.monotonic() - begin, "s", "TensorFlow PSS (published figure)", 5.3, (time.monotonic() - begin) / 5.3, None))
        job.wait_state("SUCCEEDED")
        for d in c.daemons():
            with open("/proc/%d/status" % d.pid) as f:
                rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024.0
            if d.role == "coordinator" or d.identity == "0":
                found.append(entry("memory of an idle %s" % d.role, rss, "MiB", "TensorFlow task (published figure)", 607, rss / 607, None))
        # Closures of one step that does nothing but push: what the sessions carry.
        rates = []
        for _ in range(1 if quick else 3):
            job = c.submit(examples=1000 if quick else 6000, batch=1, epochs=1, steps_per_closure=1, step_ms=0, shards=2)
            c.psctl("job", "watch", job.name)  # one process that waits: asking again and again would take the cores from the cluster
            status = job.show()
            rates.append(job.closures / max(1e-9, (status["ended_ms"] - status["started_ms"]) / 1000.0))
        found.append(entry("closures through real sessions, 2 workers, one counting step each", statistics.median(rates), "closures/s", "TensorFlow PSS, trivial closures (published figure)", 1500,
                           statistics.median(rates) / 1500, None))
    return found


def training_figures(bin_folder, quick):
    found = []
    rounds = 1 if quick else 5
    with tempfile.TemporaryDirectory(prefix="evergrad-bench-") as runs:
        one, two = [], []
        for _ in range(rounds):
            one.append(train(bin_folder, runs, "configs/quickstart.yaml", 1, 2, "spec.training.epochs=2")["examples_per_second"])
            two.append(train(bin_folder, runs, "configs/quickstart.yaml", 2, 2, "spec.training.epochs=2")["examples_per_second"])
        found.append(entry("quickstart, 2 workers + 2 servers", statistics.median(two), "examples/s", "the same with 1 worker, interleaved", statistics.median(one),
                           statistics.median(b / a for a, b in zip(one, two)), 0.95))
        # Both with every core, in turn.
        graph, alone = [], []
        for _ in range(1 if quick else 5):
            step = subprocess.run([os.path.join(bin_folder, "worker_bench"), "--graph", str(os.cpu_count())], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
            graph.append(json.loads(step.stdout)["value"])
            alone.append(train(bin_folder, runs, "configs/examples/fashion-cnn.yaml", 1, 1, "spec.training.epochs=1")["examples_per_second"])
        found.append(entry("CNN conv16-pool-conv32-pool-dense128, batch 128, 1+1", statistics.median(alone), "examples/s", "the same graph without servers, as many threads",
                           statistics.median(graph), statistics.median(a / b for a, b in zip(alone, graph)), 0.7))
        cnn = train(bin_folder, runs, "configs/examples/cnn-peer.yaml", 2, 2)["examples_per_second"]
        found.append(entry("CNN conv32-pool-conv64-pool-dense128, batch 128, 2+2", cnn, "examples/s", "TensorFlow PSS 2+2 on a like machine (published figure)", 7400, cnn / 7400, None))
        deepfm = statistics.median(train(bin_folder, runs, "configs/examples/deepfm.yaml", 2, 2)["examples_per_second"] for _ in range(1 if quick else 3))
        found.append(entry("DeepFM (26 features x 100 k ids x dim 16, MLP 400-400-400, Adagrad, batch 512), 2+2", deepfm, "examples/s",
                           "TensorFlow PSS 2+2, one fused table, on a like machine (published figure)", 26000, deepfm / 26000, 30000 / 26000))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", metavar="HOST:PORT")
    parser.add_argument("--insecure", action="store_true", help="with --serve: off loopback, too, where nobody is asked who they are")
    parser.add_argument("--servers", metavar="HOST:PORT,…")
    parser.add_argument("names", nargs="*", help="programs (*_bench), cluster, training")
    a = parser.parse_args()
    bin_folder = os.path.abspath(a.bin)
    if (a.serve or a.servers) and (a.names or a.quick) or a.serve and a.servers or a.insecure and not a.serve:
        parser.error("--serve goes with --insecure alone, --servers with nothing else")
    if a.serve:
        server = os.path.join(bin_folder, "bench_server")
        os.execv(server, [server] + (["--insecure"] if a.insecure else []) + [a.serve])
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
            print("TCP congestion control: " + f.read().strip())
    except OSError:
        pass
    results = elsewhere(bin_folder, a.servers) if a.servers else programs(bin_folder, a.names)
    for name, part in (("cluster", cluster_figures), ("training", training_figures)):
        if not a.servers and (not a.names or name in a.names):
            results += part(bin_folder, a.quick)
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "results.json"), "w") as f:
        json.dump(results, f, indent=1)
    width = max([len(r["name"]) for r in results] or [0])
    for r in results:
        below = r["reach"] is not None and r["ratio"] is not None and r["ratio"] < r["reach"]
        print("%-*s  %12.4g %-11s  %8s  %-8s %s %s" % (
            width, r["name"], r["value"], r["unit"], "%.2f x" % r["ratio"] if r["ratio"] is not None else "", ">= %g" % r["reach"] if r["reach"] is not None else "",
            "BELOW " if below else "      ", "%s: %.4g" % (r["reference_name"], r["reference_value"]) if r["reference_name"] else ""))
    print("written: %s" % os.path.join(a.out, "results.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
