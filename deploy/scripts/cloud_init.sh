#!/usr/bin/env bash
# Puts Debian's cloud-init at build/tools/cloud-init, for the tests only: `cloud-init schema` checks
# the files of deploy/vm. An installed package would start services, so this script only unpacks it,
# with the Python packages that it needs. Does nothing when build/tools/cloud-init exists. When a
# package is not available, the script prints the reason in one line and ends with 1; the test that
# needs cloud-init is then skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools=$PWD/build/tools
[[ -x $tools/cloud-init/run ]] && exit 0

fail() { echo "cloud_init.sh: $*; the test of the cloud-init files will be skipped" >&2; exit 1; }

{ command -v apt-get && command -v dpkg-deb; } >/dev/null || fail "this host has no apt-get"
mkdir -p "$tools"
work=$(mktemp -d "$tools/.cloud-init-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
packages=(cloud-init)
for name in attr certifi chardet charset-normalizer configobj idna jinja2 json-pointer jsonpatch \
  jsonschema markupsafe netifaces oauthlib pyrsistent requests serial six urllib3 yaml; do
  packages+=("python3-$name")
done
download() { timeout 300 apt-get download -q "${packages[@]}" >log 2>&1 </dev/null; }
# If the package lists of this host are empty or old, they are updated first, which needs root.
download || { (( EUID == 0 )) && apt-get update >log 2>&1 </dev/null && download; } ||
  fail "apt-get could not download the package cloud-init ($(tail -n 1 log))"
mkdir cloud-init
for package in *.deb; do dpkg-deb -x "$package" cloud-init; done
[[ -f cloud-init/usr/bin/cloud-init ]] || fail "the package cloud-init has no usr/bin/cloud-init"
cat > cloud-init/run <<'RUN'
#!/bin/sh
# Runs cloud-init from this folder with the arguments given.
here=$(dirname "$(readlink -f "$0")")
PYTHONPATH=$here/usr/lib/python3/dist-packages exec /usr/bin/python3 "$here/usr/bin/cloud-init" "$@"
RUN
chmod +x cloud-init/run
mv cloud-init "$tools/cloud-init"
