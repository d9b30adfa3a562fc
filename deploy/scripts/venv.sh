#!/usr/bin/env bash
# Puts the Python packages of requirements.txt into the virtual environment build/venv, for tests
# only. Does nothing when build/venv has exactly these packages. When they cannot be installed, the
# script prints the reason in one line and ends with 1; tests that need them are then skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
wanted=$PWD/deploy/scripts/requirements.txt
venv=$PWD/build/venv
stamp=$venv/requirements.txt
mkdir -p build
# Two runs at a time would leave a broken environment that looks complete.
exec 9>build/venv.lock
flock 9
cmp -s "$wanted" "$stamp" && exit 0

fail() { echo "venv.sh: $*; tests that need Python packages will be skipped" >&2; exit 1; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
rm -rf "$venv"
/usr/bin/python3 -m venv "$venv" >"$log" 2>&1 ||
  fail "cannot make a virtual environment ($(tail -n 1 "$log"))"
timeout 900 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --timeout 60 --retries 2 \
  --require-hashes --only-binary :all: --no-compile -r "$wanted" >"$log" 2>&1 </dev/null ||
  fail "cannot install $(basename "$wanted") ($(tail -n 1 "$log"))"
cp "$wanted" "$stamp"
