#!/usr/bin/env bash
# Makes the Debian package OUT/evergrad_VERSION_amd64.deb from the programs of a build and the files
# in deploy/debian. dpkg-shlibdeps finds the dependencies among the packages of this host. The
# script must therefore run on the Debian release on which the programs were built.
#
#   package.sh --bin FOLDER --out FOLDER --version V --commit C
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin='' out='' version='' commit=''
fail() { echo "package.sh: $*" >&2; exit 1; }
while (( $# )); do
  case $1 in
    --bin) bin=$2 ;;
    --out) out=$(cd "$2" && pwd) ;;
    --version) version=$2 ;;
    --commit) commit=$2 ;;
    *) echo "package.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -n $bin && -n $out && -n $version && -n $commit ]] ||
  { echo "package.sh: want --bin, --out, --version and --commit" >&2; exit 2; }
from=$root/deploy/debian
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
tree=$work/evergrad
doc=$tree/usr/share/doc/evergrad
mkdir -p "$tree"/{DEBIAN,usr/bin,usr/lib/evergrad,lib/systemd/system,etc/evergrad} \
  "$tree"/usr/share/man/man{1,8} "$doc/examples"

# A daemon looks for libevergrad_cuda.so in the folder of its own program, and psctl looks there for
# the daemons. Therefore all are in one folder, and /usr/bin has links to the programs. The operator
# has no unit and no settings file, because it serves the namespace of the pod in which it runs.
for program in evergrad-coordinator evergrad-ps-server evergrad-worker evergrad-operator psctl; do
  install -m 755 "$bin/$program" "$tree/usr/lib/evergrad/"
  ln -s "../lib/evergrad/$program" "$tree/usr/bin/$program"
  section=8
  [[ $program != psctl ]] || section=1
  /usr/bin/python3 "$from/man_page.py" "$bin/$program" "$section" "$SOURCE_DATE_EPOCH" |
    gzip -9n >"$tree/usr/share/man/man$section/$program.$section.gz"
done
[[ ! -f $bin/libevergrad_cuda.so ]] ||
  install -m 644 "$bin/libevergrad_cuda.so" "$tree/usr/lib/evergrad/"
for file in "$tree"/usr/lib/evergrad/*; do
  strip --strip-unneeded --remove-section=.comment "$file"
  patchelf --remove-rpath "$file"
done
install -m 644 "$from"/units/* "$tree/lib/systemd/system/"
install -m 644 "$from"/etc/* "$tree/etc/evergrad/"
install -m 644 "$root/configs/quickstart.yaml" "$doc/examples/"
gzip -9n <"$root/CHANGELOG.md" >"$doc/changelog.gz"
{
  echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
  printf '\nFiles: *\nCopyright: the authors of Evergrad\nLicense: Apache-2.0\n'
  printf ' The text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$doc/copyright"

# dpkg-shlibdeps works only inside a source package, so the script makes a minimal one.
mkdir "$work/debian"
printf 'Source: evergrad\n\nPackage: evergrad\nArchitecture: amd64\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O --warnings=0 evergrad/usr/lib/evergrad/*) ||
  fail "dpkg-shlibdeps found no package for a library"
{
  echo "Package: evergrad"
  echo "Version: $version"
  echo "Architecture: amd64"
  echo "Maintainer: the authors of Evergrad <maintainers@evergrad.dev>"
  echo "Installed-Size: $(du -k --apparent-size -s "$tree" | cut -f1)"
  echo "Depends: adduser, ca-certificates, ${depends#shlibs:Depends=}"
  echo "Section: science"
  echo "Priority: optional"
  echo "Description: parameter-server cluster that trains on preemptible machines"
  echo " Coordinator, parameter server and worker as systemd services, the operator for"
  echo " Kubernetes, and psctl. Every update counts exactly once, whichever process is"
  echo " killed."
  echo " ."
  echo " Built from commit $commit."
} >"$tree/DEBIAN/control"
(cd "$tree" && find etc -type f -printf '/%p\n' | LC_ALL=C sort >DEBIAN/conffiles)
(cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z |
  xargs -0 md5sum >DEBIAN/md5sums)
install -m 755 "$from"/{postinst,prerm,postrm} "$tree/DEBIAN/"
# Debian 12 can unpack zstd, and packing with zstd takes a tenth of the time of xz.
dpkg-deb --root-owner-group -Zzstd --build "$tree" "$out/evergrad_${version}_amd64.deb" >/dev/null
