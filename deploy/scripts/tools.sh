#!/usr/bin/env bash
# Puts programs into build/tools, for the tests only. Each program comes from a Debian package that
# is unpacked and not installed. It is not installed because the installed package would start a
# service, or because Debian 12 has no such package.
#
#   tools.sh [prometheus] [cloud-init] [kustomize]        without an argument, all of them
#
# A tool that exists is kept. For each tool whose packages are not available the script prints the
# reason in one line, and then ends with 1; the tests that need the tool are skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools=$PWD/build/tools

# --- the tools. `needed_by` names the tests that are skipped without the tool. `programs` are the
# files of the package that become build/tools/NAME. For a pinned tool, the script knows the
# version, and the sha256 of the package and of the program. The other tools come in the version of
# this host's Debian.
describe() {
  packages=() programs=() pinned='' sha256='' program_sha256=''
  case $1 in
    prometheus)  # `promtool` checks metrics and rules; `prometheus` scrapes a cluster of a test.
      needed_by='tests of metrics, the board and the alert rules'
      packages=(prometheus) programs=(usr/bin/promtool usr/bin/prometheus) ;;
    cloud-init)  # `cloud-init schema` checks the files of deploy/vm. The tool is kept as a folder.
      needed_by='the test of the cloud-init files'
      packages=(cloud-init)
      local name
      for name in attr certifi chardet charset-normalizer configobj idna jinja2 json-pointer \
        jsonpatch jsonschema markupsafe netifaces oauthlib pyrsistent requests serial six urllib3 \
        yaml; do
        packages+=("python3-$name")
      done ;;
    kustomize)  # From Debian 13. The program needs nothing but glibc.
      needed_by='tests of deploy/kubernetes'
      programs=(usr/bin/kustomize)
      pinned=pool/main/k/kustomize/kustomize_5.6.0+ds-1+b2_amd64.deb
      sha256=552bbe5563b522685b10f75a9a226bfbee9778fc313b205d595fdbb7e9c70e33
      program_sha256=8c9b67e214e9814f1ef2ee87185af8a0842ad62c04d762ac8a5955972e66e26b ;;
    *) echo "tools.sh: no such tool: $1 (want: prometheus, cloud-init or kustomize)" >&2; exit 2 ;;
  esac
}

# Returns whether the programs of the tool, or its folder, are in the folder $2. $3 is the folder of
# the programs inside an unpacked package, or empty.
is_there() {
  local program
  [[ $1 == cloud-init ]] && { [[ -x $2/cloud-init/run ]]; return; }
  for program in "${programs[@]}"; do
    program=$2/${3-}${program##*/}
    [[ -x $program ]] || return 1
    [[ -z $program_sha256 || $(sha256sum <"$program") == "$program_sha256  -" ]] || return 1
  done
}

# --- the download, into the current folder
#
# The mirrors from which this host gets Debian's packages.
mirrors() {
  # shellcheck disable=SC2016  # apt-get replaces REPO_URI
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    grep '^http' | sort -u || true
}
download() {
  local mirror
  if [[ -z $pinned ]]; then
    timeout 300 apt-get download -q "${packages[@]}" >log 2>&1 </dev/null
    return
  fi
  for mirror in $(mirrors); do
    timeout 300 /usr/lib/apt/apt-helper download-file "${mirror%/}/$pinned" pinned.deb \
      "SHA256:$sha256" >log 2>&1 </dev/null && return 0
  done
  return 1
}

# Puts the tool in place. It runs in a subshell, which ends with 1 after `fail`.
get() {
  fail() { echo "tools.sh: $1: $2; $needed_by will be skipped" >&2; exit 1; }
  { command -v apt-get && command -v dpkg-deb; } >/dev/null || fail "$1" "this host has no apt-get"
  [[ -z $pinned || $(dpkg --print-architecture) == amd64 ]] ||
    fail "$1" "the pinned package is for amd64"
  mkdir -p "$tools"
  work=$(mktemp -d "$tools/.$1-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  : >log
  # If the package lists of the host are empty or old, new lists are fetched first, which needs
  # root.
  download || { (( EUID == 0 )) && apt-get update >log 2>&1 </dev/null && download; } ||
    fail "$1" "apt could not download ${pinned:-${packages[0]}} ($(tail -n 1 log))"
  mkdir content
  for package in *.deb; do
    dpkg-deb --fsys-tarfile "$package" 2>log | tar -x -C content "${programs[@]/#/./}" 2>log ||
      fail "$1" "the package $package does not hold ${programs[*]:-its files}"
  done
  if [[ $1 == cloud-init ]]; then
    [[ -f content/usr/bin/cloud-init ]] || fail "$1" "the package holds no usr/bin/cloud-init"
    cat > content/run <<'RUN'
#!/bin/sh
# Runs cloud-init from this folder with the arguments given.
here=$(dirname "$(readlink -f "$0")")
PYTHONPATH=$here/usr/lib/python3/dist-packages exec /usr/bin/python3 "$here/usr/bin/cloud-init" "$@"
RUN
    chmod +x content/run
    mv content "$tools/cloud-init"
  else
    is_there "$1" content usr/bin/ || fail "$1" "the program in the package is not the pinned one"
    mv "${programs[@]/#/content/}" "$tools/"
  fi
}

missing=0
(( $# > 0 )) || set -- prometheus cloud-init kustomize
for tool in "$@"; do
  describe "$tool"
  is_there "$tool" "$tools" && continue
  # `set -e` has no effect in a command that is followed by ||, so the status is read afterwards.
  set +e
  (set -e; get "$tool")
  status=$?
  set -e
  (( status == 0 )) || missing=1
done
exit "$missing"
