#!/usr/bin/env bash
# Runs the README's two commands in a bare Debian 12 chroot, as a new user does: debootstrap, a
# clone of HEAD, `./evergrad train`, `./evergrad test`.
#
#   fresh.sh [--keep] [--only train|test] [--dir FOLDER]
#
# Creates FOLDER if it does not exist. Without --keep, the script removes its own files from FOLDER
# at the end, and no others. It needs root and debootstrap. At run time, the chroot gets the apt
# sources and proxy settings of the host; this file contains none of them. No other folder of the
# project is in the chroot, so a command that works in the chroot works in every new clone.
set -euo pipefail
fail() { echo "fresh.sh: $*" >&2; exit 2; }
keep=0 only='' dir=''
while (( $# )); do
  case $1 in
    --keep) keep=1 ;;
    --only)
      only=${2:-}; shift
      [[ $only == train || $only == test ]] || fail "--only $only: want train or test" ;;
    --dir)
      dir=${2:-}; shift
      [[ -n $dir ]] || fail "--dir wants a folder" ;;
    *) fail "unknown option $1" ;;
  esac
  shift
done
(( EUID == 0 )) || fail "a chroot needs root"
command -v debootstrap >/dev/null || fail "debootstrap is missing: run apt-get install debootstrap"
top=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)
made=
if [[ -z $dir ]]; then
  dir=$(mktemp -d -t evergrad-fresh.XXXXXX) made=1
elif [[ ! -d $dir ]]; then
  mkdir -p "$dir" && made=1
fi
dir=$(cd "$dir" && pwd)
root=$dir/root

# The first package archive that the host itself uses.
lists=(/etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list)
mirror=$(cat "${lists[@]}" 2>/dev/null | awk '
  /^URIs:/ {print $2; exit}
  /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; exit}}' || true)
[[ -n $mirror ]] || fail "no apt source found on this host"

mounts=()
cleanup() {
  local m
  for m in "${mounts[@]}"; do umount -l "$m" 2>/dev/null || true; done
  (( keep )) && return
  rm -rf --one-file-system "$root" "$dir/debootstrap.log"
  [[ -z $made ]] || rmdir "$dir"
}
trap cleanup EXIT

if [[ ! -x $root/usr/bin/apt-get ]]; then
  echo "== debootstrap into $root"
  if ! debootstrap --variant=minbase --include=git,ca-certificates bookworm "$root" "$mirror" \
    >"$dir/debootstrap.log" 2>&1; then
    tail -n 20 "$dir/debootstrap.log" >&2
    exit 1
  fi
fi
rm -rf "$root/etc/apt/sources.list.d" "$root/etc/apt/sources.list"
cp -a /etc/apt/sources.list.d "$root/etc/apt/"
[[ ! -f /etc/apt/sources.list ]] || cp /etc/apt/sources.list "$root/etc/apt/"
# Copies the proxy and certificate settings of the host's apt, if there are any, and then the
# keyrings and certificate authorities that the host's apt sources name.
{ grep -lE 'Acquire|Proxy' /etc/apt/apt.conf.d/* /etc/apt/apt.conf 2>/dev/null || true; } |
  while read -r f; do cp "$f" "$root/etc/apt/apt.conf.d/"; done
cp -a /usr/share/keyrings/. "$root/usr/share/keyrings/"
[[ ! -d /etc/apt/keyrings ]] || cp -a /etc/apt/keyrings "$root/etc/apt/"
cp -a /usr/local/share/ca-certificates "$root/usr/local/share/" 2>/dev/null || true
for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts; do
  cp -L "$file" "$root$file" 2>/dev/null || true
done
for m in proc sys dev; do
  mount --rbind "/$m" "$root/$m"
  mount --make-rslave "$root/$m"
  mounts=("$root/$m" "${mounts[@]}")
done
mkdir -p "$root/dev/shm"

rm -rf "$root/srv/evergrad"
git clone -q "$top" "$root/srv/evergrad"

environment=(HOME=/root LANG=C.UTF-8 CI=true
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [[ -n ${!name:-} ]] && environment+=("$name=${!name}")
done
for task in train test; do
  [[ -n $only && $only != "$task" ]] && continue
  echo "== ./evergrad $task in the chroot"
  begin=$SECONDS
  chroot "$root" env -i "${environment[@]}" \
    bash -c "cd /srv/evergrad && ./evergrad $task" </dev/null
  echo "== ./evergrad $task: $((SECONDS - begin)) s"
done
