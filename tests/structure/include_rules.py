#!/usr/bin/env python3
"""Reads the include graph and checks the rules of the source tree (ARCHITECTURE.md, "Rooms"):

  who includes whom  protos <- common <- {ps_server, worker, coordinator, kubernetes}, where
                     `a <- b` means that b may include a. These four never include each other. psctl
                     includes only common
  pure rooms         ledgers, closures, membership, scheduler, plan, sharding, optimizer and
                     preemption/clouds have no threads, no files, no clock and no protobuf
  heavy headers      gRPC only inside common/transport/grpc; spdlog only in common/log; httplib only
                     in common/metrics; yaml-cpp only in common/schema
  counting jobs      of the programs that users run, only the worker's main program includes
                     worker/counting, which has the jobs of tests
  seams              time, threads, randomness and the environment are used only through the
                     interfaces for them
  rooms              every room has a README.md; no room is called util, helpers or misc

Prints each breach as file:line: rule, and ends with exit code 1 if there is one. `--self-test`
shows that each rule can fail.
"""
import os
import re
import sys

import repository

ROLES = ("ps_server", "worker", "coordinator", "kubernetes")
PURE = (
    "ps_server/ledger",
    "ps_server/optimizer",
    "coordinator/closures",
    "coordinator/membership",
    "coordinator/scheduler",
    "common/plan",
    "common/preemption/clouds",
    "common/sharding",
)
# Rooms that are pure except that they know the messages of the API.
PURE_WITH_MESSAGES = ("kubernetes/reconcile",)
PURE_WITH_MESSAGES_FORBIDDEN = re.compile(
    r"<(thread|mutex|fstream|filesystem|iostream|sys/|unistd|fcntl|grpc)"
    r"|common/(runtime|transport|client|fs|log|http)/"
)
PURE_FORBIDDEN = re.compile(
    r"<(thread|mutex|fstream|filesystem|iostream|sys/|unistd|fcntl|grpc|google/protobuf)"
    r"|\.pb\.h|common/(runtime|transport|client|fs|log)/"
)
# Pure rooms may use the type MonoTime, but may not ask for the time.
PURE_CODE = re.compile(r"\bClock\b|\bNow\(\)")
HEAVY = {
    re.compile(r"<grpc|grpcpp/|grpc\.pb\.h"): (
        "common/transport/grpc/",
        "tests/bench/",
        "tests/integration/",
        "tests/unit/common/transport/",
    ),
    re.compile(r"spdlog/"): ("common/log/log.cc",),
    re.compile(r"httplib\.h"): ("common/metrics/",),
    re.compile(r"yaml-cpp/"): ("common/schema/", "common/daemon/"),
    re.compile(r"dnnl\.h|oneapi/dnnl"): ("worker/backend/", "tests/bench/"),
    re.compile(r"Eigen/"): ("worker/backend/", "tests/"),
    re.compile(r"<(cuda|cudnn|cublas|nvtx3|cub)\w*[./]"): ("worker/backend/cuda/device/",),
    re.compile(r"sqlite3\.h"): ("coordinator/store/",),
    re.compile(r"worker/counting/"): ("worker/counting/", "worker/worker_main.cc", "tests/"),
}
SEAMS = {
    re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor)\s*\("): (
        (),
        "no sleeping: wait on a condition or a timer",
    ),
    re.compile(r"\b(steady_clock|system_clock|high_resolution_clock)::now"): (
        (
            "common/time/",
            "common/base/mutex.h",
            "common/runtime/",
            "common/transport/grpc/",
            "tests/",
        ),
        "time comes through common/time",
    ),
    re.compile(r"\bstd::(thread|jthread|async)\b(?!::)"): (
        ("common/runtime/", "tests/"),
        "threads start in common/runtime",
    ),
    re.compile(r"\babsl::(Mutex|Notification|CondVar)\b"): (
        ("common/base/mutex.h",),
        "locks are common/base/mutex.h's",
    ),
    re.compile(r"\bstd::(random_device|mt19937\w*|rand)\b|\bs?rand\s*\(\s*\)"): (
        ("common/random/", "tests/"),
        "randomness comes through common/random",
    ),
    re.compile(r'\bWARN\("skipped'): (
        (),
        "a test that cannot run here calls test::Skip (tests/support/skip.h): ctest counts it",
    ),
    re.compile(r"\bgetenv\s*\("): (
        ("main.cc", "tests/"),
        "the environment is read in main.cc only",
    ),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])')


def layer(path):
    top = path.split("/")[0]
    if path.startswith("coordinator/psctl/"):
        return "psctl"
    return top


def allowed(source, target):
    if source in ("tests",):
        return True
    if source == "examples":  # a user's program may use the worker's SDK and the client
        return target in ("worker", "common")
    if target == source or target == "common":
        return True
    if source == "common":
        return False
    return False


