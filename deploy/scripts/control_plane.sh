#!/usr/bin/env bash
# Puts etcd and a control plane of Kubernetes 1.20 (kube-apiserver, kube-controller-manager and
# kube-scheduler) into build/tools/kubernetes, for `./evergrad kubernetes-proof` only. Debian 12 has
# Kubernetes as a source package without the control plane's programs, so this script compiles them,
# which takes about 7 minutes on two cores. Debian's packages of Go and etcd are unpacked and not
# installed, because the package of etcd would start a service. It uses JOBS cores (1 by default)
# with `nice`, about 3 GiB of disk while it works, and keeps 0.3 GiB. Does nothing when the programs
# exist and were made by the same recipe. When something fails, the script prints the reason and
# ends with 1.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
jobs=${JOBS:-1}
tools=$PWD/build/tools
out=$tools/kubernetes
programs=(kube-apiserver kube-controller-manager kube-scheduler)
all=(etcd "${programs[@]}")
# Increase this number when a change of this script changes the programs. Programs of another recipe
# are made again. Recipe 2 replaced the library reflect2.
recipe=2

is_there() {
  local p
  for p in "${all[@]}"; do [[ -x $out/$p ]] || return 1; done
  [[ -f $out/recipe && $(<"$out/recipe") == "$recipe" ]]
}
is_there && exit 0

fail() {
  echo "control_plane.sh: $*" >&2
  [[ ! -s $log ]] || tail -n 20 "$log" >&2
  exit 1
}
say() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }

log=/dev/null
for tool in apt-get dpkg-deb dpkg-source; do
  command -v "$tool" >/dev/null || fail "this host has no $tool (setup.sh test)"
done
mkdir -p "$tools"
work=$(mktemp -d "$tools/.kubernetes-XXXXXX")
log=$work/log
# Go makes its caches read-only, files and folders alike, so rm needs the permission to write.
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
mkdir -p apt/lists/partial apt/cache/archives/partial new

# The script makes a package list of its own, because most hosts have no list of source packages.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' \
  'Origin: Debian' 'Component: main' 2>/dev/null | grep -E '^http.* bookworm$' | head -n 1 ||
  true)
mirror=${mirror:-http://deb.debian.org/debian/ bookworm}
for kind in deb deb-src; do
  echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror main"
done >apt/sources.list
apt() {
  timeout 900 apt-get -q -o Dir::Etc::SourceList="$work/apt/sources.list" \
    -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$work/apt/lists" \
    -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root "$@" >"$log" 2>&1 </dev/null
}
say "downloading the source package kubernetes, Go and etcd (140 MB)"
apt update || fail "apt-get could not get the package lists"
apt source --download-only kubernetes || fail "apt-get could not get the source package kubernetes"
apt download golang-1.19-go golang-1.19-src etcd-server golang-github-modern-go-reflect2-dev ||
  fail "apt-get could not download Go, etcd and reflect2"
for package in *.deb; do dpkg-deb -x "$package" root || fail "cannot unpack $package"; done
mv root/usr/bin/etcd new/etcd || fail "the package etcd-server holds no usr/bin/etcd"
version=$(sed -n 's/^Version: .*really\([0-9.]*\)-.*/\1/p' kubernetes_*.dsc)
[[ -n $version ]] || fail "the source package names no version"
dpkg-source -x kubernetes_*.dsc source >"$log" 2>&1 || fail "cannot unpack the source package"

export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/cache GOMAXPROCS=$jobs
export GO111MODULE=off GOFLAGS=-buildvcs=false GOTOOLCHAIN=local CGO_ENABLED=0
export PATH=$GOROOT/bin:$PATH
mkdir -p "$GOPATH/src/k8s.io"
mv source "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
main=k8s.io/kubernetes

# The source package has reflect2 1.0.1, which calls functions of Go's runtime with the parameters
# that they had before Go 1.18. A program that encodes a map with it crashes, and the API server
# does so for every custom resource. Debian's own package has version 1.0.2, which knows Go 1.18 and
# later (go_above_118.go), has the same interface, and imports only the standard library.
fixed=$work/root/usr/share/gocode/src/github.com/modern-go/reflect2
[[ -f $fixed/go_above_118.go ]] || fail "Debian's package of reflect2 is older than 1.0.2"
rm -r vendor/github.com/modern-go/reflect2
cp -r "$fixed" vendor/github.com/modern-go/reflect2

# The source package lacks a generated file. It is generated from the folders whose sources request
# it.
say "generating the OpenAPI definitions of Kubernetes $version"
nice go build -p "$jobs" -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen \
  >"$log" 2>&1 || fail "openapi-gen does not compile"
mapfile -t folders < <(
  { grep -rl '+k8s:openapi-gen=' --include='*.go' pkg cmd plugin staging/src/k8s.io || true; } |
    xargs -n 1 dirname | sed 's#^staging/src/#vendor/#' |
    grep -vE 'code-generator|sample-apiserver|/testdata|_examples' | LC_ALL=C sort -u)
nice "$work/openapi-gen" --logtostderr \
  --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
  -O zz_generated.openapi --output-package $main/pkg/generated/openapi \
  --report-filename "$work/report" --output-base "$GOPATH/src" \
  $(printf -- "--input-dirs $main/%s " "${folders[@]}") >"$log" 2>&1 ||
  fail "the OpenAPI definitions could not be generated"

# `providerless` leaves out the clouds' own controllers, which are half of the code.
for program in "${programs[@]}"; do
  say "compiling $program"
  nice go build -p "$jobs" -o "$work/new/" -ldflags "-s -w" -tags providerless \
    "./cmd/$program" >"$log" 2>&1 || fail "$program does not compile"
done
echo "$version" >"$work/new/version"
echo "$recipe" >"$work/new/recipe"
rm -rf "$out"
mv "$work/new" "$out"
is_there || fail "a program is missing in build/tools/kubernetes"
say "etcd and Kubernetes $version are in build/tools/kubernetes"
