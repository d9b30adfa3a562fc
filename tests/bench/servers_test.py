#!/usr/bin/env python3
"""Tests the benchmarks against servers that were started separately. The programs are bench_server,
dense_bench --servers and rows_bench --servers. Arguments that they must refuse are tested, too.

  servers_test.py --bin build/release/bin
"""
import argparse
import json
import os
import subprocess
import sys


def run(*command):
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def check(holds, what, ended):
    if not holds:
        sys.exit("FAILED %s: rc=%d\n%s\n%s" % (what, ended.returncode, ended.stdout, ended.stderr))
    print("ok     " + what)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    here = os.path.abspath(parser.parse_args().bin)
    server, dense, rows = (
        os.path.join(here, name) for name in ("bench_server", "dense_bench", "rows_bench")
    )

    refused = run(server, "0.0.0.0:0")
    check(
        refused.returncode == 2
        and "not loopback" in refused.stderr
        and "--insecure" in refused.stderr,
        "off loopback only with --insecure",
        refused,
    )
    refused = run(server, "nowhere")
    check(
        refused.returncode == 2 and "usage:" in refused.stderr,
        "an address without a port is refused",
        refused,
    )
    refused = run(server, "127.0.0.1:65535")
    check(
        refused.returncode == 1 and "two free ports" in refused.stderr,
        "a port without a next one is refused",
        refused,
    )
    refused = run(dense, "--servers", "127.0.0.1:1,127.0.0.1:3")
    check(
        refused.returncode == 2 and "want one HOST:PORT" in refused.stderr,
        "dense figures are of one server",
        refused,
    )

    with subprocess.Popen(
        [server, "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            address = running.stdout.readline().strip()
            for _ in range(2):  # the second run must not count the updates of the first
                ended = run(dense, "--servers", address, "push 4 MB")
                figures = [json.loads(line) for line in ended.stdout.splitlines()]
                check(
                    ended.returncode == 0
                    and [f["name"] for f in figures]
                    == [
                        "dense push 4 MB, SGD applied, TCP",
                        "dense push 4 MB, TCP: CPU of this side",
                    ]
                    and all(f["value"] > 0 and f["reference_value"] > 0 for f in figures),
                    "dense values against a server elsewhere",
                    ended,
                )
            ended = run(rows, "--servers", address, "pull of dim 16, 2 M")
            figures = [json.loads(line) for line in ended.stdout.splitlines()]
            check(
                ended.returncode == 0
                and len(figures) == 2
                and all(f["value"] > 0 for f in figures),
                "rows against a server elsewhere",
                ended,
            )
        finally:
            running.kill()


if __name__ == "__main__":
    main()