def check_file(path, text):
    breaches = []
    source = layer(path)
    pure = next((room for room in PURE if path.startswith(room + "/")), None)
    for number, line in enumerate(text.splitlines(), 1):
        m = INCLUDE.match(line)
        if m:
            name = m.group(1)
            inner = name[1:-1]
            if name[0] == '"' and not inner.startswith("evergrad/v1/"):
                target = layer(inner)
                if target in ROLES + ("common", "psctl", "tests") and not allowed(source, target):
                    breaches.append((number, "%s may not include %s" % (source, inner)))
                elif target in ("google", "grpcpp", "absl", "spdlog", "catch2") or "/" not in inner:
                    if (
                        "/" not in inner
                        and source != "tests"
                        and os.path.exists(os.path.join(os.path.dirname(path), inner))
                    ):
                        breaches.append((number, "include from the repository root: %s" % inner))
            if path.startswith(
                tuple(room + "/" for room in PURE_WITH_MESSAGES)
            ) and PURE_WITH_MESSAGES_FORBIDDEN.search(name):
                breaches.append((number, "%s is a pure room: no %s" % (path, name)))
            if pure and PURE_FORBIDDEN.search(name):
                breaches.append((number, "%s is a pure room: no %s" % (pure, name)))
            for pattern, homes in HEAVY.items():
                if (
                    pattern.search(name)
                    and not path.startswith(homes)
                    and not path.startswith(tuple("tests/unit/" + h for h in homes))
                ):
                    breaches.append((number, "%s belongs in %s only" % (name, ", ".join(homes))))
            continue
        code = line.split("//")[0]
        if (
            pure or path.startswith(tuple(room + "/" for room in PURE_WITH_MESSAGES))
        ) and PURE_CODE.search(code):
            breaches.append(
                (number, "%s is in a pure room and reads no clock: %s" % (path, code.strip()))
            )
        for pattern, (homes, why) in SEAMS.items():
            if (
                pattern.search(code)
                and not path.startswith(tuple(h for h in homes if h != "main.cc"))
                and not ("main.cc" in homes and path.endswith("main.cc"))
            ):
                breaches.append((number, why + ": " + code.strip()))
    return breaches


def self_test():
    cases = [
        ("common/base/x.h", '#include "worker/graph/graph.h"\n'),
        ("worker/graph/x.cc", '#include "ps_server/shard/shard.h"\n'),
        ("coordinator/psctl/x.cc", '#include "coordinator/jobs/job.h"\n'),
        ("coordinator/closures/x.cc", "#include <thread>\n"),
        ("common/preemption/clouds/x.cc", "#include <sys/socket.h>\n"),
        ("coordinator/membership/x.cc", "auto t = clock.Now();\n"),
        ("coordinator/closures/x.cc", '#include "evergrad/v1/session.pb.h"\n'),
        ("worker/runner/x.cc", "#include <grpcpp/grpcpp.h>\n"),
        ("worker/runner/x.cc", "void f() { std::this_thread::sleep_for(x); }\n"),
        ("worker/runner/x.cc", "auto t = std::chrono::steady_clock::now();\n"),
        ("worker/runner/x.cc", "std::thread t(f);\n"),
        ("worker/runner/x.cc", "absl::Mutex mu;\n"),
        ("worker/runner/x.cc", 'auto v = getenv("X");\n'),
        ("worker/runner/x.cc", "std::mt19937 r;\n"),
        ("worker/backend/cuda/x.cc", "#include <cuda_runtime_api.h>\n"),
        ("worker/graph/x.cu", "#include <cub/cub.cuh>\n"),
        ("examples/x/x.cc", '#include "coordinator/jobs/job.h"\n'),
        ("worker/runner/x.cc", '#include "worker/counting/counting.h"\n'),
        ("kubernetes/api/x.cc", '#include "coordinator/jobs/job.h"\n'),
        ("coordinator/jobs/x.cc", '#include "kubernetes/api/api.h"\n'),
        ("kubernetes/reconcile/x.cc", '#include "common/http/client.h"\n'),
        ("kubernetes/reconcile/x.cc", "auto t = clock.Now();\n"),
    ]
    for path, text in cases:
        assert check_file(path, text), "not caught: %s %r" % (path, text)
    assert not check_file(
        "worker/runner/x.cc", '#include "common/base/ids.h"\n#include "worker/graph/graph.h"\n'
    )
    print("%d rules can fail" % len(cases))


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    os.chdir(root)
    count = 0
    rooms = set()
    for path in repository.files(root, repository.CPP):
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for number, what in check_file(path, text):
            print("%s:%d: %s" % (path, number, what))
            count += 1
        parts = path.split("/")
        if parts[0] in ROLES + ("common",) and len(parts) > 2:
            rooms.add("/".join(parts[:2]))
    for room in sorted(rooms):
        if room.split("/")[1] in ("util", "utils", "helpers", "misc"):
            print("%s: no room is called that" % room)
            count += 1
        if not os.path.exists(os.path.join(room, "README.md")):
            print("%s: a room has a README.md" % room)
            count += 1
    print("%d breaches in %d rooms" % (count, len(rooms)))
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
