#!/usr/bin/env bash
# Installs the Debian 12 packages that the project needs: `setup.sh` to build and train, `setup.sh
# test` to test as well, `setup.sh release` to make the artefacts of a release, `setup.sh lint` for
# the clang tools, `setup.sh fuzz` for the fuzz targets.
# Does nothing when all of them are installed. Without root it prints the apt-get command line and
# ends with 2.
set -euo pipefail

packages=(
  ca-certificates g++ cmake ninja-build make ccache mold pkg-config git
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libeigen3-dev libdnnl-dev ocl-icd-opencl-dev
  libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcpp-httplib-dev
  libsqlite3-dev zlib1g-dev libzip-dev libssl-dev libcurl4-openssl-dev libpugixml-dev
  catch2 libbenchmark-dev
  python3 dataset-fashion-mnist
)
release=(binutils dpkg-dev patchelf umoci)
case ${1:-} in
  '') ;;
  test)
    packages+=(
      "${release[@]}" adduser groff-base python3-numpy python3-venv python3-yaml pyflakes3 openssl
      iproute2 iptables procps runc shellcheck curl systemd) ;;
  release) packages+=("${release[@]}") ;;
  lint)
    packages+=(black clang-14 clang-format-14 clang-tidy-14 codespell pyflakes3 universal-ctags) ;;
  fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
  *) echo "setup.sh: unknown set: $1 (want: nothing, test, release, lint or fuzz)" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
    missing+=("$package")
done
(( ${#missing[@]} == 0 )) && exit 0

if (( EUID != 0 )); then
  printf 'These packages are missing. Install them, then run this command again:\n\n' >&2
  printf '  sudo apt-get install -y --no-install-recommends %s\n\n' "${missing[*]}" >&2
  exit 2
fi
echo "installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
for try in 1 2 3; do
  if { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    exit 0
  fi
  echo "apt-get failed (try $try of 3)"
done
tail -n 30 "$log" >&2
echo "setup.sh: apt-get could not install: ${missing[*]}" >&2
exit 2
