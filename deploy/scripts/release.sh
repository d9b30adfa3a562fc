#!/usr/bin/env bash
# Makes the artefacts of a release: OCI images, a Debian package, a list of the contents (SPDX), and
# checksums. docs/release.md describes them.
#
#   release.sh [--bin build/release/bin] [--out build/release-artefacts] [--cuda auto|yes|no]
#              [--mixed]
#
# Replaces a former release in OUT. The folder OUT/files has one folder for each image, with the
# files of the image. The image evergrad-cuda needs libevergrad_cuda.so from the build, and CUDA's
# libraries in $EVERGRAD_CUDA_LIBRARIES, /usr/local/cuda/lib64 or /usr/local/cuda-13*/lib. If one is
# missing, --cuda yes fails, and --cuda auto prints the reason and leaves this image out. --mixed,
# for tests, allows programs of several builds, and takes the version from psctl. The script needs
# umoci, patchelf and dpkg-dev, and does not need root.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/release/bin out=$root/build/release-artefacts cuda=auto mixed=
fail() { echo "release.sh: $*" >&2; exit 1; }
usage() { echo "release.sh: $*" >&2; exit 2; }
while (( $# )); do
  case $1 in
    --bin) bin=${2:-}; shift ;;
    --out) out=${2:-}; shift ;;
    --cuda) cuda=${2:-}; shift ;;
    --mixed) mixed=1 ;;
    *) usage "unknown option $1 (want: --bin, --out, --cuda or --mixed)" ;;
  esac
  shift
done
[[ $cuda == auto || $cuda == yes || $cuda == no ]] || usage "--cuda $cuda: want auto, yes or no"
for tool in umoci patchelf strip dpkg-deb dpkg-shlibdeps; do
  command -v "$tool" >/dev/null || fail "$tool is missing: run ./evergrad setup release"
done
image_bytes_max=120000000

programs=(evergrad-coordinator evergrad-ps-server evergrad-worker evergrad-operator psctl)
id=
for program in "${programs[@]}"; do
  [[ -x $bin/$program ]] || fail "no $program in $bin: run ./evergrad build"
  other=$id id=$("$bin/$program" --version | awk '{print $2}')
  [[ -z $other || $id == "$other" || -n $mixed ]] ||
    fail "the programs in $bin are of two builds, $other and $id: run ./evergrad build"
