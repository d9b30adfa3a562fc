#!/usr/bin/env bash
# Puts Prometheus' checker at build/tools/promtool, for the tests only. Debian's package
# `prometheus` contains it; an installed package would start a service, so this script only unpacks
# it. Does nothing when promtool exists. When the package is not available, the script prints the
# reason in one line and ends with 1; the test that needs promtool is then skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools=$PWD/build/tools
[[ -x $tools/promtool ]] && exit 0

fail() { echo "promtool.sh: $*; the test of the metrics' text will be skipped" >&2; exit 1; }

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "this host has no apt-get"
mkdir -p "$tools"
work=$(mktemp -d "$tools/.promtool-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
download() { timeout 300 apt-get download -q prometheus >log 2>&1 </dev/null; }
# If the package lists of this host are empty or old, they are updated first, which needs root.
download || { (( EUID == 0 )) && apt-get update >log 2>&1 </dev/null && download; } ||
  fail "apt-get could not download the package prometheus ($(tail -n 1 log))"
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool ||
  fail "the package prometheus has no usr/bin/promtool"
mv usr/bin/promtool "$tools/promtool"
