#!/usr/bin/env bash
# Puts kustomize at build/tools/kustomize, for the tests of deploy/kubernetes only. Debian 12 has no
# kustomize, so a pinned package of Debian 13 is unpacked; its program needs only glibc. Does
# nothing when the pinned version exists. When the package is not available, the script prints the
# reason in one line and ends with 1; the tests that need kustomize are then skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools=$PWD/build/tools
package=kustomize_5.6.0+ds-1+b2_amd64.deb
sha256=552bbe5563b522685b10f75a9a226bfbee9778fc313b205d595fdbb7e9c70e33
program_sha256=8c9b67e214e9814f1ef2ee87185af8a0842ad62c04d762ac8a5955972e66e26b

is_there() { [[ -x $1 && $(sha256sum <"$1") == "$program_sha256  -" ]]; }
is_there "$tools/kustomize" && exit 0

fail() { echo "kustomize.sh: $*; tests of deploy/kubernetes will be skipped" >&2; exit 1; }

helper=/usr/lib/apt/apt-helper
[[ -x $helper ]] && command -v dpkg-deb >/dev/null || fail "this host has no $helper"
[[ $(dpkg --print-architecture) == amd64 ]] || fail "this host is not amd64, as the pinned package"
mkdir -p "$tools"
work=$(mktemp -d "$tools/.kustomize-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# The mirrors from which this host gets Debian's packages.
mirrors() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    grep '^http' | sort -u || true
}
download() {
  local mirror
  for mirror in $(mirrors); do
    timeout 300 "$helper" download-file "${mirror%/}/pool/main/k/kustomize/$package" package.deb \
      "SHA256:$sha256" >log 2>&1 </dev/null && return 0
  done
  return 1
}
: >log
# If the package lists of this host are empty, they are updated first, which needs root.
download || { (( EUID == 0 )) && apt-get update >log 2>&1 </dev/null && download; } ||
  fail "could not download the package $package ($(tail -n 1 log))"
dpkg-deb --fsys-tarfile package.deb | tar -x ./usr/bin/kustomize ||
  fail "the package has no usr/bin/kustomize"
is_there usr/bin/kustomize || fail "the program in the package has a wrong SHA-256"
mv usr/bin/kustomize "$tools/kustomize"
