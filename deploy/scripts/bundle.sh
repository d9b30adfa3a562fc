#!/usr/bin/env bash
# Packs a bundle with which a bare Linux host can train and be checked, with or without a GPU: the
# programs, every library that they load except those of the C library, jobs on generated data, and
# gpu_check.sh.
#
#   bundle.sh [--bin build/release/bin] [--out build/bundle] [--programs-only]
#   bundle.sh --list      prints the names of the bundle's programs, which must be built first
#
# Creates the folder OUT/evergrad and the file OUT/evergrad-linux-x86_64.tar.gz. Fails when a
# program needs a C library newer than 2.35, or when the packed file is larger than 40 MB. With
# --programs-only the folder has only the daemons, psctl and their libraries, and no file is packed
# (release.sh makes the images from this folder). Only then is evergrad-operator one of the
# daemons, because it runs in a pod of Kubernetes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/release/bin out=$root/build/bundle programs_only= list=
while (( $# )); do
  case $1 in
    --bin) bin=$2; shift ;;
    --out) out=$2; shift ;;
    --programs-only) programs_only=1 ;;
    --list) list=1 ;;
    *) echo "bundle.sh: unknown option $1 (want: --bin FOLDER, --out FOLDER, --programs-only or" \
         "--list)" >&2
       exit 2 ;;
  esac
  shift
done
programs=(evergrad-coordinator evergrad-ps-server evergrad-worker psctl)
# The parity test is in the folder of libevergrad_cuda.so, which it loads.
if [[ -n $programs_only ]]; then
  programs+=(evergrad-operator)
else
  programs+=(worker_backend_gpu_test gpu_bench)
fi
if [[ -n $list ]]; then printf '%s\n' "${programs[@]}"; exit 0; fi
packed_bytes_max=40000000 glibc_max=2.35
fail() { echo "bundle.sh: $*" >&2; exit 1; }
for tool in patchelf objdump strip gzip ldd; do
  command -v "$tool" >/dev/null || fail "$tool is missing: run ./evergrad setup"
done

folder=$out/evergrad
rm -rf "$folder"
mkdir -p "$folder"/{bin,lib/gcc}
for program in "${programs[@]}"; do
  [[ -x $bin/$program ]] || fail "no $program in $bin: run ./evergrad build"
  install -m 755 "$bin/$program" "$folder/bin/"
done
library=
if [[ -f $bin/libevergrad_cuda.so ]]; then
  library=libevergrad_cuda.so
  install -m 755 "$bin/$library" "$folder/bin/"
fi

# The host provides the C library, and most hosts provide libstdc++ and libgcc_s. The copies of
# these two in the bundle need a C library at least as new as this machine's. The copies are
# therefore in a separate folder, and `run` uses them only if the programs do not start without
# them.
for file in "$folder"/bin/*; do ldd "$file"; done |
  awk '$3 ~ /^\// {print $1, $3} $2 == "=>" && $3 == "not" {print $1, "missing"}' | sort -u |
  while read -r name path; do
    case $name in
      ld-linux*|libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*) ;;
      librt.so.*|libresolv.so.*|libutil.so.*) ;;
      *) [[ $path != missing ]] || fail "$name is not on this machine"
         case $name in libstdc++.so.*|libgcc_s.so.*) to=$folder/lib/gcc ;; *) to=$folder/lib ;; esac
         install -m 644 "$(readlink -f "$path")" "$to/$name" ;;
    esac
  done
for file in "$folder"/bin/* "$folder"/lib/*.so*; do strip --strip-unneeded "$file"; done
for file in "$folder"/bin/*; do
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib:$ORIGIN' "$file"
done
for file in "$folder"/lib/*.so*; do patchelf --force-rpath --set-rpath '$ORIGIN' "$file"; done
for file in "$folder"/bin/* "$folder"/lib/*.so*; do
  needs=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu |
    tail -n 1 || true)
  [[ $(printf '%s\n' "${needs:-0}" "$glibc_max" | sort -V | tail -n 1) == "$glibc_max" ]] ||
    fail "${file##*/} needs glibc $needs, want at most $glibc_max"
done

[[ -z $programs_only ]] || exit 0
mkdir -p "$folder"/{jobs,bench}
install -m 644 "$root"/deploy/bundle/jobs/*.yaml "$root/configs/examples/resnet50.yaml" \
  "$folder/jobs/"
install -m 755 "$root"/deploy/bundle/bench/*.py "$folder/bench/"
install -m 644 "$root"/LICENSE "$root"/deploy/bundle/README.md "$folder/"
install -m 755 "$root"/deploy/bundle/run "$root"/deploy/scripts/gpu_check.sh "$folder/"
packed=$out/evergrad-linux-x86_64.tar.gz
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - evergrad |
  gzip -6 >"$packed"
bytes=$(stat -c %s "$packed")
(( bytes <= packed_bytes_max )) || fail "$packed has $bytes bytes, want at most $packed_bytes_max"
echo "$packed: $(( bytes / 1000000 )) MB packed, $(du -sm "$folder" | cut -f1) MiB unpacked," \
  "${library:-without libevergrad_cuda.so}"
