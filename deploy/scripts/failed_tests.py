"""Prints the failed tests at the end of a long log, where a reader sees them. It prints the name
and the last lines of each failed test, and then repeats ctest's summary.

  failed_tests.py CTEST_LOG JUNIT_XML [LINES]
"""
import re
import sys
import xml.etree.ElementTree


def main():
    log, junit = sys.argv[1:3]
    lines = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    with open(log, errors="replace") as f:
        said = f.read().splitlines()
    try:
        cases = xml.etree.ElementTree.parse(junit).getroot().iter("testcase")
        failed = [
            (case.get("name"), case.findtext("system-out") or "", case.find("failure"))
            for case in cases
            if case.get("status") == "fail"
        ]
    except (OSError, xml.etree.ElementTree.ParseError) as why:
        # ctest ended before it wrote the list. The output of ctest is above.
        print("== failed tests: ctest wrote no list of failed tests: %s" % why)
        failed = []
    for name, output, failure in failed:
        tail = [line.rstrip() for line in output.rstrip().splitlines()]
        print(
            "\n== failed: %s%s"
            % (
                name,
                ", by ctest: %s" % failure.get("message")
                if failure is not None and failure.get("message")
                else "",
            )
        )
        if len(tail) > lines:
            print("   (the last %d of %d lines; the whole output is above)" % (lines, len(tail)))
        print("\n".join(tail[-lines:]) if tail else "   (it printed nothing)")
    summary = next(
        (i for i in reversed(range(len(said))) if re.search(r"\d+% tests passed, ", said[i])), None
    )
    print()
    print("\n".join(said[summary:] if summary is not None else said[-5:]))


if __name__ == "__main__":
    main()
