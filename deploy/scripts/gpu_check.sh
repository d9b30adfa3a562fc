#!/bin/bash
# Checks a host with (or without) an NVIDIA GPU: devices, parity of every primitive with its definition, a memory checker where there is one, real
# training on a cluster of this host. Runs from a bundle (bundle.sh) or a checkout that is built. Prints a table and writes JSON.
#
#   gpu_check.sh [--only parity|train] [--device auto|cpu|gpu|gpu:N] [--out gpu_check.json]
#
# Ends with 0 when nothing failed. Without a GPU its rows are `skipped` with the reason, and what the CPU can do runs there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
only='' device=auto json=gpu_check.json
while (( $# )); do
  case $1 in
    --only) only=${2:-}; shift ;;
    --device) device=${2:-}; shift ;;
    --out) json=${2:-}; shift ;;
    -h|--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
case $only in ''|parity|train) ;; *) echo "gpu_check.sh: --only $only: want parity or train" >&2; exit 2 ;; esac
case $device in auto|cpu|gpu|gpu:[0-9]*) ;; *) echo "gpu_check.sh: --device $device: want auto, cpu, gpu or gpu:N" >&2; exit 2 ;; esac

if [[ -x $here/run ]]; then
  bin=$here/bin jobs=$here/jobs
  "$bin/psctl" --version >/dev/null 2>&1 || export LD_LIBRARY_PATH=$here/lib/gcc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  top=$(cd "$here/../.." && pwd)
  bin=$top/build/release/bin jobs=$top/deploy/bundle/jobs
fi
"$bin/psctl" --version >/dev/null || { echo "gpu_check.sh: $bin/psctl does not run here (above)" >&2; exit 2; }
# Where CUDA's libraries may be beside the places that the linker knows.
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib $(ls -d /usr/lib/python3*/site-packages/nvidia/*/lib /usr/local/lib/python3*/*-packages/nvidia/*/lib \
    "${VIRTUAL_ENV:-/nonexistent}"/lib/python3*/site-packages/nvidia/*/lib 2>/dev/null || true); do
  [[ -d $folder ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=() verdicts=() details=()
row() { names+=("$1"); verdicts+=("$2"); details+=("$3"); printf '%-44s %-8s %s\n' "$1" "$2" "$3"; }
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 || true; }

# ---- devices
gpu=
if "$bin/evergrad-worker" --list-devices >"$work/devices" 2>&1; then
  gpu=$(head -n 1 "$work/devices")
  while read -r line; do row "device" ok "$line"; done <"$work/devices"
  command -v nvidia-smi >/dev/null && row "driver" ok "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
else
  row "device" skipped "$(last_line "$work/devices")"
fi
cores=$(nproc)

# ---- parity: each primitive on the GPU with its definition in float64; a Catch2 program says how much of it ran, and what was skipped and why
if [[ $only != train ]]; then
  program=$bin/worker_backend_gpu_test status=0 begin=$SECONDS
  "$program" >"$work/parity" 2>&1 || status=$?
  said=$(grep -E 'assertions' "$work/parity" | tail -n 1 || true)
  skipped_because=$(grep -ohE 'no GPU[^"]*' "$work/parity" | head -n 1 || true)
  if (( status )) || [[ -z $said ]]; then
    row parity failed "rc=$status: ${said:-no assertion was made}"
    tail -n 30 "$work/parity"
  elif [[ -n $skipped_because ]]; then
    row parity skipped "$(grep -cE 'skipped: no GPU' "$work/parity") cases: $skipped_because"
  else
    row parity ok "$said, $(( SECONDS - begin )) s"
  fi
  if [[ -z $gpu ]]; then
    row "memory checker" skipped "no GPU"
  elif command -v compute-sanitizer >/dev/null; then
    if compute-sanitizer --error-exitcode 9 "$program" >"$work/sanitizer" 2>&1; then row "memory checker" ok "compute-sanitizer: $(last_line "$work/sanitizer")"
    else row "memory checker" failed "compute-sanitizer: $(last_line "$work/sanitizer")"; fi
  else
    row "memory checker" skipped "compute-sanitizer: not available"
  fi
fi

# ---- training: 2 workers and 2 servers on this host
field() { sed -nE 's/.*"'"$1"'":[[:space:]]*"?([^",}]*).*/\1/p' "$2" | head -n 1; }
train() {
  local job=$1 status=0 begin=$SECONDS
  "$bin/psctl" job run "$jobs/$job.yaml" --local --workers 2 --servers 2 --device "$device" --runs "$work/$job" </dev/null >"$work/$job.out" 2>&1 || status=$?
  if (( status )); then
    row "train: $job" failed "rc=$status: $(last_line "$work/$job.out")"
    tail -n 15 "$work/$job.out"
    return
  fi
  local result
  result=$(find "$work/$job" -name result.json | head -n 1)
  local on
  on=$(grep -rhoE 'computes on [^"]*' "$work/$job" | sort -u | head -n 1 || true)
  row "train: $job" ok "$(field examples_per_second "$result" | cut -d. -f1) examples/s, loss $(field loss "$result"), $(( SECONDS - begin )) s; ${on:-computes on an unknown device}"
}
if [[ $only != parity ]]; then
  train mlp
  train cnn
fi

failed=0 skipped=0
for v in "${verdicts[@]}"; do case $v in failed) failed=$(( failed + 1 )) ;; skipped) skipped=$(( skipped + 1 )) ;; esac; done
escape() { local s=${1//\\/\\\\}; s=${s//\"/\\\"}; printf '%s' "${s//$'\t'/ }"; }
{
  printf '{"cores": %d, "gpu": "%s", "failed": %d, "skipped": %d, "rows": [' "$cores" "$(escape "$gpu")" "$failed" "$skipped"
  for i in "${!names[@]}"; do
    (( i )) && printf ','
    printf '\n {"name": "%s", "verdict": "%s", "detail": "%s"}' "$(escape "${names[i]}")" "${verdicts[i]}" "$(escape "${details[i]}")"
  done
  printf '\n]}\n'
} >"$json"
echo "written: $json ($(( ${#names[@]} - failed - skipped )) ok, $failed failed, $skipped skipped, $SECONDS s)"
(( failed == 0 ))