done
version=${id%%+*} commit=${id#*+}
# Every time stamp in the artefacts is the time of the commit, so that the same sources and compiler
# give the same files.
epoch=$(git -C "$root" show -s --format=%ct "${commit%-dirty}" 2>/dev/null) ||
  epoch=$(git -C "$root" show -s --format=%ct HEAD 2>/dev/null) || epoch=0
export SOURCE_DATE_EPOCH=$epoch

if [[ -d $out && ! -f $out/.evergrad-release && -n $(ls -A "$out") ]]; then
  fail "$out was not made by release.sh, and is not replaced"
fi
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
: >"$out/.evergrad-release"
trees=$out/files
mkdir "$trees"
work=$(mktemp -d "$out/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT

# tree NAME: makes the files of an image. The programs find their libraries in ../lib. The image has
# no shell and no other programs.
tree() {
  local tree=$trees/$1 name path
  mkdir -p "$tree"/{lib64,usr/{bin,lib},etc,tmp,proc,sys,dev,data,checkpoints,runs,var/lib/evergrad}
  cp "$work"/evergrad/bin/* "$tree/usr/bin/"
  cp "$work"/evergrad/lib/*.so* "$work"/evergrad/lib/gcc/*.so* "$tree/usr/lib/"
  rm -f "$tree"/usr/bin/libevergrad_cuda.so
  for path in "$bin"/psctl "$tree"/usr/lib/*; do ldd "$path"; done |
    awk '$3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
      [[ -e $tree/usr/lib/$name ]] || install -m 755 "$(readlink -f "$path")" "$tree/usr/lib/$name"
    done
  install -m 755 "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$tree/lib64/ld-linux-x86-64.so.2"
  cp -r "$root"/deploy/image/etc/. "$tree/etc/"
  mkdir -p "$tree/etc/evergrad/tls"
  echo 'evergrad:x:65532:65532::/var/lib/evergrad:/usr/sbin/nologin' >"$tree/etc/passwd"
  echo 'evergrad:x:65532:' >"$tree/etc/group"
  echo 'hosts: files dns' >"$tree/etc/nsswitch.conf"
  # The authorities with which the certificates of object stores are checked.
  install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
  # NVIDIA's container toolkit reads this file to choose the folder in which it puts the driver's
  # libraries.
  echo 12 >"$tree/etc/debian_version"
  install -D -m 644 "$root/LICENSE" "$tree/usr/share/doc/evergrad/LICENSE"
  chmod -R u=rwX,go=rX "$tree"
  chmod 1777 "$tree/tmp"
}

pack() {  # NAME: makes OUT/NAME_VERSION_amd64.oci.tar
  local layout=$work/$1.layout
  /usr/bin/python3 "$root/deploy/image/image.py" --root "$trees/$1" --layout "$layout" \
    --name "$1" --version "$version" --commit "$commit" --epoch "$epoch"
  tar -C "$layout" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" \
    -cf "$out/$1_${version}_amd64.oci.tar" .
}

# cuda_libraries: prints the folder that has every library of CUDA that the worker loads, or fails
# with the reason.
cuda_libraries() {
  local folder name missing=
  [[ -f $work/evergrad/bin/libevergrad_cuda.so ]] ||
    { echo "the build has no libevergrad_cuda.so" >&2; return 1; }
  for folder in ${EVERGRAD_CUDA_LIBRARIES:-/usr/local/cuda/lib64 /usr/local/cuda-13*/lib}; do
    missing=
    for name in libcudart.so.13 libcublasLt.so.13 libcudnn.so.9; do
      [[ -e $folder/$name ]] || missing+=" $name"
    done
    [[ -n $missing ]] || { echo "$folder"; return; }
  done
  echo "not found in $folder:$missing" >&2
  return 1
}

"$root/deploy/scripts/bundle.sh" --bin "$bin" --out "$work" --programs-only
tree evergrad
bytes=$(du -sb --apparent-size "$trees/evergrad" | cut -f1)
(( bytes <= image_bytes_max )) ||
  fail "the image evergrad has $bytes bytes unpacked, want at most $image_bytes_max"
pack evergrad
if [[ $cuda != no ]]; then
  if folder=$(cuda_libraries 2>"$work/reason"); then
    tree evergrad-cuda
    cp "$work/evergrad/bin/libevergrad_cuda.so" "$trees/evergrad-cuda/usr/bin/"
    for path in "$folder"/lib{cudart,cublasLt}.so.13 "$folder"/libcudnn*.so.9; do
      install -m 755 "$(readlink -f "$path")" "$trees/evergrad-cuda/usr/lib/${path##*/}"
    done
    pack evergrad-cuda
  else
    echo "evergrad-cuda is not made: $(cat "$work/reason")" >&2
    [[ $cuda == auto ]] || exit 1
  fi
fi

bash "$root/deploy/scripts/package.sh" --bin "$bin" --out "$out" --version "$version" \
  --commit "$commit"
for name in evergrad evergrad-cuda; do
  [[ ! -d $trees/$name ]] || /usr/bin/python3 "$root/deploy/scripts/sbom.py" --root "$trees/$name" \
    --name "$name" --version "$version" --commit "$commit" --epoch "$epoch" \
    --out "$out/${name}_$version.spdx.json"
done
(cd "$out" && sha256sum -- *.tar *.deb *.json >SHA256SUMS)
for path in "$out"/*.*; do echo "$(du -m --apparent-size "$path" | cut -f1) MB  ${path##*/}"; done
echo "unpacked, the image evergrad has $(( bytes / 1000000 )) MB"
